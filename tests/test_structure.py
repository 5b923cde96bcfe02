"""Data flows one way, between folders and between files."""

import ast
import functools
import graphlib
import re
from collections.abc import Collection, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "promptccd"

# A folder imports what stands to its left; ``reports`` and ``hub`` do not know each other.
ORDER = [
    ["on_demand", "version"], ["errors"], ["systems", "processes"], ["disk"], ["database"], ["locks"], ["images"],
    ["data"], ["models"], ["clustering"],
    ["methods"], ["pipeline"], ["training"], ["evaluation"], ["runs"], ["reports", "hub"], ["trainer"],
    ["discovery"], ["cli"],
]  # fmt: skip
RANK = {name: float(rank) for rank, names in enumerate(ORDER) for name in names}
RANK["training.options"] = RANK["methods"] - 0.6  # objectives read the options of a training
# Runs have categories too: of a project, they use the modules that know no photographs.
REGISTRY = "categories edits features observe registry rows store"
RANK["a registry"] = RANK["runs"] - 0.5


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


@functools.cache  # whoever only collects these tests parses packages alone
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def imported(name: str) -> set[tuple[str, str]]:
    """Module and name of everything a module imports of the package, type checking and functions included."""
    found = set()
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.ImportFrom):
            parent = name if name in PACKAGES else name.rpartition(".")[0]
            base = node.module or "" if node.level == 0 else f"{parent}.{node.module}"
            if base.split(".")[0] == "promptccd":
                found |= {(base, each.name) for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {(each.name, "") for each in node.names if each.name.startswith("promptccd.")}
    return found


EXPORTED = {package: {name: base for base, name in imported(package)} for package in PACKAGES}


def defined_in(base: str, name: str) -> str:
    """The module that a name comes from, through what packages export."""
    while name in EXPORTED.get(base, {}):
        base = EXPORTED[base][name]
    return f"{base}.{name}" if f"{base}.{name}" in MODULES else base


def named_in(base: str, name: str) -> str:
    """The module or package that an import runs: a package's own name is one of its ``__init__``."""
    is_module = f"{base}.{name}" in MODULES and name not in EXPORTED.get(base, {})
    return f"{base}.{name}" if is_module else base


@functools.cache
def depends() -> dict[str, set[str]]:
    """The modules that every module imports."""
    return {name: {named_in(*each) for each in imported(name)} - {name} for name in MODULES}


def part_of(module: str) -> str:
    """The part of `ORDER` that a module belongs to: its own, or that of its folder."""
    *folders, name = module.split(".")[1:]
    if folders == ["discovery", "project"] and name in REGISTRY.split():
        return "a registry"
    own = ".".join(module.split(".")[1:3])
    return own if own in RANK else module.split(".")[1]


def wrong_arrows(graph: Mapping[str, Collection[str]]) -> list[str]:
    """Imports of a part that does not stand to the left; the package itself has no place."""
    return [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if "." in name and "." in other
        if part_of(name) != part_of(other) and RANK[part_of(other)] >= RANK[part_of(name)]
    ]


def circle_in(graph: Mapping[str, Collection[str]]) -> list[str]:
    """Modules that import each other in a circle, the first one again at the end; empty where there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1][::-1]
    return []


def test_imports_point_left_and_never_in_a_circle() -> None:
    assert wrong_arrows(depends()) == []
    assert circle_in(depends()) == []


def test_no_circle_between_files_of_the_frontend() -> None:
    folder = ROOT / "frontend" / "src"
    texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.ts*")}
    imports = {name: re.findall(r'from "\./([\w.]+)"', text) for name, text in texts.items()}
    assert len(imports) > 10 and circle_in(imports) == []


def test_what_would_be_wrong_is_found() -> None:
    graph = {
        "promptccd": ["promptccd.data"],
        "promptccd.data": ["promptccd.data.one"],
        "promptccd.data.one": [],
        "promptccd.models": ["promptccd.data.one"],
        "promptccd.cli.two": ["promptccd", "promptccd.models"],
    }
    assert wrong_arrows(graph) == circle_in(graph) == []
    to_the_right = {**graph, "promptccd.data.one": ["promptccd.models"]}
    assert wrong_arrows(to_the_right) == ["promptccd.data.one imports promptccd.models"]
    assert circle_in(to_the_right) == ["promptccd.data.one", "promptccd.models", "promptccd.data.one"]
    beside = {"promptccd.hub.push": ["promptccd.reports.report"]}
    assert wrong_arrows(beside) == ["promptccd.hub.push imports promptccd.reports.report"]


def test_imports_are_read_as_they_run() -> None:
    """By packages, by siblings, in functions and for type checkers."""
    assert "promptccd.methods" in depends()["promptccd.training.recipe"]  # in a function
    assert "promptccd.models.backbone" in depends()["promptccd.models.base"]  # ``from .backbone``
    assert "promptccd.trainer" in depends()["promptccd"]  # for type checkers
    assert sum(map(len, depends().values())) > 3 * len(MODULES) > 300


# What some system lacks or does otherwise, with the modules that have it.
LACKING = {
    "os": "O_NOFOLLOW O_NONBLOCK O_CLOEXEC O_DIRECTORY O_BINARY fdatasync rename replace link chmod fchmod chown "
    "pread pwrite kill killpg setpgid getpgid setsid fork forkpty wait waitpid getuid geteuid getgid statvfs sysconf "
    "pathconf getloadavg uname sched_getaffinity mkfifo symlink readlink name umask nice",
    "sys": "platform getwindowsversion",
    "socket": "SO_REUSEADDR SO_REUSEPORT SO_EXCLUSIVEADDRUSE AF_UNIX",
    "platform": "system win32_ver mac_ver uname",
    "multiprocessing": "get_context set_start_method Process Pool forkserver context",
    "stat": "IO_REPARSE_TAG_SYMLINK FILE_ATTRIBUTE_REPARSE_POINT",
}
ABSENT_MODULES = "fcntl resource winreg pwd grp termios select signal ctypes psutil"


def platform_names(tree: ast.Module) -> set[str]:
    """What a module says that only one system, or not every one, understands."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Attribute):
            found.add(f"{ast.unparse(node.value)}.{node.attr}")
    lacking = {f"{base}.{name}" for base, names in LACKING.items() for name in names.split()}
    return {name for name in found if name in lacking or name.split(".")[0] in ABSENT_MODULES.split()}


def test_two_modules_know_the_platform() -> None:
    said = {name: names for name in MODULES if (names := platform_names(tree_of(name)))}
    assert set(said) == {"promptccd.systems", "promptccd.processes"}, said
    assert {"os.O_NOFOLLOW", "sys.platform", "os.replace"} <= said["promptccd.systems"]
    assert {"signal", "multiprocessing.get_context"} <= said["promptccd.processes"]


def test_no_path_of_a_machine_in_the_project() -> None:
    recipes = (ROOT / "hub_configs").rglob("*.yaml")
    for path in [*MODULES.values(), *ROOT.glob("*.md"), *ROOT.glob("*.toml"), *recipes]:
        assert not re.search("/(home|root|tmp|Users)/", path.read_text(encoding="utf-8")), path

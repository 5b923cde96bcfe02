"""Data flows one way, between folders and between files, and what travels to the Hub travels alone."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "promptccd"

# A folder imports what stands to its left; ``experiments`` and ``hub`` do not know each other.
ORDER = [
    ["on_demand"], ["errors"], ["storage"], ["models"], ["data"], ["pipeline"], ["clustering"], ["training"],
    ["evaluation"], ["registry"], ["runs"], ["experiments", "hub"], ["trainer"], ["discovery"], ["cli"],
]  # fmt: skip
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
MOST_MODULES = 209


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


def imported(name: str) -> set[tuple[str, str]]:
    """Module and name of everything a module imports of the package, type checking and functions included."""
    found = set()
    for node in ast.walk(TREES[name]):
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
    if f"{base}.{name}" in MODULES and EXPORTED.get(base, {}).get(name) is None:
        return f"{base}.{name}"
    while base in PACKAGES and name in EXPORTED[base]:
        base = EXPORTED[base][name]
    return base


DEPENDS = {
    name: {defined_in(*each) for each in imported(name)} - {name} for name in MODULES if name not in PACKAGES
}


def part_of(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("name", DEPENDS)
def test_imports_point_left(name: str) -> None:
    own = part_of(name)
    for other in map(part_of, DEPENDS[name] - {"promptccd"}):
        assert own == other or RANK[other] < RANK[own], (
            f"{own} imports {other}, which does not stand to its left"
        )


def test_no_circle_between_files() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        for other in DEPENDS.get(name, ()):
            visit(other, (*path, name))
        done.add(name)

    for name in DEPENDS:
        visit(name, ())


def test_a_file_is_worth_opening() -> None:
    importers = defaultdict(set)
    for name, others in DEPENDS.items():
        for other in others:
            importers[other].add(name)
    lonely = [name for name in DEPENDS if len(importers[name]) == 1]
    assert len(lonely) <= 50, lonely
    assert len(MODULES) <= MOST_MODULES


@pytest.mark.parametrize("path", sorted((SOURCE / "models").glob("[!_]*.py")), ids=lambda path: path.name)
def test_models_import_siblings_and_third_parties_only(path: Path) -> None:
    """transformers carries a model's code to the Hub by following ``from .sibling import name`` alone."""
    name = module_of(path)
    assert {part_of(other) for other in DEPENDS.get(name, ())} <= {"models"}
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.ImportFrom):
            if not node.level:
                assert (node.module or "").split(".")[0] != "promptccd"
                continue
            assert node.level == 1, "only flat siblings travel"
            assert node.module, "`from . import x` is not followed"
            assert "." not in node.module, "only flat siblings travel"


def test_every_folder_has_its_place() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= set(RANK)


def test_train_script_is_short() -> None:
    script = ROOT / "train.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) < 60


def test_no_path_of_a_machine_in_the_project() -> None:
    texts = [
        *MODULES.values(),
        *ROOT.glob("*.md"),
        *ROOT.glob("*.toml"),
        *(ROOT / "hub_configs").rglob("*.yaml"),
    ]
    for path in texts:
        for root_folder in ("/home/", "/root/", "/tmp/", "/Users/"):
            assert root_folder not in path.read_text(encoding="utf-8"), path

"""The map of CONTRIBUTING, and the table of a training step, are those of the source."""

import ast
import re

from tests.docs.pages import ROOT, blocks, section
from tests.test_structure import ORDER, SOURCE, defined_in, imported

MOST_CONCEPTS, MOST_FILES = 9, 3


def test_arrows_are_those_that_are_checked_and_every_folder_has_its_line_in_their_order() -> None:
    arrows, lines = blocks(section("The map"))
    assert [re.findall(r"\w+", each) for each in arrows.split("->")] == ORDER
    named = [line.split()[0] for line in lines.splitlines()]
    files = {path.name for path in SOURCE.glob("*.py")} - {"__init__.py", "__main__.py"}
    folders = {f"{path.parent.relative_to(SOURCE).as_posix()}/" for path in SOURCE.rglob("__init__.py")}
    assert set(named) == folders - {"./"} | files
    assert len(named) == len(set(named))
    top = [name.removesuffix("/").removesuffix(".py") for name in named if name.count("/") < 2]
    assert top == [name for rank in ORDER for name in rank]
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines.splitlines())


def test_targets_of_make_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"make ([a-z][\w-]*)", "".join(blocks(section("Set up and check"), "bash"))))
    assert named >= {"lint", "test", "test-all", "mutants", "faults"}
    assert named <= targets


def names_in(module: str, function: str) -> set[str]:
    """Names of this package that a function uses, its own with them, and those of its arguments."""
    name = f"promptccd.{module.removesuffix('.py').replace('/', '.')}"
    tree = ast.parse((SOURCE / module).read_text(encoding="utf-8"))
    ours = {each: defined_in(base, each) for base, each in imported(name)}
    ours |= {node.name: name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    [found] = [
        node
        for parent in [tree, *tree.body]
        for node in getattr(parent, "body", [])
        if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    owner = next((node.name for node in tree.body if found in getattr(node, "body", [])), function)
    used = {node.id for node in ast.walk(found) if isinstance(node, ast.Name)}
    return (used & set(ours)) | {owner}


def test_a_training_step_is_the_names_of_the_table() -> None:
    text = section("One training step", "docs/method.md")
    table = re.findall(r"^\| (.+?) \| (.+?) \|$", text, re.MULTILINE)[1:]
    listed = [name for _, names in table for name in re.findall(r"`(\w+)`", names)]
    step = names_in("methods/processes.py", "of")
    for function in ("losses", "contrast"):
        step |= names_in("methods/base.py", function)
    assert set(listed) == step
    assert len(listed) <= MOST_CONCEPTS
    files = [re.fullmatch(r"`(.+)`", place)[1] for place, _ in table if place.startswith("`")]
    assert len(files) <= MOST_FILES
    for place, names in table:
        for name in re.findall(r"`(\w+)`", names) if place.startswith("`") else ():
            source = (SOURCE / place.strip("`")).read_text(encoding="utf-8")
            assert re.search(rf"^(?:class|def) {name}\b", source, re.MULTILINE), f"{name} is not in {place}"

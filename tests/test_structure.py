"""Data flows one way: a folder imports what stands to its left."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "promptccd"
ORDER = [
    "errors", "storage", "data", "models", "pipeline", "clustering", "training", "evaluation", "registry", "runs",
    "reports", "discovery", "hub", "app", "cli",
]  # fmt: skip
FILES = sorted(SOURCE.rglob("*.py"))


def imported_parts(path: Path) -> set[str]:
    """Folders (or root modules) of the package that a file imports absolutely."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        parts |= {name.split(".")[1] for name in names if name.startswith("promptccd.")}
    return parts


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_left(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    for part in imported_parts(path):
        assert ORDER.index(part) <= ORDER.index(own), f"{own} imports {part}, which stands to its right"


@pytest.mark.parametrize("path", sorted((SOURCE / "models").glob("*.py")), ids=lambda path: path.name)
def test_models_import_siblings_and_third_parties_only(path: Path) -> None:
    """transformers carries a model's code to the Hub by following ``from .sibling import name`` alone."""
    assert not imported_parts(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1, "only flat siblings travel"
            assert node.module, "`from . import x` is not followed"
            assert "." not in node.module, "only flat siblings travel"


def test_every_folder_has_its_place() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= set(ORDER)


def test_train_script_is_short() -> None:
    script = SOURCE.parent.parent / "train.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) < 60


def test_no_path_of_a_machine_in_the_project() -> None:
    root = SOURCE.parent.parent
    texts = [*FILES, *root.glob("*.md"), *root.glob("*.toml"), *(root / "hub_configs").glob("*")]
    for path in texts:
        for root_folder in ("/home/", "/root/", "/tmp/", "/Users/"):
            assert root_folder not in path.read_text(encoding="utf-8"), path

"""The bundle that is committed is what its sources give, and its words are in one file."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import promptccd.discovery.page

SOURCES = Path(__file__).parents[3] / "frontend"
BUNDLE = Path(promptccd.discovery.page.__file__).parent / "bundle"


def test_the_sources_give_the_bundle(tmp_path: Path) -> None:
    if shutil.which("node") is None or not (SOURCES / "node_modules").is_dir():
        pytest.skip("needs Node, and npm ci in frontend/")
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=SOURCES, check=True)
    built = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert built == {each.name: each.read_bytes() for each in BUNDLE.iterdir()}


def test_no_word_of_the_page_is_in_its_code() -> None:
    for path in SOURCES.glob("src/*.tsx"):
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
        shown = re.findall(r"(?<!=)>\s*([A-Za-z][A-Za-z ]{2,})\s*<", code)
        named = re.findall(r'(?:title|placeholder|aria-label|alt|label)="([^"]+)"', code)
        assert {*shown, *named} <= {"Esc", "Del", "Ctrl A", "M", "G", "B", "W", "L", "X", "F", "Z"}, path


def test_every_text_is_used_and_every_use_has_its_text() -> None:
    texts = json.loads((SOURCES / "src/texts.en.json").read_text())
    code = "".join(path.read_text() for path in SOURCES.glob("src/*.ts*") if path.suffix != ".json")
    words = set(re.findall(r'"(\w+)"', code))
    others = {name for name in texts if not name.startswith("did.")}
    assert [name for name in others - words if name.removesuffix("Photos") not in words] == []  # of a place


def test_the_lock_names_no_registry_and_versions_are_pinned() -> None:
    assert '"resolved"' not in (SOURCES / "package-lock.json").read_text()
    package = json.loads((SOURCES / "package.json").read_text())
    versions = [*package["dependencies"].values(), *package["devDependencies"].values()]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
    assert "MIT" in (BUNDLE / "licences.txt").read_text()

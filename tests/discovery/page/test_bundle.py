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


def test_the_lock_names_no_registry_and_versions_are_pinned() -> None:
    assert '"resolved"' not in (SOURCES / "package-lock.json").read_text()
    package = json.loads((SOURCES / "package.json").read_text())
    versions = [*package["dependencies"].values(), *package["devDependencies"].values()]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
    assert "MIT" in (BUNDLE / "licences.txt").read_text()

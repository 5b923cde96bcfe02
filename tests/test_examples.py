"""The scripts of ``examples/`` as a person runs them: in a process of their own, on little."""

import csv
import json
import shlex
import sys
from pathlib import Path

import pytest

from promptccd.cli.main import main as run_command
from promptccd.cli.main import parse
from tests.discovery.conftest import write_pictures
from tests.docs.pages import ROOT
from tests.processes import ended


def run_example(name: str, *words: object) -> str:
    """What it prints."""
    done = ended(sys.executable, str(ROOT / "examples" / name), *map(str, words), timeout=200)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "can't save" not in done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_demo_ends_with_a_page_and_commands_that_work(tmp_path: Path) -> None:
    said = run_example("demo.py", "--out", tmp_path / "run", "--epochs", 1)
    found = json.loads((tmp_path / "run/report/report.json").read_text())["sections"]
    assert len(found["discovered"]) > 0
    assert any(row["variant"].startswith("frozen start") for row in found["compared"])
    assert 'id="compared"' in (tmp_path / "run/report/index.html").read_text(encoding="utf-8")
    for row in found["compared"]:
        assert f"{row['variant']} {row['old']:.1f} {row['new']:.1f}" in " ".join(said.split())
    assert str(tmp_path / "run/report/index.html") in said
    commands = [line.strip() for line in said.split("Next:")[1].splitlines() if "promptccd" in line]
    for command in commands:
        parse(shlex.split(command)[1:])
    assert run_command(shlex.split(commands[0])[1:]) == 0


@pytest.mark.slow
def test_my_own_prompt(recipe_file: Path, tmp_path: Path) -> None:
    """The card says where its code is from, although it was run as a script; the code does not travel."""
    said = run_example("my_own_prompt.py", "--config", recipe_file, "--out", tmp_path / "run")
    assert "'all': " in said
    stage = tmp_path / "run" / "stage3"
    config = json.loads((stage / "config.json").read_text())
    assert config["strength"] == 0.5
    assert [path.name for path in stage.glob("*.py")] == ["handler.py"]
    assert "import my_own_prompt" in (stage / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["backbone", "stage"])
def test_my_photos(place: str, backbone_folder: Path, trained_run: Path, tmp_path: Path) -> None:
    album = write_pictures(tmp_path / "photos", [0, 1, 4], seed=3)
    model = backbone_folder if place == "backbone" else trained_run / "stage3"
    out = tmp_path / "found"
    said = run_example("my_photos.py", album, "--model", model, "--out", out)
    rows = list(csv.DictReader((out / "assignments.csv").read_text().splitlines()))
    assert len(rows) == len(list(album.iterdir()))
    assert any(row["name"] == "most of them" for row in rows)
    assert len(list((out / "folders").rglob("*.png"))) == len(rows)
    assert ("(known)" in said) == (place == "stage")

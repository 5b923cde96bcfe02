"""docs/own_images.md, typed as it stands."""

import json
import shlex
from pathlib import Path

import pytest

from promptccd.cli.main import main
from tests.conftest import coloured_images
from tests.contributing import ROOT

DOC = (ROOT / "docs" / "own_images.md").read_text(encoding="utf-8")
FIRST, COMPARISON, SWEEP, STREAMS = (
    [line for line in block.split("```")[0].splitlines() if line] for block in DOC.split("```bash\n")[1:]
)
# A small folder of plain colours learns as well in one epoch, and says as much of the commands.
SOONER = "--epochs 1 --kmeans_restarts 1 --projection_output_size 64 --projection_hidden_size 32"


@pytest.mark.slow
def test_every_command_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for number, record in enumerate(coloured_images(20, 12)):
        place = tmp_path / "my_photos" / f"kind {record['label']:02d}" / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        record["image"].save(place)
    new = tmp_path / "new_photos"
    new.mkdir()
    for number, record in enumerate(coloured_images(3, 2)):
        record["image"].save(new / f"{number}.png")
    assert [line.split()[1] for line in FIRST] == shlex.split("split train evaluate report predict verify")
    for line in [*FIRST, *COMPARISON]:
        words = shlex.split(line)[1:] + (shlex.split(SOONER) if " train " in line else [])
        assert main(words) == 0, line
    (line,) = SWEEP  # which tests/runs/test_sweep.py trains
    assert main([*shlex.split(line)[1:], "--dry-run"]) == 0
    run = tmp_path / "runs" / "promptccd-my_photos"
    card = (run / "stage2" / "README.md").read_text(encoding="utf-8")
    assert "images from a local folder" in card
    assert "benchmark" not in card
    assert json.loads((run / "manifest.json").read_text())["recipe"]["data"]["benchmark"] is None
    assert "local folder" in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    comparison = (tmp_path / "comparison" / "index.html").read_text(encoding="utf-8")
    assert all(f"{name}-my_photos" in comparison for name in ("promptccd", "promptccd-gcd", "simgcd"))
    assert "MISMATCH" not in capsys.readouterr().out


@pytest.mark.slow
def test_streams_are_added_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for number, record in enumerate(coloured_images(4, 40)):
        place = number // 4
        home = (
            f"labelled/kind {record['label']}"
            if place < 16 and record["label"] < 3
            else f"week0{place % 4 + 1}"
        )
        (tmp_path / home).mkdir(parents=True, exist_ok=True)
        record["image"].save(tmp_path / home / f"{number}.png")
    first = next((tmp_path / "week01").iterdir())
    (tmp_path / "validated.csv").write_text(f"path,label\nweek01/{first.name},moth\n")
    assert [line.split()[1] for line in STREAMS] == ["train", "train", "train", "evaluate"]
    for line in STREAMS:
        words = shlex.split(line)[1:] + (shlex.split(SOONER) if "labelled/" in line else [])
        assert main(words) == 0, line
    said = capsys.readouterr().out
    assert "no accuracy is known" in said
    assert "held-out labelled images" in said
    assert len(list((tmp_path / "runs" / "promptccd-labelled").glob("stage*"))) == 5

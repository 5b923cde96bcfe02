"""What was written on one system is read on the others: paths of either, and projects that were moved."""

import csv
import json
import sqlite3
from contextlib import closing
from pathlib import Path, PureWindowsPath

import pytest

from promptccd.cli.main import main
from promptccd.discovery.intake.seen import SEEN
from tests.discovery.conftest import write_pictures


@pytest.mark.moderate
def test_a_project_from_windows_is_opened_corrected_and_found_again(tmp_path, capsys):
    """Its record holds the paths of that computer; the photographs are not here, or elsewhere."""
    album, out, there = tmp_path / "album", str(tmp_path / "groups"), PureWindowsPath("C:/Users/me/album")
    write_pictures(album, [0], per_category=4)
    write_pictures(album / "deep", [1], per_category=4)
    assert main(["discover", "photographs", str(album), "--out", out]) == 0
    kept = tmp_path / "groups/.promptccd"
    with closing(sqlite3.connect(kept / SEEN)) as database:
        paths = [path for (path,) in database.execute("select path from file")]
        parts = [Path(path.decode()).relative_to(album).parts for path in paths]
        renamed = [(str(there.joinpath(*of)).encode(), path) for of, path in zip(parts, paths, strict=True)]
        database.executemany("update file set path = ? where path = ?", renamed)
        database.commit()
    record = json.loads((kept / "project.json").read_text())
    record["sources"] = [str(there)]
    (kept / "project.json").write_text(json.dumps(record))
    names = sorted(path.name for path in album.rglob("*.png"))
    assert main(["categories", out, "list"]) == 0
    assert main(["categories", out, "rename", "0", "heron"]) == 0
    for place in ("deep\\", "deep/", "C:\\Users\\me\\album\\deep\\"):
        assert main(["categories", out, "confirm", f"{place}{names[-1]}"]) == 0, place
    assert main(["categories", out, "confirm", names[0]]) == 0
    assert "heron" in capsys.readouterr().out
    assert main(["discover", "photographs", str(album), "--out", out]) == 0
    with (tmp_path / "groups/assignments.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert sorted(row["file"] for row in rows)[-1].startswith("deep/")
    assert {row["path"] for row in rows} == {str(path) for path in album.rglob("*.png")}

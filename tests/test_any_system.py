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


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Groups, made by the small backbone that comes along."""
    place = tmp_path_factory.mktemp("project")
    write_pictures(place / "album", [0, 1], per_category=4)
    (place / "album" / "deep").mkdir()
    for path in sorted((place / "album").glob("1-*.png")):
        path.rename(place / "album" / "deep" / path.name)
    assert main(["discover", "photographs", str(place / "album"), "--out", str(place / "groups")]) == 0
    return place


@pytest.mark.moderate
def test_a_project_from_windows_is_opened_corrected_and_found_again(project, capsys):
    """Its record holds the paths of that computer; the photographs are not here, or elsewhere."""
    kept, there = project / "groups/.promptccd", PureWindowsPath("C:/Users/me/album")

    def on_windows(path: str) -> str:
        return str(there.joinpath(*Path(path).relative_to(project / "album").parts))

    with closing(sqlite3.connect(kept / SEEN)) as database:
        paths = [path for (path,) in database.execute("select path from file")]
        renamed = [(on_windows(path.decode()).encode(), path) for path in paths]
        database.executemany("update file set path = ? where path = ?", renamed)
        database.commit()
    record = json.loads((kept / "project.json").read_text())
    record["sources"] = [str(there)]
    (kept / "project.json").write_text(json.dumps(record))
    names = sorted(path.name for path in (project / "album").rglob("*.png"))
    out = str(project / "groups")
    assert main(["categories", out, "list"]) == 0
    assert main(["categories", out, "rename", "0", "heron"]) == 0
    for place in ("deep\\", "deep/", "C:\\Users\\me\\album\\deep\\"):
        assert main(["categories", out, "confirm", f"{place}{names[-1]}"]) == 0, place
    assert main(["categories", out, "confirm", names[0]]) == 0
    assert "heron" in capsys.readouterr().out
    assert main(["discover", "photographs", str(project / "album"), "--out", out]) == 0
    with (project / "groups/assignments.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert sorted(row["file"] for row in rows)[-1].startswith("deep/")
    assert {row["path"] for row in rows} == {str(path) for path in (project / "album").rglob("*.png")}

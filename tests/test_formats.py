"""Files of every format and system are read; of a format from the future it is said which version reads it."""

import csv
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path, PureWindowsPath

import pytest

from promptccd.cli.main import main
from promptccd.data.splits import CategorySplit
from promptccd.discovery import DiscoverySession
from promptccd.discovery.checkpoint import load_progress
from promptccd.discovery.intake.seen import SEEN
from promptccd.errors import PromptCCDError, RunError
from promptccd.runs import RunDirectory
from promptccd.training.progress import read_history
from tests.discovery.conftest import write_pictures
from tests.discovery.stored import registry_in
from tests.messages import TEXT

FOUND = "found/.promptccd"


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A copy of what version 0.1.0 wrote: the records of a run, a state inside a stage, a discovery."""
    return Path(shutil.copytree(Path(__file__).with_name("golden"), tmp_path / "golden"))


def split_in(folder: Path) -> CategorySplit:
    return CategorySplit.from_dict(json.loads((folder / "split.json").read_text()))


@pytest.mark.fault(10)
def test_a_run_and_a_discovery_of_format_1_are_read(golden: Path, backbone_folder: Path) -> None:
    run = RunDirectory(golden / "run")
    assert (run.recipe.training.epochs, run.num_stages, run.manifest["seed"]) == (2, 2, 1)
    assert [row.stage for row in run.results.stages] == [1]
    assert [(each.stage, each.epoch) for each in read_history(run.path)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert split_in(run.path).fingerprint == run.manifest["split_fingerprint"]
    loaded = run.load_state(1)
    assert loaded is not None
    assert (loaded[0].epoch, loaded[0].step, loaded[0].tensors["weight"].tolist()) == (3, 7, [0, 1, 2])
    assert loaded[1] == 1.5

    registry = registry_in(golden / "found")
    assert (registry.category(0).name, registry.category(1).name) == ("$(touch pwned)", "egret")
    with pytest.raises(RunError, match=TEXT["found-with-another-model"]):  # so that was read
        load_progress(DiscoverySession.open(backbone_folder), golden / "found")


READERS: dict[str, Callable[[Path], object]] = {
    "run/manifest.json": lambda folder: RunDirectory(folder / "run").manifest,
    "run/split.json": lambda folder: split_in(folder / "run"),
    f"{FOUND}/project.json": lambda folder: load_progress(None, folder / "found"),  # type: ignore[arg-type]
    f"{FOUND}/categories.sqlite": lambda folder: registry_in(folder / "found"),
}


@pytest.mark.fault(10)
@pytest.mark.parametrize("name", READERS)
def test_of_a_newer_format_it_is_said_which_version_reads_it(golden: Path, name: str) -> None:
    if name.endswith(".json"):
        values = json.loads((golden / name).read_text())
        assert values["format"] == 1
        (golden / name).write_text(json.dumps({**values, "format": 2}))
    else:
        with closing(sqlite3.connect(golden / name)) as database:
            database.execute("pragma user_version = 2")
    before = sorted(golden.rglob("*"))
    with pytest.raises(PromptCCDError) as error:
        READERS[name](golden)
    assert TEXT["has-format-2-and-this-version-2"] in str(error.value)
    assert str(error.value).endswith("pip install --upgrade promptccd.")
    assert sorted(golden.rglob("*")) == before  # nothing was moved aside as if it were damaged


@pytest.mark.fault(10)
def test_a_stage_of_a_newer_format_is_neither_predicted_with_nor_trained_again(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    sums = run / "stage1" / "checksums.json"
    sums.write_text(json.dumps({**json.loads(sums.read_text()), "format": 2}))
    assert main(["predict", str(run / "stage1"), str(tmp_path)]) == 2
    assert TEXT["pip-install-upgrade-promptccd"] in capsys.readouterr().err
    with pytest.raises(RunError, match=TEXT["pip-install-upgrade-promptccd"]):
        RunDirectory(run).stages_on_disk()
    assert sums.exists()


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

"""The folder of a run: states that outlive a crash anywhere, and nothing that was laid there is followed."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from promptccd.errors import PromptCCDError, RunError
from promptccd.reports import plan_cells, run_sweep
from promptccd.reports.sweep import ProtocolScoring
from promptccd.runs import RunDirectory, RunEvaluation, train_run
from promptccd.runs.start import record_of
from promptccd.training.recipe import Recipe
from tests.conftest import quick_recipe
from tests.messages import TEXT


def test_folders_of_a_recipe_move_with_their_run(tmp_path: Path) -> None:
    """They are recorded relative to the run, and read back as they are stored, without a way through the run."""
    there = tmp_path / "here" / "labelled", tmp_path / "here" / "week 1"
    for folder in there:
        folder.mkdir(parents=True)
    recipe = Recipe.from_dict({"data": {"dataset": str(there[0]), "unlabelled": [str(there[1])]}})
    run = RunDirectory(tmp_path / "here" / "runs" / "one")
    run.path.mkdir(parents=True)
    records = {"format": 1, "split_fingerprint": "", "data_fingerprint": "", "versions": {}}
    run.write("manifest.json", {**records, "recipe": record_of(recipe, run.path)})
    moved = (tmp_path / "here").rename(tmp_path / "moved")
    data = RunDirectory(moved / "runs" / "one").recipe.data
    assert (data.dataset, data.unlabelled) == (str(moved / "labelled"), [str(moved / "week 1")])


def test_a_damaged_table_of_scores_is_refused_before_anything_trains(
    image_folder: Path, backbone_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(RunError, match=TEXT["results-json-in-is-damaged"]):
        train_run(Recipe.from_dict(quick_recipe(image_folder, backbone_folder, tmp_path)))
    assert not (tmp_path / "history.jsonl").exists()


def test_a_folder_in_a_record_is_not_written_to(trained_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["recipe"]["training"]["image_cache"] = str(tmp_path / "of a stranger")
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert RunDirectory(run).recipe.training.image_cache == "auto"
    RunEvaluation(str(run), dataset=str(RunDirectory(trained_run).recipe.data.dataset))
    assert not (tmp_path / "of a stranger").exists()


def train(values: dict, folder: Path) -> None:
    values["training"]["output_dir"] = str(folder / "run")
    train_run(Recipe.from_dict(values))


def sweep(values: dict, folder: Path) -> None:
    (folder / "recipe.json").write_text(json.dumps(values))
    cells = plan_cells([folder / "recipe.json"], [1], {}, folder / "sweep")
    run_sweep(cells, folder / "sweep", scorings=[ProtocolScoring("gcd")], baselines=True)


@pytest.mark.moderate
@pytest.mark.parametrize(
    ("write", "name"),
    [
        *((train, f"run/{name}") for name in ("results.json", "stage1", "resume", "history.jsonl", "logs")),
        *(
            (sweep, f"sweep/recipe-seed1{name}")
            for name in ("", "/train.log", "/baselines.json", "/score-gcd.json")
        ),
    ],
)
def test_nothing_is_written_through_a_link(
    image_folder: Path, backbone_folder: Path, tmp_path: Path, write: Callable[[dict, Path], None], name: str
) -> None:
    """The link is replaced or refused."""
    link = tmp_path / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "absent")
    with contextlib.suppress(PromptCCDError):
        write(quick_recipe(image_folder, backbone_folder, tmp_path / "unused"), tmp_path)
    assert not (tmp_path / "absent").exists()

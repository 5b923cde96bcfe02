"""The folder of a run: states that outlive a crash anywhere, and nothing that was laid there is followed."""

import contextlib
import json
from pathlib import Path

import pytest

from promptccd.errors import PromptCCDError, RunError
from promptccd.reports import plan_cells, run_sweep
from promptccd.reports.sweep import ProtocolScoring
from promptccd.runs import RunDirectory, train_run
from promptccd.training.recipe import Recipe
from tests.conftest import quick_recipe


@pytest.mark.parametrize("name", ["manifest.json", "results.json", "split.json"])
def test_a_damaged_record_is_refused(tmp_path: Path, name: str) -> None:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    (run.path / name).write_text('{"stages": [')
    with pytest.raises(RunError, match=f"{name} in .* is damaged: .* Restore it from a copy"):
        run.read(name)


@pytest.mark.moderate
@pytest.mark.parametrize("name", ["results.json", "stage1", "resume", "history.jsonl", "logs"])
def test_a_run_writes_nothing_through_a_link(
    image_folder: Path, backbone_folder: Path, tmp_path: Path, name: str
) -> None:
    """It replaces the link, or refuses it."""
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(tmp_path / "absent")
    with contextlib.suppress(PromptCCDError):
        train_run(Recipe.from_dict(quick_recipe(image_folder, backbone_folder, run)))
    assert not (tmp_path / "absent").exists()


@pytest.mark.moderate
@pytest.mark.parametrize(
    "name",
    ["recipe-seed1", "recipe-seed1/train.log", "recipe-seed1/baselines.json", "recipe-seed1/score-gcd.json"],
)
def test_a_sweep_writes_nothing_through_a_link(
    image_folder: Path, backbone_folder: Path, tmp_path: Path, name: str
) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(quick_recipe(image_folder, backbone_folder, tmp_path / "unused")))
    link = tmp_path / "sweep" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "absent")
    with contextlib.suppress(PromptCCDError):
        cells = plan_cells([recipe], [1], {}, tmp_path / "sweep")
        run_sweep(cells, tmp_path / "sweep", scorings=[ProtocolScoring("gcd")])
    assert not (tmp_path / "absent").exists()

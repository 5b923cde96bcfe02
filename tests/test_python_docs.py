"""docs/python.md as its readers use it: every block runs, one after another, and leaves what the text says."""

import json
from pathlib import Path
from typing import Any

import pytest

from promptccd.methods import METHODS
from promptccd.runs import RunDirectory, load_model
from promptccd.training.callbacks import read_history
from tests.contributing import ROOT, blocks

Page = dict[str, Any]


def run_of(page: Page, name: str) -> RunDirectory:
    return RunDirectory(page["folder"] / name)


def check_a_first_training(page: Page) -> None:
    assert [row.stage for row in page["results"].stages] == [1, 2, 3]
    assert page["results"].to_dict() == run_of(page, "out").results.to_dict()
    assert load_model(run_of(page, "out").stage(3)).config.num_known == 7


def check_a_data_set_of_ones_own(page: Page) -> None:
    run = run_of(page, "colours")
    assert run.results.to_dict() == page["colours_found"].to_dict()
    assert page["inductive"].protocol == "inductive"
    assert load_model(run.stage(1)).config.category_names[:3] == ["red", "green", "blue"]
    assert "a data set given from Python" in (run.stage(1) / "README.md").read_text(encoding="utf-8")


def check_a_callback_ends_a_training_that_goes_on(page: Page) -> None:
    assert (page["first"].stages, [row.stage for row in page["second"].stages]) == ([], [1])
    losses = [record.losses["loss"] for record in read_history(run_of(page, "stopped").path)]
    assert page["stopper"].losses == pytest.approx(losses)


def check_a_backbone_of_ones_own(page: Page) -> None:
    run = run_of(page, "own-backbone")
    assert page["kept"].to_dict() == run.results.to_dict()
    assert run.recipe.model.backbone == str(run.backbone)
    config = json.loads((run.stage(1) / "config.json").read_text())
    assert config["vision_config"]["hidden_size"] == 48


def check_an_objective_of_ones_own(page: Page) -> None:
    run = run_of(page, "own-objective")
    assert run.manifest["recipe"]["model"]["variant"] == "gcd-spread"
    assert all("crowding" in record.losses for record in read_history(run.path))
    assert page["spread"].stage == 1


@pytest.mark.slow
def test_every_block_runs_and_leaves_what_the_text_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test, for the blocks of the page need one another and take a quarter of a minute together."""
    monkeypatch.chdir(tmp_path)
    page: Page = {"folder": tmp_path}
    try:
        for code in blocks((ROOT / "docs" / "python.md").read_text(encoding="utf-8"), "python"):
            exec(compile(code, "docs/python.md", "exec"), page)
    finally:
        METHODS.pop("gcd-spread", None)
    for check in (
        check_a_first_training,
        check_a_data_set_of_ones_own,
        check_a_callback_ends_a_training_that_goes_on,
        check_a_backbone_of_ones_own,
        check_an_objective_of_ones_own,
    ):
        check(page)

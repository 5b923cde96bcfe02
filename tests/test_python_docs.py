"""docs/python.md as its readers use it: every block runs, one after another, and leaves what the text says."""

import json
from pathlib import Path

import pytest

from promptccd.runs import RunDirectory, load_model
from promptccd.training.history import read_history
from promptccd.training.objectives import METHODS
from tests.contributing import ROOT, blocks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    names: dict[str, object] = {"folder": tmp_path_factory.mktemp("python")}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(names["folder"])
        for code in blocks((ROOT / "docs" / "python.md").read_text(encoding="utf-8"), "python"):
            exec(compile(code, "docs/python.md", "exec"), names)
    METHODS.pop("gcd-spread")
    return names


def run_of(page: dict[str, object], name: str) -> RunDirectory:
    folder = page["folder"]
    assert isinstance(folder, Path)
    return RunDirectory(folder / name)


def test_a_first_training(page) -> None:
    assert [row.stage for row in page["results"].stages] == [1, 2, 3]
    assert page["results"].to_dict() == run_of(page, "out").results.to_dict()
    assert load_model(run_of(page, "out").stage(3)).config.num_known == 7


def test_a_data_set_of_ones_own(page) -> None:
    run = run_of(page, "colours")
    assert run.results.to_dict() == page["colours_found"].to_dict()
    assert page["inductive"].protocol == "inductive"
    assert load_model(run.stage(1)).config.category_names[:3] == ["red", "green", "blue"]
    assert "a data set given from Python" in (run.stage(1) / "README.md").read_text(encoding="utf-8")


def test_a_callback_ends_a_training_that_goes_on(page) -> None:
    assert (page["first"].stages, [row.stage for row in page["second"].stages]) == ([], [1])
    losses = [record.losses["loss"] for record in read_history(run_of(page, "stopped").path)]
    assert page["stopper"].losses == pytest.approx(losses)
    assert all((page["folder"] / f"groups{stage}.png").exists() for stage in (0, 1))


def test_a_backbone_of_ones_own(page) -> None:
    run = run_of(page, "own-backbone")
    assert page["kept"].to_dict() == run.results.to_dict()
    assert run.recipe.model.backbone == str(run.backbone)
    config = json.loads((run.stage(1) / "config.json").read_text())
    assert config["vision_config"]["hidden_size"] == 48


def test_an_objective_of_ones_own(page) -> None:
    run = run_of(page, "own-objective")
    assert run.manifest["recipe"]["model"]["variant"] == "gcd-spread"
    assert all("crowding" in record.losses for record in read_history(run.path))
    assert page["spread"].stage == 1

"""What is said of a stage that does not hold what it claims."""

import json
import shutil
from pathlib import Path

import pytest

from promptccd.runs.verify import Check, stage_checks
from tests.conftest import sum_again


@pytest.fixture
def stage(trained_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_run / "stage1", tmp_path / "stage"))


def test_a_whole_stage_agrees_with_itself(stage: Path) -> None:
    checks = list(stage_checks(stage, "s"))
    assert [check.problem for check in checks] == [""] * len(checks)
    assert [check.what for check in checks] == [
        "s: sums of all files",
        "s: the model loads",
        "s: its categories are those of its registry",
        "s: images were assigned to its own categories",
        "s: a prototype for every category",
    ]


def test_after_a_sum_or_a_model_that_is_wrong_nothing_more_is_looked_at(stage: Path) -> None:
    config = json.loads((stage / "config.json").read_text())
    (stage / "config.json").write_text(json.dumps({**config, "model_type": "other"}))
    (sums,) = stage_checks(stage, "s")
    assert (sums.what, "config.json" in sums.problem) == ("s: sums of all files", True)
    sum_again(stage)
    sums, loads = stage_checks(stage, "s")
    assert sums == Check("s: sums of all files")
    assert loads.what == "s: the model loads"
    assert "other" in loads.problem


def test_images_of_a_category_that_is_none_are_named(stage: Path) -> None:
    path = stage / "assignments.json"
    table = json.loads(path.read_text())
    table["category_ids"][:2] = [77, 78]
    path.write_text(json.dumps(table))
    sum_again(stage)
    assert [check for check in stage_checks(stage, "s") if check.problem] == [
        Check("s: images were assigned to its own categories", "[77, 78] are no category ids")
    ]

"""Stages of unusual shape: a table with what exists, and null for what does not."""

import json
import math
from pathlib import Path

import pytest

from promptccd.runs import train_run
from promptccd.training.recipe import Recipe
from tests.conftest import coloured_images

Shape = tuple[list[int], list[list[float]]]


@pytest.mark.slow
@pytest.mark.fault(28)
@pytest.mark.parametrize(
    ("per_category", "shape", "old_and_new"),
    [
        (8, ([3, 0, 2], [[0.5, 0.5, 1.0], [0.0, 1.0], [1.0]]), [(True, False), (True, True)]),
        (8, ([3, 1, 1], [[1.0, 0.0, 1.0], [1.0, 1.0], [1.0]]), [(False, True), (False, True)]),
        (8, ([3, 2], [[0.5, 1.0], [1.0]]), [(True, True)]),
        (2, ([3, 1, 1], [[0.5, 0.5, 1.0], [0.5, 1.0], [1.0]]), [(False, True), (True, True)]),
        (8, ([1, 3, 1], [[0.5, 0.5, 1.0], [0.5, 1.0], [1.0]]), [(True, True), (True, True)]),
    ],
    ids=[
        "all known, then all",
        "all new",
        "two stages",
        "one image a category, fewer than a batch",
        "one known",
    ],
)
def test_a_stage_may_lack_old_or_new_images(
    recipe_values: dict, tmp_path: Path, per_category: int, shape: Shape, old_and_new: list[tuple[bool, bool]]
) -> None:
    coloured_images(5, per_category).save_to_disk(str(tmp_path / "images"))
    recipe_values["data"] = {"dataset": str(tmp_path / "images"), "class_blocks": shape[0], "cuts": shape[1]}
    recipe_values["training"] |= {"epochs": 1, "batch_size": 64, "replay_samples": 20}
    score = train_run(Recipe.from_dict(recipe_values))
    assert [(not math.isnan(row.old), not math.isnan(row.new)) for row in score.stages] == old_and_new
    assert all(0 <= row.all <= 100 for row in score.stages)
    written = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))["stages"]
    assert [(row["old"] is not None, row["new"] is not None) for row in written] == old_and_new

"""Stages of unusual shape: a table with what exists, and null for what does not."""

import json
import math
from pathlib import Path

import pytest

from promptccd.cli.tables import score_table
from promptccd.evaluation.tables import ABSENT
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
    recipe_values: dict,
    tmp_path: Path,
    per_category: int,
    shape: Shape,
    old_and_new: list[tuple[bool, bool]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "promptccd")
    coloured_images(5, per_category).save_to_disk(str(tmp_path / "images"))
    recipe_values["data"] = {"dataset": str(tmp_path / "images"), "class_blocks": shape[0], "cuts": shape[1]}
    recipe_values["training"] |= {"epochs": 1, "batch_size": 64, "replay_samples": 20}
    score = train_run(Recipe.from_dict(recipe_values))
    assert [(not math.isnan(row.old), not math.isnan(row.new)) for row in score.stages] == old_and_new
    assert all(0 <= row.all <= 100 for row in score.stages)
    written = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))["stages"]
    assert [(row["old"] is not None, row["new"] is not None) for row in written] == old_and_new
    lines = [text for text in caplog.messages if text.startswith("stage 1: All")]
    assert [("Old" in line, "New" in line) for line in lines] == old_and_new[:1]
    printed = score_table(score)
    assert "nan" not in caplog.text + printed
    with_average = [*old_and_new, tuple(any(column) for column in zip(*old_and_new, strict=True))]
    answers = 1 if score.native is None else 2
    assert printed.count(ABSENT) == answers * sum(not value for row in with_average for value in row)


def test_a_labelled_category_without_a_labelled_image_is_said(
    recipe_values: dict, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One image of a category is cut to none at stage 0."""
    images = coloured_images(5, 8)
    rows = [row for row, label in enumerate(images["label"]) if label != 1 or row == 1]
    images.select(rows).save_to_disk(str(tmp_path / "images"))
    recipe_values["data"] = {"dataset": str(tmp_path / "images"), "class_blocks": [3, 2]}
    recipe_values["training"] |= {"epochs": 1, "replay_samples": 20}
    assert len(train_run(Recipe.from_dict(recipe_values)).stages) == 1
    assert "no image of 1 of its 3 categories, such as category 1" in caplog.text

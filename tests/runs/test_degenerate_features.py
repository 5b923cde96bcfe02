"""Features that say nothing and stages of unusual shape: a message, or files without a single NaN."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import load_from_disk
from safetensors.torch import load_file
from transformers import Dinov2Model

from promptccd.cli.tables import score_table
from promptccd.discovery import DiscoverySession, discover
from promptccd.errors import DivergedError
from promptccd.evaluation.tables import ABSENT
from promptccd.runs import train_run
from promptccd.training.recipe import Recipe
from tests.conftest import coloured_images, quick_recipe
from tests.discovery.stored import rows_in
from tests.messages import TEXT

Change = Callable[[Dinov2Model], Any]
Backbone = Callable[[Change], Path]


@pytest.fixture
def backbone(backbone_folder: Path, tmp_path: Path) -> Backbone:
    """Saves a backbone whose weights were changed."""

    def changed(change: Change) -> Path:
        model = Dinov2Model.from_pretrained(backbone_folder)
        with torch.no_grad():
            change(model)
        model.save_pretrained(tmp_path / "backbone")
        return tmp_path / "backbone"

    return changed


def zero(model: Dinov2Model) -> None:
    model.layernorm.weight.zero_()
    model.layernorm.bias.zero_()


def equal(model: Dinov2Model) -> None:
    model.layernorm.weight.zero_()
    model.layernorm.bias.copy_(torch.arange(32))


def flat(model: Dinov2Model) -> None:
    model.layernorm.weight[1:] = 0


def overflowing(model: Dinov2Model) -> None:
    model.encoder.layer[0].attention.v_proj.weight.fill_(3e38)


def require_numbers(folder: Path) -> int:
    """No file below a folder holds NaN or infinity; how many were looked into."""
    tensors, vectors = list(folder.rglob("*.safetensors")), 0
    for file in tensors:
        for name, value in load_file(file).items():
            assert not value.is_floating_point() or value.isfinite().all(), (file, name)
    for file in folder.rglob("*.sqlite"):
        for table, rows in rows_in(file).items():
            for row in rows:
                assert all(math.isfinite(each) for each in row if isinstance(each, float)), (file, table)
                if table == "feature":
                    assert np.isfinite(np.frombuffer(row[-1], np.float32)).all()
                    vectors += 1
    for file in folder.rglob("*.json"):
        json.loads(file.read_text(), parse_constant=pytest.fail)  # NaN and infinity
    return len(tensors) + vectors


@pytest.mark.slow
@pytest.mark.fault(30)
@pytest.mark.parametrize("change", [zero, equal, flat])
def test_features_that_are_zero_equal_or_flat_leave_numbers(
    change: Change, backbone: Backbone, image_folder: Path, tmp_path: Path
) -> None:
    train_run(Recipe.from_dict(quick_recipe(image_folder, backbone(change), tmp_path / "run")))
    assert require_numbers(tmp_path / "run") >= 4


@pytest.mark.fault(30)
@pytest.mark.parametrize("change", [zero, equal])
def test_groups_of_features_that_say_nothing_are_numbers(
    change: Change, backbone: Backbone, image_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "album").mkdir()
    for number, row in enumerate(load_from_disk(str(image_folder)).select(range(12))):
        row["image"].save(tmp_path / "album" / f"{number}.png")
    result = discover(DiscoverySession.open(backbone(change)), tmp_path / "album", tmp_path / "found")
    assert all(math.isfinite(row.confidence) for row in result.rows if row.confidence is not None)
    assert require_numbers(tmp_path / "found") >= 1


@pytest.mark.moderate
@pytest.mark.fault(30, 31)
@pytest.mark.parametrize(
    ("change", "rate", "said"),
    [(overflowing, 0.05, TEXT["i-diverged-not-a-number-not"]), (bool, 1e30, "Lower --learning_rate")],
)
def test_features_that_overflow_and_losses_that_are_no_number_stop_a_run_before_anything_is_saved(
    change: Change, rate: float, said: str, backbone: Backbone, image_folder: Path, tmp_path: Path
) -> None:
    values = quick_recipe(image_folder, backbone(change), tmp_path / "run")
    values["training"]["learning_rate"] = rate
    with pytest.raises(DivergedError, match=said):
        train_run(Recipe.from_dict(values))
    assert not list((tmp_path / "run").glob("stage*"))
    assert require_numbers(tmp_path / "run") == 0


# Stages of unusual shape: a table with what exists, and null for what does not

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
)
def test_a_stage_may_lack_old_or_new_images(
    recipe_values: dict, tmp_path: Path, caplog, per_category: int, shape: Shape, old_and_new: list
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
    assert TEXT["no-image-of-1-of-its"] in caplog.text

"""Cards of discovered categories: typical images, and the known categories that are like them."""

import math

import numpy as np
import pytest

from promptccd.data import StageStream
from promptccd.data.readable import StageImages
from promptccd.reports.cards import card_of
from promptccd.reports.tables import image_table
from promptccd.training.progress import progress_bar

AXES = np.eye(3, dtype=np.float32)


@pytest.mark.parametrize(("true", "mostly"), [(2, ("kind 2", 100)), (-1, ("", math.nan))])
def test_a_card_has_typical_images_and_the_nearest_known_categories(
    stages: StageStream, true: int, mostly: tuple[str, float]
) -> None:
    images = StageImages.read(stages[1], 0, progress_bar)
    ids, own = np.zeros(len(images), dtype=int), AXES[np.zeros(len(images), dtype=int)].copy()
    rows = np.array([1, 3, 5])
    ids[rows], own[rows] = 5, AXES[2] + np.outer([0.5, 0.3, 0.1], AXES[0])
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    kinds = [f"kind {number}" for number in range(5)]
    table = image_table(1, np.full(len(images), true), ids, kinds, {0: "kind 0", 5: "five"})
    card = card_of(rows, table, images, own, {"kind 0": AXES[0], "kind 1": AXES[1]}, samples=2)
    assert [card[name] for name in ("category", "stage", "images")] == ["five", 1, 3]
    assert (card["mostly"], card["purity"]) == pytest.approx(mostly, nan_ok=True)
    assert card["sample_ids"] == stages[1].sample_ids[[3, 1]].tolist(), "nearest to the middle first"
    assert len(card["thumbnails"]) == 2
    (first, similarity), second = card["near"]
    assert (first, second) == ("kind 0", ("kind 1", 0))
    assert similarity == pytest.approx(0.29, abs=0.02)

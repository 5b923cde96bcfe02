"""The drawn data set: what a category is, what it is not, and which part is where."""

import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.creatures import (
    NUM_CATEGORIES,
    PARTS,
    creatures_dataset,
    draw_creature,
    main,
    part_types,
)
from promptccd.data import StageStream
from promptccd.data.tables import load_images
from promptccd.errors import DataError

EACH = 12


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    """The first images of every category, uint8 ``(N, 32, 32, 3)``."""
    return np.stack([np.asarray(image) for image in creatures_dataset(EACH)["image"]])


@pytest.fixture(scope="module")
def parts() -> np.ndarray:
    """Their part maps."""
    rows = range(NUM_CATEGORIES * EACH)
    return np.stack([draw_creature(row % NUM_CATEGORIES, row // NUM_CATEGORIES).parts for row in rows])


def test_categories_are_a_walk_of_one_part_at_a_time() -> None:
    types = [part_types(category) for category in range(NUM_CATEGORIES)]
    assert len(set(types)) == NUM_CATEGORIES
    for before, after in pairwise(types):
        assert sum(a is b for a, b in zip(before, after, strict=True)) == len(PARTS) - 1
    used = [{kinds[part] for kinds in types} for part in range(len(PARTS))]
    assert [len(kinds) for kinds in used] == [len(kinds) for kinds in PARTS.values()]


@pytest.mark.slow
def test_the_saved_data_set_has_the_usual_columns(pixels: np.ndarray, tmp_path: Path) -> None:
    assert main([str(tmp_path / "creatures")]) == 0
    data = load_images(str(tmp_path / "creatures"))
    assert data.column_names == ["image", "label"]
    assert len(data) == NUM_CATEGORIES * 60
    assert data.features["label"].names[:2] == ["round oval two stick", "round oval two ball"]
    assert np.bincount(data["label"]).tolist() == [60] * NUM_CATEGORIES
    assert data[7]["image"].mode == "RGB"
    assert data[7]["image"].size == (32, 32)
    assert np.array_equal(np.asarray(data[7]["image"]), pixels[7])
    stages = StageStream.from_dataset(data, class_blocks=[14, 2, 2, 2])
    assert [len(stage) for stage in stages] == [728, 140, 160, 172]


def test_an_image_depends_on_its_position_alone(pixels: np.ndarray) -> None:
    assert np.array_equal(draw_creature(7, 3).pixels, pixels[3 * NUM_CATEGORIES + 7])
    assert not np.array_equal(draw_creature(7, 3, seed=1).pixels, pixels[3 * NUM_CATEGORIES + 7])
    assert len(np.unique(pixels.reshape(len(pixels), -1), axis=0)) == len(pixels)


def test_pixels_are_the_same_everywhere(pixels: np.ndarray, parts: np.ndarray) -> None:
    """Recorded once; a run's fingerprint hangs on it."""
    assert hashlib.sha256(pixels.tobytes()).hexdigest()[:16] == "0d5f7c533f5501a5"
    assert hashlib.sha256(parts.tobytes()).hexdigest()[:16] == "a43014c66bdfaf32"


def test_size_and_bad_values() -> None:
    large = draw_creature(3, 0, size=64)
    assert large.pixels.shape == (64, 64, 3)
    shrunk = large.parts[::2, ::2]
    assert np.mean(shrunk == draw_creature(3, 0).parts) > 0.9
    with pytest.raises(DataError, match=r"in 0..19, got 20"):
        draw_creature(20, 0)
    with pytest.raises(DataError, match="size >= 16 pixels, got 8"):
        draw_creature(0, 0, size=8)

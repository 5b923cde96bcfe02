"""The drawn data set: what a category is, what it is not, and which part is where."""

import hashlib
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.creatures import (
    NUM_CATEGORIES,
    PARTS,
    creatures_dataset,
    draw_creature,
    part_types,
)

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


def test_pixels_are_the_same_everywhere(pixels: np.ndarray, parts: np.ndarray) -> None:
    """Recorded once; a run's fingerprint hangs on it."""
    assert hashlib.sha256(pixels.tobytes()).hexdigest()[:16] == "0d5f7c533f5501a5"
    assert hashlib.sha256(parts.tobytes()).hexdigest()[:16] == "a43014c66bdfaf32"

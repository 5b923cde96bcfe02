"""The drawn data set: its pixels, and which part is where."""

import hashlib

import numpy as np

from benchmarks.creatures import NUM_CATEGORIES, creatures_dataset, draw_creature

EACH = 4


def test_pixels_are_the_same_everywhere() -> None:
    """Recorded once; a run's fingerprint hangs on it."""
    pixels = np.stack([np.asarray(image) for image in creatures_dataset(EACH)["image"]])
    rows = range(NUM_CATEGORIES * EACH)
    parts = np.stack([draw_creature(row % NUM_CATEGORIES, row // NUM_CATEGORIES).parts for row in rows])
    assert hashlib.sha256(pixels.tobytes()).hexdigest()[:16] == "c945bebc482225fd"
    assert hashlib.sha256(parts.tobytes()).hexdigest()[:16] == "44de8b626b48170f"

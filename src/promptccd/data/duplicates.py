"""Near duplicates: the same picture saved, resized or touched up again, found by two small fingerprints.

The first is a gradient hash of 64 bits, cheap to compare; drawings and digits share it more often than photographs.
So a pair also has to agree in a miniature of 16 x 16 pixels before it is called a near duplicate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

MAX_BITS = 3  # of 64 that may differ
MAX_DIFFERENCE = 4.0  # mean absolute difference of miniatures, in grey levels of 255
_BANDS = 4  # two hashes that differ in at most 3 bits agree in one of 4 bands whole
LOOK_ALIKES = 64  # a thousand blank pages must not cost a million comparisons
_PAIRS = 4096  # compared at a time, 3 MB of miniatures each


@dataclass(frozen=True)
class Fingerprint:
    """What is kept of an image to find its near duplicates.

    Attributes:
        gradients: 64 bits, whether a pixel of the 9 x 8 grey image is darker than its right neighbour.
        miniature: ``(16, 16, 3)`` uint8.
    """

    gradients: int
    miniature: np.ndarray


def fingerprint_of(image: Image.Image) -> Fingerprint:
    """The fingerprint of an RGB image."""
    small = image.resize((16, 16), Image.Resampling.BOX)
    grey = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX), dtype=np.int16)
    bits = np.packbits(grey[:, 1:] > grey[:, :-1])
    return Fingerprint(int.from_bytes(bits.tobytes(), "big"), np.asarray(small))


def near_duplicates(fingerprints: Sequence[Fingerprint]) -> dict[int, int]:
    """For every image that nearly equals an earlier one, the first such image.

    Args:
        fingerprints: one per image, N. Of more than `LOOK_ALIKES` with the same band of bits, such as blank pages,
            each is compared with its nearest neighbours in order only.

    Returns:
        Position of the later image -> position of the first earlier one that it nearly equals, ascending. The latter
        may itself be a near duplicate of a third that the former differs from.
    """
    count = len(fingerprints)
    if count < 2:
        return {}
    hashes = np.array([item.gradients for item in fingerprints], dtype=np.uint64)
    miniatures = np.stack([item.miniature.ravel() for item in fingerprints])
    first = np.full(count, count)
    for early, late in _candidates(hashes):
        alike = _difference(miniatures[early], miniatures[late]) <= MAX_DIFFERENCE
        np.minimum.at(first, late[alike], early[alike])
    return {int(late): int(first[late]) for late in np.flatnonzero(first < count)}


def _candidates(hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs ``early < late`` whose hashes differ in at most `MAX_BITS`, a few thousand at a time."""
    for band in range(_BANDS):
        keys = _band(hashes, band)
        order = np.argsort(keys, kind="stable")
        for shift in range(1, min(LOOK_ALIKES, len(order))):
            early, late = order[:-shift], order[shift:]
            together = keys[early] == keys[late]
            if not together.any():
                break  # no bucket is that large
            early, late = early[together], late[together]
            differing = hashes[early] ^ hashes[late]
            close = np.bitwise_count(differing) <= MAX_BITS
            for met in range(band):  # pairs that an earlier band brought together
                close &= _band(differing, met) != 0
            early, late = early[close], late[close]
            for start in range(0, len(early), _PAIRS):
                yield early[start : start + _PAIRS], late[start : start + _PAIRS]


def _band(hashes: np.ndarray, band: int) -> np.ndarray:
    return (hashes >> np.uint64(16 * band)) & np.uint64(0xFFFF)


def _difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Mean absolute difference, in grey levels, of rows of uint8."""
    return (np.maximum(one, other) - np.minimum(one, other)).mean(axis=1)

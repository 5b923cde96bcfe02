"""The very same picture more than once: twice in a stage, in two stages, or under two labels.

Compared are the pixels that training sees. So a copy that lost its place and time on the way is a copy still, and what
is found in a data set is found in its published stages too.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Original:
    """Where a picture was seen first.

    Attributes:
        sample: its sample id.
        stage: index of its stage.
    """

    sample: int
    stage: int


class SeenPictures:
    """Remembers the pictures of all stages that were read."""

    def __init__(self) -> None:
        self._first: dict[bytes, Original] = {}

    def original_of(self, digest: bytes, sample: int, stage: int) -> Original | None:
        """The image that this one is a copy of; `None` for the first of its kind, and for one that recurs itself."""
        first = self._first.setdefault(digest, Original(sample, stage))
        return None if first.sample == sample else first


def digest_of(pixels: np.ndarray) -> bytes:
    """What equal pictures share and others do not; pixels are ``(H, W, 3)`` uint8."""
    return hashlib.blake2b(pixels.tobytes(), salt=b"%dx%d" % pixels.shape[:2], digest_size=16).digest()


def conflicts(digests: Sequence[bytes], labels: Sequence[int]) -> Mapping[int, int]:
    """Positions of pictures that have several labels -> the first position of the same picture with another.

    Args:
        digests: one per image, N.
        labels: category id of each, N.
    """
    positions = defaultdict(list)
    for position, digest in enumerate(digests):
        positions[digest].append(position)
    found = {}
    for same in positions.values():
        for position in same if len({labels[each] for each in same}) > 1 else ():
            found[position] = next(each for each in same if labels[each] != labels[position])
    return dict(sorted(found.items()))

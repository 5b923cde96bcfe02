"""The group of every photograph, and what is shown of every group; a correction costs what it changes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from promptccd.registry import CategoryRegistry
from promptccd.registry.changes import SURE

NOWHERE, ASIDE = -1, -2  # the category of images in none, and of those that are set aside
# Bits of a photograph: a person put it there; it came with the newest stage; its file is not where it was.
PINNED, NEWEST, AWAY = 1, 2, 4
COVERS = 4  # pictures of a group in the list


@dataclass(frozen=True)
class Shown:
    """What is shown of a group.

    Attributes:
        size: how many photographs it has that are here.
        unsure: how many photographs the last grouping was not sure of, and nobody has looked at since.
        cover: rows of the surest.
    """

    size: int
    unsure: int
    cover: list[int]


class Columns:
    """A value of every photograph, by row.

    Attributes:
        group: category ``(N,)`` int32, `NOWHERE` or `ASIDE`.
        sure: how sure the last grouping was, in 0..255, ``(N,)`` uint8.
        flags: `PINNED`, `NEWEST` and `AWAY` ``(N,)`` uint8.
    """

    def __init__(self, registry: CategoryRegistry, keys: Sequence[str], here: np.ndarray):
        count, self._here = len(keys), here
        self.group, self.sure = np.empty(count, np.int32), np.empty(count, np.uint8)
        self.flags, self._shown = np.empty(count, np.uint8), dict[int, Shown]()
        self._read(registry, np.arange(count), keys)

    def _read(self, registry: CategoryRegistry, rows: np.ndarray, keys: Sequence[str]) -> None:
        members, confidences, pinned = registry.members, registry.confidences, registry.pinned
        images, stage = registry.images, registry.stage
        aside = dict.fromkeys((each.id for each in registry.aside), ASIDE)
        homes = (members.get(key, NOWHERE) for key in keys)
        self.group[rows] = [aside.get(home, home) for home in homes]
        self.sure[rows] = [round(255 * confidences.get(key, 1.0)) for key in keys]
        self.flags[rows] = [PINNED * (key in pinned) + NEWEST * (images[key] == stage) for key in keys]
        self.flags[rows] |= np.where(self._here[rows], 0, AWAY).astype(np.uint8)

    def packed(self) -> bytes:
        """All of them one after the other, as a window reads them."""
        return self.group.astype("<i4").tobytes() + self.sure.tobytes() + self.flags.tobytes()

    def take(self, registry: CategoryRegistry, keys: Iterable[str], row_of: Mapping[str, int]) -> np.ndarray:
        """Read photographs again of which something has changed; returns their rows ``(R,)``."""
        changed = sorted(keys, key=row_of.__getitem__)
        rows = np.array([row_of[key] for key in changed], dtype=np.int64)
        homes = set(self.group[rows].tolist())
        self._read(registry, rows, changed)
        for identity in homes.union(self.group[rows].tolist()):
            self._shown.pop(identity, None)
        return rows

    def shown(self, identity: int) -> Shown:
        """What is shown of a group, kept until one of its photographs changes."""
        if identity not in self._shown:
            rows = np.flatnonzero((self.group == identity) & self._here)
            unsure = (self.sure[rows] < SURE * 255) & (self.flags[rows] & PINNED == 0)
            cover = rows[np.argsort(-self.sure[rows].astype(np.int16), kind="stable")[:COVERS]]
            self._shown[identity] = Shown(len(rows), int(unsure.sum()), cover.tolist())
        return self._shown[identity]

"""What follows from the features of a project's photographs, by row.

The mean of every group, which a move changes at the cost of what it moves; the photographs most like one; and the map,
like beside like, which is laid out once and kept with the project.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptccd.data.randomness import numpy_generator
from promptccd.discovery.project import FEATURES, PROJECT, FeatureCache
from promptccd.discovery.record import read_record
from promptccd.discovery.workbench.columns import NOWHERE, Change
from promptccd.storage import read_file, write_file


class Features:
    """Unit features of a project's photographs, all of them in memory.

    Attributes:
        keys: content hashes of the photographs, by row.
        matrix: ``(N, D)``, zeros for a photograph without features.
        there: which photographs have features ``(N,)``.

    Raises:
        RunError: it is not said what they were computed with.
    """

    def __init__(self, out: Path, keys: Sequence[str]):
        self.keys, row_of = keys, {key: row for row, key in enumerate(keys)}
        self.matrix, self.there = torch.zeros(len(keys), 0), np.zeros(len(keys), dtype=bool)
        for key, feature in FeatureCache(out / PROJECT / FEATURES).each(read_record(out)["features"], keys):
            if not self.matrix.shape[1]:
                self.matrix = torch.zeros(len(keys), len(feature))
            self.matrix[row_of[key]] = feature
            self.there[row_of[key]] = True

    def mean(self, rows: np.ndarray) -> np.ndarray | None:
        """The mean feature ``(D,)`` of photographs; `None` if none has features."""
        known = rows[self.there[rows]]
        return self.matrix[known].double().mean(0).numpy() if len(known) else None


class Means:
    """Means of the features of every group, kept as sums; `group` says where each photograph is ``(N,)``."""

    def __init__(self, features: Features, group: np.ndarray):
        self._features = features
        self._sums, self._counts = dict[int, np.ndarray](), dict[int, int]()
        rows = np.flatnonzero(features.there & (group != NOWHERE))
        for identity in np.unique(group[rows]).tolist():
            self._add(identity, rows[group[rows] == identity])

    def _add(self, identity: int, rows: np.ndarray, sign: int = 1) -> None:
        total = self._features.matrix[rows].sum(0, dtype=torch.float64).numpy()
        self._sums[identity] = self._sums.get(identity, 0) + sign * total
        self._counts[identity] = self._counts.get(identity, 0) + sign * len(rows)

    def take(self, change: Change) -> None:
        """Follow photographs that were moved."""
        moved = self._features.there[change.rows] & (change.before != change.after)
        for sign, homes in ((-1, change.before), (1, change.after)):
            for identity in np.unique(homes[moved]).tolist():
                if identity != NOWHERE:
                    self._add(identity, change.rows[moved & (homes == identity)], sign)

    def after(self, rows: np.ndarray, homes: np.ndarray, to: int | None) -> dict[int, np.ndarray]:
        """Means ``(D,)`` of the groups that photographs leave and of the one they join, by group; none of an empty one.

        Args:
            rows: of the photographs ``(R,)``.
            homes: the group of each ``(R,)``.
            to: the group they join; `None` if that is a new one, or none.
        """
        rows, homes = rows[self._features.there[rows]], homes[self._features.there[rows]]
        means = {}
        for identity in {*homes.tolist(), *([] if to is None else [to])} - {NOWHERE}:
            here = homes == identity
            leave, come = (rows[:0], rows[~here]) if identity == to else (rows[here], rows[:0])
            count = self._counts.get(identity, 0) + len(come) - len(leave)
            if count:
                matrix = self._features.matrix
                step = matrix[come].sum(0, dtype=torch.float64) - matrix[leave].sum(0, dtype=torch.float64)
                means[identity] = (self._sums.get(identity, 0) + step.numpy()) / count
        return means


def likest(features: Features, row: int, most: int) -> list[int]:
    """Rows of the photographs most like one, itself first; only itself if it has no features."""
    if not features.there[row]:
        return [row]
    likeness: Tensor = features.matrix @ features.matrix[row]
    likeness[torch.from_numpy(~features.there)] = -torch.inf
    likeness[row] = torch.inf
    return likeness.topk(min(most, int(features.there.sum()))).indices.tolist()


LAYOUT = "layout.bin"
NEAREST, JITTER = 3, 0.006  # a photograph that t-SNE has not placed lies amid so many placed ones
_AT_ONCE = 4096


def kept_layout(project: Path, generation: str, count: int) -> np.ndarray | None:
    """Places ``(N, 2)`` float32 that were laid out for these very photographs; `None` if there are none.

    Raises:
        RunError: a link stands in the way.
    """
    try:
        content = read_file(project / LAYOUT)
    except FileNotFoundError:
        return None
    head, places = content[: len(generation)], content[len(generation) :]
    if head != generation.encode() or len(places) != 8 * count:
        return None
    return np.frombuffer(places, "<f4").reshape(-1, 2)


def keep_layout(project: Path, generation: str, places: np.ndarray) -> None:
    """Keep places for the next time."""
    write_file(project / LAYOUT, generation.encode() + places.astype("<f4").tobytes())


def lay_out(features: Tensor) -> np.ndarray:
    """Places ``(N, 2)`` in the unit square for unit features ``(N, D)``.

    t-SNE places a sample, which takes seconds; each of the others lies amid those most like it.
    """
    # Here, because scikit-learn takes a second that the first pictures need not wait.
    from promptccd.experiments import stage_maps

    found = stage_maps([features.numpy()], seed=1)
    shown, known = torch.from_numpy(found.rows), torch.from_numpy(np.asarray(found.layouts[0], np.float32))
    places = torch.empty(len(features), 2)
    for start in range(0, len(features), _AT_ONCE):
        likeness = features[start : start + _AT_ONCE] @ features[shown].T
        nearest = likeness.topk(min(NEAREST, len(shown)), dim=1).indices
        places[start : start + _AT_ONCE] = known[nearest].mean(1)
    span = float((known.max(0).values - known.min(0).values).max()) or 1.0
    drawn = numpy_generator("map of photographs").normal(scale=JITTER * span, size=tuple(places.shape))
    places += torch.from_numpy(drawn).float()
    places[shown] = known
    return ((places - places.min(0).values) / span).numpy()

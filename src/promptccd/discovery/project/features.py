"""Features of a project's images, and the means of categories.

Features have unit length and are summed in float64. Prototypes are stored in float32, which does not see in what order
images came and went.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from promptccd.discovery.project.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor

_AT_ONCE = 4096


class Features:
    """Unit features of images, all of them in memory.

    Attributes:
        keys: of the images, by row.
        vectors: ``(N, D)``, zeros for an image without features.
        there: which images have features ``(N,)``.
        row_of: row of every image that has features.
    """

    def __init__(
        self,
        keys: Sequence[str],
        vectors: "np.ndarray | Tensor | None" = None,
        there: np.ndarray | None = None,
    ):
        self.keys = keys
        self.vectors = np.zeros((len(keys), 0), np.float32) if vectors is None else np.asarray(vectors)
        self.there = np.full(len(keys), vectors is not None) if there is None else there
        self.row_of = {keys[row]: row for row in np.flatnonzero(self.there).tolist()}

    @cached_property
    def matrix(self) -> "Tensor":
        """The vectors as a tensor; corrections do without, because torch is slow to import."""
        from torch import from_numpy

        return from_numpy(self.vectors)

    def of(self, keys: Iterable[str]) -> tuple[list[str], np.ndarray]:
        """Those of the images that have features, in their order, and these ``(M, D)``."""
        kept = [key for key in keys if key in self.row_of]
        return kept, self.vectors[[self.row_of[key] for key in kept]]

    def smaller_part(self, keys: Sequence[str]) -> list[str]:
        """The smaller of two parts of a group of images that have features."""
        from promptccd.clustering.kmeans import suggest_split  # takes a second, and only a split needs it

        points = self.matrix[[self.row_of[key] for key in keys]]
        return [keys[row] for row in suggest_split(points, seed=1)[1].tolist()]

    def mean(self, keys: Iterable[str]) -> np.ndarray | None:
        """The mean feature ``(D,)`` float64 of images, each once; `None` without features."""
        rows = np.array([self.row_of[key] for key in dict.fromkeys(keys) if key in self.row_of], int)
        return self._mean(rows) if len(rows) else None

    def means_of(self, rows: Rows, categories: Sequence[int]) -> dict[int, np.ndarray]:
        """The same of all images of some categories, by id, where they have features."""
        if not self.row_of:
            return {}
        by_id, members = rows.rows_by_id(self.row_of), "image where category = ?"
        found = {each: by_id[rows.numbers(["id"], members, each)[0]] for each in categories}
        return {each: self._mean(own[own >= 0]) for each, own in found.items() if (own >= 0).any()}

    def _mean(self, rows: np.ndarray) -> np.ndarray:
        parts = (rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE))
        return sum(self.vectors[part].sum(0, dtype=np.float64) for part in parts) / len(rows)

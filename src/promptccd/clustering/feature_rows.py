"""Features of images in a matrix that memory may have no room for, such as a mapped file of float16.

Letters: N rows of the matrix, M of them, D width, Q rows with other values.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


class FeatureRows:
    """Rows ``(M, D)`` of a matrix, each read on demand: then float32, of length 1, and whitened.

    Args:
        matrix: ``(N, D)`` of any floating type.
        whitener: ``(D, D)`` that rows of length 1 are multiplied with; `None` leaves them as they are.
    """

    dtype = torch.float32

    def __init__(self, matrix: Tensor, whitener: Tensor | None = None):
        self.matrix, self._whitener, self.device = matrix, whitener, matrix.device
        self._places: Tensor | None = None  # (M,) rows of the matrix, from N on those of `_other`
        self._other = matrix.new_empty(0, matrix.shape[1], dtype=self.dtype)  # (Q, D)

    @property
    def shape(self) -> tuple[int, int]:
        """M and D."""
        return len(self), self.matrix.shape[1]

    def __len__(self) -> int:
        return len(self.matrix if self._places is None else self._places)

    def __getitem__(self, rows: slice | Tensor | Sequence[int] | int) -> Tensor:
        if self._places is None:
            return self._read(self.matrix[rows])
        places = self._places[rows]
        found = self._read(self.matrix[places.clamp(max=len(self.matrix) - 1)])
        other = places >= len(self.matrix)
        found[other] = self._other[places[other] - len(self.matrix)]
        return found

    def __setitem__(self, rows: Tensor, values: Tensor) -> None:
        """Give rows ``(Q,)`` other values ``(Q, D)``, which are kept in memory and read as they are."""
        first = len(self.matrix) + len(self._other)
        self._places = self._all().clone()
        self._places[rows] = torch.arange(first, first + len(rows), device=self.device)
        self._other = torch.cat([self._other, values.to(self._other)])

    def only(self, rows: Tensor) -> "FeatureRows":
        """Some of the rows, in this order; nothing is read."""
        found = FeatureRows(self.matrix, self._whitener)
        found._places, found._other = self._all()[rows], self._other
        return found

    def _all(self) -> Tensor:
        return torch.arange(len(self), device=self.device) if self._places is None else self._places

    def _read(self, rows: Tensor) -> Tensor:
        unit = F.normalize(rows.float(), dim=-1)
        return unit if self._whitener is None else unit @ self._whitener


Points = Tensor | FeatureRows  # ``(M, D)``


def some_of(points: Points, rows: Tensor) -> Points:
    """Some of the points, in this order; a copy in memory only of points that are in memory already."""
    return points.only(rows) if isinstance(points, FeatureRows) else points[rows]

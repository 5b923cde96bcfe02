"""Which pairs of images to ask "same or different?" about, so that the answers change most.

Letters: N images, D width, K groups, Q neighbours.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.clustering.constraints import GroupingConstraints, Pair
from promptccd.models import Assignment
from promptccd.models.assignment import squared_distances

MOST_DOUBTED = 2_000  # images in doubt that are looked at: with all of them, a question would cost N x N
NEIGHBOURS = 10  # images that a question says something about
REMAINING_AFTER_A_QUESTION = 0.3  # of the doubt about an image, once a neighbour was asked about
REPEATED_GROUPS = 0.7  # of the worth of a question, for each earlier one about the same two groups
SHARPNESS = 2.0  # doubt falls to exp(-2) at the median margin


@dataclass(frozen=True)
class PairQuestion:
    """Do these two images show the same category?

    Attributes:
        first: key of the image in doubt.
        second: key of the most typical image of a group.
        second_category: group of the second; the same if the question is whether the first belongs there at all.
    """

    first: str
    second: str
    second_category: int


@torch.no_grad()
def pair_questions(
    found: Assignment,
    asked: Iterable[Pair] = (),
    *,
    constraints: GroupingConstraints | None = None,
    count: int = 10,
) -> list[PairQuestion]:
    """The most informative pairs, best first, at most `count`.

    A question is about an image between two groups, with equally doubtful images around it, and the most typical image
    of the other group. Doubt around an image or group counts less after a question about it, so
    that ten questions cover several borders. No answer follows from earlier answers or from the other questions:
    every question is about an image without constraints. Pairs in `asked` are not asked again.
    """
    # Sorted, so that the order they came in cannot matter.
    order = sorted(range(len(found.keys)), key=lambda row: found.keys[row])
    chooser = _Chooser(found.select(torch.tensor(order)), asked, constraints or GroupingConstraints())
    questions: list[PairQuestion] = []
    while len(questions) < count and (question := chooser.next()) is not None:
        questions.append(question)
    return questions


class _Chooser:
    """Chooses questions one by one; rows are in the order of keys."""

    def __init__(self, found: Assignment, asked: Iterable[Pair], constraints: GroupingConstraints):
        self.keys = found.keys
        self.category = found.category_ids.tolist()
        self.second = found.second_ids.tolist()
        by_distance = found.distances.argsort(stable=True).tolist()
        # Row of the nearest image to the prototype, by category that has images: the last one written stays.
        self.typical = {self.category[row]: row for row in reversed(by_distance)}
        self.doubt = _doubt(found)
        used = constraints.keys | {key for pair in asked for key in pair}
        is_used = torch.tensor([key in used for key in self.keys])
        self.open = ~is_used
        self.open[list(self.typical.values())] = False  # other images are compared with them
        self.remaining = self.doubt * self.open
        self.rows = self.remaining.argsort(descending=True, stable=True)[:MOST_DOUBTED].sort().values
        points = F.normalize(found.features.float(), dim=1)
        self.neighbours = _neighbours(points, self.rows)
        for neighbours in _neighbours(points, is_used.nonzero()[:, 0]):
            self.remaining[neighbours] *= REMAINING_AFTER_A_QUESTION
        self.used: Counter[frozenset[int]] = Counter()

    def next(self) -> PairQuestion | None:
        """The best question that is left."""
        groups = [frozenset((self.category[row], self.second[row])) for row in self.rows.tolist()]
        repeats = torch.tensor([self.used[pair] for pair in groups], dtype=torch.float64)
        worth = self.remaining[self.neighbours].sum(1) * self.doubt[self.rows] * REPEATED_GROUPS**repeats
        worth[~self.open[self.rows]] = -1
        if not (worth >= 0).any():
            return None
        place = int(worth.argsort(descending=True, stable=True)[0])
        row = int(self.rows[place])
        self.open[row] = False
        self.remaining[self.neighbours[place]] *= REMAINING_AFTER_A_QUESTION
        own, second = self.category[row], self.second[row]
        self.used[groups[place]] += 1
        compared = second if second in self.typical else own  # a known category may have no image here
        return PairQuestion(self.keys[row], self.keys[self.typical[compared]], compared)


def _doubt(found: Assignment) -> Tensor:
    """``(N,)`` in 0..1: 1 midway between two groups, less near a group."""
    second = found.second_distances.double()
    margins = (found.margins.double() / (second + found.distances).clamp(min=1e-12)).clamp(min=0)
    margins = margins.where(second.isfinite(), 1.0)
    return torch.exp(-SHARPNESS * margins / margins.median().clamp(min=1e-12))


def _neighbours(points: Tensor, rows: Tensor) -> Tensor:
    """Rows ``(n, Q)`` of the images nearest to some, themselves included."""
    num_neighbours = min(NEIGHBOURS, len(points))
    size = max(1, 2**22 // len(points))
    found = [
        squared_distances(points[block], points).topk(num_neighbours, largest=False).indices
        for block in rows.split(size)
    ]
    return torch.cat(found)

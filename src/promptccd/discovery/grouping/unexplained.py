"""New groups among the images that no known category explains, in the metric in which known categories are round.

Letters: M units, D width, C known categories, K groups.
"""

from dataclasses import dataclass

import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from torch import Tensor

from promptccd.data.randomness import numpy_generator
from promptccd.discovery.grouping.growth import Growth, Units, refusal
from promptccd.models import CategorySpread
from promptccd.models.assignment import NEWCOMERS, squared_distances

# New categories, which no training has driven apart, may lie so much closer together than known ones to their nearest.
CLOSER = 0.3
WIDER, TIGHTER = 0.15, 0.45  # the same, half less and half more, for the ends of the range
FEWEST_IMAGES = 4  # of a new group
# So many times as far as images drawn blindly may the mean of those lie off that were picked because they lie far.
PICKED = 3.0
MOST_LINKED = 2_000  # unexplained images from which groups are proposed at a time
SETTLING, ROUNDS = 5, 8  # steps of k-means after each change, and changes, at most


@dataclass(frozen=True)
class OpenSet:
    """Images beside known categories, whose spread is known.

    Attributes:
        units: images that move together; their points are whitened.
        held: ``(C, D)`` float64, whitened prototypes.
        spread: of the known categories, row by row.
        num_opened: groups C, C + 1, ... that pins open, whatever is in them.
        seed: of the unexplained images from which groups are proposed, where there are very many.
    """

    units: Units
    held: Tensor
    spread: CategorySpread
    num_opened: int
    seed: int

    @property
    def newcomers(self) -> float:
        """Mean squared distance that images of a new category are expected to have from its centre."""
        return NEWCOMERS * self.spread.typical

    @property
    def usual_distance(self) -> float:
        """Squared distance from a known category to its nearest, in the median."""
        between = squared_distances(self.held, self.held).fill_diagonal_(torch.inf)
        return float(between.amin(1).median())

    def grouped(self, closer: float = CLOSER) -> Growth:
        """Known categories, groups that people opened, and as many new ones as the unexplained images speak for.

        A new group needs four images, and its centre must lie at least `closer` times as far from every other as
        known categories do from their nearest, beyond what so few images can be off. When in doubt an image is known.

        Raises:
            DataError: constraints cannot hold; the images are named.
        """
        apart = closer * self.usual_distance
        free = self._opened()
        proposed = -1
        while (
            len(free) > proposed
        ):  # again, for there may be too many unexplained images to look at all of them
            proposed = len(free)
            free = self._settled(torch.cat([free, self._proposals(free, apart)]))
            for _ in range(ROUNDS):
                kept = self._pruned(free, apart)
                if len(kept) == len(free):
                    break
                free = self._settled(kept)
            if len(self._unexplained(free)) <= MOST_LINKED:
                break
        return self._state(self._apart_from_rivals(free))

    def may_hide_another(self, found: Growth) -> bool:
        """Whether enough images for a group are still explained by nothing."""
        left = self._unexplained(found.centres[len(self.held) :])
        return bool(self._sizes[left].sum() >= FEWEST_IMAGES)

    def _opened(self) -> Tensor:
        """Means of what is pinned to each group that pins open."""
        rows = []
        for group in range(len(self.held), len(self.held) + self.num_opened):
            members = [unit for unit, pinned in self.units.pinned.items() if pinned == group]
            weights = self.units.weights[members]
            rows.append(weights @ self.units.points[members] / weights.sum())
        return torch.stack(rows) if rows else self.held[:0]

    def _spreads(self, num_free: int) -> Tensor:
        return torch.cat([self.spread.spreads.double(), torch.full((num_free,), self.newcomers).double()])

    def _unexplained(self, free: Tensor) -> Tensor:
        """Units out of reach of every category, those that people have settled left out."""
        relative = self.units.distances(torch.cat([self.held, free])) / self._spreads(len(free))
        outside = relative.amin(1) > self.spread.reach
        outside[list(self.units.pinned)] = False
        return outside.nonzero()[:, 0]

    def _proposals(self, free: Tensor, apart: float) -> Tensor:
        """Centres of unexplained images that lie together, by average linkage."""
        candidates = self._unexplained(free)
        if len(candidates) > MOST_LINKED:
            drawn = numpy_generator("unexplained images", self.seed).permutation(len(candidates))[
                :MOST_LINKED
            ]
            candidates = candidates[torch.from_numpy(drawn).sort().values]
        if len(candidates) < 2:
            return self.held[:0]
        points, sizes = self.units.points[candidates], self._sizes[candidates]
        tree = linkage(pdist(points.numpy(), "sqeuclidean"), "average")
        groups = torch.from_numpy(fcluster(tree, apart + 2 * self.newcomers, "distance")).long() - 1
        images = torch.zeros(int(groups.max()) + 1).double().index_add_(0, groups, sizes)
        sums = points.new_zeros(len(images), points.shape[1]).index_add_(0, groups, points * sizes[:, None])
        return (sums / images[:, None])[images >= FEWEST_IMAGES]

    @property
    def _sizes(self) -> Tensor:
        """Images in each unit, float64."""
        return self.units.unit_of_image.bincount(minlength=len(self.units.points)).double()

    def _labels(self, free: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        """Group of every unit, its squared distance there, and units that found no group.

        A unit of a new group is measured without itself in the group's centre: else it would always be near.
        """
        squared, spreads = self.units.distances(torch.cat([self.held, free])), self._spreads(len(free))
        costs = squared / spreads + spreads.log()
        labels, stuck = self.units.assign(costs)
        is_new = labels >= len(self.held) + self.num_opened
        weights = self.units.weights
        sums = torch.zeros(len(spreads), dtype=torch.float64).index_add_(0, labels, weights)
        factor = (sums[labels] / (sums[labels] - weights).clamp(min=1e-3 * weights))[is_new]
        places = labels[is_new][:, None]
        spread = self.newcomers * factor
        costs[is_new] = costs[is_new].scatter(
            1,
            places,
            squared[is_new].gather(1, places) * (factor**2 / spread)[:, None] + spread.log()[:, None],
        )
        labels, stuck = self.units.assign(costs)
        return labels, squared.gather(1, labels[:, None])[:, 0], stuck

    def _centres(self, labels: Tensor, num_free: int) -> tuple[Tensor, Tensor]:
        """Centres of the free groups that have units, those that pins open first, and the images in each."""
        groups, units = labels - len(self.held), self.units
        mine = groups >= 0
        weights = units.weights[mine]
        sums = units.points.new_zeros(num_free, self.held.shape[1])
        sums.index_add_(0, groups[mine], units.points[mine] * weights[:, None])
        totals = torch.zeros(num_free, dtype=torch.float64).index_add_(0, groups[mine], weights)
        images = torch.zeros(num_free, dtype=torch.float64).index_add_(0, groups[mine], self._sizes[mine])
        used = totals > 0
        return sums[used] / totals[used, None], images[used]

    def _settled(self, free: Tensor) -> Tensor:
        """Centres after k-means, in which known prototypes stay."""
        for _ in range(SETTLING if len(free) else 0):
            moved, _ = self._centres(self._labels(free)[0], len(free))
            if len(moved) == len(free) and torch.equal(moved, free):
                break
            free = moved
        return free

    def _pruned(self, free: Tensor, apart: float) -> Tensor:
        """Without groups that are too small or too near to a known category; those too near to one another are one."""
        centres, images = self._centres(self._labels(free)[0], len(free))
        while len(centres) > self.num_opened:
            noise = PICKED * self.newcomers / images
            to_known = (squared_distances(centres, self.held) - noise[:, None]).amin(1)
            to_known[images < FEWEST_IMAGES] = -torch.inf
            to_known[: self.num_opened] = torch.inf
            between = squared_distances(centres, centres) - noise[:, None] - noise
            between.fill_diagonal_(torch.inf)
            between[: self.num_opened, : self.num_opened] = torch.inf
            if min(to_known.min(), between.min()) >= apart:
                break
            if to_known.min() <= between.min():
                gone = int(to_known.argmin())
            else:
                first, gone = sorted(divmod(int(between.argmin()), len(centres)))
                both = images[[first, gone]]
                centres[first] = both @ centres[[first, gone]] / both.sum()
                images[first] = both.sum()
            left = torch.arange(len(centres)) != gone
            centres, images = centres[left], images[left]
        return centres

    def _apart_from_rivals(self, free: Tensor) -> Tensor:
        """With a group more for every image that people keep out of all of them."""
        for _ in range(len(self.units.points)):
            stuck = self._labels(free)[2]
            if not stuck:
                return free
            free = torch.cat([free, self.units.points[list(stuck[:1])]])
        raise refusal(self.units, stuck, len(self.held) + len(free))

    def _state(self, free: Tensor) -> Growth:
        """The grouping; of new groups the largest comes first."""
        labels, _, _ = self._labels(free)
        centres, images = self._centres(labels, len(free))
        opened = torch.arange(len(centres)) < self.num_opened
        order = torch.where(opened, torch.inf, images).argsort(descending=True, stable=True)
        order = torch.cat([torch.arange(self.num_opened), order[self.num_opened :]])
        labels, squared, stuck = self._labels(centres[order])
        return Growth(
            torch.cat([self.held, centres[order]]),
            labels,
            squared,
            float(self.units.weights @ squared),
            stuck,
        )

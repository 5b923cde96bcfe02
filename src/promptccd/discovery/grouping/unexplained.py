"""New groups among the images that no known category explains, in the metric in which known categories are round.

Letters: M units, D width, C known categories, K groups.
"""

from dataclasses import dataclass

import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from torch import Tensor

from promptccd.data.randomness import numpy_generator
from promptccd.discovery.grouping.held_kmeans import UnitGroups, means, pinned_means
from promptccd.discovery.grouping.units import Units, refusal
from promptccd.models import CategorySpread
from promptccd.models.assignment import NEWCOMERS, squared_distances

# New categories, which no training has driven apart, may lie so much closer together than known ones to their nearest.
CLOSER = 0.3
WIDER, TIGHTER = 0.15, 0.6  # half of it and twice as much, for the ends of the range
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
        held: ``(C, D)`` whitened prototypes.
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

    def grouped(self, closer: float = CLOSER, proposed: Tensor | None = None) -> UnitGroups:
        """Known categories, groups that people opened, and as many new ones as the images speak for.

        A new group needs four images, and its centre must lie at least `closer` times as far from every other as
        known categories do from their nearest, beyond what so few images can be off. When in doubt an image is known.

        Args:
            closer: see above.
            proposed: ``(P, D)`` centres of what might be groups; none looks for some among the unexplained images.

        Raises:
            DataError: constraints cannot hold; the images are named.
        """
        apart = closer * self.usual_distance
        free = pinned_means(self.units, len(self.held), self.num_opened)
        if proposed is None:
            free = self._with_unexplained(free, apart)
        else:
            free = self._worth_it(torch.cat([free, proposed]), apart)
        return self._state(self._apart_from_rivals(free))

    def _with_unexplained(self, free: Tensor, apart: float) -> Tensor:
        """Centres, with those of groups of unexplained images."""
        before = -1
        # Again, for there may be too many unexplained images to look at all of them.
        while len(free) > before:
            before = len(free)
            free = self._worth_it(torch.cat([free, self._proposals(free, apart)]), apart)
            if len(self._unexplained(free)) <= MOST_LINKED:
                break
        return free

    def _worth_it(self, free: Tensor, apart: float) -> Tensor:
        """Centres after k-means, without groups that are too small or too near to another category."""
        free = self._settled(free)
        for _ in range(ROUNDS):
            kept = self._pruned(free, apart)
            if len(kept) == len(free):
                break
            free = self._settled(kept)
        return free

    def may_hide_another(self, found: UnitGroups) -> bool:
        """Whether enough images for a group are still explained by nothing."""
        left = self._unexplained(found.centres[len(self.held) :])
        return bool(self.units.sizes[left].sum() >= FEWEST_IMAGES)

    def _spreads(self, num_groups: int) -> Tensor:
        known = self.spread.spreads.to(self.held)
        return torch.cat([known, self.held.new_full((num_groups - len(known),), self.newcomers)])

    def _unexplained(self, free: Tensor) -> Tensor:
        """Units out of reach of every category, those that people have settled left out."""
        centres = torch.cat([self.held, free])
        spreads = self._spreads(len(centres))
        nearest = [
            (squared_distances(self.units.points[block], centres) / spreads).amin(1)
            for block in self.units.blocks(len(centres))
        ]
        outside = torch.cat(nearest) > self.spread.reach
        outside[self.units.settled[0]] = False
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
        points, sizes = self.units.points[candidates], self.units.sizes[candidates]
        tree = linkage(pdist(points.cpu().numpy(), "sqeuclidean"), "average")
        groups = torch.from_numpy(fcluster(tree, apart + 2 * self.newcomers, "distance")).to(candidates) - 1
        images = sizes.new_zeros(int(groups.max()) + 1).index_add_(0, groups, sizes)
        sums = points.new_zeros(len(images), points.shape[1]).index_add_(0, groups, points * sizes[:, None])
        return (sums / images[:, None])[images >= FEWEST_IMAGES]

    def _labels(self, free: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """Group of every unit, and units that found no group.

        A unit of a new group is measured without itself in the group's centre: else it would always be near.
        """
        centres, weights = torch.cat([self.held, free]), self.units.weights
        members, _ = self._placed(centres)
        totals = weights.new_zeros(len(centres)).index_add_(0, members, weights)[members]
        return self._placed(centres, (members, totals / (totals - weights).clamp(min=1e-3 * weights)))

    def _placed(
        self, centres: Tensor, own: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[int, ...]]:
        """Units in the categories that explain them best, as far as people allow."""
        units = self.units
        labels = [self._costs(block, centres, own).argmin(1) for block in units.blocks(len(centres))]
        return units.place(torch.cat(labels), self._costs(units.constrained, centres, own))

    def _costs(self, rows: slice | Tensor, centres: Tensor, own: tuple[Tensor, Tensor] | None) -> Tensor:
        """Of units in each category ``(m, K)``: squared distance in spreads, plus the logarithm of the spread.

        All known categories count as equally wide, as they do when images are named.

        Args:
            rows: the units.
            centres: ``(K, D)`` of the categories.
            own: group of each unit ``(M,)``, and by how much farther it is from the centre of the others there.
        """
        squared = squared_distances(self.units.points[rows], centres)
        spreads = squared.new_full((len(centres),), self.newcomers)
        spreads[: len(self.held)] = self.spread.typical
        costs = squared / spreads + spreads.log()
        if own is None:
            return costs
        groups, farther = own[0][rows, None], own[1][rows, None]
        spread = self.newcomers * farther
        alone = squared.gather(1, groups) * farther.square() / spread + spread.log()
        is_new = groups >= len(self.held) + self.num_opened
        return costs.scatter(1, groups, torch.where(is_new, alone, costs.gather(1, groups)))

    def _centres(self, labels: Tensor, num_free: int) -> tuple[Tensor, Tensor]:
        """Centres of the free groups that have units, those that pins open first, and the images in each."""
        num_held, num_groups = len(self.held), len(self.held) + num_free
        centres, weights = means(self.units, labels, num_groups)
        images = weights.new_zeros(num_groups).index_add_(0, labels, self.units.sizes)
        used = weights[num_held:] > 0
        return centres[num_held:][used], images[num_held:][used]

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
            left = torch.arange(len(centres), device=centres.device) != gone
            centres, images = centres[left], images[left]
        return centres

    def _apart_from_rivals(self, free: Tensor) -> Tensor:
        """With a group more for every image that people keep out of all of them."""
        for _ in range(len(self.units.points)):
            stuck = self._labels(free)[1]
            if not stuck:
                return free
            free = torch.cat([free, self.units.points[list(stuck[:1])]])
        raise refusal(self.units, stuck, len(self.held) + len(free))

    def _state(self, free: Tensor) -> UnitGroups:
        """The grouping; of new groups the largest comes first."""
        centres, images = self._centres(self._labels(free)[0], len(free))
        opened = torch.arange(len(centres), device=images.device) < self.num_opened
        order = torch.where(opened, torch.inf, images).argsort(descending=True, stable=True)
        centres = torch.cat([self.held, centres[order]])
        labels, stuck = self._labels(centres[len(self.held) :])
        costs = torch.cat([
            (self.units.points[block] - centres[labels[block]]).square().sum(1)
            for block in self.units.blocks(centres.shape[1])
        ])  # fmt: skip
        return UnitGroups(centres, labels, costs, stuck)

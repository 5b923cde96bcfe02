"""New groups among the images that no known category explains, in the metric in which known categories are round.

Letters: M units, D width, C known categories, K groups.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from torch import Tensor

from promptccd.clustering.spread import STRANGERS
from promptccd.data.randomness import numpy_generator
from promptccd.discovery.grouping.group_tree import UnitGroups, means, pinned_means
from promptccd.discovery.grouping.units import Units, refusal
from promptccd.models import CategorySpread
from promptccd.models.assignment import NEWCOMERS, squared_distances

# No training has driven new categories apart: they must lie only this share of the usual squared distance apart.
CLOSER = 0.2
WIDER, TIGHTER = 0.15, 0.6  # a little less and three times as much, for the ends of the range
# Extra distance that a small group needs, per factor e below the usual size: the smaller an outlying part of a
# category, the farther off it is (for a Gaussian tail as the log of its share).
UNEVEN = 0.65
FEWEST_IMAGES = 4  # of a new group, out of reach of every known category
PICKED = 3.0  # the mean of images picked for lying far off errs by so many times that of images drawn blindly
MOST_LINKED = 2_000  # unexplained images that groups are proposed from at a time
STEPS, ROUNDS = 5, 8  # steps of k-means after each change, and changes, at most


@dataclass(frozen=True)
class OpenSet:
    """Images and known categories of measured spread.

    Attributes:
        units: images that move together; their points are whitened.
        fixed: ``(C, D)`` whitened prototypes.
        spread: of the known categories, row by row.
        num_opened: groups C, C + 1, ... that pins open, however small.
        seed: of the sample of unexplained images, if there are more than 2,000.
    """

    units: Units
    fixed: Tensor
    spread: CategorySpread
    num_opened: int
    seed: int

    @property
    def newcomers(self) -> float:
        """Expected mean squared distance of the images of a new category from its centre."""
        return NEWCOMERS * self.spread.typical

    def grouped(
        self, closer: float = CLOSER, proposed: Tensor | None = None, uneven: float = UNEVEN
    ) -> UnitGroups:
        """Known categories, groups that people opened, and the new groups that the images support.

        A new group needs four images that no known category explains, and the squared distance of its centre from every
        other must be at least `closer` times the usual one, not counting the error of the mean of so few images; from
        another new group more, if a group is smaller than the group of most new images (`uneven`, per e-fold). In
        doubt an image is known. Centres of possible groups are `proposed` ``(P, D)``, or else searched among
        unexplained images.

        Raises:
            DataError: constraints cannot be satisfied; the message names the images.
        """
        between = squared_distances(self.fixed, self.fixed).fill_diagonal_(torch.inf)
        apart = closer * float(between.amin(1).median())
        free, _ = pinned_means(self.units, len(self.fixed), self.num_opened)
        if proposed is None:
            free = self._with_unexplained(free, apart, uneven)
        else:
            free = self._viable(torch.cat([free, proposed]), apart, uneven)
        return self._state(self._apart_from_rivals(free))

    def _with_unexplained(self, free: Tensor, apart: float, uneven: float) -> Tensor:
        """Centres, also of groups of unexplained images, repeated while there are too many to look at at once."""
        before = -1
        while len(free) > before:
            before = len(free)
            free = self._viable(torch.cat([free, self._proposals(free, apart)]), apart, uneven)
            if len(self._unexplained(free)) <= MOST_LINKED:
                break
        return free

    def _viable(self, free: Tensor, apart: float, uneven: float) -> Tensor:
        """Centres after k-means, without groups that are too small or too near to another category."""
        free = self._converged(free)
        for _ in range(ROUNDS):
            kept = self._pruned(free, apart, uneven)
            if len(kept) == len(free):
                break
            free = self._converged(kept)
        return free

    def hidden(self, found: UnitGroups) -> float:
        """How many categories may be hidden among the images that were called known.

        Images that are of no known category, if as many images are new as known, would make so many groups of the usual
        size. The true share of new images is not known: this bounds a range.
        """
        units, sizes = self.units, self.units.sizes
        blocks = (units.points[block] for block in units.blocks(len(self.fixed)))
        spreads = (squared_distances(each, self.fixed) / self.spread.typical for each in blocks)
        explained = torch.cat([self.spread.known_probability(each) for each in spreads])
        new = sizes * torch.sigmoid(torch.logit(1 - explained) - math.log(STRANGERS))
        new[found.labels >= len(self.fixed)] = 0
        new[units.pins[0]] = 0
        images = sizes.new_zeros(len(found.centres)).index_add_(0, found.labels, sizes)
        return float(new.sum() / images[images > 0].median())

    @cached_property
    def _strangers(self) -> Tensor:
        """Images of each unit ``(M,)`` that is out of reach of every known category, else 0."""
        outside = self._unexplained(self.fixed[:0])
        return torch.zeros_like(self.units.sizes).index_copy_(0, outside, self.units.sizes[outside])

    def _unexplained(self, free: Tensor) -> Tensor:
        """Units out of reach of every category, except pinned ones."""
        centres = torch.cat([self.fixed, free])
        spreads = torch.cat([self.spread.spreads.to(centres), centres.new_full((len(free),), self.newcomers)])
        nearest = [
            (squared_distances(self.units.points[block], centres) / spreads).amin(1)
            for block in self.units.blocks(len(centres))
        ]
        outside = torch.cat(nearest) > self.spread.reach
        outside[self.units.pins[0]] = False
        return outside.nonzero()[:, 0]

    def _proposals(self, free: Tensor, apart: float) -> Tensor:
        """Centres of unexplained images that lie together, by average linkage."""
        candidates = self._unexplained(free)
        if len(candidates) > MOST_LINKED:
            drawn = numpy_generator("unexplained images", self.seed).permutation(len(candidates))
            candidates = candidates[torch.from_numpy(drawn[:MOST_LINKED]).sort().values]
        if len(candidates) < 2:
            return self.fixed[:0]
        points, sizes = self.units.points[candidates], self.units.sizes[candidates]
        tree = linkage(pdist(points.cpu().numpy(), "sqeuclidean"), "average")
        groups = torch.from_numpy(fcluster(tree, apart + 2 * self.newcomers, "distance")).to(candidates) - 1
        images = sizes.new_zeros(int(groups.max()) + 1).index_add_(0, groups, sizes)
        sums = points.new_zeros(len(images), points.shape[1]).index_add_(0, groups, points * sizes[:, None])
        return (sums / images[:, None])[images >= FEWEST_IMAGES]

    def _labels(self, free: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """Group of every unit, and units that found no group.

        For a unit of a new group the centre is taken without that unit: else it would always be near.
        """
        centres, weights = torch.cat([self.fixed, free]), self.units.weights
        members, _ = self._placed(centres)
        totals = weights.new_zeros(len(centres)).index_add_(0, members, weights)[members]
        return self._placed(centres, (members, totals / (totals - weights).clamp(min=1e-3 * weights)))

    def _placed(
        self, centres: Tensor, own: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[int, ...]]:
        """Group of every unit: the best explanation among the allowed groups."""
        units = self.units
        labels = [self._costs(block, centres, own).argmin(1) for block in units.blocks(len(centres))]
        return units.place(torch.cat(labels), self._costs(units.limited, centres, own))

    def _costs(self, rows: slice | Tensor, centres: Tensor, own: tuple[Tensor, Tensor] | None) -> Tensor:
        """Costs ``(m, K)`` of m units in each category: squared distance in spreads, plus the log of the spread.

        All known categories count as equally wide, as they do when images are named. `own` gives the group ``(M,)`` of
        each unit and how many times farther it lies from the centre of the remaining units there.
        """
        squared = squared_distances(self.units.points[rows], centres)
        spreads = squared.new_full((len(centres),), self.newcomers)
        spreads[: len(self.fixed)] = self.spread.typical
        costs = squared / spreads + spreads.log()
        if own is None:
            return costs
        groups, farther = own[0][rows, None], own[1][rows, None]
        spread = self.newcomers * farther
        alone = squared.gather(1, groups) * farther.square() / spread + spread.log()
        is_new = groups >= len(self.fixed) + self.num_opened
        return costs.scatter(1, groups, torch.where(is_new, alone, costs.gather(1, groups)))

    def _centres(self, labels: Tensor, num_free: int) -> tuple[Tensor, Tensor, Tensor]:
        """Centres of the free groups that have units, the number of images in each, and how many are strangers."""
        num_fixed, num_groups = len(self.fixed), len(self.fixed) + num_free
        centres, weights = means(self.units, labels, num_groups)
        images, strangers = (
            weights.new_zeros(num_groups).index_add_(0, labels, each)[num_fixed:]
            for each in (self.units.sizes, self._strangers)
        )
        used = weights[num_fixed:] > 0
        return centres[num_fixed:][used], images[used], strangers[used]

    def _converged(self, free: Tensor) -> Tensor:
        """Centres after k-means with the known prototypes fixed."""
        for _ in range(STEPS if len(free) else 0):
            moved, *_ = self._centres(self._labels(free)[0], len(free))
            if len(moved) == len(free) and torch.equal(moved, free):
                break
            free = moved
        return free

    def _pruned(self, free: Tensor, apart: float, uneven: float) -> Tensor:
        """Centres without groups that are too small or too near to a known category; near new groups are joined."""
        centres, images, strangers = self._centres(self._labels(free)[0], len(free))
        usual = images.square().sum() / images.sum()  # of the group of an image; merging must not raise it
        while len(centres) > self.num_opened:
            noise = PICKED * self.newcomers / images
            to_known = (squared_distances(centres, self.fixed) - noise[:, None]).amin(1)
            to_known[strangers < FEWEST_IMAGES] = -torch.inf
            to_known[: self.num_opened] = torch.inf
            smaller = torch.minimum(images[:, None], images)
            farther = 1 + uneven * (usual / smaller).log().clamp(min=0)
            between = (squared_distances(centres, centres) - noise[:, None] - noise) / farther
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
            centres, images, strangers = centres[left], images[left], strangers[left]
        return centres

    def _apart_from_rivals(self, free: Tensor) -> Tensor:
        """Centres, with another one at every image that people keep out of all groups."""
        for _ in range(len(self.units.points)):
            stuck = self._labels(free)[1]
            if not stuck:
                return free
            free = torch.cat([free, self.units.points[list(stuck[:1])]])
        raise refusal(self.units, stuck, len(self.fixed) + len(free))

    def _state(self, free: Tensor) -> UnitGroups:
        """The grouping, with new groups ordered from the largest."""
        centres, images, _ = self._centres(self._labels(free)[0], len(free))
        images[: self.num_opened] = torch.inf
        free = centres[images.argsort(descending=True, stable=True)]
        return UnitGroups(torch.cat([self.fixed, free]), *self._labels(free))

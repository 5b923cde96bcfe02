"""Semi-supervised k-means with fixed prototypes, for every number of groups.

k-means first seeds many small groups. Ward's rule then makes a tree: step by step, the two groups that are cheapest to
join are joined, or the group that is cheapest to give up joins the nearest prototype. For a number of groups the
tree is cut there, and k-means continues from the cut.

Letters: M units, D width, P principal components, K groups, H fixed prototypes, O groups that pins open, S seeds.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from promptccd.clustering import AnchoredKMeans
from promptccd.clustering.kmeans import sum_rows
from promptccd.data.randomness import seed_of
from promptccd.discovery.grouping.units import Units
from promptccd.models.assignment import squared_distances

Array = npt.NDArray[np.float64]

COMPONENTS = 48  # directions in which groups are looked for; the rest of a wide feature is mostly noise
MOST_SAMPLED = 16_384  # units that a tree is made of
SEED_ITERATIONS, CUT_ITERATIONS, MOST_ITERATIONS = 5, 10, 100
MOST_RESTARTS = 20
RESTART_ELEMENTS = 2**25  # units times new groups times restarts that random starts may cost
GIVEN_UP = -1  # in place of the group that stays, if the other one goes to a fixed prototype


@dataclass(frozen=True)
class UnitGroups:
    """Units in groups.

    Attributes:
        centres: ``(K, D)``: fixed centres, then centres that pins open.
        labels: ``(M,)`` group of each unit.
        stuck: one or two units for which people allow no group here; they are in their nearest.
        costs: ``(M,)`` squared distance of each unit to its centre; empty where it is not needed.
    """

    centres: Tensor
    labels: Tensor
    stuck: tuple[int, ...]
    costs: Tensor = field(default_factory=lambda: torch.empty(0))


def in_nearest(units: Units, centres: Tensor) -> UnitGroups:
    """Every unit in the nearest of the groups it may be in."""
    costs = centres.new_empty(len(units.points))
    labels = torch.empty_like(costs, dtype=torch.int64)
    for block in units.blocks(len(centres)):
        costs[block], labels[block] = squared_distances(units.points[block], centres).min(1)
    limited = units.limited
    labels, stuck = units.place(labels, squared_distances(units.points[limited], centres))
    moved = torch.cat([limited, units.pins[0]])
    costs[moved] = (units.points[moved] - centres[labels[moved]]).square().sum(1)
    return UnitGroups(centres, labels, stuck, costs)


def means(units: Units, labels: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """Weighted mean of each group ``(K, D)``, zero where it has no unit, and its weight ``(K,)``."""
    sums = torch.zeros(num_groups, units.points.shape[1], dtype=torch.float64, device=labels.device)
    for start in range(0, len(labels), MOST_SAMPLED):  # at most so many are added up in float32
        block = slice(start, start + MOST_SAMPLED)
        order = labels[block].argsort(stable=True)
        sizes = labels[block].bincount(minlength=num_groups)
        sums += sum_rows(units.points[block], order, units.weights[block][order], sizes)
    weights = units.weights.new_zeros(num_groups).index_add_(0, labels, units.weights)
    return (sums / weights.clamp(min=1)[:, None]).to(units.points.dtype), weights


def lloyd(units: Units, centres: Tensor, num_fixed: int, most: int = MOST_ITERATIONS) -> UnitGroups:
    """k-means from these centres until no unit moves; the first centres stay, and so do centres of empty groups.

    Of more units than a tree is made of, a thousandth may still move: waiting for the last units would take most of
        the steps.
    """
    found = in_nearest(units, centres)
    tolerated = len(found.labels) // 1_000 if len(found.labels) > MOST_SAMPLED else 0
    for _ in range(most):
        moved, weights = means(units, found.labels, len(centres))
        moved = torch.where(weights[:, None] > 0, moved, found.centres)
        after = in_nearest(units, torch.cat([centres[:num_fixed], moved[num_fixed:]]))
        if (after.labels != found.labels).sum() <= tolerated:
            return after
        found = after
    return found


def pinned_means(units: Units, num_fixed: int, num_opened: int) -> tuple[Tensor, Tensor]:
    """Mean ``(O, D)`` and weight ``(O,)`` of the units pinned to each of the groups that pins open."""
    pinned, groups = units.pins
    opens = groups >= num_fixed
    chosen = replace(units, points=units.points[pinned[opens]], weights=units.weights[pinned[opens]])
    return means(chosen, (groups[opens] - num_fixed).to(units.points.device), num_opened)


class GroupTree:
    """Groups and fixed prototypes ``(H, D)``, for every number of them.

    Pins open groups H, H + 1, ... (`num_opened`); the tree begins with at most `num_seeds` small groups. The seed is
    that of the sample and of k-means.

    Attributes:
        units: the sampled units, in principal components.
        points: of these units.
        share: of the features' variance that the components explain.
        fewest_groups: smallest number that the tree can be cut into.
        most_groups: largest such number.
    """

    def __init__(self, units: Units, fixed: Tensor, num_opened: int, num_seeds: int, seed: int):
        self.all_units, self.num_fixed, self.num_opened, self.seed = units, len(fixed), num_opened, seed
        self.rows = _sampled(units, seed)
        sampled = units.points[self.rows]
        origin, axes = _components(torch.cat([sampled, fixed]))
        self.points = (sampled - origin) @ axes
        place = {unit: row for row, unit in enumerate(self.rows.tolist())}
        self.units = replace(  # in the tree, only pins count
            units,
            points=self.points,
            weights=units.weights[self.rows],
            pinned={place[unit]: group for unit, group in units.pinned.items()},
            banned={},
            rivals={},
        )
        whole = (sampled - origin).square().sum()
        self.share = float(self.points.square().sum() / whole) if whole > 0 else 1.0
        self.fixed = (fixed - origin) @ axes
        opened, weights = pinned_means(units, len(fixed), num_opened)
        self.opened = (opened - origin) @ axes
        self.seeds, self.masses = self._seeds(num_seeds, weights)
        self.most_groups = len(fixed) + len(self.seeds)
        self.fewest_groups = max(1, len(fixed) + num_opened)
        held = self.fixed.double().cpu().numpy()
        self._merges = _cheapest_merges(self.seeds, self.masses, held, num_opened, self.fewest_groups)

    def cut(self, num_groups: int) -> UnitGroups:
        """So many groups of the sampled units, in principal components, after a few steps of k-means."""
        group_of_seed = np.arange(len(self.seeds))
        # Last merge first: where a group ends is known before the groups that joined it are looked up.
        for kept, gone in reversed(self._merges[: self.most_groups - num_groups]):
            group_of_seed[gone] = GIVEN_UP if kept == GIVEN_UP else group_of_seed[kept]
        groups = [each for each in np.unique(group_of_seed) if each != GIVEN_UP]
        members = group_of_seed[:, None] == groups
        centres = (members * self.masses[:, None]).T @ self.seeds / (self.masses @ members)[:, None]
        free = torch.from_numpy(centres).to(self.fixed)
        return lloyd(self.units, torch.cat([self.fixed, free]), self.num_fixed, CUT_ITERATIONS)

    def centres_of(self, found: UnitGroups) -> Tensor:
        """Means ``(K - H, D)`` of the sampled features in the free groups of a cut; empty groups are left out."""
        sampled = replace(self.units, points=self.all_units.points[self.rows])
        moved, weights = means(sampled, found.labels, len(found.centres))
        return moved[self.num_fixed :][weights[self.num_fixed :] > 0]

    def best(self, num_groups: int) -> UnitGroups:
        """So many groups: a cut, or the best of a few random starts if that fits better."""
        tried = [self.cut(num_groups)]
        most = len(self._free_points)
        if (num_new := min(num_groups - self.num_fixed - self.num_opened, most)) > 0:
            restarts = max(1, min(MOST_RESTARTS, RESTART_ELEMENTS // (num_new * most)))
            started = self._started(num_new, restarts, MOST_ITERATIONS)
            new = torch.as_tensor(started.cluster_centers_)[-num_new:]
            centres = torch.cat([self.fixed, self.opened, new])
            tried.append(lloyd(self.units, centres, self.num_fixed, CUT_ITERATIONS))
        return min(tried, key=lambda found: float(found.costs @ self.units.weights))

    @cached_property
    def _free_points(self) -> Tensor:
        """Sampled units that are not pinned, each repeated by its weight."""
        free = torch.ones(len(self.units.points), dtype=torch.bool)
        free[self.units.pins[0]] = False
        return self.units.points[free].repeat_interleave(self.units.weights[free].long(), 0)

    def _started(self, num_new: int, restarts: int, iterations: int) -> AnchoredKMeans:
        """k-means from random starts: new groups, fixed groups and groups that pins open."""
        given = torch.cat([self.fixed, self.opened])
        count = len(given) + num_new
        kmeans = AnchoredKMeans(count, restarts, iterations, random_state=self.seed, fix_labelled=True)
        return kmeans.fit(self._free_points, given, torch.arange(len(given)))

    def _seeds(self, most: int, opened_weights: Tensor) -> tuple[Array, Array]:
        """Centres ``(S, P)`` of the groups that pins open and of many small ones, and their weights ``(S,)``."""
        seeds, masses = [self.opened], [opened_weights]
        if most := min(most, len(self._free_points)):
            started = self._started(most, 1, SEED_ITERATIONS)
            num_groups = self.num_fixed + self.num_opened + most
            counts = torch.as_tensor(started.labels_).bincount(minlength=num_groups)[-most:]
            seeds.append(torch.as_tensor(started.cluster_centers_)[-most:][counts > 0])
            masses.append(counts[counts > 0])
        of_seeds, of_masses = (
            torch.cat([each.double().cpu() for each in parts]) for parts in (seeds, masses)
        )
        return of_seeds.numpy(), of_masses.numpy()


def _sampled(units: Units, seed: int) -> Tensor:
    """Rows of the units that a tree is made of, including pinned units."""
    if len(units.points) <= MOST_SAMPLED:
        return torch.arange(len(units.points))
    # Each seed has its own smallest units, in an order that does not depend on the order of the images.
    draws = units.digests * np.uint64(2 * seed_of("sampled units", seed) + 1)
    draws[list(units.pinned)] = 0
    most = min(MOST_SAMPLED + len(units.pinned), len(draws))
    rows = draws.argpartition(most - 1)[:most]
    return torch.from_numpy(rows[np.lexsort((units.digests[rows], draws[rows]))])


def _components(points: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ``(D,)`` and directions of greatest spread ``(D, P)``."""
    origin = points.mean(0)
    centred = points - origin
    if points.shape[1] <= COMPONENTS:
        return origin, torch.eye(points.shape[1]).to(points)
    if len(points) <= points.shape[1]:
        axes = torch.linalg.svd(centred.double(), full_matrices=False).Vh.T
    else:
        axes = torch.linalg.eigh((centred.T @ centred).double()).eigenvectors.flip(1)
    return origin, axes[:, :COMPONENTS].to(points)


def _cheapest_merges(
    seeds: Array, masses: Array, fixed: Array, num_opened: int, fewest: int
) -> list[tuple[int, int]]:
    """Ward's merges of groups ``(S, P)`` with masses ``(S,)`` and fixed prototypes ``(H, P)``, cheapest first.

    A merge costs the rise in inertia. The first `num_opened` groups absorb other groups and never go. Returns pairs of
    the group that stays, or `GIVEN_UP`, and the group that goes.
    """
    if not len(seeds):  # people have put every image into a known category
        return []
    centres, masses = seeds.copy(), masses.copy()
    costs = cdist(centres, centres, "sqeuclidean")
    for mass, row in zip(masses, costs, strict=True):  # row by row: another table of these would be 240 MB
        row *= mass * masses / (mass + masses)
    np.fill_diagonal(costs, np.inf)
    costs[:num_opened, :num_opened] = np.inf
    nearest, cheapest = costs.argmin(1), costs.min(1)
    nearest_fixed = cdist(centres, fixed, "sqeuclidean").min(1, initial=np.inf)
    giving_up = masses * nearest_fixed
    giving_up[:num_opened] = np.inf
    merges = []
    for _ in range(len(fixed) + len(seeds) - fewest):
        one, lost = int(cheapest.argmin()), int(giving_up.argmin())
        if giving_up[lost] <= cheapest[one]:
            kept, gone = GIVEN_UP, lost
        else:
            kept, gone = sorted((one, int(nearest[one])))
        merges.append((kept, gone))
        costs[gone], costs[:, gone], cheapest[gone], giving_up[gone] = np.inf, np.inf, np.inf, np.inf
        stale = nearest == gone
        if kept != GIVEN_UP:
            mass = masses[kept] + masses[gone]
            centres[kept] = (masses[kept] * centres[kept] + masses[gone] * centres[gone]) / mass
            masses[kept] = mass
            row = mass * masses / (mass + masses) * cdist(centres[[kept]], centres, "sqeuclidean")[0]
            row[np.isinf(costs[kept])] = np.inf
            costs[kept], costs[:, kept] = row, row
            if np.isfinite(giving_up[kept]):
                to_fixed = cdist(centres[[kept]], fixed, "sqeuclidean")
                giving_up[kept] = mass * to_fixed.min(initial=np.inf)
            stale |= (nearest == kept) | (row < cheapest)
            stale[kept] = True
        stale &= cheapest < np.inf
        rows = costs[stale]
        nearest[stale] = rows.argmin(1)
        cheapest[stale] = rows[np.arange(len(rows)), nearest[stale]]
    return merges

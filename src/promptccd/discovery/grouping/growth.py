"""k-means that opens one group after another beside prototypes that do not move.

Letters: M units, D width, K groups, H held prototypes, Q candidates for a new centre.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from promptccd.clustering.constraints import GroupingConstraints
from promptccd.data.randomness import numpy_generator
from promptccd.errors import DataError
from promptccd.models.assignment import squared_distances

ANSWER_WORTH = 5.0  # images that one a person spoke of counts for: it was shown because others are like it
RESTARTS = 5  # places tried for each new centre
MAX_SEARCH_STEPS = 20_000  # of the search for groups that keep images apart


@dataclass(frozen=True)
class Units:
    """What moves between groups as one: images that must be together, or a single image.

    Attributes:
        points: ``(M, D)`` float64, mean feature of each unit.
        weights: ``(M,)`` float64, images in each; one that a constraint speaks of counts 5 times.
        unit_of_image: ``(N,)`` int64.
        names: key of an image of each unit, for messages.
        pinned: group of the units that are settled.
        banned: groups that a unit must not be in.
        rivals: units that a unit must be apart from, symmetric.
    """

    points: Tensor
    weights: Tensor
    unit_of_image: Tensor
    names: Sequence[str]
    pinned: Mapping[int, int] = field(default_factory=dict)
    banned: Mapping[int, frozenset[int]] = field(default_factory=dict)
    rivals: Mapping[int, frozenset[int]] = field(default_factory=dict)

    @cached_property
    def squares(self) -> Tensor:
        """Squared norms of the points, ``(M,)``."""
        return self.points.square().sum(1)

    @cached_property
    def rival_sets(self) -> list[list[int]]:
        """Units that rivalries connect, set by set."""
        return _connected(self.rivals)

    def distances(self, centres: Tensor) -> Tensor:
        """Squared distances ``(M, K)`` to centres ``(K, D)`` float64."""
        return squared_distances(self.points, centres, self.squares)

    def assign(self, distances: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """The nearest group each unit may be in.

        Args:
            distances: ``(M, K)`` squared, of units to centres.

        Returns:
            Labels ``(M,)``, and the units that found no group: one that is banned from all, or two of which one has
            no group left that does not hold another it must be apart from. These are in their nearest group.
        """
        labels = distances.argmin(1)
        for unit, group in self.pinned.items():
            labels[unit] = group
        stuck: tuple[int, ...] = ()
        for unit, groups in self.banned.items():
            if unit in self.pinned:
                continue
            row = distances[unit].clone()
            row[[group for group in groups if group < len(row)]] = torch.inf
            if row.isinf().all():
                stuck = stuck or (unit,)
            else:
                labels[unit] = row.argmin()
        for units in self.rival_sets:
            if any(labels[unit] == labels[other] for unit in units for other in self.rivals[unit]):
                found, conflict = _apart(units, self._choices(distances, units), self.rivals)
                stuck = stuck or conflict
                for unit, group in found.items():
                    labels[unit] = group
        return labels, stuck

    def _choices(self, distances: Tensor, units: list[int]) -> dict[int, list[int]]:
        """The groups each of the units may be in, nearest first."""
        choices = {}
        for unit in units:
            if unit in self.pinned:
                choices[unit] = [self.pinned[unit]]
            else:
                banned = self.banned.get(unit, frozenset())
                order = distances[unit].argsort(stable=True).tolist()
                choices[unit] = [group for group in order if group not in banned]
        return choices


def make_units(
    points: Tensor,
    keys: Sequence[str],
    constraints: GroupingConstraints,
    group_of_category: Callable[[int], int | None],
) -> Units:
    """Units of the images under the constraints; what is said of absent images alone is left out.

    Args:
        points: ``(N, D)`` float64.
        keys: of the images, distinct.
        constraints: what must hold.
        group_of_category: the group of a category id, None if there can be none in this grouping.
    """
    components = [constraints.component_of(key) for key in keys]
    place: dict[str, int] = {}
    names: list[str] = []
    for component, key in zip(components, keys, strict=True):
        if component not in place:
            place[component] = len(place)
            names.append(key)
    unit_of_image = torch.tensor([place[component] for component in components])
    sizes = unit_of_image.bincount(minlength=len(place)).double()
    means = points.new_zeros(len(place), points.shape[1]).index_add_(0, unit_of_image, points)
    means /= sizes[:, None]
    spoken_of = constraints.keys
    worth = torch.tensor([ANSWER_WORTH if key in spoken_of else 1.0 for key in keys], dtype=torch.float64)
    weights = torch.zeros_like(sizes).index_add_(0, unit_of_image, worth)

    pins = constraints.component_pins()
    bans = {component: set(categories) for component, categories in constraints.component_bans().items()}
    rivals: dict[int, set[int]] = {}
    for one, two in constraints.component_rivals():
        for component, other in ((one, two), (two, one)):
            if other in pins:
                bans.setdefault(component, set()).add(pins[other])
            if component in place and other in place:
                rivals.setdefault(place[component], set()).add(place[other])

    pinned = {place[each]: group_of_category(category) for each, category in pins.items() if each in place}
    banned = {
        place[each]: {group_of_category(category) for category in categories}
        for each, categories in bans.items()
        if each in place
    }
    return Units(
        means,
        weights,
        unit_of_image,
        names,
        {unit: group for unit, group in sorted(pinned.items()) if group is not None},
        {
            unit: frozenset(each for each in groups if each is not None)
            for unit, groups in sorted(banned.items())
        },
        {unit: frozenset(others) for unit, others in sorted(rivals.items())},
    )


def refusal(units: Units, stuck: tuple[int, ...], num_groups: int) -> DataError:
    """Why units cannot be assigned to so many groups."""
    names = [units.names[unit] for unit in stuck]
    if len(names) == 1:
        return DataError(
            f"Image {names[0]} is forbidden in each of the {num_groups} categories: ask for more categories or "
            "allow it in one of them."
        )
    return DataError(
        f"Images {names[0]} and {names[1]} cannot be kept apart with {num_groups} categories, given what else is "
        "said about them: ask for more categories or take back one of the answers."
    )


def _connected(rivals: Mapping[int, frozenset[int]]) -> list[list[int]]:
    """Units that are rivals of each other, directly or by way of others."""
    seen: set[int] = set()
    found = []
    for unit in sorted(rivals):
        if unit in seen:
            continue
        members, waiting = {unit}, [unit]
        for each in waiting:
            more = rivals[each] - members
            members |= more
            waiting.extend(sorted(more))
        seen |= members
        found.append(sorted(members))
    return found


def _apart(
    units: list[int], choices: Mapping[int, list[int]], rivals: Mapping[int, frozenset[int]]
) -> tuple[dict[int, int], tuple[int, ...]]:
    """Groups by unit with no two rivals in one, the unit with the fewest choices first; or two that conflict.

    A search that goes back where it fails. It keeps to near groups but does not look for the least sum of
    distances: colouring a graph at least cost is out of reach, and a person's answers hardly ever need it.
    """
    taken: dict[int, int] = {}

    def left(unit: int) -> list[int]:
        used = {taken[other] for other in rivals[unit] if other in taken}
        return [group for group in choices[unit] if group not in used]

    def next_unit() -> tuple[int, list[int]]:
        options = {unit: left(unit) for unit in units if unit not in taken}
        unit = min(options, key=lambda each: (len(options[each]), each))
        return unit, options[unit]

    conflict: tuple[int, ...] = ()
    path: list[tuple[int, list[int]]] = [next_unit()]
    for _ in range(MAX_SEARCH_STEPS):
        unit, options = path[-1]
        taken.pop(unit, None)
        if options:
            taken[unit] = options.pop(0)
            if len(taken) == len(units):
                return taken, ()
            path.append(next_unit())
            continue
        if not conflict:
            blockers = sorted(other for other in rivals[unit] if other in taken)
            conflict = (unit, blockers[0]) if blockers else (unit,)
        path.pop()
        if not path:
            break
    return {}, conflict or (units[0], min(rivals[units[0]]))


MAX_CANDIDATES = 2_000  # units that may become the centre of a new group
TRIAL_ITERATIONS, MAX_ITERATIONS = 3, 200
FINALISTS = 2  # new centres followed to convergence
POWER_ITERATIONS = 8  # towards the direction of greatest spread
LEAST_GAIN = 1e-9  # per image: what the inertia must fall by for another group to be worth opening


@dataclass(frozen=True)
class Growth:
    """A grouping on the way.

    Attributes:
        centres: ``(K, D)`` float64, held ones first.
        labels: ``(M,)`` group of each unit.
        costs: ``(M,)`` squared distance of each unit to its centre.
        inertia: sum of costs, weighted as the units are.
        stuck: one or two units that no assignment to so many groups satisfies; then they are in their nearest.
    """

    centres: Tensor
    labels: Tensor
    costs: Tensor
    inertia: float
    stuck: tuple[int, ...]


@torch.no_grad()
def grow(units: Units, held: Tensor, num_opened: int, *, seed: int) -> Iterator[Growth]:
    """Groupings with more and more groups, until another would be empty.

    Each continues the one before: the new centre starts at the unit that would take most off the inertia, of several
    in different groups the one that does after a few iterations ("global k-means"; no random start to be unlucky
    with). The first has the held prototypes and the groups opened by pins, or one group if there are neither.

    Args:
        units: what is grouped, M >= 1.
        held: ``(H, D)`` float64 prototypes that stay.
        num_opened: groups H, H + 1, ... that pinned units open.
        seed: of the candidates, drawn where there are more than 2,000 units.
    """
    state = _lloyd(units, torch.cat([held, _first_centres(units, len(held), num_opened)]), len(held))
    candidates = _candidates(len(units.points), seed)
    halves = _Halves(units)
    # They only rank candidates, so half the precision will do.
    between = squared_distances(units.points[candidates].float(), units.points.float())
    while True:
        yield state
        if len(state.centres) == len(held) + len(units.points):
            return
        halves.update(state)
        starts = _starts(units, state, halves, candidates, between)
        if not len(starts):
            return
        trials = [
            _lloyd(units, torch.cat([state.centres, centre[None]]), len(held))
            for centre in _most_useful(units, state, starts)
        ]
        trials = [trial for trial in trials if trial.stuck or _all_used(trial, len(held))]
        if not trials:
            return
        state = min(trials, key=lambda trial: (len(trial.stuck), trial.inertia))


def _first_centres(units: Units, num_held: int, num_opened: int) -> Tensor:
    """Means of what is pinned to each group that pins open; of everything if there is no group at all."""
    rows = []
    for group in range(num_held, num_held + num_opened):
        members = [unit for unit, pinned in units.pinned.items() if pinned == group]
        rows.append(_weighted_mean(units.points[members], units.weights[members]))
    if num_held + num_opened == 0:
        rows.append(_weighted_mean(units.points, units.weights))
    return torch.stack(rows) if rows else units.points[:0]


def _weighted_mean(points: Tensor, weights: Tensor) -> Tensor:
    return weights @ points / weights.sum()


def _candidates(num_units: int, seed: int) -> Tensor:
    if num_units <= MAX_CANDIDATES:
        return torch.arange(num_units)
    drawn = numpy_generator("centres of new groups", seed).permutation(num_units)[:MAX_CANDIDATES]
    return torch.from_numpy(drawn).sort().values


def _starts(units: Units, state: Growth, halves: "_Halves", candidates: Tensor, between: Tensor) -> Tensor:
    """Where the next centre may start, ``(S, D)``: of two per group the best few of all.

    The unit of a group that would take most off the inertia finds small far groups; the mean of one half of the
    group finds large ones in noise, where no single unit is near any other. Where units found no group, there is
    no other start than one of them, however little it gains.
    """
    if state.stuck:
        return units.points[list(state.stuck[:1])]
    saved = (state.costs.float() - between).clamp_(min=0) @ units.weights.float()
    groups = state.labels[candidates]
    of_units = saved.new_zeros(len(state.centres)).scatter_reduce_(0, groups, saved, "amax").double()
    gains = torch.cat([of_units, halves.gains])
    order = gains.argsort(descending=True, stable=True)[:RESTARTS]
    rows = []
    for place in order[gains[order] > LEAST_GAIN * float(units.weights.sum())].tolist():
        if place >= len(of_units):
            rows.append(halves.means[place - len(of_units)])
        else:
            rows.append(units.points[candidates[saved.where(groups == place, -1.0).argmax()]])
    return torch.stack(rows) if rows else units.points[:0]


def _most_useful(units: Units, state: Growth, starts: Tensor) -> Tensor:
    """Of new centres ``(S, D)`` the best few by inertia after some moves of their own: ``(F, D)``."""
    centres = starts
    for iteration in range(TRIAL_ITERATIONS + 1):
        costs = units.distances(centres)
        saved = (state.costs[:, None] - costs).clamp_(min=0) * units.weights[:, None]
        if iteration == TRIAL_ITERATIONS:
            break
        weights = (saved > 0) * units.weights[:, None]
        counts = weights.sum(0)[:, None]
        centres = torch.where(counts > 0, weights.T @ units.points / counts.clamp(min=1), centres)
    return centres[saved.sum(0).argsort(descending=True, stable=True)[:FINALISTS]]


class _Halves:
    """For every group the mean of its half that is farther from the centre, and what a centre there would gain.

    The halves lie on either side of the centre along the direction of greatest spread about it. They are kept for
    groups that the next step leaves as they are.

    Attributes:
        means: ``(K, D)``.
        gains: ``(K,)`` images times squared distance of the mean from the centre.
    """

    def __init__(self, units: Units):
        self.units = units
        self.labels = torch.full((len(units.points),), -1)
        self.means = units.points[:0]
        self.gains = units.weights[:0]

    def update(self, state: Growth) -> None:
        """Follow to the next step."""
        changed = torch.zeros(len(state.centres), dtype=torch.bool)
        moved = state.labels != self.labels
        changed[state.labels[moved]] = True
        changed[self.labels[moved & (self.labels >= 0)]] = True
        rows = changed[state.labels].nonzero()[:, 0]
        more = len(state.centres) - len(self.gains)
        self.means = torch.cat([self.means, state.centres[len(self.means) :]])
        self.gains = functional.pad(self.gains, (0, more))
        self.labels = state.labels
        groups, local = state.labels[rows].unique(return_inverse=True)
        self.gains[changed] = 0
        if len(rows):
            centres = state.centres[groups]
            found = _half(self.units.points[rows], self.units.weights[rows], local, centres)
            self.means[groups], self.gains[groups] = found


def _half(points: Tensor, weights: Tensor, labels: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Means ``(K, D)`` and gains ``(K,)`` of the halves of groups that are not empty."""
    residuals = points - centres[labels]
    weighted = residuals * weights[:, None]
    direction = _farthest(residuals, labels, len(centres))
    for _ in range(POWER_ITERATIONS):
        along = (residuals * direction[labels]).sum(1)
        direction = torch.zeros_like(direction).index_add_(0, labels, weighted * along[:, None])
        direction = functional.normalize(direction, dim=1)
    side = (residuals * direction[labels]).sum(1) > 0
    cells = 2 * labels + side
    sums = torch.zeros_like(centres).repeat(2, 1).index_add_(0, cells, weighted)
    counts = sums.new_zeros(len(sums)).index_add_(0, cells, weights).clamp_(min=1)
    gains, which = (sums.square().sum(1) / counts).view(-1, 2).max(1)
    cell = 2 * torch.arange(len(centres)) + which
    return centres + sums[cell] / counts[cell, None], gains


def _farthest(residuals: Tensor, labels: Tensor, num_groups: int) -> Tensor:
    """From each centre to the unit of its group that is farthest off, ``(K, D)``; no group is empty."""
    costs = residuals.square().sum(1)
    farthest = costs.new_zeros(num_groups).scatter_reduce_(0, labels, costs, "amax")
    rows = (costs == farthest[labels]).nonzero()[:, 0].flip(0)
    place = torch.zeros(num_groups, dtype=torch.int64)
    place[labels[rows]] = rows
    return residuals[place]


def _all_used(state: Growth, num_held: int) -> bool:
    sizes = state.labels.bincount(minlength=len(state.centres))
    return bool((sizes[num_held:] > 0).all())


def _lloyd(units: Units, centres: Tensor, num_held: int) -> Growth:
    """Lloyd's iterations with the first centres held, until no label changes."""
    before: Tensor | None = None
    for iteration in range(MAX_ITERATIONS + 1):
        distances = units.distances(centres)
        labels, stuck = units.assign(distances)
        if iteration == MAX_ITERATIONS or (before is not None and torch.equal(labels, before)):
            break
        before = labels
        centres = torch.cat([centres[:num_held], _means(units, labels, centres)[num_held:]])
    costs = distances.gather(1, labels[:, None])[:, 0]
    return Growth(centres, labels, costs, float(costs @ units.weights), stuck)


def _means(units: Units, labels: Tensor, centres: Tensor) -> Tensor:
    """Mean of each group; a group without units keeps its centre."""
    sums = torch.zeros_like(centres).index_add_(0, labels, units.points * units.weights[:, None])
    counts = torch.zeros_like(centres[:, 0]).index_add_(0, labels, units.weights)
    return torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)

"""k-means that opens one group after another beside prototypes that do not move.

Letters: M units, D width, K groups, H held prototypes, Q candidates for a new centre.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from promptccd.clustering.grouping_units import Units
from promptccd.data.randomness import numpy_generator

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
def grow(units: Units, held: Tensor, num_opened: int, *, seed: int, restarts: int) -> Iterator[Growth]:
    """Groupings with more and more groups, until another would be empty.

    Each continues the one before: the new centre starts at the unit that would take most off the inertia, of several
    in different groups the one that does after a few iterations ("global k-means"; no random start to be unlucky
    with). The first has the held prototypes and the groups opened by pins, or one group if there are neither.

    Args:
        units: what is grouped, M >= 1.
        held: ``(H, D)`` float64 prototypes that stay.
        num_opened: groups H, H + 1, ... that pinned units open.
        seed: of the candidates, drawn where there are more than 2,000 units.
        restarts: candidates tried for each new group.
    """
    state = _lloyd(units, torch.cat([held, _first_centres(units, len(held), num_opened)]), len(held))
    candidates = _candidates(len(units.points), seed)
    halves = _Halves(units)
    between = _squared_distances(units.points[candidates], units.points)
    while True:
        yield state
        if len(state.centres) == len(held) + len(units.points):
            return
        halves.update(state)
        starts = _starts(units, state, halves, candidates, between, restarts)
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


def _squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """``(Q, M)`` float32: they only rank candidates."""
    products = first.float() @ second.float().T
    return products.mul_(-2).add_(first.square().sum(1)[:, None].float()).add_(second.square().sum(1).float())


def _starts(
    units: Units, state: Growth, halves: "_Halves", candidates: Tensor, between: Tensor, restarts: int
) -> Tensor:
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
    order = gains.argsort(descending=True, stable=True)[:restarts]
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

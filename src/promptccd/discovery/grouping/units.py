"""What a grouping moves: images that belong together, and what people said about them.

Letters: M units, D width, K groups.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from promptccd.clustering.constraints import GroupingConstraints
from promptccd.errors import DataError

ANSWER_WORTH = 5.0  # images that one a person spoke of counts for: it was shown because others are like it
TABLE_ELEMENTS = 2**22  # of features, or of distances to groups, held at once: 16 MB in float32
MAX_SEARCH_STEPS = 20_000  # of the search for groups that keep images apart


@dataclass(frozen=True)
class Units:
    """What moves between groups as one: images that must be together, or a single image.

    Attributes:
        points: ``(M, D)``, mean feature of each unit.
        weights: ``(M,)``, images in each; one that a constraint speaks of counts 5 times.
        sizes: ``(M,)``, images in each.
        unit_of_image: ``(N,)`` int64.
        names: key of an image of each unit, for messages.
        pinned: group of the units that are settled.
        banned: groups that a unit must not be in.
        rivals: units that a unit must be apart from, symmetric.
    """

    points: Tensor
    weights: Tensor
    sizes: Tensor
    unit_of_image: Tensor
    names: Sequence[str]
    pinned: Mapping[int, int] = field(default_factory=dict)
    banned: Mapping[int, frozenset[int]] = field(default_factory=dict)
    rivals: Mapping[int, frozenset[int]] = field(default_factory=dict)

    @cached_property
    def constrained(self) -> Tensor:
        """``(Q,)`` ascending, units that are banned from a group or have rivals and are not settled."""
        rivals = {unit for units in self.rival_sets for unit in units}
        return torch.tensor(sorted((rivals | self.banned.keys()) - self.pinned.keys()), dtype=torch.int64)

    @cached_property
    def rival_sets(self) -> list[list[int]]:
        """Units that rivalries connect, set by set."""
        return _connected(self.rivals)

    @cached_property
    def settled(self) -> tuple[Tensor, Tensor]:
        """The units that are pinned, and the group of each."""
        return (
            torch.tensor(list(self.pinned), dtype=torch.int64),
            torch.tensor(list(self.pinned.values()), dtype=torch.int64),
        )

    def blocks(self, num_groups: int) -> Iterator[slice]:
        """Units of which distances to so many groups may be held at once, block by block."""
        size = max(1, TABLE_ELEMENTS // max(1, num_groups, self.points.shape[1]))
        return (slice(start, start + size) for start in range(0, len(self.points), size))

    def place(self, labels: Tensor, costs: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """Units in the groups that they prefer, or in the next that people allow.

        Args:
            labels: ``(M,)`` the group each unit prefers; changed.
            costs: ``(Q, K)`` of `constrained` units in every group.

        Returns:
            The labels, and the units that found no group: one that is banned from all, or two of which one has no
            group left that does not hold another it must be apart from. These are in the group they prefer.
        """
        units, groups = self.settled
        labels[units] = groups.to(labels.device)
        stuck: tuple[int, ...] = ()
        rows = {unit: row for unit, row in zip(self.constrained.tolist(), costs.cpu(), strict=True)}
        for unit, banned in self.banned.items():
            if unit in self.pinned:
                continue
            row = rows[unit].clone()
            row[[group for group in banned if group < len(row)]] = torch.inf
            if row.isinf().all():
                stuck = stuck or (unit,)
            else:
                labels[unit] = row.argmin()
        for rivals in self.rival_sets:
            taken = labels[rivals].tolist()
            held = dict(zip(rivals, taken, strict=True))
            if any(held[unit] == held[other] for unit in rivals for other in self.rivals[unit]):
                found, conflict = _apart(rivals, self._choices(rows, rivals), self.rivals)
                stuck = stuck or conflict
                for unit, group in found.items():
                    labels[unit] = group
        return labels, stuck

    def _choices(self, costs: Mapping[int, Tensor], units: list[int]) -> dict[int, list[int]]:
        """The groups each of the units may be in, nearest first."""
        choices = {}
        for unit in units:
            if unit in self.pinned:
                choices[unit] = [self.pinned[unit]]
            else:
                banned = self.banned.get(unit, frozenset())
                order = costs[unit].argsort(stable=True).tolist()
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
        points: ``(N, D)``.
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
    unit_of_image = torch.tensor([place[component] for component in components], device=points.device)
    sizes = unit_of_image.bincount(minlength=len(place)).to(points.dtype)
    means = points
    if len(place) < len(points):
        means = torch.zeros_like(points[: len(place)]).index_add_(0, unit_of_image, points) / sizes[:, None]
    spoken_of = constraints.keys
    worth = torch.tensor([ANSWER_WORTH if key in spoken_of else 1.0 for key in keys]).to(points)
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
        sizes,
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

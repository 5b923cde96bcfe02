"""Units: images that a grouping moves as one, with the constraints of people.

Images of one near-duplicate group are a unit at the feature of the first, so that a burst counts as one photograph.

Letters: N images, M units, D width, K groups.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from promptccd.clustering.constraints import GroupingConstraints, linked_components
from promptccd.errors import DataError

ANSWER_WORTH = 5.0  # weight of an image with a constraint: a person saw it because other images are like it
TABLE_ELEMENTS = 2**22  # features, or distances to groups, in memory at once: 16 MB in float32


@dataclass(frozen=True)
class Units:
    """Images that must be together, near-duplicates, or single images.

    Attributes:
        points: ``(M, D)``, mean feature of each unit, over the first images of its near-duplicate groups.
        weights: ``(M,)``, near-duplicate groups in each; a group with an image that a constraint names counts 5 times.
        sizes: ``(M,)``, near-duplicate groups in each.
        unit_of_image: ``(N,)`` int64, units numbered by their first images; `None` where each image is a unit.
        keys: of the images.
        representatives: ``(M,)`` row of the first image of each unit.
        pinned: group of each unit that a person pinned.
        banned: groups that a unit must not be in.
        rivals: units that a unit must be apart from, symmetric.
    """

    points: Tensor
    weights: Tensor
    sizes: Tensor
    unit_of_image: Tensor | None
    keys: Sequence[str]
    representatives: np.ndarray | range
    pinned: Mapping[int, int]
    banned: Mapping[int, frozenset[int]]
    rivals: Mapping[int, frozenset[int]]

    @property
    def is_constrained(self) -> Tensor:
        """Whether a constraint names any image of each unit ``(M,)``."""
        return self.weights > self.sizes

    @cached_property
    def limited(self) -> Tensor:
        """``(Q,)`` ascending, units that are not pinned and have bans or rivals."""
        constrained = self.rivals.keys() | self.banned.keys()
        return torch.tensor(sorted(constrained - self.pinned.keys()), dtype=torch.int64)

    @cached_property
    def rival_sets(self) -> list[list[int]]:
        """Units that are rivals of each other, directly or through other units."""
        least = linked_components((unit, other) for unit, others in self.rivals.items() for other in others)
        found = dict[int, list[int]]()
        for unit in sorted(self.rivals):
            found.setdefault(least[unit], []).append(unit)
        return list(found.values())

    @cached_property
    def pins(self) -> tuple[Tensor, Tensor]:
        """The pinned units and the group of each."""
        units, groups = list(self.pinned), list(self.pinned.values())
        return torch.tensor(units, dtype=torch.int64), torch.tensor(groups, dtype=torch.int64)

    def of_images(self, values: Tensor) -> Tensor:
        """Values of the units ``(M,)``, for each image ``(N,)``."""
        return values if self.unit_of_image is None else values[self.unit_of_image]

    @cached_property
    def digests(self) -> np.ndarray:
        """64 bits ``(M,)`` of the hash of the key of each first image: pseudo-random, whatever the order of keys."""
        keys = (self.keys[row] for row in self.representatives)
        hashes = (hashlib.blake2b(key.encode(), digest_size=8).digest() for key in keys)
        return np.fromiter((int.from_bytes(each, "little") for each in hashes), np.uint64)

    def blocks(self, num_groups: int) -> Iterator[slice]:
        """All units, in blocks whose distances to so many groups fit into one table."""
        size = max(1, TABLE_ELEMENTS // max(1, num_groups, self.points.shape[1]))
        return (slice(start, start + size) for start in range(0, len(self.points), size))

    def place(self, labels: Tensor, costs: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """Move units to the nearest groups that people allow.

        `labels` ``(M,)`` are the groups that units prefer, changed in place; `costs` ``(Q, K)`` costs of the `limited`
        units in every group. Returns the labels, and the units that found no group and stay where they prefer: a unit
        that is banned from all, or two units without enough groups free of rivals.
        """
        units, groups = self.pins
        labels[units] = groups.to(labels.device)
        stuck: tuple[int, ...] = ()
        rows = dict(zip(self.limited.tolist(), costs.cpu(), strict=True))
        for unit in self.banned:
            if choices := self._choices(unit, rows):
                labels[unit] = choices[0]
            else:
                stuck = stuck or (unit,)
        for rivals in self.rival_sets:
            group_of = dict(zip(rivals, labels[rivals].tolist(), strict=True))
            if any(group_of[unit] == group_of[other] for unit in rivals for other in self.rivals[unit]):
                choices_of = {unit: self._choices(unit, rows) for unit in rivals}
                found, conflict = _apart(rivals, choices_of, self.rivals)
                stuck = stuck or conflict
                for unit, group in found.items():
                    labels[unit] = group
        return labels, stuck

    def _choices(self, unit: int, costs: Mapping[int, Tensor]) -> list[int]:
        """The groups that a unit may be in, nearest first."""
        if unit in self.pinned:
            return [self.pinned[unit]]
        banned = self.banned.get(unit, frozenset())
        return [group for group in costs[unit].argsort(stable=True).tolist() if group not in banned]


def make_units(
    points: Tensor,
    keys: Sequence[str],
    constraints: GroupingConstraints,
    group_of_category: Callable[[int], int | None],
    duplicates: Sequence[int] | np.ndarray | None = None,
) -> Units:
    """Units of the images ``(N, D)`` under the constraints; constraints on absent images alone are left out.

    The first image of a near-duplicate group comes first. `group_of_category` gives the group of a category
    id, or `None`. Equal `duplicates` ``(N,)`` are near-duplicates, which stay
    together unless their constraints differ.
    """
    constrained_keys = constraints.keys
    is_named = np.fromiter((key in constrained_keys for key in keys), bool, len(keys))
    duplicates = np.arange(len(keys)) if duplicates is None else np.asarray(duplicates)
    # Units are near-duplicate groups, except where a constraint names an image.
    constrained_rows = np.flatnonzero(np.isin(duplicates, duplicates[is_named]))
    their_keys, groups = [keys[row] for row in constrained_rows.tolist()], duplicates[constrained_rows]
    constraints = _with_duplicates(constraints, their_keys, groups)
    components = [constraints.component_of(key) for key in their_keys]
    beyond, numbers = duplicates.max(initial=0) + 1, duplicates.copy()
    number_of = {component: beyond + place for place, component in enumerate(dict.fromkeys(components))}
    numbers[constrained_rows] = [number_of[component] for component in components]
    unit_of_image, representatives = _numbered(numbers)
    units = unit_of_image[constrained_rows].tolist()
    place = dict(zip(components, units, strict=True))  # unit of a component
    alone = len(representatives) == len(keys)
    means = points if alone else points[torch.from_numpy(representatives)]
    sizes = torch.ones(len(representatives), dtype=points.dtype, device=points.device)
    weights = sizes.clone()
    if len(constrained_rows):
        # A near-duplicate group that constraints split counts in each of its units.
        pairs = np.stack([unit_of_image[constrained_rows], groups], 1)
        parts, first, part_of_image = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        is_answered = np.bincount(part_of_image.ravel(), is_named[constrained_rows]) > 0
        numbered = np.unique(parts[:, 0], return_inverse=True)
        chosen, unit_of_part = map(torch.from_numpy, numbered)
        sizes[chosen] = unit_of_part.bincount().to(sizes)
        worth = torch.from_numpy(np.where(is_answered, ANSWER_WORTH, 1.0))
        weights[chosen] = unit_of_part.bincount(worth).to(weights)
        if len(chosen) < len(first):
            rows = points[torch.from_numpy(constrained_rows[first])]
            sums = torch.zeros_like(rows[: len(chosen)]).index_add_(0, unit_of_part.to(rows.device), rows)
            means[chosen] = sums / sizes[chosen][:, None]

    pins = constraints.component_pins()
    bans = {component: set(categories) for component, categories in constraints.component_bans().items()}
    rivals: dict[int, set[int]] = {}
    for one, two in constraints.component_rivals():
        for component, other in ((one, two), (two, one)):
            if other in pins:
                bans.setdefault(component, set()).add(pins[other])
            if component in place and other in place:
                rivals.setdefault(place[component], set()).add(place[other])

    def groups_of(categories: Iterable[int]) -> frozenset[int]:
        groups = map(group_of_category, categories)
        return frozenset(group for group in groups if group is not None)

    pinned = {
        place[each]: group
        for each, category in pins.items()
        if each in place
        for group in groups_of([category])
    }
    banned = {place[each]: groups_of(categories) for each, categories in bans.items() if each in place}
    return Units(
        means,
        weights,
        sizes,
        None if alone else torch.from_numpy(unit_of_image).to(points.device),
        keys,
        range(len(keys)) if alone else representatives,
        dict(sorted(pinned.items())),
        dict(sorted(banned.items())),
        {unit: frozenset(others) for unit, others in sorted(rivals.items())},
    )


def _numbered(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers ``(N,)`` of equal values in order of appearance, and the first row ``(M,)`` of each number."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = first.argsort()
    return order.argsort()[inverse], first[order]


def _with_duplicates(
    constraints: GroupingConstraints, keys: Sequence[str], duplicates: np.ndarray
) -> GroupingConstraints:
    """The constraints, and that near-duplicates with equal constraints, which cannot contradict, are together."""
    pins, bans = constraints.component_pins(), constraints.component_bans()
    apart: dict[str, set[str]] = {}
    for one, two in constraints.component_rivals():
        apart.setdefault(one, set()).add(two)
        apart.setdefault(two, set()).add(one)
    first: dict[tuple[object, ...], str] = {}
    links = []
    for key, group in zip(keys, duplicates.tolist(), strict=True):
        component = constraints.component_of(key)
        own = (pins.get(component), bans.get(component), frozenset(apart.get(component, ())))
        other = first.setdefault((group, *own), key)
        links += [(other, key)] * (other != key)
    return replace(constraints, must_link=(*constraints.must_link, *links)) if links else constraints


def refusal(units: Units, stuck: tuple[int, ...], num_groups: int) -> DataError:
    """The error where units cannot be assigned to so many groups."""
    names = [units.keys[int(units.representatives[unit])] for unit in stuck]
    if len(names) == 1:
        return DataError(
            f"Image {names[0]} is forbidden in each of the {num_groups} categories: ask for more categories or "
            "allow it in one of them."
        )
    return DataError(
        f"Images {names[0]} and {names[1]} cannot be kept apart with {num_groups} categories, given the other "
        "constraints on them: ask for more categories or undo an answer."
    )


def _apart(
    units: list[int], choices: Mapping[int, list[int]], rivals: Mapping[int, frozenset[int]]
) -> tuple[dict[int, int], tuple[int, ...]]:
    """Groups by unit without two rivals in a group, or else two units that conflict.

    The unit with the fewest groups left comes first and gets the nearest of them. A search through all ways would find
    groups in more cases, which a person's answers hardly ever need.
    """
    taken: dict[int, int] = {}
    while len(taken) < len(units):
        used = {unit: {taken[other] for other in rivals[unit] if other in taken} for unit in units}
        left = {
            unit: [group for group in choices[unit] if group not in used[unit]]
            for unit in units
            if unit not in taken
        }
        unit = min(left, key=lambda each: (len(left[each]), each))
        if not left[unit]:
            return {}, (unit, *sorted(rivals[unit] & taken.keys())[:1])
        taken[unit] = left[unit][0]
    return taken, ()

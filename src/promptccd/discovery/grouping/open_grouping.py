"""Group images into known categories, whose prototypes are fixed, and new groups where images need them.

Letters: N images, D width, C known categories, K groups, M units.
"""

import itertools
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.cluster import HDBSCAN
from sklearn.metrics import silhouette_score
from torch import Tensor

from promptccd.clustering.constraints import GroupingConstraints
from promptccd.clustering.count_estimate import CountEstimate
from promptccd.clustering.kmeans import Array, as_features, as_matrix
from promptccd.clustering.spread import measure_spread
from promptccd.clustering.stream import EarlierImages, Stream
from promptccd.data.randomness import numpy_generator
from promptccd.discovery.grouping.group_tree import (
    MOST_ITERATIONS,
    GroupTree,
    UnitGroups,
    lloyd,
    means,
    pinned_means,
)
from promptccd.discovery.grouping.silhouettes import METHOD, estimate_in_trees
from promptccd.discovery.grouping.unexplained import TIGHTER, WIDER, OpenSet
from promptccd.discovery.grouping.units import Units, make_units, refusal
from promptccd.discovery.project.observe import NO_CATEGORY
from promptccd.errors import DataError
from promptccd.models import Assignment, CategorySpread
from promptccd.models.assignment import assign

logger = logging.getLogger(__name__)

SEEDS_PER_GROUP, FEWEST_SEEDS = 3, 60  # of the tree for a number that is given
MOST_REPAIRS = 20  # groups kept back for answers that need them
LEAST_GAIN = 1e-7  # per image: squared distance that another group must save to be worth opening
MOST_MEASURED = 5_000  # earlier images that spreads are measured on
FEWEST_DENSE, MOST_DENSE = 60, 5_000  # images of which dense places are looked for; beyond, it takes minutes
LARGE, SMALL = 5, 2  # minimum sizes of groups, and of groups among unassigned images
MOST_BETWEEN = 0.25  # share of images in no large group: where more lie between, the groups are not dense
# Least silhouette of dense groups: Caltech-101 as a long tail has 0.48; one cloud of points 0.01, or 0.40 in a plane.
STANDS_APART = 0.42
BETTER = 0.01  # that much more than the groups of k-means have, on the images in dense groups


@dataclass(frozen=True)
class KnownCategories:
    """The categories of a checkpoint or a registry.

    Attributes:
        ids: category ids, distinct, >= 0.
        prototypes: ``(C, D)`` means of unit features.
        spread: of these categories, row by row; `None` if it was not measured.
        earlier: images of earlier stages, with which new images are compared; `None` in the first stage.
    """

    ids: tuple[int, ...]
    prototypes: Tensor
    spread: CategorySpread | None = None
    earlier: EarlierImages | None = None

    @classmethod
    def none(cls, width: int) -> "KnownCategories":
        """No category, as with a bare backbone."""
        return cls((), torch.empty(0, width))

    def measured(self, seed: int) -> "KnownCategories":
        """The same with the spread of its own earlier images, unless it is known or cannot be measured."""
        if self.spread is not None or self.earlier is None:
            return self
        inside = (self.earlier.rows >= 0).nonzero()[:, 0]
        if len(inside) > MOST_MEASURED:
            drawn = numpy_generator("measured images", seed).permutation(len(inside))[:MOST_MEASURED]
            inside = inside[torch.from_numpy(drawn)]
        features, rows = self.earlier.features[inside], self.earlier.rows[inside]
        return replace(self, spread=measure_spread(features, rows, self.prototypes, seed=seed))


class GroupingProblem:
    """The input of `group_images`, sorted by key, so that the order of the images cannot matter.

    Attributes:
        features: ``(N, D)`` unit features.
        order: ``(N,)`` position of each in the input.
        keys: of the images, sorted by the first images of their near-duplicate groups.
        units: images that move together; whitened if the spread of known categories was measured.
        fixed: ``(C, D)`` known prototypes, in the metric of the units.
        earlier: ``(R, D)`` images of earlier stages, in that metric, if they are known.
        opened: ids that only pins name.
    """

    def __init__(
        self,
        features: Array,
        keys: Sequence[str],
        known: KnownCategories,
        next_id: int,
        constraints: GroupingConstraints | None,
        temperature: float,
        first_of: Sequence[int] | np.ndarray | None = None,
    ):
        points = as_matrix(features, "features")
        constraints = constraints or GroupingConstraints()
        self.known, self.next_id, self.temperature = known, next_id, temperature
        first = [*range(len(keys))] if first_of is None else [int(each) for each in first_of]
        # By first images, so that near-duplicates of them change nothing.
        ordered = sorted(range(len(keys)), key=lambda row: (keys[first[row]], row != first[row], keys[row]))
        self.keys, self.order = [keys[row] for row in ordered], torch.tensor(ordered, dtype=torch.int64)
        self.features = points[self.order.to(points.device)].float()
        self.features /= self.features.norm(dim=1, keepdim=True).clamp_min(1e-12)  # without another copy

        constrained_keys = constraints.keys
        present = {constraints.component_of(key) for key in self.keys if key in constrained_keys}
        pins = constraints.component_pins()
        self.opened = tuple(sorted({pins[each] for each in present & pins.keys()} - set(known.ids)))
        groups = {category: group for group, category in enumerate((*known.ids, *self.opened))}

        def group_of_category(category: int) -> int | None:
            if category in groups:
                return groups[category]
            if category < next_id:  # retired, or of another registry: no group will get this id
                return None
            return len(groups) + category - next_id - sum(next_id <= each < category for each in self.opened)

        self.fixed = as_features(known.prototypes, "prototypes").to(points.device).float()
        in_metric = self.features
        self.earlier = None if known.earlier is None else known.earlier.features.to(self.fixed)
        if known.spread is not None:
            whitener = known.spread.whitener.to(self.fixed)
            self.fixed = self.fixed @ whitener
            in_metric = self.features @ whitener
            self.earlier = None if self.earlier is None else self.earlier @ whitener
        numbers = None if first_of is None else [first[row] for row in ordered]
        self.units = make_units(in_metric, self.keys, constraints, group_of_category, numbers)

    @property
    def fewest(self) -> int:
        """The smallest possible number of categories."""
        return max(1, len(self.fixed) + len(self.opened))

    @property
    def known_spreads(self) -> Tensor:
        """Variance of the images of each known category ``(C,)``: unit vectors around a mean m have 1 - ||m||^2."""
        if self.known.spread is not None:
            return self.known.spread.spreads.to(self.fixed)
        return (1 - self.fixed.square().sum(1)).clamp(min=0)

    def tree(self, num_seeds: int, seed: int) -> GroupTree:
        """Groups of the images, for every number of groups."""
        return GroupTree(self.units, self.fixed, len(self.opened), num_seeds, seed)

    def estimate(self, seed: int) -> tuple[CountEstimate, GroupTree]:
        """The number of groups with the best silhouette, and the tree that it was chosen from."""
        return estimate_in_trees(len(self.units.points), self.tree, self.known_spreads, seed)

    def grouped(self, tree: GroupTree, num_groups: int, most: int | None = None) -> UnitGroups:
        """k-means over all images from a cut of the tree into so many groups.

        More groups open where people's answers need them and, up to `most`, where images differ enough.
        """
        return self.converged(tree.centres_of(tree.best(min(num_groups, tree.most_groups))), most)

    def converged(self, free: Tensor, most: int | None = None, steps: int = MOST_ITERATIONS) -> UnitGroups:
        """After so many steps of k-means from these centres of free groups; see `grouped` for `most`."""
        before = -1
        while True:
            found = lloyd(self.units, torch.cat([self.fixed, free]), len(self.fixed), steps)
            if not found.stuck:  # the known and the opened groups stay even if they are empty
                used = found.labels.bincount(minlength=len(found.centres)) > 0
                used[: len(self.fixed) + len(self.opened)] = True
                labels = (used.cumsum(0) - 1)[found.labels]
                found = replace(found, centres=found.centres[used], labels=labels)
            more = _next_centre(self.units, found, most)
            if more is None or len(found.centres) <= before:
                return found
            free, before = torch.cat([found.centres[len(self.fixed) :], more[None]]), len(found.centres)

    def check_count(self, num_categories: int) -> None:
        """Refuse a number of categories that is out of bounds with a `DataError` that names the bounds."""
        least, most = self.fewest, len(self.fixed) + len(self.units.points)
        if not least <= num_categories <= most:
            opened = f" and {len(self.opened)} that images are pinned to" if self.opened else ""
            raise DataError(
                f"Expected {least} <= num_categories <= {most}, from known categories ({len(self.fixed)}{opened}) to "
                f"one new category per image, got {num_categories}. Give a number between, or leave it out."
            )

    def ids(self, num_groups: int) -> tuple[int, ...]:
        """Category ids of so many groups: known, opened by pins, then new."""
        new = (each for each in itertools.count(self.next_id) if each not in self.opened)
        given = (*self.known.ids, *self.opened)
        return (*given, *itertools.islice(new, num_groups - len(given)))

    def assignment(self, found: UnitGroups) -> Assignment:
        """The groups, with the images in the order of the input; a `DataError` if constraints cannot be met."""
        if found.stuck:
            raise refusal(self.units, found.stuck, len(found.centres))
        prototypes, spread, num_new = found.centres, self.known.spread, len(found.centres) - len(self.fixed)
        if spread is not None:
            whitener = spread.whitener.to(self.fixed).double()
            new = torch.linalg.solve(whitener.T, prototypes[len(self.fixed) :].double().T).T
            prototypes = torch.cat([self.known.prototypes.to(new), new])
            spread = spread.of([*range(len(self.fixed)), *[None] * num_new])
        pinned = torch.zeros(len(self.units.points), dtype=torch.bool)
        pinned[self.units.pins[0]] = True
        assigned = assign(
            self.features,
            prototypes.double(),
            self.ids(len(prototypes)),
            temperature=self.temperature,
            spread=spread,
            rows=self.units.of_images(found.labels),
            decided=self.units.of_images(pinned.to(found.labels.device)),
            num_known=len(self.fixed),
            keys=self.keys,
        )
        return assigned.select(self.order.argsort())

    def without_strange(self, found: Assignment) -> Assignment:
        """The same, but images that are more likely of no category stay unassigned: their `category_ids` are -1.

        Images that a constraint names keep their category, and so do images that move with a fitting image.
        """
        units = self.units.of_images(torch.arange(len(self.units.points), device=self.fixed.device)).cpu()
        units = units[self.order.argsort()]
        stays = torch.zeros(len(self.units.points), dtype=torch.bool)
        stays[units[~found.novel.cpu()]] = True
        stays[self.units.pins[0]] = stays[self.units.limited] = True
        stays |= self.units.is_constrained.cpu()
        category_ids = found.category_ids.where(stays[units].to(found.category_ids.device), NO_CATEGORY)
        return replace(found, category_ids=category_ids)


def _next_centre(units: Units, found: UnitGroups, most: int | None) -> Tensor | None:
    """The centre ``(D,)`` to open another group at; `None` if no group is needed, allowed or of use."""
    if most is not None and len(found.centres) >= most:
        return None
    if found.stuck:
        return units.points[found.stuck[0]]
    if most is None:
        return None
    gains = found.costs * units.weights
    gains[units.pins[0]] = 0
    return units.points[gains.argmax()] if gains.max() > LEAST_GAIN * units.weights.sum() else None


def group_images(
    features: Array,
    keys: Sequence[str],
    known: KnownCategories,
    *,
    num_categories: int | None = None,
    next_id: int,
    constraints: GroupingConstraints | None = None,
    seed: int = 0,
    temperature: float = 0.1,
    first_of: Sequence[int] | np.ndarray | None = None,
) -> tuple[Assignment, CountEstimate]:
    """Assign images to known categories and to new groups.

    If the count is not given and images of earlier stages are, a `Stream` decides which new groups open, and images
    that match no category stay unassigned. Otherwise, if the spread of known categories was measured, everything
    happens in the metric in which they are round, and `OpenSet` decides. Otherwise this is semi-supervised k-means on
    unit features in which known prototypes stay: an image without a constraint ends with the nearest prototype, as a
    checkpoint assigns it. (Prototypes that move with the images, weighted by size, were no better on digits and let a
    large batch rename a small category.) Groups come from a tree of merges (`group_tree`) in the 48 directions in
    which the images differ most; silhouette and likelihood there give the number.

    All constraints are met. Images that must be together move as one, by their mean. So do near-duplicates,
    of which the first alone counts: else a burst of photographs would be a group of its own. An image with a constraint
    counts 5 times in the prototype of a new group and in the inertia, so that a few answers move more than the images
    they are about.

    Args:
        features: ``(N, D)``, as a model returns them; normalised here.
        keys: of the images, distinct.
        known: the categories that exist.
        num_categories: K, including known categories; `None` estimates it. If the images have fewer distinct features,
            fewer groups are made, with a warning in the log.
        next_id: first id for new groups; ids that a pin opened are skipped.
        constraints: of people.
        seed: of sampling and of k-means.
        temperature: of the confidences, in squared distance; `confidence_temperature` of a checkpoint.
        first_of: ``(N,)`` position of the first image of each near-duplicate group, see
            `find_near_duplicates`; `None` without near-duplicates. Constraints override it.

    Returns:
        Every image in one group, on the features' device: ids are known, opened by a pin, then new,
        and -1 for images that stay unassigned. The number of categories, including known ones.

    Raises:
        DataError: NaN or infinite features, `num_categories` below the known categories or above them and the images
            together, or constraints that so many categories cannot satisfy; the message names the images.
    """
    problem = GroupingProblem(features, keys, known, next_id, constraints, temperature, first_of)
    if num_categories is None and known.earlier is not None:
        return _in_stream(problem, known.earlier, seed)
    if num_categories is None and known.spread is not None and len(known.ids) > 1:
        return _in_open_set(problem, known.spread, seed)
    if num_categories is None:
        estimate, tree = problem.estimate(seed)
        found = problem.grouped(tree, estimate.count)
        if (dense := _dense(problem, tree, found)) is not None:
            return dense
        return problem.assignment(found), estimate.including(len(found.centres))
    if first_of is not None and len(problem.units.points) < num_categories - len(known.ids):
        problem = GroupingProblem(features, keys, known, next_id, constraints, temperature)
        logger.warning(
            "%d categories are more than there are distinct images: near-duplicates count.", num_categories
        )
    problem.check_count(num_categories)
    found = _of_given_number(problem, num_categories, seed)
    if len(found.centres) < num_categories:
        logger.warning(
            "%d categories were asked for, but the images form no more than %d: some are too similar.",
            num_categories, len(found.centres),
        )  # fmt: skip
    return problem.assignment(found), CountEstimate.known(len(found.centres))


def _dense(
    problem: GroupingProblem, tree: GroupTree, found: UnitGroups
) -> tuple[Assignment, CountEstimate] | None:
    """Dense groups if separated better than the found groups; only without known categories and constraints."""
    units = problem.units
    if len(problem.fixed) or units.is_constrained.any() or len(tree.rows) < len(units.points):
        return None
    if (places := dense_places(tree.points, found.labels)) is None:
        return None
    groups, low, high = places
    inside = groups >= 0
    chosen = replace(units, points=units.points[inside], weights=units.weights[inside])
    centres, _ = means(chosen, groups[inside], int(groups.max()) + 1)
    dense = problem.converged(centres, steps=0)
    count, margin = len(dense.centres), "groups of 5 to groups of 2"
    return problem.assignment(dense), CountEstimate(count, min(low, count), high, "density", margin)


def dense_places(points: Tensor, labels: Tensor) -> tuple[Tensor, int, int] | None:
    """A second view of images: groups that lie densely, if these are separated better than given groups.

    k-means spends its centres on large groups and joins all small groups. Where the sizes are alike it is the better
    view. Here large groups come first; images between them that are close together make small groups. (HDBSCAN,
    Campello et al., 2013.) Points ``(M, P)`` have few dimensions; `labels` ``(M,)`` are groups by k-means. Returns the
    group of each image ``(M,)``, -1 between groups, and the fewest and most groups.
    """
    if not FEWEST_DENSE <= len(points) <= MOST_DENSE:
        return None
    values, given = points.double().cpu().numpy(), labels.cpu().numpy()
    large = HDBSCAN(LARGE, min_samples=1, copy=True).fit_predict(values)
    inside = large >= 0
    if (~inside).mean() > MOST_BETWEEN:
        return None
    dense, plain = (
        float(silhouette_score(values[inside], each[inside])) if len(np.unique(each[inside])) > 1 else -1.0
        for each in (large, given)
    )
    if dense < max(STANDS_APART, plain + BETTER):
        return None
    small = HDBSCAN(SMALL, min_samples=1, copy=True).fit_predict(values)
    low, high = int(large.max()) + 1, int(small.max()) + 1
    groups, count = large.copy(), low
    for group in range(high):
        members = small == group
        if inside[members].mean() < 0.5:
            groups[members & ~inside] = count
            count += 1
    return torch.from_numpy(groups.astype(np.int64)), low, max(high, count)


def _in_stream(
    problem: GroupingProblem, earlier: EarlierImages, seed: int
) -> tuple[Assignment, CountEstimate]:
    """New groups where images have come to lie and hardly any lay before, and the number of all categories."""
    free = torch.ones(len(problem.units.points), dtype=torch.bool)
    free[problem.units.pins[0]] = False
    assert problem.earlier is not None
    points = problem.units.points[free.to(problem.fixed.device)]
    stream = Stream(points, problem.earlier, earlier.stages, problem.fixed, earlier.newest, seed)
    new = stream.opened()
    opened, _ = pinned_means(problem.units, len(problem.fixed), len(problem.opened))
    found = problem.converged(torch.cat([opened, new.centres]), steps=0)
    estimate = new.estimate(len(found.centres) - len(new.centres))
    return problem.without_strange(problem.assignment(found)), estimate


def _of_given_number(problem: GroupingProblem, num_categories: int, seed: int) -> UnitGroups:
    """So many groups; the groups that answers need replace other groups only if there is no other way."""
    seeds = max(FEWEST_SEEDS, SEEDS_PER_GROUP * (num_categories - len(problem.fixed)))
    tree = problem.tree(seeds, seed)
    for repairs in range(min(MOST_REPAIRS, num_categories - problem.fewest) + 1):
        found = problem.grouped(tree, num_categories - repairs, num_categories)
        if not found.stuck:
            break
    return found


def _in_open_set(
    problem: GroupingProblem, spread: CategorySpread, seed: int
) -> tuple[Assignment, CountEstimate]:
    """New groups of the images that no known category explains, and the number of all categories.

    The range of the number covers closer and more distant categories, and categories that may hide
    among images of known ones. Where single images of new categories do not stand out, many together may:
    then silhouettes propose groups, and distant groups open; the range includes zero.
    """
    images, proposed = OpenSet(problem.units, problem.fixed, spread, len(problem.opened), seed), None
    method = "open set"
    margin = "3/4 to 3 times the distance between groups, and categories hidden among known ones"
    if not spread.tells_new:
        method, margin = METHOD, "categories hidden among known ones, which new ones resemble: unreliable"
        estimate, tree = problem.estimate(seed)
        proposed = problem.grouped(tree, estimate.count).centres[problem.fewest :]
    found = images.grouped(proposed=proposed)
    count = len(found.centres)
    tighter = images.grouped(TIGHTER, proposed, uneven=0)  # else all join the joined ones, and none is left
    ends = [count, len(images.grouped(WIDER, proposed).centres), len(tighter.centres)]
    hidden = images.hidden(found)
    low, more = (min(ends), round(hidden)) if spread.tells_new else (problem.fewest, math.ceil(hidden))
    high = max(*ends, count + more)
    return problem.assignment(found), CountEstimate(count, low, high, method, margin)

"""Images grouped beside categories that are known: prototypes stay where they are, new groups open where needed.

Letters: N images, D width, C known categories, K groups, M units.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.clustering.category_count import CountEstimate
from promptccd.clustering.constraints import GroupingConstraints
from promptccd.clustering.semi_supervised_kmeans import Array, as_features
from promptccd.discovery.grouping.growth import Growth, Units, grow, make_units, refusal
from promptccd.discovery.grouping.unexplained import TIGHTER, WIDER, OpenSet
from promptccd.errors import DataError
from promptccd.models import Assignment, CategorySpread
from promptccd.models.assignment import assign, squared_distances

SAME = 0.98  # of the best silhouette: of counts about as good, the smallest is the estimate
NEAR = 0.9  # of the best: what could as well have been
NO_STRUCTURE = 0.05  # a best silhouette below this is that of one cloud of points
METHOD, MARGIN = "silhouette", "10 % of the best silhouette"


def silhouette(points: Tensor, labels: Tensor, centres: Tensor, num_held: int) -> float:
    """Mean over the images of (b - a) / max(a, b) in squared distances; 0 for an image alone and for one group.

    a is the mean squared distance to the other members of an image's group, b that to the members of the nearest
    other group. Both follow from the centre of a group: the mean squared distance to its members is that to their
    mean plus their variance, and unit vectors around a mean m have variance 1 - ||m||^2. So the images behind a
    known prototype count although they are not here, and a known category without an image here counts too.

    Args:
        points: ``(N, D)`` unit features.
        labels: ``(N,)`` group of each; a group that is not held has members.
        centres: ``(K, D)`` means of unit features.
        num_held: the first so many are known prototypes, whose members are not among the points.
    """
    if len(centres) < 2:
        return 0.0
    squared = squared_distances(points, centres)
    spread = (1 - centres.square().sum(1)).clamp_(min=0)
    to_groups = squared + spread
    sizes = labels.bincount()
    own = to_groups.gather(1, labels[:, None])[:, 0]
    is_new = labels >= num_held
    within = torch.where(is_new, own * sizes[labels] / (sizes[labels] - 1), own)
    nearest = to_groups.scatter(1, labels[:, None], torch.inf).amin(1)
    values = (nearest - within) / torch.maximum(nearest, within).clamp(min=1e-12)
    values[is_new & (sizes[labels] == 1)] = 0
    return float(values.mean())


def estimate_by_silhouette(scores: Mapping[int, float], least: int) -> CountEstimate:
    """The count that silhouettes speak for.

    The smallest count within 2 % of the best is the estimate, because the curve rises slowly beyond the truth where
    categories have parts; the range is that of all counts within 10 %. Where even the best is below 0.05, nothing
    stands apart, and the estimate is the smallest count tried.

    Args:
        scores: silhouette of every count tried; at least one.
        least: the number below which nothing was to be tried.
    """
    best = max(scores.values())
    if best < NO_STRUCTURE:
        count = min(scores)
        near = [each for each, score in scores.items() if score >= best - NO_STRUCTURE and each <= 2 * count]
        return CountEstimate(count, max(least, count), max([count, *near]), METHOD, MARGIN)
    count = min(each for each, score in scores.items() if score >= SAME * best)
    near = [each for each, score in scores.items() if score >= NEAR * best]
    return CountEstimate(count, min(near), max(near), METHOD, MARGIN)


@dataclass(frozen=True)
class KnownCategories:
    """What a checkpoint or a registry knows.

    Attributes:
        ids: category ids, distinct, >= 0.
        prototypes: ``(C, D)`` means of unit features.
        spread: of these categories, row by row; none where nobody has measured it.

    Raises:
        DataError: the two do not fit together.
    """

    ids: tuple[int, ...]
    prototypes: Tensor
    spread: CategorySpread | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.prototypes.shape)
        if len(shape) != 2 or len(self.ids) != shape[0]:
            raise DataError(
                f"Expected one id and prototype per known category, got {len(self.ids)} ids and prototypes of shape "
                f"{shape}."
            )
        if len(set(self.ids)) != len(self.ids) or min(self.ids, default=0) < 0:
            raise DataError(f"Expected distinct ids >= 0 of known categories, got {list(self.ids)}.")

    @classmethod
    def none(cls, width: int) -> "KnownCategories":
        """A bare backbone's: nothing."""
        return cls((), torch.empty(0, width))


@dataclass(frozen=True)
class GroupingProblem:
    """Checked input in the order of the keys, so that the order it came in cannot matter.

    Attributes:
        features: ``(N, D)`` float64 unit features.
        order: ``(N,)`` where each came from.
        keys: of the images, sorted.
        units: images that move together; whitened where the spread of known categories was measured.
        known: the categories that exist.
        whitener: ``(D, D)`` float64, the metric; none is that of the features.
        held: ``(C, D)`` float64, their prototypes in it.
        opened: ids that only pins know of.
        next_id: first id for new groups.
        temperature: of the confidences, in squared distance.
    """

    features: Tensor
    order: Tensor
    keys: Sequence[str]
    units: Units
    known: KnownCategories
    whitener: Tensor | None
    held: Tensor
    opened: tuple[int, ...]
    next_id: int
    temperature: float

    @classmethod
    def of(
        cls,
        features: Array,
        keys: Sequence[str],
        known: KnownCategories,
        next_id: int,
        constraints: GroupingConstraints | None,
        temperature: float,
    ) -> "GroupingProblem":
        """Check and sort what `group_images` was given.

        Raises:
            DataError: it does not fit together, or constraints contradict each other.
        """
        points = as_features(features, "features").cpu()
        _check(points, keys, known, next_id, temperature)
        constraints = constraints or GroupingConstraints()
        order = torch.tensor(sorted(range(len(keys)), key=lambda row: keys[row]))
        points = F.normalize(points.double(), dim=1)[order]
        sorted_keys = [keys[row] for row in order.tolist()]

        present = {constraints.component_of(key) for key in keys}
        pins = constraints.component_pins()
        opened = tuple(sorted({pins[each] for each in present & pins.keys()} - set(known.ids)))
        groups = {category: group for group, category in enumerate((*known.ids, *opened))}

        def group_of_category(category: int) -> int | None:
            if category in groups:
                return groups[category]
            if category < next_id:  # retired, or of another registry: no group will bear this id
                return None
            return len(groups) + category - next_id - sum(next_id <= each < category for each in opened)

        held = as_features(known.prototypes, "prototypes").cpu().double()
        whitener = None if known.spread is None else known.spread.whitener.cpu().double()
        if whitener is not None:
            held = held @ whitener
        in_metric = points if whitener is None else points @ whitener
        units = make_units(in_metric, sorted_keys, constraints, group_of_category)
        return cls(points, order, sorted_keys, units, known, whitener, held, opened, next_id, temperature)

    def steps(self, seed: int) -> Iterator[Growth]:
        """Groups for the least number of categories, then for one more each time."""
        return grow(self.units, self.held, len(self.opened), seed=seed)

    def check_count(self, num_categories: int) -> None:
        """Refuse a number of categories that these images and categories cannot have.

        Raises:
            DataError: it is out of bounds; they are named.
        """
        least, most = max(1, len(self.held) + len(self.opened)), len(self.held) + len(self.units.points)
        if not least <= num_categories <= most:
            opened = f" and {len(self.opened)} that images are pinned to" if self.opened else ""
            raise DataError(
                f"Expected {least} <= num_categories <= {most}, the {len(self.held)} known categories{opened} and at "
                f"most one new one per image, got {num_categories}: give a number in between, or none to estimate it."
            )

    def ids(self, num_groups: int) -> tuple[int, ...]:
        """Category ids of so many groups: known, opened by pins, then new."""
        ids = [*self.known.ids, *self.opened]
        fresh = self.next_id
        while len(ids) < num_groups:
            if fresh not in self.opened:
                ids.append(fresh)
            fresh += 1
        return tuple(ids)

    def assignment(self, step: Growth) -> Assignment:
        """The groups of one step, in the order the images came in.

        Raises:
            DataError: constraints cannot hold with so few groups; the images are named.
        """
        if step.stuck:
            raise refusal(self.units, step.stuck, len(step.centres))
        prototypes, spread, num_new = step.centres, self.known.spread, len(step.centres) - len(self.held)
        if self.whitener is not None and spread is not None:
            new = torch.linalg.solve(self.whitener.T, prototypes[len(self.held) :].T).T
            prototypes = torch.cat([self.known.prototypes.cpu().double(), new])
            spread = spread.of([*range(len(self.held)), *[None] * num_new])
        found = assign(
            self.features,
            prototypes,
            self.ids(len(prototypes)),
            temperature=self.temperature,
            spread=spread,
            rows=step.labels[self.units.unit_of_image],
            decided=torch.tensor([int(unit) in self.units.pinned for unit in self.units.unit_of_image]),
            num_known=len(self.held),
            keys=self.keys,
        )
        return found.select(self.order.argsort())


def _check(
    points: Tensor, keys: Sequence[str], known: KnownCategories, next_id: int, temperature: float
) -> None:
    """Refuse input that does not fit together."""
    if not len(points):
        raise DataError("Expected at least one image to group, got none: give a folder with readable images.")
    if len(keys) != len(points) or len(set(keys)) != len(keys):
        raise DataError(
            f"Expected one key per image, all distinct, got {len(set(keys))} different among {len(keys)} keys for "
            f"{len(points)} images: leave out copies of an image."
        )
    if known.prototypes.shape[1] != points.shape[1]:
        raise DataError(
            f"Expected features of width {known.prototypes.shape[1]}, as the known prototypes have, got "
            f"{points.shape[1]}: take both from one model."
        )
    if next_id <= max(known.ids, default=-1):
        raise DataError(
            f"Expected next_id > {max(known.ids)}, the greatest known id, got {next_id}: an id is never used twice."
        )
    if not temperature > 0:
        raise DataError(f"Expected temperature > 0, got {temperature}.")


logger = logging.getLogger(__name__)

MOST_NEW = 100  # new groups tried in an estimate; more if there are many images
FEWEST_IMAGES = 4  # in each of them, on average
PATIENCE = 10  # counts tried beyond the last one that was near the best, at least


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
) -> tuple[Assignment, CountEstimate]:
    """Assign images to known categories and to new groups beside them.

    Where the spread of known categories was measured, new categories stand out in it and the count is not given,
    `OpenSet` says how: new groups open among images that nothing known explains. Otherwise:

    k-means on unit features in which known prototypes are fixed: an image that no constraint speaks of ends with
    the nearest prototype, as a checkpoint assigns it. Prototypes that move with the images, weighted by size, were
    no better on digits and let a large batch rename a small category. New groups open one by one, each where it
    takes most off the inertia, so a grouping for K + 1 continues that for K: a new group keeps its id while others
    open. The images' order changes nothing.

    Constraints hold without exception. Images that must be together move as one, by their mean. An image that a
    constraint speaks of counts 5 times in the prototype of a new group and in the inertia, so that few answers move
    more than the images they are about.

    Args:
        features: ``(N, D)``, as a model returns them; normalised here.
        keys: of the images, distinct.
        known: the categories that exist.
        num_categories: K, known ones included; None estimates it. Fewer groups are made, with a warning in the log,
            where the images have fewer distinct features.
        next_id: first id for new groups; ids that a pin opened are left out.
        constraints: what people said.
        seed: of the candidates for new groups, drawn where there are more than 2,000 images.
        temperature: of the confidences, in squared distance; `confidence_temperature` of a checkpoint.

    Returns:
        Every image in one group, on the CPU: ids are the known ones as given, those opened by a pin, then new ones. And
        the number of categories, estimated or given, known ones included.

    Raises:
        DataError: no image, NaN or infinite features, keys or prototypes that do not fit, `num_categories` below the
            known categories or above them and the images together, `next_id` not above every known id, or
            constraints that so many categories cannot satisfy; the message names the images.
    """
    if known.spread is not None and not known.spread.tells_new:
        known = replace(known, spread=None)
    problem = GroupingProblem.of(features, keys, known, next_id, constraints, temperature)
    if num_categories is None and known.spread is not None and len(known.ids) > 1:
        return _beside_known(problem, known.spread, seed)
    steps = problem.steps(seed)
    if num_categories is None:
        estimate, tried = _estimate(problem, steps)
        return problem.assignment(tried[estimate.count]), estimate
    problem.check_count(num_categories)
    for step in steps:
        if len(step.centres) == num_categories:
            break
    if len(step.centres) < num_categories:
        logger.warning(
            "%d categories were asked for, but the images speak for no more than %d: some are too much alike.",
            num_categories,
            len(step.centres),
        )
    return problem.assignment(step), CountEstimate.known(len(step.centres))


def _beside_known(
    problem: GroupingProblem, spread: CategorySpread, seed: int
) -> tuple[Assignment, CountEstimate]:
    """Groups for what nothing known explains, and how many there are if categories lie closer, or farther apart."""
    images = OpenSet(problem.units, problem.held, spread, len(problem.opened), seed)
    found = images.grouped()
    count = len(found.centres)
    ends = [count, *(len(images.grouped(closer).centres) for closer in (WIDER, TIGHTER))]
    high = max(*ends, count + images.may_hide_another(found))
    estimate = CountEstimate(
        count, min(ends), high, "open set", "half less or more distance between categories"
    )
    return problem.assignment(found), estimate


def _estimate(problem: GroupingProblem, steps: Iterator[Growth]) -> tuple[CountEstimate, dict[int, Growth]]:
    """The count the silhouette speaks for among those that satisfy the constraints, and all steps tried."""
    tried: dict[int, Growth] = {}
    scores: dict[int, float] = {}
    num_images = len(problem.features)
    room = max(2 * math.isqrt(num_images), min(MOST_NEW, num_images // FEWEST_IMAGES))
    most = len(problem.held) + len(problem.opened) + max(2, room)
    patience = max(
        PATIENCE, math.isqrt(num_images) // 2
    )  # many small groups show only once there are enough of them
    last_near = 0
    for step in steps:
        count = len(step.centres)
        tried[count] = step
        if step.stuck:
            continue
        labels = step.labels[problem.units.unit_of_image]
        scores[count] = silhouette(problem.features, labels, step.centres, len(problem.held))
        if scores[count] >= NEAR * max(scores.values()):
            last_near = count
        if count >= last_near + patience or count >= most:
            break
    if not scores:
        raise refusal(problem.units, step.stuck, len(step.centres))
    return estimate_by_silhouette(scores, min(scores)), tried

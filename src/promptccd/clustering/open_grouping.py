"""Images grouped beside categories that are known: prototypes stay where they are, new groups open where needed.

Letters: N images, D width, C known categories, K groups, M units.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from promptccd.clustering.category_count import CountEstimate
from promptccd.clustering.constraints import GroupingConstraints
from promptccd.clustering.count_by_silhouette import NEAR, estimate_by_silhouette, silhouette
from promptccd.clustering.group_growth import Growth
from promptccd.clustering.grouping_problem import Grouping, GroupingProblem, KnownCategories
from promptccd.clustering.grouping_units import refusal
from promptccd.clustering.semi_supervised_kmeans import Array

logger = logging.getLogger(__name__)

MOST_NEW = 100  # new groups tried in an estimate; more if there are many images
FEWEST_IMAGES = 4  # in each of them, on average
PATIENCE = 10  # counts tried beyond the last one that was near the best, at least
SLIDER_MARGIN = 5  # counts shown on either side of the estimate's range


@dataclass(frozen=True)
class GroupingRange:
    """Groupings for a range of counts.

    Attributes:
        estimate: the number of categories the images speak for.
        groupings: by number of categories, ascending.
    """

    estimate: CountEstimate
    groupings: dict[int, Grouping]


def group_images(
    features: Array,
    keys: Sequence[str],
    known: KnownCategories,
    *,
    num_categories: int | None = None,
    next_id: int,
    constraints: GroupingConstraints | None = None,
    seed: int = 0,
    restarts: int = 5,
    temperature: float = 0.1,
) -> Grouping:
    """Assign images to known categories and to new groups beside them.

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
        restarts: candidates tried for each new group.
        temperature: of the confidences, in squared distance; `confidence_temperature` of a checkpoint.

    Raises:
        DataError: no image, NaN or infinite features, keys or prototypes that do not fit, `num_categories` below the
            known categories or above them and the images together, `next_id` not above every known id, or
            constraints that so many categories cannot satisfy; the message names the images.
    """
    problem = GroupingProblem.of(features, keys, known, next_id, constraints, temperature)
    steps = problem.steps(seed, restarts)
    if num_categories is None:
        estimate, tried = _estimate(problem, steps)
        return problem.grouping(tried[estimate.count], estimate)
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
    return problem.grouping(step, CountEstimate.known(len(step.centres)))


def group_for_counts(
    features: Array,
    keys: Sequence[str],
    known: KnownCategories,
    *,
    counts: Sequence[int] | None = None,
    next_id: int,
    constraints: GroupingConstraints | None = None,
    seed: int = 0,
    restarts: int = 5,
    temperature: float = 0.1,
) -> GroupingRange:
    """Groupings for several numbers of categories at once, each what `group_images` returns for that number.

    Args:
        features: as for `group_images`.
        keys: likewise.
        known: likewise.
        counts: numbers of categories; None is the estimate's range and 5 on either side. Those that cannot be had
            are left out: out of bounds, more than there are distinct images, or too few for the constraints.
        next_id: as for `group_images`.
        constraints: likewise.
        seed: likewise.
        restarts: likewise.
        temperature: likewise.

    Raises:
        DataError: as `group_images`.
    """
    problem = GroupingProblem.of(features, keys, known, next_id, constraints, temperature)
    steps = problem.steps(seed, restarts)
    estimate, tried = _estimate(problem, steps)
    if counts is None:
        counts = range(max(1, estimate.low - SLIDER_MARGIN), estimate.high + SLIDER_MARGIN + 1)
    most = len(problem.held) + len(problem.units.points)
    counts = sorted({count for count in counts if count <= most})
    for step in steps:
        if max(tried) >= max(counts, default=0):
            break
        tried[len(step.centres)] = step
    chosen = [count for count in counts if count in tried and not tried[count].stuck]
    return GroupingRange(
        estimate,
        {
            count: problem.grouping(
                tried[count], estimate if count == estimate.count else CountEstimate.known(count)
            )
            for count in chosen
        },
    )


def _estimate(problem: GroupingProblem, steps: Iterator[Growth]) -> tuple[CountEstimate, dict[int, Growth]]:
    """The count the silhouette speaks for among those that satisfy the constraints, and all steps tried."""
    tried: dict[int, Growth] = {}
    scores: dict[int, float] = {}
    num_images = len(problem.points)
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
        scores[count] = silhouette(problem.points, labels, step.centres, len(problem.held))
        if scores[count] >= NEAR * max(scores.values()):
            last_near = count
        if count >= last_near + patience or count >= most:
            break
    if not scores:
        raise refusal(problem.units, step.stuck, len(step.centres))
    return estimate_by_silhouette(scores, min(scores)), tried

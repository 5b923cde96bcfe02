"""What a person is shown of a group: its typical and borderline images, and how it could be split."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.clustering.grouping_problem import Grouping
from promptccd.clustering.semi_supervised_kmeans import Array, SemiSupervisedKMeans, as_features
from promptccd.errors import DataError

MAX_TYPICAL, MAX_BORDERLINE = 8, 4
SPLIT_RESTARTS = 10


@dataclass(frozen=True)
class GroupDescription:
    """One group, in positions of the images that were grouped.

    Attributes:
        category_id: its id.
        is_known: whether it was known before these images.
        size: images in it; 0 for a known category of which there is none here.
        confidence: mean over its images, in 0..1; NaN if there is none.
        medoid: the image nearest to the mean of the group's images, None if there is none.
        typical: images nearest to the prototype, nearest first, up to 8.
        borderline: images that are about as near to another group, closest call first, up to 4 and none of the
            typical ones.
        nearest_known: id of the nearest other known category, None if there is none.
        nearest_known_distance: squared distance between the prototypes; infinite if there is none.
    """

    category_id: int
    is_known: bool
    size: int
    confidence: float
    medoid: int | None
    typical: tuple[int, ...]
    borderline: tuple[int, ...]
    nearest_known: int | None
    nearest_known_distance: float


@torch.no_grad()
def describe_groups(grouping: Grouping, features: Array) -> list[GroupDescription]:
    """One description per category, in the order of ``grouping.ids``.

    Args:
        grouping: from `group_images`.
        features: ``(N, D)`` it was made of.

    Raises:
        DataError: features are not as many as the images grouped.
    """
    points = F.normalize(as_features(features, "features").cpu().double(), dim=1)
    if len(points) != len(grouping.category_ids):
        raise DataError(
            f"Expected features of the {len(grouping.category_ids)} images grouped, got {len(points)}."
        )
    prototypes = grouping.prototypes.double()
    to_known = torch.cdist(prototypes, prototypes[: grouping.num_known]).square()
    to_known.fill_diagonal_(torch.inf)  # a known category is not its own look-alike
    return [_described(grouping, points, place, to_known[place]) for place in range(len(grouping.ids))]


def _described(grouping: Grouping, points: Tensor, place: int, to_known: Tensor) -> GroupDescription:
    category_id = grouping.ids[place]
    members = (grouping.category_ids == category_id).nonzero()[:, 0]
    by_distance = members[grouping.distances[members].argsort(stable=True)].tolist()
    typical = by_distance[:MAX_TYPICAL]
    by_margin = members[grouping.margins[members].argsort(stable=True)].tolist()
    borderline = [each for each in by_margin if each not in typical][:MAX_BORDERLINE]
    medoid = None
    if by_distance:
        own = points[members]
        medoid = int(members[(own - own.mean(0)).square().sum(1).argmin()])
    look_alike = int(to_known.argmin()) if len(to_known) else -1
    distance = float(to_known[look_alike]) if len(to_known) else float("inf")
    return GroupDescription(
        category_id=category_id,
        is_known=place < grouping.num_known,
        size=len(by_distance),
        confidence=float(grouping.confidences[members].mean()),
        medoid=medoid,
        typical=tuple(typical),
        borderline=tuple(borderline),
        nearest_known=grouping.ids[look_alike] if distance < float("inf") else None,
        nearest_known_distance=distance,
    )


def suggest_split(
    features: Array, members: Tensor | Sequence[int], *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Two parts of a group by 2-means, the larger first.

    Args:
        features: ``(N, D)``, as a model returns them.
        members: ``(n,)`` integers, positions of the group's images.
        seed: of k-means.

    Returns:
        Positions of the images of each part, ascending.

    Raises:
        DataError: fewer than two members, or all of them alike.
    """
    members = torch.as_tensor(members, dtype=torch.int64).sort().values
    points = F.normalize(as_features(features, "features").cpu().double(), dim=1)[members]
    if len(members) < 2 or torch.equal(points, points[:1].expand_as(points)):
        raise DataError(
            f"Expected at least two different images to split, got {len(members)}"
            f"{' that are all alike' if len(members) > 1 else ''}: choose a larger group."
        )
    kmeans = SemiSupervisedKMeans(2, SPLIT_RESTARTS, random_state=seed).fit(points)
    first = torch.as_tensor(kmeans.labels_) == 0
    parts = members[first], members[~first]
    return (parts[0], parts[1]) if len(parts[0]) >= len(parts[1]) else (parts[1], parts[0])

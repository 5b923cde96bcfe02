"""A second view of images without known categories: dense places, where sizes of groups fall like a long tail.

k-means spends its centres on large groups and joins all small groups. Where the sizes are alike it is the better view.
"""

from typing import NamedTuple

import numpy as np
import torch
from sklearn.cluster import HDBSCAN
from sklearn.metrics import silhouette_score
from torch import Tensor

FEWEST, MOST = 60, 5_000  # images of which dense places are looked for; beyond, it takes minutes
LARGE, SMALL = 5, 2  # minimum sizes of groups, and of groups among unassigned images
MOST_BETWEEN = 0.25  # share of images in no large group: where more lie between, the groups are not dense
# Least silhouette of dense groups: Caltech-101 as a long tail has 0.48; one cloud of points 0.01, or 0.40 in a plane.
STANDS_APART = 0.42
BETTER = 0.01  # that much more than the groups of k-means have, on the images in dense groups


class DensePlaces(NamedTuple):
    """Groups of images that lie densely: group of each image ``(M,)``, -1 between groups; fewest and most groups."""

    groups: Tensor
    low: int
    high: int


def dense_places(points: Tensor, labels: Tensor) -> DensePlaces | None:
    """Dense groups of images if they are separated better than given groups; `None` if the given groups are as good.

    Large groups come first; images between them that are close together make small groups. (HDBSCAN, Campello et al.,
    2013.) Points ``(M, P)`` have few dimensions; `labels` ``(M,)`` are groups by k-means.
    """
    if not FEWEST <= len(points) <= MOST:
        return None
    values, given = points.double().cpu().numpy(), labels.cpu().numpy()
    large = HDBSCAN(LARGE, min_samples=1, copy=True).fit_predict(values)
    inside = large >= 0
    if (~inside).mean() > MOST_BETWEEN:
        return None
    scores = [_silhouette(values[inside], each[inside]) for each in (large, given)]
    if scores[0] < max(STANDS_APART, scores[1] + BETTER):
        return None
    small = HDBSCAN(SMALL, min_samples=1, copy=True).fit_predict(values)
    groups, count = large.copy(), int(large.max()) + 1
    for group in range(int(small.max()) + 1):
        members = small == group
        if inside[members].mean() < 0.5:
            groups[members & ~inside] = count
            count += 1
    low, high = int(large.max()) + 1, int(small.max()) + 1
    return DensePlaces(torch.from_numpy(groups.astype(np.int64)), min(low, count), max(high, count))


def _silhouette(points: np.ndarray, labels: np.ndarray) -> float:
    """-1 where there are not two groups."""
    return float(silhouette_score(points, labels)) if len(np.unique(labels)) > 1 else -1.0

"""How many categories a series of groupings speaks for: the silhouette, with known categories as prototypes.

Letters: N images, D width, K groups.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from promptccd.clustering.category_count import CountEstimate

SAME = 0.98  # of the best silhouette: of counts about as good, the smallest is the estimate
NEAR = 0.9  # of the best: what could as well have been
NO_STRUCTURE = 0.05  # a best silhouette below this is that of one cloud of points
METHOD, MARGIN = "silhouette", "10 % of the best silhouette"


def silhouette(points: Tensor, labels: Tensor, centres: Tensor, num_held: int) -> float:
    """Mean over the images of (b - a) / max(a, b) in squared distances; 0 for an image alone and for one group.

    a is the mean squared distance to the other members of an image's group, b that to the members of the nearest
    other group. Both follow from the centre of a group: the mean squared distance to its members is that to their
    mean plus their variance, and unit vectors around a mean m have variance 1 - ||m||^2. So the images behind a
    known prototype count although they are not at hand, and a known category without an image here counts too.

    Args:
        points: ``(N, D)`` unit features.
        labels: ``(N,)`` group of each.
        centres: ``(K, D)`` means of unit features.
        num_held: the first so many are known prototypes, whose members are not among the points.
    """
    if len(centres) < 2:
        return 0.0
    squared = (
        torch.addmm(centres.square().sum(1), points, centres.T, alpha=-2) + points.square().sum(1)[:, None]
    )
    spread = (1 - centres.square().sum(1)).clamp_(min=0)
    to_groups = squared.clamp_(min=0) + spread
    sizes = labels.bincount(minlength=len(centres)).double()
    own = to_groups.gather(1, labels[:, None])[:, 0]
    is_new = labels >= num_held
    others = (sizes[labels] - 1).clamp(min=1)
    within = torch.where(is_new, own * sizes[labels] / others, own)
    between = to_groups.scatter(1, labels[:, None], torch.inf)
    between[:, num_held:][:, sizes[num_held:] == 0] = torch.inf
    nearest = between.amin(1)
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

"""The number of groups with the best silhouette, of all cuts of trees of merges.

Letters: N images, D width, K groups.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from promptccd.clustering.count_estimate import CountEstimate
from promptccd.discovery.grouping.group_tree import MOST_SAMPLED, GroupTree
from promptccd.models.assignment import squared_distances

PRICE = 0.05  # of a larger count: a third more categories need a silhouette that is 1.4 % better
NEAR = 0.9  # of the best silhouette; a count that reaches it could as well be right
# A best silhouette below this is that of groups that overlap; Caltech-101 under an ImageNet network has 0.36 to 0.49,
# digits 0.30 to 0.52, CIFAR-100 0.19 to 0.27.
OVERLAP = 0.3
NO_STRUCTURE = 0.05  # a best silhouette below this is that of one cloud of points
METHOD, MARGIN = "silhouette", "10 % of the best silhouette"
# Of the first tree in which the number of groups is looked for; each further tree has four times as many.
FIRST_SEEDS = 400
UNITS_PER_SEED = 3
DEEPEST = 0.75  # of the number of seeds: cuts nearer to the seeds are little better than these
MOST_TREES = 4  # that scores are averaged over: if images are few, scores of a single tree vary much
TREES_ELEMENTS = 2**22  # units times seeds times trees, at most
STEP = 1.15  # from one number of groups that is tried to the next


def silhouette(points: Tensor, labels: Tensor, centres: Tensor, known_spreads: Tensor) -> float:
    """Mean over the images of (b - a) / max(a, b) in squared distances; 0 for an image alone and for one group.

    a is the mean squared distance to the other members of an image's group, b that to the members of the nearest
    other group. Both are distances to the mean plus the variance of the group, so the images behind a known prototype
    count although they are not here. Points ``(N, D)`` have labels ``(N,)``; every new group has members. The first of
    the centres ``(K, D)`` are known categories of variances ``known_spreads`` ``(H,)``.
    """
    if len(centres) < 2:
        return 0.0
    squared, sizes = squared_distances(points, centres), labels.bincount(minlength=len(centres))
    own = squared.gather(1, labels[:, None])[:, 0]
    spreads = torch.zeros_like(squared[0]).index_add_(0, labels, own) / sizes.clamp(min=1)
    spreads[: len(known_spreads)] = known_spreads
    squared += spreads
    is_new = labels >= len(known_spreads)
    within = squared.gather(1, labels[:, None])[:, 0]
    within = torch.where(is_new, within * sizes[labels] / (sizes[labels] - 1), within)
    nearest = squared.scatter_(1, labels[:, None], torch.inf).amin(1)
    values = (nearest - within) / torch.maximum(nearest, within).clamp(min=1e-12)
    values[is_new & (sizes[labels] == 1)] = 0
    return float(values.mean())


def log_likelihood(costs: Tensor, labels: Tensor, num_new: int, width: int) -> float:
    """Log-likelihood of the images under round groups of one variance, less the BIC penalty for `num_new` fitted means.

    `costs` ``(N,)`` are squared distances to the centres, `labels` ``(N,)`` the groups, `width` that of the features.
    """
    images, sizes = len(labels), labels.bincount().double()
    variance = float(costs.sum(dtype=torch.float64)) / (width * max(1, images - num_new))
    shares = float(torch.special.xlogy(sizes, sizes / images).sum())
    fit = images * width / 2 * (math.log(2 * math.pi * max(variance, 1e-12)) + 1)
    return shares - fit - num_new * (width + 1) / 2 * math.log(images)


def estimate_by_silhouette(scores: Mapping[int, float], likelihoods: Mapping[int, float]) -> CountEstimate:
    """The number of categories with the best silhouette, and the range of all counts within 10 % of the best.

    Larger counts must be a little better, because the curve rises slowly beyond the truth where categories have parts.
    If even the best is below 0.3, groups overlap, the curve is flat and its highest point is chance: then the likeliest
    count of the range wins (`log_likelihood`; where groups do not overlap, it asks for far too many). If even the best
    is below 0.05, groups are not separated, and the smallest count wins.
    """
    best = max(scores.values())
    if best < NO_STRUCTURE:
        count = min(scores)
        near = [each for each, score in scores.items() if score >= best - NO_STRUCTURE and each <= 2 * count]
        return CountEstimate(count, count, max([count, *near]), METHOD, MARGIN)
    near = [each for each, score in scores.items() if score >= NEAR * best]
    if best < OVERLAP:
        count = max(near, key=lambda each: likelihoods[each])
    else:
        count = max(near, key=lambda each: scores[each] * each**-PRICE)
    return CountEstimate(count, min(near), max(near), METHOD, MARGIN)


def estimate_in_trees(
    num_images: int, grown: Callable[[int, int], GroupTree], known_spreads: Tensor, seed: int
) -> tuple[CountEstimate, GroupTree]:
    """The estimated count, and the tree whose cuts it was chosen from.

    `grown` makes a tree of so many seeds from a random seed; `known_spreads` ``(H,)`` are variances of known
    categories.
    """
    images = min(num_images, MOST_SAMPLED)
    num_seeds, room = FIRST_SEEDS, max(2, images // UNITS_PER_SEED)
    while True:
        seeds = min(num_seeds, room)
        num_trees = min(MOST_TREES, max(1, TREES_ELEMENTS // (images * seeds)))
        trees = [grown(seeds, seed + each) for each in range(num_trees)]
        estimate, may_lie_beyond = _estimate_in(trees, known_spreads)
        if num_seeds >= room or not may_lie_beyond:
            return estimate, trees[0]
        num_seeds *= 4


def _estimate_in(trees: Sequence[GroupTree], known_spreads: Tensor) -> tuple[CountEstimate, bool]:
    """The best count by the mean scores of these trees, and whether a better count may exist beyond the tried ones.

    Counts are tried in growing steps, then one by one around the best.
    """
    silhouettes, likelihoods = dict[int, float](), dict[int, float]()

    def estimate_with(counts: Sequence[int]) -> CountEstimate:
        for count in counts:
            if count in silhouettes:
                continue
            scores = []
            for tree in trees:  # the variances of known categories are in its components
                found, width = tree.cut(count), tree.points.shape[1]
                score = silhouette(tree.points, found.labels, found.centres, known_spreads * trees[0].share)
                likelihood = log_likelihood(found.costs, found.labels, count - tree.num_fixed, width)
                scores.append((score, likelihood))
            silhouettes[count], likelihoods[count] = np.mean(scores, axis=0).tolist()
        return estimate_by_silhouette(silhouettes, likelihoods)

    tree = min(trees, key=lambda each: each.most_groups)
    most = max(tree.fewest_groups + 1, tree.num_fixed + int(DEEPEST * len(tree.seeds)))
    count = estimate_with(_growing_steps(tree.fewest_groups, min(most, tree.most_groups))).count
    tried = sorted(silhouettes)
    place = tried.index(count)
    between = range(tried[max(0, place - 1)], tried[min(place + 1, len(tried) - 1)])
    estimate = estimate_with(between[:: 1 + len(between) // 20])
    return estimate, estimate.high == max(silhouettes) or max(silhouettes.values()) < OVERLAP


def _growing_steps(least: int, most: int) -> list[int]:
    """Numbers from the least to the most, each 15 % farther from the least than the one before."""
    counts, beyond = [], 0
    while least + beyond <= most:
        counts.append(least + beyond)
        beyond = max(beyond + 1, round(STEP * beyond))
    return counts

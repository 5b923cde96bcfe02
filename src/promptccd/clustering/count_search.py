"""How many categories there are, by splitting and merging clusters of features from several starts."""

import math

import torch
from torch import Tensor

from promptccd.clustering.category_count import CountEstimate
from promptccd.clustering.kmeans_restarts import running_sums
from promptccd.clustering.semi_supervised_kmeans import as_features
from promptccd.clustering.split_merge import (
    NormalInverseWishart,
    disjoint,
    halve,
    holders,
    log_hastings_merge,
    log_hastings_split,
    log_marginal_likelihood,
    nearest_pairs,
    split_and_merge,
    together,
)
from promptccd.data.randomness import torch_generator

START_FACTORS = (1.0, 1.25, 1.5, 2.0)
LOSS_PER_VALUE = 0.01  # nats per feature value of the regrouped points, a factor of 0.99 in likelihood
SPLIT_MERGE_MARGIN = "1 % of likelihood per feature value of the points regrouped"


def estimate_by_split_merge(
    features: Tensor,
    start: int,
    *,
    settled: Tensor | None = None,
    seed: int,
    prior: NormalInverseWishart | None = None,
) -> CountEstimate:
    """Estimate the number of categories by splitting and merging clusters of the features.

    The paper starts from the number of known categories. From there alone the search may miss a small new category
    that lies in two old ones, so it also starts from more, and the highest log posterior wins.

    The range holds the results of other starts, and of merging the cheapest disjoint pairs of nearest clusters or
    splitting the cheapest clusters, as long as the log posterior falls by at most 0.01 nats per feature value: of the
    points that are merged or split, or of all points for another start. It tells how flat the score is, not how right
    the prior is.

    Args:
        features: ``(N, D)``, L2-normalised.
        start: number of clusters to begin with; up to twice as many are tried.
        settled: ``(N,)``, known categories, -1 elsewhere; neither estimate nor range goes below their number.
        seed: of every random choice.
        prior: of every cluster; None is the paper's.

    Raises:
        DataError: NaN or infinite features, or not 1 <= start <= N.
    """
    prior = prior or NormalInverseWishart()
    points = as_features(features, "features")
    starts = sorted({min(math.ceil(factor * start), max(start, len(points))) for factor in START_FACTORS})
    results = [split_and_merge(points, each, settled=settled, prior=prior, seed=seed) for each in starts]
    best = max(results, key=lambda result: result.log_posterior)
    # mutant 1 to 2: every number below zero says that a feature is free
    anchors = torch.full((len(points),), -1) if settled is None else settled
    merges, splits = _affordable_moves(points, best.labels, anchors.to(points.device), prior, seed)
    allowed = LOSS_PER_VALUE * points.numel()
    near = [result.count for result in results if best.log_posterior - result.log_posterior <= allowed]
    low, high = min(*near, best.count - merges), max(*near, best.count + splits)
    return CountEstimate(best.count, low, high, "split and merge", SPLIT_MERGE_MARGIN)


@torch.no_grad()
def _affordable_moves(
    points: Tensor, labels: Tensor, anchors: Tensor, prior: NormalInverseWishart, seed: int
) -> tuple[int, int]:
    """How many merges and how many splits of the final clusters stay within the margin."""
    sizes = labels.bincount()
    num_clusters = len(sizes)
    log_marginals = log_marginal_likelihood(points, labels, num_clusters, prior)

    every = torch.arange(num_clusters, device=labels.device)
    pairs = nearest_pairs(points, labels, every, holders(labels, anchors))
    gains, involved = log_hastings_merge(points, labels, pairs, log_marginals, prior), sizes[pairs].sum(1)
    rows = disjoint(pairs, gains / involved)
    merges = _affordable(gains[rows], involved[rows], points.shape[1])

    halves = halve(points, labels, num_clusters, torch_generator("split and merge, range", seed))
    gains = log_hastings_split(points, labels, together(halves, anchors), log_marginals, prior)
    order = (gains / sizes).argsort(descending=True, stable=True)
    return merges, _affordable(gains[order], sizes[order], points.shape[1])


def _affordable(gains: Tensor, involved: Tensor, width: int) -> int:
    """How many moves, cheapest per point first, lose no more in total than their points allow."""
    allowed = LOSS_PER_VALUE * width * involved.cumsum(0)
    within = -running_sums(gains, 0) <= allowed
    return int(within.long().cumprod(0).sum())

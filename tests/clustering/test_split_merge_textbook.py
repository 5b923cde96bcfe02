"""Split and merge held to what is written down: ratios by hand, brute force, and data on which shortcuts fail."""

import math

import pytest
import torch

from promptccd.clustering import split_merge as module
from promptccd.clustering.counting import estimate_by_split_merge
from promptccd.clustering.split_merge import (
    NormalInverseWishart,
    log_hastings_merge,
    log_hastings_split,
    log_marginal_likelihood,
    log_posterior,
    split_and_merge,
)

from .test_split_merge import blobs, direct, same_groups


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def by_hand(points, labels, prior):
    """Sum of log Gamma(N_k) + log h_k, with nothing of the package in it."""
    mean = points.double().mean(0).numpy() if prior.mean is None else prior.mean.double().numpy()
    sets = [points[labels == label] for label in labels.unique()]
    return math.fsum(math.lgamma(len(each)) + direct(each, prior, mean) for each in sets)


def clumps(*parts, noise=0.2, seed=0):
    """Points in the plane: parts are ``(size, x, y)``."""
    sizes, centres = [part[0] for part in parts], torch.tensor([part[1:] for part in parts])
    groups = torch.arange(len(parts)).repeat_interleave(torch.tensor(sizes))
    return centres[groups] + noise * torch.randn(len(groups), 2, generator=generator(seed)), groups


def sweep(points, labels, prior=None, seed=0):
    nothing_settled = torch.full_like(labels, -1)
    return module._sweep(points, labels, nothing_settled, prior or NormalInverseWishart(), generator(seed))


def test_ratios_and_posterior_are_the_formula_on_unequal_sizes():
    points, groups = blobs([20, 37, 30], width=24)
    prior, halves = NormalInverseWishart(), torch.arange(87) % 3 == 0
    before = by_hand(points, groups, prior)
    assert log_posterior(points, groups, prior) == pytest.approx(before, rel=1e-6)
    marginals = log_marginal_likelihood(points, groups, 3, prior)
    for cluster, ratio in enumerate(log_hastings_split(points, groups, halves, marginals, prior)):
        after = by_hand(points, groups.where(~((groups == cluster) & halves), 3), prior)
        assert ratio.item() == pytest.approx(after - before, abs=1e-3)
    pairs = torch.tensor([[0, 1], [1, 2]])
    for (one, two), ratio in zip(
        pairs.tolist(), log_hastings_merge(points, groups, pairs, marginals, prior), strict=True
    ):
        after = by_hand(points, groups.where(groups != two, one), prior)
        assert ratio.item() == pytest.approx(after - before, abs=1e-3)


@pytest.mark.parametrize(("ratio", "share"), [(0.0, 0.0), (0.05, 0.05), (0.3, 0.3), (1.0, 1.0), (4.0, 1.0)])
def test_a_move_is_accepted_with_probability_min_of_one_and_its_ratio(ratio, share):
    ratios = torch.full((2000,), ratio, dtype=torch.float64).log()
    accepted = int(module._accepted(ratios, generator()).sum())
    assert abs(accepted - 2000 * share) <= 4 * math.sqrt(2000 * share * (1 - share))


@pytest.mark.parametrize("scale", [1.0, 0.16])  # the better cut takes 42 off the inertia, and 1.07
def test_halving_prefers_a_worse_cut_that_leaves_both_halves_enough_points(scale):
    """Three outliers are the best cut by inertia, which is no split at all."""
    points = torch.cat(
        [clumps((10, -1, 0), (10, 1, 0), (3, 0, 4), noise=0.02, seed=seed)[0] for seed in range(20)]
    )
    labels = torch.arange(20).repeat_interleave(23)
    halves = module.halve(scale * points, labels, 20, generator()).view(20, 23)
    smaller = torch.minimum(halves.sum(1), 23 - halves.sum(1))
    assert (smaller >= 6).sum() >= 18
    assert (halves[:, :10].sum(1) % 10 == 0).all()  # never through a clump


def test_a_cluster_that_splits_takes_no_part_in_a_merge_of_the_same_sweep():
    """Two clumps share a cluster, and a part of the first is one of its own: both moves look good."""
    points, parts = clumps((20, 0, 0), (20, 4, 0), (12, 0, 0))
    labels = torch.tensor([0, 0, 1])[parts]
    marginals = log_marginal_likelihood(points, labels, 2, NormalInverseWishart())
    halves = module.halve(points, labels, 2, generator())
    assert log_hastings_split(points, labels, halves, marginals, NormalInverseWishart())[0] > 3
    assert log_hastings_merge(points, labels, torch.tensor([[0, 1]]), marginals, NormalInverseWishart()) > 3
    after, _ = sweep(points, labels)
    assert int(after.max()) + 1 == 3


def test_two_settled_categories_are_not_merged_however_alike_they_are():
    points, _ = clumps((24, 0, 0))
    labels = torch.arange(24) % 2
    marginals = log_marginal_likelihood(points, labels, 2, NormalInverseWishart())
    assert log_hastings_merge(points, labels, torch.tensor([[0, 1]]), marginals, NormalInverseWishart()) > 3
    anchors = labels.where(torch.arange(24) < 12, -1)
    assert module.has_fixed(labels, anchors).tolist() == [True, True]
    assert module.has_fixed(labels, anchors.where(labels == 1, -1)).tolist() == [False, True]
    for seed in range(5):
        after, _ = module._sweep(points, labels, anchors, NormalInverseWishart(), generator(seed))
        assert len(after[:12:2].unique()) == len(after[1:12:2].unique()) == 1
        assert after[0] != after[1]


def between_two_old_ones():
    """Two clumps, and ten points between them of which each is nearest to five: no half of five is a split."""
    return clumps((40, -3, 0), (40, 3, 0), (5, -0.5, 2), (5, 0.5, 2))


def test_a_small_category_between_two_others_is_found_from_more_clusters_only():
    points, parts = between_two_old_ones()
    alone, more = (split_and_merge(points, start, seed=0) for start in (2, 3))
    assert (alone.count, more.count) == (2, 3)
    estimate = estimate_by_split_merge(points, 2, seed=0)
    assert estimate.count == 3
    assert same_groups(more.labels, parts.clamp(max=2))

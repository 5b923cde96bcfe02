"""Split and merge held to what is written down: ratios by hand, brute force, and data on which shortcuts fail."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_t

from promptccd.clustering import split_merge as module
from promptccd.clustering.counting import _affordable_moves, estimate_by_split_merge
from promptccd.clustering.split_merge import (
    NormalInverseWishart,
    log_hastings_merge,
    log_hastings_split,
    log_marginal_likelihood,
    log_posterior,
    split_and_merge,
)

from .test_split_merge import blobs, direct, same_groups

TWELVE_AT_ZERO = torch.zeros(12, 1)  # with a prior mean of 0 there is no scatter: only counts are left
COUNTS_ONLY = NormalInverseWishart(torch.zeros(1), kappa=1.0, psi=1.0, nu=2.0)
SPLIT_OF_TWELVE = math.log(
    math.sqrt(13) / 388_080
)  # 5! 5! / 11! of sizes times (3!/pi^3 7^.5)^2 / (6!/pi^6 13^.5)


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


def test_the_marginal_likelihood_is_the_product_of_what_each_point_is_predicted_with():
    """The chain rule: a point given those before it has a Student t density (Murphy 2007, equation 258)."""
    points, _ = clumps((9, 0.5, -0.3))
    prior = NormalInverseWishart(torch.tensor([0.2, 0.1]), kappa=0.7, psi=0.4, nu=3.5)
    expected, mean, kappa, nu, scale = 0.0, np.array([0.2, 0.1]), 0.7, 3.5, 0.4 * np.eye(2)
    for point in points.double().numpy():
        shape = scale * (kappa + 1) / (kappa * (nu - 1))
        expected += multivariate_t(mean, shape, df=nu - 1).logpdf(point)
        scale = scale + kappa / (kappa + 1) * np.outer(point - mean, point - mean)
        mean, kappa, nu = (kappa * mean + point) / (kappa + 1), kappa + 1, nu + 1
    labels = torch.zeros(9, dtype=torch.int64)
    assert log_marginal_likelihood(points, labels, 1, prior).item() == pytest.approx(expected, rel=1e-6)


def test_the_ratios_of_twelve_equal_points_are_the_numbers_worked_out_on_paper():
    halves, whole = torch.arange(12) < 6, torch.zeros(12, dtype=torch.int64)
    marginals = log_marginal_likelihood(TWELVE_AT_ZERO, whole, 1, COUNTS_ONLY)
    split = log_hastings_split(TWELVE_AT_ZERO, whole, halves, marginals, COUNTS_ONLY)
    assert split.item() == pytest.approx(SPLIT_OF_TWELVE, abs=1e-9)
    parts = halves.long()
    marginals = log_marginal_likelihood(TWELVE_AT_ZERO, parts, 2, COUNTS_ONLY)
    merge = log_hastings_merge(TWELVE_AT_ZERO, parts, torch.tensor([[0, 1]]), marginals, COUNTS_ONLY)
    assert merge.item() == pytest.approx(-SPLIT_OF_TWELVE, abs=1e-9)
    posterior = log_posterior(TWELVE_AT_ZERO, parts, COUNTS_ONLY)
    assert posterior == pytest.approx(math.log(518_400 / (7 * math.pi**6)), abs=1e-9)


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


def psi_with_split_ratio(points, halves, log_ratio):
    """By bisection: the wider the prior, the less is won by splitting."""
    low, high = 1e-6, 1e3
    for _ in range(60):
        psi = math.sqrt(low * high)
        prior = NormalInverseWishart(torch.zeros(1), kappa=1.0, psi=psi, nu=2.0)
        ratio = by_hand(points, halves.long(), prior) - by_hand(points, torch.zeros(12), prior)
        low, high = (psi, high) if ratio > log_ratio else (low, psi)
    return prior


@pytest.mark.moderate
def test_a_sweep_makes_a_split_of_ratio_three_tenths_in_three_of_ten_times():
    halves = torch.arange(12) >= 6
    points = (2.0 * halves - 1)[:, None] + 0.05 * torch.randn(12, 1, generator=generator())
    prior = psi_with_split_ratio(points, halves, math.log(0.3))
    whole = torch.zeros(12, dtype=torch.int64)
    results = [sweep(points, whole, prior, seed) for seed in range(200)]
    made = [labels for labels, changed in results if changed]
    assert abs(len(made) - 60) <= 4 * math.sqrt(200 * 0.3 * 0.7)
    assert all(same_groups(labels, halves.long()) for labels in made)


def test_halving_finds_the_better_cut_where_two_are_stable():
    """Four corners of a rectangle: 2-means stops at either pair of sides, and one start in five at the worse."""
    corners = [(8, x, y) for x in (-1.0, 1.0) for y in (-0.8, 0.8)]
    points = torch.cat([clumps(*corners, noise=0.02, seed=seed)[0] for seed in range(60)])
    labels, right = torch.arange(60).repeat_interleave(32), points[:, 0] > 0
    halves = module.halve(points, labels, 60, generator())
    best = [
        halves[labels == each].equal(right[labels == each] ^ ~halves[labels == each][-1])
        for each in range(60)
    ]
    assert sum(best) >= 58


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


def test_points_go_to_their_nearest_cluster_after_the_moves_of_a_sweep():
    """Four points of the first clump are labelled as the cluster that splits: they come home."""
    points, groups = clumps((20, 0, 0), (20, 4, 0), (20, 8, 0))
    labels = groups.clamp(max=1)
    labels[:4] = 1
    after, changed = sweep(points, labels)
    assert changed
    assert same_groups(after, groups)


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


def most_moves(gains, involved, width, ends):
    """Most moves without a common cluster that lose at most 0.01 nats per feature value, over all subsets."""
    for count in range(len(gains), 0, -1):
        for chosen in combinations(range(len(gains)), count):
            touched = [end for move in chosen for end in ends[move]]
            loss = -math.fsum(gains[move] for move in chosen)
            if len(set(touched)) == len(touched) and loss <= 0.01 * width * sum(
                involved[move] for move in chosen
            ):
                return count
    return 0


def moves_by_brute_force(points, labels, prior, seed):
    """Merges of nearest pairs and splits into halves that can be afforded, from the formula as it is written."""
    count, before, width = int(labels.max()) + 1, by_hand(points, labels, prior), points.shape[1]
    sizes = [int((labels == each).sum()) for each in range(count)]
    centres = torch.stack([points[labels == each].mean(0) for each in range(count)])
    nearest = torch.cdist(centres, centres).fill_diagonal_(math.inf).argmin(1).tolist()
    pairs = sorted({tuple(sorted(pair)) for pair in enumerate(nearest)})
    gains = [by_hand(points, labels.where(labels != two, one), prior) - before for one, two in pairs]
    merges = most_moves(gains, [sizes[one] + sizes[two] for one, two in pairs], width, pairs)

    halves = module.halve(points, labels, count, module.torch_generator("split and merge, range", seed))
    gains = []
    for each in range(count):
        apart = labels.where(~((labels == each) & halves), count)
        few = min(int((apart == each).sum()), int((apart == count).sum())) <= 5
        gains.append(-math.inf if few else by_hand(points, apart, prior) - before)
    return merges, most_moves(gains, sizes, width, [(each,) for each in range(count)])


def pairs_of_blobs(seed):
    """Three pairs of blobs, each closer together than the last, of 14 points each: `(N, 24)` and their group."""
    draws = generator(seed)
    far, step = 8 * torch.randn(3, 24, generator=draws), torch.randn(3, 24, generator=draws)
    gaps = torch.tensor([0.2, 0.35, 0.6])[:, None] * step
    centres = torch.stack([far - gaps, far + gaps], dim=1).flatten(0, 1)
    groups = torch.arange(6).repeat_interleave(14)
    return centres[groups] + 0.3 * torch.randn(84, 24, generator=draws), groups


@pytest.mark.parametrize("psi", [0.02, 0.13, 0.2])
@pytest.mark.parametrize("seed", range(2))
def test_affordable_moves_are_those_of_brute_force(seed, psi):
    points, groups = pairs_of_blobs(seed)
    prior, nothing_settled = NormalInverseWishart(psi=psi), torch.full((84,), -1)
    found = _affordable_moves(points, groups, nothing_settled, prior, seed)
    assert found == moves_by_brute_force(points, groups, prior, seed)


@pytest.mark.parametrize(
    ("seed", "psi", "reason"),
    [
        (2, 0.05, "other starts"),
        (0, 0.3, "a merge"),
        (1, 0.5, "splits"),
        (0, 0.06, "another start and splits"),
    ],
)
def test_the_range_is_that_of_other_starts_and_affordable_moves(seed, psi, reason):
    points, _ = pairs_of_blobs(seed)
    prior = NormalInverseWishart(psi=psi)
    results = [split_and_merge(points, start, prior=prior, seed=0) for start in (4, 5, 6, 8)]
    scores = [by_hand(points, result.labels, prior) for result in results]
    best = results[scores.index(max(scores))]
    within = [max(scores) - score <= 0.01 * points.numel() for score in scores]
    near = [result.count for result, is_near in zip(results, within, strict=True) if is_near]
    merges, splits = moves_by_brute_force(points, best.labels, prior, 0)
    estimate = estimate_by_split_merge(points, 4, prior=prior, seed=0)
    assert (estimate.low, estimate.count, estimate.high) == (
        min(*near, best.count - merges),
        best.count,
        max(*near, best.count + splits),
    )
    assert estimate.low < estimate.high
    assert (min(near) < max(near), merges > 0, splits > 0) == (
        "start" in reason,
        "merge" in reason,
        "split" in reason,
    )

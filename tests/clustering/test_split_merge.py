import itertools
import math

import numpy as np
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
from promptccd.errors import DataError
from tests.messages import TEXT


def blobs(sizes, width=768, spread=1.0, seed=0):
    """Unit vectors around random directions, shuffled: points `(N, D)` and their group `(N,)`."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    groups = groups[torch.randperm(len(groups), generator=generator)]
    centres = torch.randn(len(sizes), width, generator=generator)
    points = centres[groups] + spread * torch.randn(len(groups), width, generator=generator)
    return torch.nn.functional.normalize(points, dim=1), groups


def direct(points, prior, mean):
    """Log h of one cluster, term by term as it is written down."""
    points = points.double().numpy()
    size, width = points.shape
    nu_0 = width + 1 if prior.nu is None else prior.nu
    kappa, nu = prior.kappa + size, nu_0 + size
    centre = points.mean(0)
    scale = prior.psi * np.eye(width) + (points - centre).T @ (points - centre)
    scale += prior.kappa * size / kappa * np.outer(centre - mean, centre - mean)

    def log_gamma(value):
        terms = [math.lgamma(value + (1 - j) / 2) for j in range(1, width + 1)]
        return width * (width - 1) / 4 * math.log(math.pi) + math.fsum(terms)

    return (
        -size * width / 2 * math.log(math.pi)
        + log_gamma(nu / 2)
        - log_gamma(nu_0 / 2)
        + nu_0 / 2 * width * math.log(prior.psi)
        - nu / 2 * np.linalg.slogdet(scale)[1]
        + width / 2 * (math.log(prior.kappa) - math.log(kappa))
    )


@pytest.mark.parametrize(
    ("width", "sizes", "prior"),
    [
        (768, [1, 2, 30, 37, 120], NormalInverseWishart()),
        (768, [6, 31], NormalInverseWishart(kappa=2.0, psi=0.3, nu=900.5)),
        (24, [7, 23, 24, 25, 200], NormalInverseWishart()),
    ],
)
def test_log_marginal_is_the_direct_formula(width, sizes, prior):
    points, groups = blobs(sizes, width)
    mean = points.double().mean(0).numpy()
    ours = log_marginal_likelihood(points, 2 * groups, 2 * len(sizes), prior)
    expected = [direct(points[groups == group], prior, mean) for group in range(len(sizes))]
    np.testing.assert_allclose(ours[::2], expected, rtol=1e-6)
    assert (ours[1::2] == 0).all(), "of clusters without points"


def sweep(points, labels, seed=0):
    nothing_settled = torch.full_like(labels, -1)
    generator = torch.Generator().manual_seed(seed)
    return module._sweep(points, labels, nothing_settled, NormalInverseWishart(), generator)


@pytest.mark.parametrize(
    ("regrouped", "moves"),
    [
        (lambda groups: groups.clamp(max=1), True),  # two blobs in one cluster
        # A blob in two halves.
        (lambda groups: groups + ((groups == 2) & (torch.arange(120) % 2 == 0)), True),
        (lambda groups: groups, False),
    ],
)
def test_a_sweep_splits_and_merges_until_clusters_are_blobs(regrouped, moves):
    points, groups = blobs([40, 40, 40])
    labels, changed = sweep(points, regrouped(groups))
    assert changed == moves
    assert same_groups(labels, groups)
    assert labels.unique().tolist() == [0, 1, 2]


def same_groups(labels, groups):
    return len(torch.stack([labels, groups]).unique(dim=1)[0]) == len(labels.unique()) == len(groups.unique())


def start_of(points, start, monkeypatch, fixed=None, seed=0):
    """What the sweeps begin with."""
    monkeypatch.setattr(module, "MAX_SWEEPS", 0)
    return split_and_merge(points, start, fixed=fixed, seed=seed).labels


def test_it_starts_from_settled_categories_and_new_clusters_of_the_rest(monkeypatch):
    """Category 0 lies in two places; what lies between them is its own."""
    points = torch.tensor([-9.0, -1.0, 3.0, 4.0, -6.0, -2.0, 4.0, 100.0, 101.0])[:, None]
    fixed = torch.tensor([0, 0, 4, 4, -1, -1, -1, -1, -1])
    assert start_of(points, 3, monkeypatch, fixed).tolist() == [0, 0, 1, 1, 0, 0, 1, 2, 2]


@pytest.mark.parametrize(("start", "count"), [(1, 2), (3, 3), (7, 4)])
def test_it_starts_from_as_many_clusters_as_there_can_be(start, count, monkeypatch):
    points = torch.tensor([0.0, 0.0, 0.0, 5.0, 5.0, 8.0, 9.0])[:, None]
    fixed = torch.tensor([3, 3, 3, 0, 0, -1, -1])
    labels = start_of(points, start, monkeypatch, fixed)
    assert labels[:5].tolist() == [1, 1, 1, 0, 0]
    assert labels.unique().tolist() == list(range(count))


SIZES = [30, 31, 33, 34, 36, 37, 39, 41, 42, 44, 45, 46, 48, 50, 51, 53, 55, 56, 58, 60]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("start", [10, 40])
def test_finds_the_count_of_separated_mixtures_from_half_and_twice(seed, start):
    points, _ = blobs(SIZES, spread=0.8, seed=seed)
    result = split_and_merge(points, start, seed=seed)
    assert abs(result.count - 20) <= 1  # 5 %
    assert result.count == len(result.labels.unique()) == int(result.labels.max()) + 1
    assert result.log_posterior == module.log_posterior(points, result.labels, NormalInverseWishart())


@pytest.mark.parametrize("start", [pytest.param(10, marks=pytest.mark.moderate), 40])
def test_finds_the_count_of_very_unequal_sizes_under_a_matched_prior(start):
    points, groups = blobs([15] * 5 + [40] * 10 + [150] * 5, spread=0.6)
    within = (points - module.cluster_means(points, groups, 20)[groups]).var()
    matched = NormalInverseWishart(nu=20 * 768, psi=20 * 768 * float(within))
    assert abs(split_and_merge(points, start, prior=matched, seed=0).count - 20) <= 1


def test_bad_input_is_one_clear_line():
    points, _ = blobs([10, 10], width=8)
    for start in (0, 21):
        with pytest.raises(DataError, match=TEXT["1-start-number-of-features-20"].format(start)):
            split_and_merge(points, start, seed=0)
    points[3, 2] = math.nan
    with pytest.raises(DataError, match=TEXT["nan-or-infinity-in-row-3"]):
        split_and_merge(points, 2, seed=0)


@pytest.mark.parametrize("least", [2, 6])
def test_the_best_of_the_restarts_is_mostly_the_best_there_is(least, monkeypatch):
    """Of eight points in a plane; where no half can have as many as it should, the best is taken nevertheless."""
    monkeypatch.setattr(module, "MIN_HALF", least)
    points = torch.randn(60, 8, 2, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(60).repeat_interleave(8)
    halves = module.halve(points.flatten(0, 1), labels, 60, torch.Generator().manual_seed(1)).view(60, 8)
    sides = torch.tensor([(0, *rest) for rest in itertools.product((0, 1), repeat=7)]).bool()
    smaller = sides.sum(1).minimum((~sides).sum(1))
    sides = sides[smaller >= (least if least <= 4 else 1)]
    points -= points.mean(1, keepdim=True)

    def gains(sides: torch.Tensor) -> torch.Tensor:
        """By how much the inertia is lower: both halves have the same sum, but for the sign."""
        sizes = sides.sum(-1)
        return (sides.float() @ points).square().sum(-1) * (1 / sizes + 1 / (8 - sizes))

    assert (gains(halves[:, None])[:, 0] >= gains(sides).amax(1) - 1e-5).sum() >= 50


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def by_hand(points, labels, prior):
    """Sum of log Gamma(N_k) + log h_k, with nothing of the package in it."""
    mean = points.double().mean(0).numpy()
    sets = [points[labels == label] for label in labels.unique()]
    return math.fsum(math.lgamma(len(each)) + direct(each, prior, mean) for each in sets)


def clumps(*parts, noise=0.2, seed=0):
    """Points in the plane: parts are ``(size, x, y)``."""
    sizes, centres = [part[0] for part in parts], torch.tensor([part[1:] for part in parts])
    groups = torch.arange(len(parts)).repeat_interleave(torch.tensor(sizes))
    return centres[groups] + noise * torch.randn(len(groups), 2, generator=generator(seed)), groups


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
    ratios = log_hastings_merge(points, groups, pairs, marginals, prior)
    for (one, two), ratio in zip(pairs.tolist(), ratios, strict=True):
        after = by_hand(points, groups.where(groups != two, one), prior)
        assert ratio.item() == pytest.approx(after - before, abs=1e-3)


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
    most = torch.arange(24) < 8  # of what is known of both categories
    assert module.together(most, anchors)[:12].all()
    assert torch.equal(module.together(most, anchors)[12:], most[12:])
    assert not module.together(torch.arange(24) % 4 < 2, anchors)[:12].any()  # as many in either half
    assert module.has_fixed(labels, anchors).tolist() == [True, True]
    assert module.has_fixed(labels, anchors.where(labels == 1, -1)).tolist() == [False, True]
    for seed in range(5):
        after, _ = module._sweep(points, labels, anchors, NormalInverseWishart(), generator(seed))
        assert len(after[:12:2].unique()) == len(after[1:12:2].unique()) == 1
        assert after[0] != after[1]


def test_a_small_category_between_two_others_is_found_from_more_clusters_only():
    """Ten points between two clumps, of which each is nearest to five: no half of five is a split."""
    points, parts = clumps((40, -3, 0), (40, 3, 0), (5, -0.5, 2), (5, 0.5, 2))
    alone, more = (split_and_merge(points, start, seed=0) for start in (2, 3))
    assert (alone.count, more.count) == (2, 3)
    estimate = estimate_by_split_merge(points, 2, seed=0)
    assert estimate.count == 3
    assert same_groups(more.labels, parts.clamp(max=2))

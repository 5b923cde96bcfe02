"""Estimated numbers of categories: splitting and merging from several starts, under priors that may be calibrated.

Letters: N features, D width, d width after projection, K categories.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from promptccd.clustering.count_estimate import CountEstimate
from promptccd.clustering.kmeans import as_features, running_sums
from promptccd.clustering.split_merge import (
    PAPER,
    NormalInverseWishart,
    cluster_means,
    disjoint,
    halve,
    has_fixed,
    log_hastings_merge,
    log_hastings_split,
    log_marginal_likelihood,
    nearest_pairs,
    split_and_merge,
    together,
)
from promptccd.data.randomness import torch_generator
from promptccd.errors import DataError

START_FACTORS = (1.0, 1.25, 1.5, 2.0)
LOSS_PER_VALUE = 0.01  # nats per feature value of the regrouped points, a factor of 0.99 in likelihood
SPLIT_MERGE_MARGIN = "1 % of likelihood per feature value of the points regrouped"


def estimate_by_split_merge(
    features: Tensor,
    start: int,
    *,
    fixed: Tensor | None = None,
    seed: int,
    prior: NormalInverseWishart = PAPER,
) -> CountEstimate:
    """Estimate the number of categories by splitting and merging clusters of the features.

    The paper starts from the number of known categories. From there alone the search may miss a small new category
    that lies in two old ones, so it also starts from more, and the highest log posterior wins.

    The range includes the results of other starts, and of merging the cheapest disjoint pairs of nearest clusters or
    splitting the cheapest clusters, as long as the log posterior falls by at most 0.01 nats per feature value: of the
    points that are merged or split, or of all points for another start. It tells how flat the score is, not how right
    the prior is.

    Args:
        features: ``(N, D)``, L2-normalised.
        start: number of clusters to begin with; up to twice as many are tried.
        fixed: ``(N,)``, known categories, -1 elsewhere; neither estimate nor range goes below their number.
        seed: of every random choice.
        prior: of every cluster.

    Raises:
        DataError: NaN or infinite features, or not 1 <= start <= N.
    """
    points = as_features(features, "features")
    starts = sorted({min(math.ceil(factor * start), max(start, len(points))) for factor in START_FACTORS})
    results = [split_and_merge(points, each, fixed=fixed, prior=prior, seed=seed) for each in starts]
    best = max(results, key=lambda result: result.log_posterior)
    anchors = torch.full((len(points),), -1) if fixed is None else fixed
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
    pairs = nearest_pairs(points, labels, every, has_fixed(labels, anchors))
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
    return int((-running_sums(gains, 0) <= allowed).sum())


STIFFNESS = 20  # degrees of freedom per dimension: with more, spreads of categories differ less
MOST_DIRECTIONS = 48  # that are kept: further directions cost a small category more than they add
SHRINKAGE = 0.1  # of the covariance within categories, towards one variance in all directions
TRIED_SCALES = (0.2, 0.3, 0.45, 0.7, 1.0, 1.5, 2.5)  # of the variance within categories, to choose from
HELD_OUT = (0.2, 0.35, 0.5)  # shares of the labelled categories left out in trials
NUM_TRIALS = 6
ASSUMED_SPREAD = 0.35  # variance within categories, as a share of all, where no label tells it
# Factor of such a count; the truth was within 2.5 in 14 sets of points with 1 to 20 categories.
ASSUMED_ERROR = 3.0
MOST_OF_A_CATEGORY = 50  # features of a category in a trial
UNRELIABLE = 0.2  # mean error in trials above which an estimate counts as unreliable


def estimate_categories(
    features: Tensor, start: int, *, fixed: Tensor, seed: int, prior: str = "paper", scale: float = 1.0
) -> CountEstimate:
    """Estimate the number of categories by splitting and merging, under one of four priors.

    ``paper`` is fixed: its count depends on the width and number of features as much as on their values. ``matched``
    expects the variance within fixed categories. ``calibrated`` keeps the leading directions of all features, scales
    them so that fixed categories spread alike in each, and expects `scale` times their variance there; `calibrate`
    finds the scale. ``assumed`` needs no fixed category: it expects `ASSUMED_SPREAD` of the variance of all features in
    these directions.

    Args:
        features: ``(N, D)``, L2-normalised.
        start: number of clusters to begin with.
        fixed: ``(N,)``, known categories, -1 elsewhere.
        seed: of every random choice.
        prior: a key of `PRIORS`.
        scale: of the variance within categories; ``calibrated`` alone reads it.

    Raises:
        DataError: as `estimate_by_split_merge`.
    """
    points, expected = PRIORS[prior].expectation(features, fixed, scale)
    return estimate_by_split_merge(points, start, fixed=fixed, seed=seed, prior=expected)


def estimate_as_taught(
    features: Tensor, start: int, *, fixed: Tensor, labelled: Tensor, labels: Tensor, seed: int, prior: str
) -> CountEstimate:
    """`estimate_categories` with the scale and the range that labelled categories teach, if the prior has scales.

    Trials leave out some categories of the labelled features ``(L, D)`` with `labels` ``(L,)``, gaps allowed. The other
    arguments, and errors, as in `estimate_categories`.
    """
    if not PRIORS[prior].scales:
        estimate = estimate_categories(features, start, fixed=fixed, seed=seed, prior=prior)
        if (error := PRIORS[prior].error) == 1:
            return estimate
        low = max(len(fixed[fixed >= 0].unique()), math.ceil(estimate.count / error))
        low, high = min(low, estimate.low), max(math.ceil(error * estimate.count), estimate.high)
        margin = f"a factor of {error:g}, since no labels show how far categories spread"
        return replace(estimate, low=low, high=high, margin=margin)
    learned = calibrate(labelled, labels, seed, prior=prior)
    estimate = estimate_categories(features, start, fixed=fixed, seed=seed, prior=prior, scale=learned.scale)
    return learned.widened(estimate, len(fixed[fixed >= 0].unique()))


# The features to count, and the prior of every category.
Expectation = tuple[Tensor, NormalInverseWishart]


def _matched(features: Tensor, fixed: Tensor, scale: float) -> Expectation:
    variance = _covariance_within(features.double(), fixed).diagonal().mean()
    return features, _stiff(features.shape[1], float(variance))


def _calibrated(features: Tensor, fixed: Tensor, scale: float) -> Expectation:
    points = _leading(features)
    values, vectors = torch.linalg.eigh(_covariance_within(points, fixed))
    values = (1 - SHRINKAGE) * values + SHRINKAGE * values.mean()
    points = points @ (vectors / values.sqrt())
    variance = _covariance_within(points, fixed).diagonal().mean()
    return points.to(features.dtype), _stiff(points.shape[1], scale * float(variance))


def _assumed(features: Tensor, fixed: Tensor, scale: float) -> Expectation:
    points = _leading(features)
    variance = ASSUMED_SPREAD * float(points.square().mean())
    return points.to(features.dtype), _stiff(points.shape[1], max(variance, 1e-12))


def _leading(features: Tensor) -> Tensor:
    """Centred features in float64, in their leading directions."""
    centred = features.double() - features.double().mean(0)
    return centred @ torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -MOST_DIRECTIONS:]


class Prior(NamedTuple):
    """A prior of categories.

    Attributes:
        expectation: computes it from features ``(N, D)``, fixed categories ``(N,)`` and a scale.
        scales: of the variance within categories, for `calibrate` to choose from; empty if it is not calibrated.
        error: factor by which the truth may differ from a count, where no label tells how far categories spread.
    """

    expectation: Callable[[Tensor, Tensor, float], Expectation]
    scales: tuple[float, ...]
    error: float = 1.0


PRIORS = {
    "paper": Prior(lambda features, fixed, scale: (features, PAPER), ()),
    "matched": Prior(_matched, (1.0,)),
    "calibrated": Prior(_calibrated, TRIED_SCALES),
    "assumed": Prior(_assumed, (), ASSUMED_ERROR),
}


def _stiff(width: int, variance: float) -> NormalInverseWishart:
    return NormalInverseWishart(psi=STIFFNESS * width * variance, nu=STIFFNESS * width)


def _covariance_within(points: Tensor, fixed: Tensor) -> Tensor:
    """Pooled covariance within fixed categories, ``(D, D)`` of points ``(N, D)``.

    Raises:
        DataError: no category has two features that differ.
    """
    fixed = fixed.to(points.device)
    members = points[fixed >= 0]
    ids, labels = fixed[fixed >= 0].unique(return_inverse=True)
    spread = members - cluster_means(members, labels, len(ids))[labels] if len(ids) else members
    covariance = spread.T @ spread / max(1, len(members) - len(ids))
    if not covariance.diagonal().sum() > 0:
        raise DataError(
            "The spread of categories is learnt from a known category with two different images, but there is none: "
            f"got {len(members)} images of {len(ids)} categories. Set count_prior to paper, "
            "and category_count to split_merge."
        )
    return covariance


@dataclass(frozen=True)
class Trial:
    """Labelled features of which some categories are left out, as if they had no labels.

    Attributes:
        labelled: ``(L, D)`` of the categories that stay known.
        labels: ``(L,)``, ``0..known-1``.
        unlabelled: ``(N, D)``, a quarter of the known categories' features, and all features of the left-out
            categories.
        known: number of categories that stay known.
        held_out: number of categories to be found.
    """

    labelled: Tensor
    labels: Tensor
    unlabelled: Tensor
    known: int
    held_out: int


@dataclass(frozen=True)
class CountCalibration:
    """The result of counting left-out labelled categories.

    Attributes:
        scale: of the variance within categories, with which the counts were best.
        rates: categories found per left-out category, by trial; 1 is right. Empty if too few categories have labels.
        error: mean absolute log of found over true categories, including known ones.
    """

    scale: float
    rates: tuple[float, ...]
    error: float

    def widened(self, estimate: CountEstimate, known: int) -> CountEstimate:
        """The same count with a range that also contains the truth if this count errs like the counts of the trials.

        The estimate includes the known categories. Six trials are too few for a quantile: the log error may be twice
        that of the worst trial. With features of Caltech-101 this range contained the truth in 17 of 20 settings; a
        range with the plain worst error did so in 14.
        """
        if not self.rates:
            return replace(estimate, margin=f"{estimate.margin}; two known categories or fewer: unreliable")
        found = estimate.count - known
        low = known + math.floor(found / max(1.0, *self.rates) ** 2)
        # A ratio is meaningless if a trial found no category: a category may have been missed.
        high = known + math.ceil(max(found, 1) / max(1 / len(self.rates), min(1.0, *self.rates) ** 2))
        margin = f"twice the error of {len(self.rates)} counts of left-out labelled categories"
        if self.error > UNRELIABLE:
            margin += f", {self.error:.0%} on average: unreliable"
        low, high = max(1, min(low, estimate.low)), max(high, estimate.high)
        return replace(estimate, low=low, high=high, margin=margin)


def calibrate(
    features: Tensor,
    labels: Tensor,
    seed: int,
    count: Callable[[Trial, float], int] | None = None,
    *,
    prior: str = "calibrated",
) -> CountCalibration:
    """Choose the scale with which left-out labelled categories are counted best; among equals the nearest to 1.

    Labels ``(N,)`` of the features ``(N, D)`` are integers >= 0, gaps allowed. `count` counts all categories of a trial
    at a scale, by default `estimate_categories`; `prior` is a key of `PRIORS`, whose scales are tried.
    """
    # Trials are small, and a GPU is busy with starting their operations: of 14 categories they took 9 s on an H200
    # (under a profiler), and 1 s on one core of a CPU for as many simulated features.
    held_out = [*trials(features if count else features.cpu(), labels, seed)]
    if not held_out:
        return CountCalibration(1.0, (), math.inf)

    def by_split_merge(trial: Trial, scale: float) -> int:
        fixed = torch.cat([trial.labels, trial.labels.new_full((len(trial.unlabelled),), -1)])
        both, known = torch.cat([trial.labelled, trial.unlabelled]), trial.known
        return estimate_categories(both, known, fixed=fixed, seed=seed, prior=prior, scale=scale).count

    count, best = count or by_split_merge, CountCalibration(1.0, (), math.inf)
    for scale in sorted(PRIORS[prior].scales, key=lambda each: abs(math.log(each))):
        off, rates = list[float](), list[float]()
        for trial in held_out:
            found = count(trial, scale)
            off.append(abs(math.log(found / (trial.known + trial.held_out))))
            rates.append((found - trial.known) / trial.held_out)
            if sum(off) / len(held_out) >= best.error:  # no better, which saves most counts
                break
        else:
            best = CountCalibration(scale, tuple(rates), sum(off) / len(held_out))
        if best.error == 0:
            break
    return best


def trials(features: Tensor, labels: Tensor, seed: int) -> Iterator[Trial]:
    """Trials that leave out some categories of labelled features ``(N, D)``; empty with fewer than three categories."""
    (ids, labels), device = labels.cpu().unique(return_inverse=True), features.device
    for number in range(NUM_TRIALS if len(ids) > 2 else 0):
        held_out = min(round(HELD_OUT[number % len(HELD_OUT)] * len(ids)), len(ids) - 2)
        generator = torch_generator("held-out categories", seed, number)
        categories = torch.randperm(len(ids), generator=generator)
        shuffled = torch.randperm(len(labels), generator=generator)
        labelled, free = [], []
        for place, category in enumerate(categories.tolist()):
            rows = shuffled[labels[shuffled] == category][:MOST_OF_A_CATEGORY]
            num_labelled = max(1, len(rows) - max(1, len(rows) // 4)) if place >= held_out else 0
            labelled.append(rows[:num_labelled])
            free.append(rows[num_labelled:])
        sizes = torch.tensor([len(rows) for rows in labelled[held_out:]])
        of_labelled = torch.arange(len(sizes)).repeat_interleave(sizes).to(device)
        known, others = (features[torch.cat(rows).to(device)] for rows in (labelled, free))
        yield Trial(known, of_labelled, others, len(sizes), held_out)

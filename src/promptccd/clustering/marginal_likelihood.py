"""How well a set of points is one cluster: marginal likelihoods under a normal-inverse-Wishart prior, all sets at once.

Letters: N points, D width, K clusters, S sets of points, P pairs of clusters.

With a prior scale psi I the posterior scale of N_k points is psi I + X^T X, where the rows of X are the points,
less the prior mean, less (1 - sqrt(kappa / (kappa + N_k))) times their own mean so centred: scatter and the pull
towards the prior mean are both in it. Its determinant is that of psi I + X X^T up to a power of psi, and this
matrix is N_k x N_k: tens of rows instead of 768.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from promptccd.errors import ConfigurationError

MIN_HALF = 6  # a cluster and each of its halves have more than 5 points
MAX_BATCH_ELEMENTS = 2**19  # numbers gathered at once: 4 MB in float64 stay in a CPU's cache


@dataclass(frozen=True)
class NormalInverseWishart:
    """Prior over the mean and covariance of a cluster: the paper's, section S5, with Psi_0 = psi I.

    Attributes:
        mean: ``(D,)``; None is the mean of the data.
        kappa: points that the prior mean is worth.
        psi: scale of every dimension, in squared units of the features.
        nu: degrees of freedom, above D - 1; None is D + 1.
    """

    mean: Tensor | None = None
    kappa: float = 1e-4
    psi: float = 0.005
    nu: float | None = None

    def __post_init__(self) -> None:
        for name in ("kappa", "psi"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"Expected {name} > 0, got {getattr(self, name)}.")

    def completed(self, points: Tensor) -> tuple[Tensor, float]:
        """Mean ``(D,)`` float64 and degrees of freedom for points ``(N, D)``."""
        width = points.shape[1]
        mean = points.mean(0, dtype=torch.float64) if self.mean is None else self.mean.to(points).double()
        nu = width + 1 if self.nu is None else self.nu
        if mean.shape != (width,) or nu <= width - 1:
            raise ConfigurationError(
                f"Expected a prior mean of shape ({width},) and nu > {width - 1} for features of width {width}, "
                f"got {tuple(mean.shape)} and {nu}."
            )
        return mean, nu


def log_posterior(points: Tensor, labels: Tensor, prior: NormalInverseWishart) -> float:
    """Sum over clusters of log Gamma(N_k) + log h_k, in nats; its differences are the log Hastings ratios."""
    num_clusters = int(labels.max()) + 1
    log_marginals = log_marginal_likelihood(points, labels, num_clusters, prior)
    return float(_log_terms(labels.bincount(minlength=num_clusters), log_marginals).sum())


def log_marginal_likelihood(
    points: Tensor, labels: Tensor, num_clusters: int, prior: NormalInverseWishart
) -> Tensor:
    """Log probability density of every cluster's points, parameters integrated out: methods of S5.

    Args:
        points: ``(N, D)``.
        labels: ``(N,)`` in ``0..num_clusters-1``.
        num_clusters: K.
        prior: of mean and covariance.

    Returns:
        ``(K,)`` float64 in nats, 0 for a cluster without points.
    """
    return _log_marginals(PointSets.from_labels(points, labels, num_clusters), prior)


def log_hastings_split(
    points: Tensor, labels: Tensor, halves: Tensor, log_marginals: Tensor, prior: NormalInverseWishart
) -> Tensor:
    """Log Hastings ratio of replacing each cluster by its halves: ``(K,)`` float64.

    Minus infinity where a half has at most 5 points.

    Args:
        points: ``(N, D)``.
        labels: ``(N,)`` in ``0..K-1``.
        halves: ``(N,)`` bool, the half of its cluster that a point would go to.
        log_marginals: ``(K,)``, `log_marginal_likelihood` of the clusters as they are.
        prior: of mean and covariance.
    """
    num_clusters = len(log_marginals)
    sets = PointSets.from_labels(points, 2 * labels + halves, 2 * num_clusters)
    allowed = sets.sizes.view(-1, 2).amin(1) >= MIN_HALF
    sets, sizes = sets.union(allowed.repeat_interleave(2).nonzero()), sets.sizes.view(-1, 2).sum(1)
    parts = _log_terms(sets.sizes, _log_marginals(sets, prior)).view(-1, 2).sum(1)
    ratios = torch.full_like(log_marginals, -math.inf)
    ratios[allowed] = parts - _log_terms(sizes, log_marginals)[allowed]
    return ratios


def log_hastings_merge(
    points: Tensor, labels: Tensor, pairs: Tensor, log_marginals: Tensor, prior: NormalInverseWishart
) -> Tensor:
    """Log Hastings ratio of replacing each pair of clusters ``(P, 2)`` by its union: ``(P,)`` float64.

    Minus that of the split back. A cluster may be in several pairs; the rest is as in `log_hastings_split`.
    """
    sets = PointSets.from_labels(points, labels, len(log_marginals))
    apart = _log_terms(sets.sizes, log_marginals)[pairs].sum(1)
    unions = sets.union(pairs)
    return _log_terms(unions.sizes, _log_marginals(unions, prior)) - apart


@dataclass(frozen=True)
class PointSets:
    """Sets of points that may overlap; set i holds the next ``sizes[i]`` entries of ``members``."""

    points: Tensor  # (N, D)
    members: Tensor  # (M,) rows of points
    sizes: Tensor  # (S,)

    @classmethod
    def from_labels(cls, points: Tensor, labels: Tensor, num_sets: int) -> "PointSets":
        """The sets of points that have label 0, 1, ..."""
        return cls(points, labels.argsort(stable=True), labels.bincount(minlength=num_sets))

    def union(self, ids: Tensor) -> "PointSets":
        """Set i becomes the union of the disjoint sets ``ids[i]``: ``(T, any)`` to T sets."""
        flat = ids.flatten()
        sizes = self.sizes[flat]
        starts = (self.sizes.cumsum(0) - self.sizes)[flat] - (sizes.cumsum(0) - sizes)
        places = starts.repeat_interleave(sizes) + torch.arange(int(sizes.sum()), device=flat.device)
        return PointSets(self.points, self.members[places], sizes.view(ids.shape).sum(1))

    def batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Sets of like size together, empty ones left out: ids ``(B,)``, rows ``(B, n)`` and which are real."""
        order, starts = self.sizes.argsort(stable=True), self.sizes.cumsum(0) - self.sizes
        order = order[self.sizes[order] > 0]
        if not len(order):
            return
        largest = int(self.sizes[order[-1]]) * self.points.shape[1]
        for ids in order.split(max(1, MAX_BATCH_ELEMENTS // largest)):
            offsets = torch.arange(int(self.sizes[ids[-1]]), device=ids.device)
            present = offsets < self.sizes[ids, None]
            yield ids, self.members[(starts[ids, None] + offsets).where(present, starts[ids, None])], present


def _log_terms(sizes: Tensor, log_marginals: Tensor) -> Tensor:
    """Log Gamma(N_k) + log h_k, the share of a cluster in the log posterior; 0 without points."""
    return sizes.double().lgamma().where(sizes > 0, 0) + log_marginals


def _log_marginals(sets: PointSets, prior: NormalInverseWishart) -> Tensor:
    """Log h of every set, ``(S,)`` float64."""
    width = sets.points.shape[1]
    mean, nu = prior.completed(sets.points)
    sizes, inverse = sets.sizes.double().unique(return_inverse=True)
    by_size = 0.5 * width * (math.log(prior.kappa) - (prior.kappa + sizes).log())
    by_size -= 0.5 * width * sizes * math.log(math.pi * prior.psi)  # |Psi_0| and the psi taken out of |Psi*|
    by_size += torch.mvlgamma(0.5 * (nu + sizes), width)
    by_size -= torch.mvlgamma(sizes.new_tensor(0.5 * nu), width)
    result = by_size[inverse]
    for ids, rows, present in sets.batches():
        log_determinants = _log_determinants(sets.points[rows], present, mean, prior)
        result[ids] -= 0.5 * (nu + sets.sizes[ids]) * log_determinants
    return result


def _log_determinants(points: Tensor, present: Tensor, mean: Tensor, prior: NormalInverseWishart) -> Tensor:
    """Log |I + X^T X / psi| of every set ``(S, n, D)``, on the shorter side; padding adds zero."""
    real = present.to(mean)[..., None]
    sizes = real.sum(1, keepdim=True)
    share = (1 - (prior.kappa / (prior.kappa + sizes)).sqrt()) / sizes  # of the sum that comes off each row
    rows = points.double().sub_(mean)
    if rows.shape[1] < rows.shape[2]:  # it comes off after the product, which is smaller
        gram = (rows @ rows.mT).mul_(real * real.mT)
        sums = gram @ real
        shift = share * sums - 0.5 * share.square() * (real.mT @ sums) * real
        gram.sub_(real * shift.mT).sub_(shift * real.mT)
    else:
        rows.sub_(share * (real.mT @ rows)).mul_(real)
        gram = rows.mT @ rows
    gram.div_(prior.psi).diagonal(dim1=1, dim2=2).add_(1)
    return 2 * torch.linalg.cholesky(gram).diagonal(dim1=1, dim2=2).log().sum(1)

"""Splitting and merging of clusters under a normal-inverse-Wishart prior, which finds their number.

Letters: N points, D width, K clusters, P pairs of clusters, R restarts.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from promptccd.clustering.kmeans import AnchoredKMeans, as_features, running_sums, sum_rows
from promptccd.data.randomness import seed_of, torch_generator
from promptccd.errors import DataError

MIN_HALF = 6  # a cluster and each of its halves have more than 5 points
MAX_BATCH_ELEMENTS = 524_288  # numbers gathered at once: 4 MB in float64 stay in a CPU's cache
MAX_SWEEPS = 30


@dataclass(frozen=True)
class NormalInverseWishart:
    """Prior over the mean and covariance of a cluster: the paper's, section S5, with Psi_0 = psi I.

    Attributes:
        kappa: weight of the prior mean, that of the data, in points.
        psi: scale of every dimension, in squared units of the features.
        nu: degrees of freedom, above D - 1; None is D + 1.
    """

    kappa: float = 1e-4
    psi: float = 0.005
    nu: float | None = None


PAPER = NormalInverseWishart()


def log_posterior(points: Tensor, labels: Tensor, prior: NormalInverseWishart) -> float:
    """Sum over clusters of log Gamma(N_k) + log h_k, in nats; its differences are the log Hastings ratios.

    Labels ``(N,)`` are 0..K-1, each with a point.
    """
    sizes = labels.bincount()
    return float(_log_terms(sizes, log_marginal_likelihood(points, labels, len(sizes), prior)).sum())


def log_marginal_likelihood(
    points: Tensor, labels: Tensor, num_clusters: int, prior: NormalInverseWishart
) -> Tensor:
    """Log probability density of every cluster's points, parameters integrated out (section S5).

    Points ``(N, D)`` with labels ``(N,)`` in 0..K-1 give ``(K,)`` float64 in nats, 0 for a cluster without points.
    """
    return _log_marginals(PointSets.from_labels(points, labels, num_clusters), prior)


def log_hastings_split(
    points: Tensor, labels: Tensor, halves: Tensor, log_marginals: Tensor, prior: NormalInverseWishart
) -> Tensor:
    """Log Hastings ratio of replacing each cluster by its halves: ``(K,)`` float64.

    Minus infinity where a half has at most 5 points. `halves` ``(N,)`` bool is the half of each point, `log_marginals`
    ``(K,)`` the `log_marginal_likelihood` of the present clusters.
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

    Minus that of the split back. A cluster may be in several pairs; see `log_hastings_split` otherwise.
    """
    sets = PointSets.from_labels(points, labels, len(log_marginals))
    apart = _log_terms(sets.sizes, log_marginals)[pairs].sum(1)
    unions = sets.union(pairs)
    return _log_terms(unions.sizes, _log_marginals(unions, prior)) - apart


@dataclass(frozen=True)
class PointSets:
    """Sets of points that may overlap; set i has the next ``sizes[i]`` entries of ``members``."""

    points: Tensor  # (N, D)
    members: Tensor  # (M,) rows of points
    sizes: Tensor  # (S,)

    @classmethod
    def from_labels(cls, points: Tensor, labels: Tensor, num_sets: int) -> "PointSets":
        """The sets of points that have label 0, 1, ..."""
        return cls(points, labels.argsort(stable=True), labels.bincount(minlength=num_sets))

    def union(self, ids: Tensor) -> "PointSets":
        """Unions of disjoint sets: set i of the result is that of the sets ``ids[i]``, ids ``(T, any)``."""
        flat = ids.flatten()
        sizes = self.sizes[flat]
        starts = (self.sizes.cumsum(0) - self.sizes)[flat] - (sizes.cumsum(0) - sizes)
        places = starts.repeat_interleave(sizes) + torch.arange(int(sizes.sum()), device=flat.device)
        return PointSets(self.points, self.members[places], sizes.view(ids.shape).sum(1))

    def batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Batches of sets of similar size, without empty sets: ids ``(B,)``, rows ``(B, n)`` and which are real."""
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
    """Log Gamma(N_k) + log h_k, the term of a cluster in the log posterior."""
    return sizes.double().lgamma() + log_marginals


def _log_marginals(sets: PointSets, prior: NormalInverseWishart) -> Tensor:
    """Log h of every set, ``(S,)`` float64."""
    width = sets.points.shape[1]
    mean = sets.points.mean(0, dtype=torch.float64)
    nu = width + 1 if prior.nu is None else prior.nu
    sizes, inverse = sets.sizes.double().unique(return_inverse=True)
    by_size = 0.5 * width * (math.log(prior.kappa) - (prior.kappa + sizes).log())
    by_size -= 0.5 * width * sizes * math.log(math.pi * prior.psi)  # |Psi_0|, and psi factored out of |Psi*|
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
    share = (1 - (prior.kappa / (prior.kappa + sizes)).sqrt()) / sizes  # of the sum, subtracted from each row
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


START_RESTARTS, START_ITERATIONS = 2, 30  # of the first k-means
HALVING_RESTARTS, HALVING_ITERATIONS = 6, 20
LLOYD_ITERATIONS = 3  # after the moves of a sweep


@dataclass(frozen=True)
class SplitMergeResult:
    """Labels ``(N,)``, ``0..count-1``, each with at least one point, and the `log_posterior` of the partition."""

    labels: Tensor
    count: int
    log_posterior: float


@torch.no_grad()
def split_and_merge(
    features: Tensor,
    start: int,
    *,
    fixed: Tensor | None = None,
    prior: NormalInverseWishart = PAPER,
    seed: int,
) -> SplitMergeResult:
    """Split and merge clusters until a sweep changes nothing (the paper's PromptCCD-U; after GPC).

    The halves of a cluster replace it, and the union of a pair replaces the pair, with probability min(1, H). (The
    released code keeps the old clusters in addition to the new clusters, so that its count can only grow.)

    The count depends on the prior as much as on the data. In 768 dimensions the paper's prior keeps isotropic clusters
    of about 30 to 80 points: smaller clusters merge, larger clusters split, and features whose variance is in few
    directions all merge. A prior matched to the spread within clusters, nu = 20 D and psi = nu times that variance per
    dimension, depends far less on sizes, but merges strongly overlapping clusters.

    Args:
        features: ``(N, D)``, L2-normalised.
        start: number of k-means clusters to begin with, best near the right number; raised to the number of fixed
            categories.
        fixed: ``(N,)`` int64, the known category of each feature (of a replay sample, its component), -1 where
            it is unknown; `None` if all are. Features of one category stay together, features of two stay apart.
        prior: of every cluster.
        seed: sweep i draws from a generator keyed by (seed, i).

    Raises:
        DataError: NaN or infinite features, or not 1 <= start <= N.
    """
    points = as_features(features, "features")
    if not 1 <= start <= len(points):
        raise DataError(
            f"Expected 1 <= start <= number of features ({len(points)}), got {start}: "
            "begin with the number of categories known so far, or give more images."
        )
    anchors = torch.full((len(points),), -1) if fixed is None else fixed
    anchors = anchors.to(points.device)
    labels = _first_clusters(points, anchors, start, seed_of("split and merge, start", seed))
    for sweep in range(MAX_SWEEPS):
        generator = torch_generator("split and merge", seed, sweep)
        labels, changed = _sweep(points, labels, anchors, prior, generator)
        if not changed:
            break
    count = int(labels.max()) + 1
    return SplitMergeResult(labels, count, log_posterior(points, labels, prior))


def _first_clusters(points: Tensor, anchors: Tensor, start: int, seed: int) -> Tensor:
    """Clusters of k-means, fixed categories first: ``(N,)``, without gaps."""
    free = anchors < 0
    known = len(anchors[~free].unique())
    count = min(max(start, known), known + int(free.sum()))
    labels = anchors.clone()
    if free.any():
        kmeans = AnchoredKMeans(count, START_RESTARTS, START_ITERATIONS, random_state=seed)
        labels[free] = kmeans.fit(points[free], points[~free], anchors[~free]).labels_
    return labels.unique(return_inverse=True)[1]


def has_fixed(labels: Tensor, anchors: Tensor) -> Tensor:
    """Clusters that contain features of a fixed category, ``(K,)`` bool."""
    found = torch.zeros(int(labels.max()) + 1, dtype=torch.bool, device=labels.device)
    found[labels[anchors >= 0]] = True
    return found


def nearest_pairs(points: Tensor, labels: Tensor, clusters: Tensor, fixed: Tensor) -> Tensor:
    """Each of the clusters ``(M,)`` with its nearest neighbour, no pair twice: ``(P, 2)``.

    No pair has two clusters that contain a fixed category, ``fixed`` ``(K,)``.
    """
    if not len(clusters):
        return clusters.new_empty(0, 2)
    centres = cluster_means(points, labels, len(fixed))[clusters]
    distances = torch.cdist(centres, centres).fill_diagonal_(math.inf)
    distances[fixed[clusters][:, None] & fixed[clusters]] = math.inf
    nearest, partner = distances.min(1)
    pairs = torch.stack([clusters, clusters[partner]], dim=1)[nearest.isfinite()]
    return pairs.sort(1).values.unique(dim=0)


def disjoint(pairs: Tensor, scores: Tensor) -> list[int]:
    """Rows of pairs ``(P, 2)`` that share no cluster, highest scores first."""
    used, chosen, ends = set[int](), list[int](), pairs.tolist()
    for row in sorted(range(len(ends)), key=scores.tolist().__getitem__, reverse=True):
        if used.isdisjoint(ends[row]):
            used.update(ends[row])
            chosen.append(row)
    return chosen


def cluster_means(points: Tensor, labels: Tensor, num_clusters: int) -> Tensor:
    """``(K, D)`` in the dtype of the points; zero for a cluster without points."""
    sizes = labels.bincount(minlength=num_clusters)
    weights = (1 / sizes).to(points)[labels]  # never for clusters without points
    order = labels.argsort(stable=True)
    return sum_rows(points, order, weights[order], sizes)


def halve(points: Tensor, labels: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    """2-means inside every cluster at once: ``(N,)`` bool, the half of each point.

    The best of several restarts wins; a restart with too few points in a half loses to any other.
    """
    sets = PointSets.from_labels(points, labels, num_clusters)
    draws = torch.rand(num_clusters, HALVING_RESTARTS, 2, generator=generator).to(points.device)
    halves = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    for ids, rows, present in sets.batches():
        halves[rows[present]] = _two_means(points[rows], present, draws[ids])[present]
    return halves


def _two_means(points: Tensor, present: Tensor, draws: Tensor) -> Tensor:
    """The half of each of the points ``(S, n, D)``, ``(S, n)`` bool; padding is not `present` ``(S, n)``.

    Relative to the mean of a set its two halves have sums s and -s, so s alone gives the border.
    """
    sizes = present.sum(1)[:, None]
    points = points - (points * present[..., None]).sum(1, keepdim=True) / sizes[..., None]
    squares = points.square().sum(2)

    def rows(indices: Tensor) -> Tensor:
        return points.gather(1, indices[..., None].expand(-1, -1, points.shape[2]))

    first = rows((draws[..., 0] * sizes).long().clamp_(max=sizes - 1))  # (S, R, D)
    distances = squares[:, None] - 2 * first @ points.mT + first.square().sum(2, keepdim=True)
    # k-means++: far points are likely
    mass = running_sums(distances.clamp_(min=0) * present[:, None], 2)
    sampled = (mass < draws[..., 1:] * mass[..., -1:]).sum(2)
    direction = rows(sampled) - first
    border = 0.5 * (direction * (first + rows(sampled))).sum(2)
    side = torch.zeros_like(mass, dtype=torch.bool)
    for _ in range(HALVING_ITERATIONS):
        before, side = side, (direction @ points.mT > border[..., None]) & present[:, None]
        direction = side.to(points) @ points  # (S, R, D), the s above
        ones = side.sum(2).clamp(min=1)
        zeros = (sizes - ones).clamp(min=1)
        border = 0.5 * direction.square().sum(2) * (1 / ones - 1 / zeros)
        if torch.equal(before, side):
            break
    smaller = torch.minimum(side.sum(2), sizes - side.sum(2))
    gain = direction.square().sum(2) * (1 / ones + 1 / zeros)  # by how much the split lowers the inertia
    best = gain.where(smaller >= MIN_HALF, -1 / (1 + gain)).argmax(1)
    return side[torch.arange(len(side), device=side.device), best]


def _sweep(
    points: Tensor, labels: Tensor, anchors: Tensor, prior: NormalInverseWishart, generator: torch.Generator
) -> tuple[Tensor, bool]:
    """Propose every split, then merges of other clusters; the new labels and whether anything changed."""
    num_clusters = int(labels.max()) + 1
    log_marginals = log_marginal_likelihood(points, labels, num_clusters, prior)
    halves = together(halve(points, labels, num_clusters, generator), anchors)
    log_split = log_hastings_split(points, labels, halves, log_marginals, prior)
    split = _accepted(log_split, generator)

    pairs = nearest_pairs(points, labels, (~split).nonzero()[:, 0], has_fixed(labels, anchors))
    log_merge = log_hastings_merge(points, labels, pairs, log_marginals, prior)
    accepted = _accepted(log_merge, generator)
    merged = pairs[accepted][disjoint(pairs[accepted], log_merge[accepted])]

    target = torch.arange(num_clusters, device=labels.device)
    target[merged[:, 1]] = merged[:, 0]
    labels = target[labels] + num_clusters * (split[labels] & halves)
    if not (split.any() or len(merged)):
        return labels, False
    return _reassigned(points, labels, anchors), True


def together(halves: Tensor, anchors: Tensor) -> Tensor:
    """Halves ``(N,)`` bool with every fixed category as a whole in the half of most of its features."""
    known = anchors >= 0
    if not known.any():
        return halves
    categories = anchors[known]
    votes = torch.bincount(categories, weights=2.0 * halves[known] - 1)
    halves = halves.clone()
    halves[known] = votes[categories] > 0
    return halves


def _accepted(log_ratios: Tensor, generator: torch.Generator) -> Tensor:
    """True with probability min(1, H)."""
    draws = torch.rand(len(log_ratios), generator=generator, dtype=torch.float64)
    return draws.log().to(log_ratios.device) < log_ratios


def _reassigned(points: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
    """Labels after a few iterations of Lloyd, without gaps: clusters that lose all points vanish."""
    free = anchors < 0
    for _ in range(LLOYD_ITERATIONS):
        present, labels = labels.unique(return_inverse=True)
        centres = cluster_means(points, labels, len(present))
        labels[free] = torch.addmm(-0.5 * centres.square().sum(1), points[free], centres.T).argmax(1)
    return labels.unique(return_inverse=True)[1]

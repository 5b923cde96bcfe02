"""k-means in which labelled points keep their category; its restarts run side by side.

Letters: N unlabelled points, L labelled points, D width, K clusters, R restarts.

Two facts make a hundred restarts cheap. Labelled points never move, so their class sums are enough. And
||x - c||^2 = ||x||^2 - 2 (x.c - ||c||^2 / 2): the bracket, called *affinity* here, ranks the centres of a point, comes
from one matrix product, and changes only for clusters whose members changed.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from promptccd.errors import DataError

ROWS_PER_PRODUCT = 64  # affinity rows refreshed at a time, fewer where rows are long
AFFINITIES_AT_ONCE = 2**23  # affinities copied at a time, 32 MB: there is never a second copy of all
POINTS_PER_BLOCK = 512  # points turned into float64 at a time

NEARLY_CENTRED = 0.01  # share of the squared mean in the mean square: such points need no centred copy


@dataclass(frozen=True)
class Problem:
    """Data that all restarts share. Points far from the origin are centred, because float32 cancels there."""

    points: Tensor  # (N, D) unlabelled
    squares: Tensor  # (N,) float64, ||x||^2
    class_sums: Tensor  # (K, D) float64, sums of labelled points, zero for new clusters
    class_counts: Tensor  # (K,) float64
    class_squares: Tensor  # () float64, sum of ||x||^2 over the labelled points
    mean_point: Tensor  # (D,) float64, the mean that was subtracted
    num_classes: int
    num_fixed: int  # the first so many centres stay

    def labelled_inertia(self, centres: Tensor) -> Tensor:
        """Squared distances of the labelled points to their own centre: ``(..., K, D)`` to ``(...,)``."""
        products = (self.class_sums * centres).sum((-2, -1))
        return self.class_squares - 2 * products + (self.class_counts * centres.square().sum(-1)).sum(-1)

    def affinities(self, centres: Tensor, out: Tensor | None = None) -> Tensor:
        """x.c - ||c||^2 / 2 of every point: ``(M, D)`` float64 to ``(M, N)``, or into that."""
        dtype = self.points.dtype
        offsets = (-0.5 * centres.square().sum(1, keepdim=True)).to(dtype)
        return torch.addmm(offsets, centres.to(dtype), self.points.T, out=out)


@dataclass
class Restarts:
    """State of the R running restarts."""

    ids: Tensor  # (R,)
    affinity: Tensor  # (R, K, N)
    centres: Tensor  # (R, K, D) float64
    sums: Tensor  # (R, K, D) float64, over labelled and unlabelled members
    counts: Tensor  # (R, K) float64, likewise
    labels: Tensor  # (R, N), -1 before the first assignment

    def only(self, running: Tensor) -> "Restarts":
        """The restarts where ``running`` ``(R,)`` is true, moved to the front of the same memory."""
        count = int(running.sum())
        holes = (~running[:count]).nonzero().flatten()
        movers = count + running[count:].nonzero().flatten()
        for values in vars(self).values():
            values[holes] = values[movers]
        return Restarts(**{name: values[:count] for name, values in vars(self).items()})


class Solution(NamedTuple):
    """The best of the restarts that converged together."""

    inertia: float
    restart: int
    num_iterations: int
    centres: Tensor  # (K, D) float64, centred


def prepare(
    points: Tensor, labelled: Tensor, classes: Tensor, num_classes: int, num_clusters: int, num_fixed: int
) -> Problem:
    """The problem, by one pass over the labelled points, of which only sums are kept."""
    sums = points.new_zeros(num_clusters, points.shape[1], dtype=torch.float64)
    counts = torch.bincount(classes, minlength=num_clusters).double()
    squares, blocks = sums.new_zeros(()), classes.split(POINTS_PER_BLOCK)
    for block, of_block in zip(labelled.split(POINTS_PER_BLOCK), blocks, strict=True):
        sums.index_add_(0, of_block, block.double())
        squares += block.double().square().sum()

    mean_point = (sums.sum(0) + points.sum(0, dtype=torch.float64)) / (len(points) + len(labelled))
    every = squares + sum(block.double().square().sum() for block in points.split(POINTS_PER_BLOCK))
    if mean_point.square().sum() * (len(points) + len(labelled)) <= NEARLY_CENTRED * every:
        mean_point, centred = torch.zeros_like(mean_point), points
    else:
        # Exactly the vector that is subtracted from the points.
        mean_point = mean_point.to(points.dtype).double()
        centred = points - mean_point.to(points.dtype)
    squares = squares - 2 * mean_point @ sums.sum(0) + len(labelled) * mean_point.square().sum()
    return Problem(
        points=centred,
        squares=torch.cat([block.double().square().sum(1) for block in centred.split(POINTS_PER_BLOCK)]),
        class_sums=sums - counts[:, None] * mean_point,
        class_counts=counts,
        class_squares=squares,
        mean_point=mean_point,
        num_classes=num_classes,
        num_fixed=num_fixed,
    )


def start(problem: Problem, ids: Tensor, draws: Tensor) -> Restarts:
    """Class means, then greedy k-means++: of a few points drawn by squared distance, the most useful point.

    `draws` are ``(R, new clusters, trials)`` float64, uniform in [0, 1).
    """
    (num_restarts, num_new, trials), (num_points, width) = draws.shape, problem.points.shape
    num_classes = problem.num_classes
    means = problem.class_sums[:num_classes] / problem.class_counts[:num_classes, None]
    affinity = problem.points.new_empty(num_restarts, num_classes + num_new, num_points)
    problem.affinities(means, out=affinity[0, :num_classes])
    affinity[1:, :num_classes] = affinity[0, :num_classes]
    centres = means.new_empty(num_restarts, num_classes + num_new, width)
    centres[:, :num_classes] = means

    best = affinity[0, :num_classes].amax(0) if num_classes else affinity.new_full((num_points,), -math.inf)
    best = best.expand(num_restarts, num_points)  # to the nearest centre so far
    for new in range(num_new):
        first = num_classes + new == 0  # without a centre all points are equally likely
        weights = torch.ones_like(best) if first else problem.squares.sub(best, alpha=2).clamp_(min=0)
        cumulated = running_sums(weights.double(), 1)
        sampled = torch.searchsorted(cumulated, draws[:, new] * cumulated[:, -1:], right=True)
        sampled.clamp_(max=num_points - 1)  # if all points lie on centres
        improved = problem.affinities(problem.points[sampled.flatten()].double())
        improved = improved.view(num_restarts, trials, num_points)
        after = torch.maximum(best[:, None], improved)
        winner = after.sum(2, dtype=torch.float64).argmax(1)[:, None]
        restart = torch.arange(num_restarts, device=winner.device)[:, None]
        best = after[restart, winner][:, 0]
        affinity[:, num_classes + new] = improved[restart, winner][:, 0]
        centres[:, num_classes + new] = problem.points[sampled.gather(1, winner)[:, 0]]

    return Restarts(
        ids=ids,
        affinity=affinity,
        centres=centres,
        sums=problem.class_sums.repeat(num_restarts, 1, 1),
        counts=problem.class_counts.repeat(num_restarts, 1),
        labels=torch.full((num_restarts, num_points), -1, device=ids.device),
    )


def run_lloyd(problem: Problem, restarts: Restarts, max_iter: int, tol: float) -> Solution:
    """The best restart after Lloyd's iterations until all have converged."""
    solutions = []
    for iteration in range(1, max_iter + 1):
        shift = step(problem, restarts)
        done = (shift.square() < tol) | (shift == 0) | (iteration == max_iter)
        if not done.any():
            continue
        ids, centres = restarts.ids[done], restarts.centres[done]
        ended = done.nonzero().flatten().tolist()  # separately, as views: together they would be a copy
        affinity = torch.stack([restarts.affinity[restart].amax(0) for restart in ended])
        inertia = problem.squares.sum() - 2 * affinity.sum(1, dtype=torch.float64)
        inertia += problem.labelled_inertia(centres)
        best = int(inertia.argmin())
        solutions.append(Solution(float(inertia[best]), int(ids[best]), iteration, centres[best].clone()))
        restarts = restarts.only(~done)
        if not len(restarts.ids):
            break
    return min(solutions, key=lambda solution: (solution.inertia, solution.restart))


def step(problem: Problem, restarts: Restarts) -> Tensor:
    """One iteration of Lloyd, in place: points go to the nearest centre, then centres to the mean of their members.

    An empty cluster keeps its centre.

    Returns:
        ``(R,)`` sum over clusters of the distance that their centre moved.
    """
    num_clusters = restarts.affinity.shape[1]
    own = restarts.affinity.gather(1, restarts.labels.clamp(min=0)[:, None])[:, 0]
    unassigned = (restarts.affinity.amax(1) > own) | (restarts.labels < 0)
    restart, point = unassigned.nonzero().unbind(1)
    # amax is far quicker than argmax, and soon few points need an index; an index of all would copy the affinities
    if unassigned.all():
        new = restarts.affinity.argmax(1).flatten()
    else:
        some = max(1, AFFINITIES_AT_ONCE // num_clusters)
        pairs = zip(restart.split(some), point.split(some), strict=True)
        new = torch.cat([restarts.affinity[pair[0], :, pair[1]].argmax(1) for pair in pairs])
    old = restarts.labels[restart, point]
    restarts.labels[restart, point] = new

    # Points that entered (+1) or left (-1) clusters, grouped by the rows r * K + k of clusters that changed.
    had = old >= 0
    entered, left = restart * num_clusters + new, (restart * num_clusters + old)[had]
    rows, order = torch.cat([entered, left]).sort(stable=True)
    rows, sizes = rows.unique_consecutive(return_counts=True)
    signs = restarts.affinity.new_ones(len(order))
    signs[len(entered) :] = -1
    moved, signs = torch.cat([point, point[had]])[order], signs[order]
    counts, sums, centres, affinity = (
        getattr(restarts, name).flatten(0, 1) for name in ("counts", "sums", "centres", "affinity")
    )
    counts[rows] += sum_rows(torch.ones_like(problem.points[:, :1]), moved, signs, sizes)[:, 0]
    sums[rows] += sum_rows(problem.points, moved, signs, sizes)

    rows = rows[(counts[rows] > 0) & (rows % num_clusters >= problem.num_fixed)]
    before, after = centres[rows], sums[rows] / counts[rows, None]
    centres[rows] = after
    for part in rows.split(max(1, min(ROWS_PER_PRODUCT, AFFINITIES_AT_ONCE // max(1, affinity.shape[1])))):
        affinity[part] = problem.affinities(centres[part])
    shift = torch.zeros_like(counts)
    shift[rows] = (after - before).norm(dim=1)
    return shift.view_as(restarts.counts).sum(1)


def running_sums(values: Tensor, dim: int) -> Tensor:
    """As `torch.cumsum`; on the CPU if deterministic results are needed, because CUDA adds in any order."""
    if torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(dim).to(values.device)
    return values.cumsum(dim)


def sum_rows(table: Tensor, points: Tensor, weights: Tensor, sizes: Tensor) -> Tensor:
    """Weighted sums of groups of rows of a table ``(N, W)``: ``(M, W)``.

    Group i has the next ``sizes[i]`` of the rows `points` ``(P,)``, with `weights` ``(P,)``. The result is
    deterministic on every device, unlike a scattered sum on CUDA.
    """
    if not len(sizes):
        return table.new_empty(0, table.shape[1])
    starts = sizes.cumsum(0) - sizes
    return functional.embedding_bag(points, table, starts, mode="sum", per_sample_weights=weights)


Array: TypeAlias = Tensor | npt.NDArray[Any]

# How many share a batch changes speed and memory, never the result.
MAX_BATCH_RESTARTS = 25
MAX_BATCH_AFFINITIES = 2**22  # affinities (R, K, N) at a time: 16 MB in float32 stay in a CPU's cache


@dataclass(eq=False, repr=False)
class AnchoredKMeans:
    """k-means over labelled and unlabelled points, given apart; labelled points keep their category.

    `promptccd.clustering.SemiSupervisedKMeans` is the same for scikit-learn, and has these parameters and attributes.
    Here `labels_` are of the unlabelled points, centres have the dtype of the features, and too few clusters are raised
    to the number of labelled categories, with a warning.

    Centres of labelled categories start at the class means, all other centres by greedy k-means++ on the unlabelled
    points. Centres are not re-normalised. Restart r draws from a generator keyed by (random_state, r), so that batching
    changes nothing; None draws a fresh seed. New clusters are numbered in the order of their first members.
    """

    n_clusters: int
    n_init: int
    max_iter: int = 200
    tol: float = 1e-4
    random_state: int | None = None
    fix_labelled: bool = False
    affinities_at_once: int | None = None  # of a batch of restarts; it changes memory, never the result
    labels_: Tensor = field(init=False)
    cluster_centers_: Tensor = field(init=False)
    cluster_ids_: Tensor = field(init=False)
    inertia_: float = field(init=False)
    n_iter_: int = field(init=False)

    @torch.no_grad()
    def fit(
        self,
        features_unlabelled: Tensor,
        features_labelled: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> "AnchoredKMeans":
        """Cluster the unlabelled points, on their device.

        Args:
            features_unlabelled: ``(N, D)``.
            features_labelled: ``(L, D)``.
            labels: ``(L,)`` integers >= 0, gaps allowed.

        Raises:
            DataError: a feature is NaN or infinite, or there are more clusters than points.
        """
        points = as_features(features_unlabelled, "features_unlabelled")
        labelled, class_ids, classes = _read_labelled(features_labelled, labels, points)
        num_clusters = self._usable_clusters(len(points), len(class_ids))

        num_fixed = len(class_ids) if self.fix_labelled else 0
        problem = prepare(points, labelled, classes, len(class_ids), num_clusters, num_fixed)
        best = min(self._solutions(problem), key=lambda solution: solution.inertia)  # of equals the first

        # Once more from scratch in float64, so that labels, centres and inertia belong together.
        centres = (best.centres + problem.mean_point).to(points.dtype)
        nearest, distances = nearest_centres(points, centres)
        inertia = distances.sum() + problem.labelled_inertia(centres - problem.mean_point)
        order = _first_seen_order(nearest, num_clusters, len(class_ids))
        first_new = int(class_ids[-1]) + 1 if len(class_ids) else 0
        new_ids = torch.arange(first_new, first_new + num_clusters - len(class_ids), device=points.device)
        ids = torch.cat([class_ids, new_ids])

        self.labels_, self.cluster_centers_, self.cluster_ids_ = (
            ids[order.argsort()[nearest]], centres[order], ids
        )  # fmt: skip
        self.inertia_, self.n_iter_ = float(inertia), best.num_iterations
        return self

    def fit_predict(self, *points: Tensor) -> Tensor:
        """Fit, then return ``labels_``."""
        return self.fit(*points).labels_

    def _usable_clusters(self, num_points: int, num_classes: int) -> int:
        """The number of clusters to use."""
        most = num_classes + num_points
        if self.n_clusters > most:
            given = "number of samples" if not num_classes else "labelled categories + unlabelled samples"
            raise DataError(
                f"Expected n_clusters <= {given} ({most}), got {self.n_clusters}: "
                "ask for fewer clusters or give more images."
            )
        if self.n_clusters < num_classes:
            warnings.warn(
                f"n_clusters={self.n_clusters} is below the {num_classes} labelled categories, "
                f"each of which keeps a cluster: using {num_classes}.", stacklevel=3,
            )  # fmt: skip
        return max(self.n_clusters, num_classes)

    def _solutions(self, problem: Problem) -> Iterator[Solution]:
        """The best restart of every batch."""
        num_clusters, num_points = len(problem.class_sums), len(problem.points)
        num_new = num_clusters - problem.num_classes
        num_restarts = self.n_init if num_new else 1  # without new clusters nothing is sampled
        trials = 2 + int(math.log(num_clusters))  # candidates per centre, as in scikit-learn
        seed: Any = np.random.SeedSequence().entropy if self.random_state is None else self.random_state
        generators = [np.random.default_rng((seed, restart)) for restart in range(num_restarts)]
        draws = torch.from_numpy(np.stack([each.random((num_new, trials)) for each in generators]))

        most = self.affinities_at_once or MAX_BATCH_AFFINITIES
        size = max(1, min(MAX_BATCH_RESTARTS, most // max(1, num_clusters * num_points)))
        device, max_iter, tol = problem.points.device, self.max_iter, self.tol
        for ids in torch.arange(num_restarts).split(size):
            # The restarts have no name here, which would keep them while the next are made.
            yield run_lloyd(problem, start(problem, ids.to(device), draws[ids].to(device)), max_iter, tol)


SPLIT_RESTARTS = 10


def suggest_split(features: Array, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two parts of a group by 2-means, the larger first, as ascending rows of its features ``(N, D)``.

    Raises:
        DataError: fewer than two images, or all of them alike.
    """
    points = functional.normalize(as_features(features, "features").cpu().double(), dim=1)
    if len(points) < 2 or torch.equal(points, points[:1].expand_as(points)):
        raise DataError(
            f"Expected at least two different images to split, got {len(points)}"
            f"{' that are all alike' if len(points) > 1 else ''}: choose a larger group."
        )
    kmeans = AnchoredKMeans(2, SPLIT_RESTARTS, random_state=seed).fit(points)
    first = torch.as_tensor(kmeans.labels_) == 0
    parts = first.nonzero()[:, 0], (~first).nonzero()[:, 0]
    return (parts[0], parts[1]) if len(parts[0]) >= len(parts[1]) else (parts[1], parts[0])


def _read_labelled(
    features: Tensor | None, labels: Tensor | None, points: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Labelled features ``(L, D)``, their sorted ids ``(C,)`` and each one's place among these ``(L,)``."""
    if features is None or labels is None:
        none = torch.empty(0, dtype=torch.int64, device=points.device)
        return points[:0], none, none
    labelled = as_features(features, "features_labelled").to(points)
    class_ids, classes = labels.to(points.device).long().unique(return_inverse=True)
    return labelled, class_ids, classes


def _first_seen_order(nearest: Tensor, num_clusters: int, num_classes: int) -> Tensor:
    """Cluster indices ``(K,)``: labelled clusters, then new clusters by their first member, then empty clusters.

    Restarts number the same groups differently; this order makes their labels equal too.
    """
    first = torch.full((num_clusters,), len(nearest), device=nearest.device)
    first.scatter_reduce_(0, nearest, torch.arange(len(nearest), device=nearest.device), "amin")
    first[:num_classes] = -1
    return first.argsort(stable=True)


def nearest_centres(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Index of the nearest centre ``(N,)`` and the squared distance to it ``(N,)``, in float64."""
    centres = centres.double()
    labels, distances = [], []
    for block in points.split(POINTS_PER_BLOCK):
        block = block.double()
        affinity, nearest = (block @ centres.T).sub_(0.5 * centres.square().sum(1)).max(1)
        labels.append(nearest)
        distances.append((block.square().sum(1) - 2 * affinity).clamp_(min=0))
    return torch.cat(labels), torch.cat(distances)


def as_features(values: Array, name: str) -> Tensor:
    """Features as a floating tensor ``(N, D)``, sharing memory where possible; errors as in `as_matrix`."""
    if not isinstance(values, Tensor):
        values = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    return as_matrix(values if values.dtype in (torch.float32, torch.float64) else values.float(), name)


def as_matrix(values: Array, name: str) -> Tensor:
    """Features as a tensor ``(N, D)`` of their own type; a file that is mapped stays on disk, and must not be written.

    Raises:
        DataError: not two-dimensional, or a row contains NaN or infinity.
    """
    if not isinstance(values, Tensor):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            values = torch.from_numpy(np.require(values, requirements=["C"]))
    values = values.detach()
    if values.ndim != 2:
        raise DataError(f"Expected {name} of shape (N, D), got {tuple(values.shape)}.")
    bad = (~finite_rows(values)).nonzero()
    if len(bad):
        raise DataError(
            f"Expected finite features, got NaN or infinity in row {int(bad[0])} of {name} "
            f"({len(bad)} such rows): leave these rows out or look at what produced them."
        )
    return values


def finite_rows(values: Tensor) -> Tensor:
    """Which rows ``(N, D)`` contain finite numbers only: ``(N,)``."""
    # Block by block, into existing memory: a check of all at once takes as much memory again, and so do small
    # results that are kept between large arrays.
    finite = torch.empty(len(values), dtype=torch.bool, device=values.device)
    for block, found in zip(values.split(POINTS_PER_BLOCK), finite.split(POINTS_PER_BLOCK), strict=True):
        torch.all(block.isfinite(), dim=1, out=found)
    return finite

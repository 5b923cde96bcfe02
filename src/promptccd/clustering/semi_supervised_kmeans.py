"""k-means in which labelled points keep their category.

Letters: N unlabelled points, L labelled points, D width, K clusters, R restarts.
"""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from promptccd.clustering.kmeans_restarts import (
    POINTS_PER_BLOCK,
    Problem,
    Solution,
    prepare,
    run_lloyd,
    start,
)
from promptccd.errors import DataError

Array = Tensor | npt.NDArray[Any]

# How the products are taken and how many share a batch changes speed and memory, never the result.
MAX_GRAM_POINTS = 16_384  # the (N, N) Gram matrix is 1 GB of float32 there # mutant: speed alone
# mutant: speed alone
MIN_GRAM_WIDTH = 64  # narrower points are multiplied sooner than looked up: of width 48 in half the time
# mutant: speed alone
POINTS_PER_ROW = 4  # the Gram matrix saves a few times K affinity rows per restart, and costs N rows itself
MAX_BATCH_RESTARTS = 25  # mutant: speed alone
# mutant: memory alone
MAX_BATCH_ELEMENTS = 2**22  # affinities (R, K, N) held at once: 16 MB in float32 stay in a CPU's cache


class AnchoredKMeans:
    """k-means over labelled and unlabelled points, given apart; labelled points keep their category.

    `promptccd.clustering.SemiSupervisedKMeans` is the same for scikit-learn.

    Centres of labelled categories start at the class means, the others by greedy k-means++ on the unlabelled
    points; the restart with the lowest inertia wins. Centres are not re-normalised.

    Args:
        n_clusters: K, labelled categories included; raised to their number, with a warning, if below it.
        n_init: restarts.
        max_iter: Lloyd iterations per restart.
        tol: a restart stops once (sum over clusters of the centre's movement)^2 is below this.
        random_state: seed; restart r draws from a generator keyed by (random_state, r), so that batching
            changes nothing. None draws a fresh seed.
        hold_labelled: leave the centres of labelled categories at the class means.

    Attributes:
        labels_: ``(N,)`` int64, category of every unlabelled point, in the caller's ids.
        cluster_centers_: ``(K, D)``, in the order of ``cluster_ids_`` and the dtype of the features.
        cluster_ids_: ``(K,)`` int64, the labelled ids sorted, then max + 1, max + 2, ... for the new clusters
            (0, 1, ... if nothing is labelled) in the order in which their first members appear.
        inertia_: sum of squared distances, unlabelled to the nearest centre and labelled to their own.
        n_iter_: iterations of the winning restart.
    """

    labels_: Array
    cluster_centers_: Array
    cluster_ids_: Array
    inertia_: float
    n_iter_: int

    def __init__(
        self,
        n_clusters: int,
        n_init: int = 100,
        max_iter: int = 200,
        tol: float = 1e-4,
        random_state: int | None = None,
        hold_labelled: bool = False,
    ):
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.hold_labelled = hold_labelled

    @torch.no_grad()
    def fit(
        self, features_unlabelled: Array, features_labelled: Array | None = None, labels: Array | None = None
    ) -> "AnchoredKMeans":
        """Cluster the unlabelled points. Tensors give tensors on the same device, arrays give arrays.

        Args:
            features_unlabelled: ``(N, D)``.
            features_labelled: ``(L, D)``.
            labels: ``(L,)`` integers >= 0, gaps allowed.

        Raises:
            DataError: shapes or labels do not fit together, a feature is NaN or infinite, or a parameter is
                out of range, above all more clusters than points.
        """
        points = as_features(features_unlabelled, "features_unlabelled")
        labelled, class_ids, classes = _read_labelled(features_labelled, labels, points)
        num_clusters = self._check_parameters(len(points), len(class_ids))

        # mutant: both forms of the products give one result
        few = len(points) <= min(MAX_GRAM_POINTS, POINTS_PER_ROW * self.n_init * num_clusters)
        # mutant and to or, >= to >, >= to <: both forms of the products give one result
        use_gram = few and points.shape[1] >= MIN_GRAM_WIDTH
        held = len(class_ids) if self.hold_labelled else 0
        problem = prepare(points, labelled, classes, len(class_ids), num_clusters, use_gram, held)
        best = min(self._solutions(problem), key=lambda solution: (solution.inertia, solution.restart))

        # Once more from scratch in float64, so that labels, centres and inertia belong together.
        centres = (best.centres + problem.origin).to(points.dtype)
        nearest, distances = nearest_centres(points, centres)
        inertia = distances.sum() + problem.labelled_inertia(centres - problem.origin)
        order = _first_seen_order(nearest, num_clusters, len(class_ids))
        first_new = int(class_ids[-1]) + 1 if len(class_ids) else 0
        new_ids = torch.arange(first_new, first_new + num_clusters - len(class_ids), device=points.device)
        ids = torch.cat([class_ids, new_ids])

        learned: list[Any] = [ids[order.argsort()[nearest]], centres[order], ids]
        if not isinstance(features_unlabelled, Tensor):
            learned = [values.numpy() for values in learned]
        self.labels_, self.cluster_centers_, self.cluster_ids_ = learned
        self.inertia_, self.n_iter_ = float(inertia), best.num_iterations
        return self

    def fit_predict(
        self, features_unlabelled: Array, features_labelled: Array | None = None, labels: Array | None = None
    ) -> Array:
        """Fit, then return ``labels_``."""
        return self.fit(features_unlabelled, features_labelled, labels).labels_

    def _check_parameters(self, num_points: int, num_classes: int) -> int:
        """The number of clusters to use."""
        for name in ("n_clusters", "n_init", "max_iter"):
            if getattr(self, name) < 1:
                raise DataError(f"Expected {name} >= 1, got {getattr(self, name)}.")
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
                f"each of which keeps a cluster: using {num_classes}.",
                stacklevel=3,
            )
        return max(self.n_clusters, num_classes)

    def _solutions(self, problem: Problem) -> Iterator[Solution]:
        """The best restart of every batch."""
        num_clusters, num_points = len(problem.class_sums), len(problem.points)
        num_new = num_clusters - problem.num_classes
        # mutant 1 to 2: restarts that draw nothing are all alike
        num_restarts = self.n_init if num_new else 1  # without new clusters nothing is drawn
        trials = 2 + int(math.log(num_clusters))  # candidates per centre, as in scikit-learn
        seed: Any = np.random.SeedSequence().entropy if self.random_state is None else self.random_state
        generators = [np.random.default_rng((seed, restart)) for restart in range(num_restarts)]
        draws = torch.from_numpy(np.stack([each.random((num_new, trials)) for each in generators]))

        # mutant: how many restarts share a batch changes speed and memory, never the result
        size = max(1, min(MAX_BATCH_RESTARTS, MAX_BATCH_ELEMENTS // max(1, num_clusters * num_points)))
        for ids in torch.arange(num_restarts).split(size):
            device = problem.points.device
            # The restarts have no name here, which would keep them while the next are made.
            yield run_lloyd(
                problem, start(problem, ids.to(device), draws[ids].to(device)), self.max_iter, self.tol
            )


def _read_labelled(
    features: Array | None, labels: Array | None, points: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Labelled features ``(L, D)``, their sorted ids ``(C,)`` and each one's place among these ``(L,)``."""
    if (features is None) != (labels is None):
        given, absent = (
            ("labels", "features_labelled") if features is None else ("features_labelled", "labels")
        )
        raise DataError(f"Expected features_labelled and labels together, got {given} without {absent}.")
    # mutant or to and: for the type checker: one without the other was refused above
    if features is None or labels is None:
        none = torch.empty(0, dtype=torch.int64, device=points.device)
        return points[:0], none, none
    # mutant without .to(): sums are in float64 either way, and tests have one device
    labelled = as_features(features, "features_labelled").to(points)
    ids = torch.as_tensor(labels, device=points.device)
    if labelled.shape[1] != points.shape[1]:
        raise DataError(f"Expected labelled features of width {points.shape[1]}, got {labelled.shape[1]}.")
    if ids.shape != labelled.shape[:1]:
        raise DataError(
            f"Expected one label per labelled feature ({len(labelled)}), got shape {tuple(ids.shape)}."
        )
    if ids.is_floating_point() or (ids < 0).any():
        raise DataError(
            "Expected labels to be integers >= 0: leave unlabelled points in features_unlabelled."
        )
    class_ids, classes = ids.long().unique(return_inverse=True)
    return labelled, class_ids, classes


def _first_seen_order(nearest: Tensor, num_clusters: int, num_classes: int) -> Tensor:
    """Cluster indices ``(K,)``: labelled clusters, then new ones by their first member, then empty ones.

    Restarts number the same groups differently; this order makes their labels equal too.
    """
    first = torch.full((num_clusters,), len(nearest), device=nearest.device)
    first.scatter_reduce_(0, nearest, torch.arange(len(nearest), device=nearest.device), "amin")
    first[:num_classes] = -1  # mutant 1 to 2: every number below zero comes before the first point
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
    """Features as a floating tensor ``(N, D)``, sharing memory where possible.

    Raises:
        DataError: not two-dimensional, or a row holds NaN or infinity.
    """
    if not isinstance(values, Tensor):
        values = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    return as_matrix(values if values.dtype in (torch.float32, torch.float64) else values.float(), name)


def as_matrix(values: Array, name: str) -> Tensor:
    """Features as a tensor ``(N, D)`` of their own type; a file that is mapped stays on disk, and must not be written.

    Raises:
        DataError: as `as_features` does.
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
    """Which rows ``(N, D)`` hold finite numbers alone: ``(N,)``."""
    # Block by block, into what is there already: a check of all at once takes as much memory again, and so do small
    # results that are kept between large ones.
    finite = torch.empty(len(values), dtype=torch.bool, device=values.device)
    for block, found in zip(values.split(POINTS_PER_BLOCK), finite.split(POINTS_PER_BLOCK), strict=True):
        torch.all(block.isfinite(), dim=1, out=found)
    return finite

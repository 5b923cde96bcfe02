"""Estimators in scikit-learn's style: k-means with some labels, and a count of categories.

In ``y``, -1 means "unknown", as in `sklearn.semi_supervised`.
"""

import warnings
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from promptccd.clustering.counting import PRIORS, estimate_as_taught
from promptccd.clustering.kmeans import AnchoredKMeans, nearest_centres
from promptccd.errors import DataError

NumericArray = npt.NDArray[Any]
FEWEST_TO_CALIBRATE = 5  # labelled categories, of which trials leave some out


class SemiSupervisedKMeans(ClusterMixin, BaseEstimator):  # type: ignore[misc, unused-ignore]
    """k-means in which labelled points keep their category, as a scikit-learn estimator.

    Args:
        n_clusters: K, labelled categories included.
        n_init: restarts, of which the lowest inertia wins.
        max_iter: Lloyd iterations per restart.
        tol: a restart stops once (sum over clusters of the centre's movement)^2 is below this.
        random_state: an integer gives the same clusters every time.
        fix_labelled: leave the centres of labelled categories at the class means.

    Attributes:
        labels_: ``(N,)``, category of every point: the given category, or else the nearest.
        cluster_centers_: ``(K, D)``, in the order of `cluster_ids_`.
        cluster_ids_: ``(K,)``, the labels that were given, then max + 1, max + 2, ... for new clusters.
        inertia_: sum of squared distances, of unlabelled points to the nearest centre, of labelled points to their own.
        n_iter_: iterations of the winning restart.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, digits = load_digits(return_X_y=True)
        >>> y = np.where((digits < 6) & (np.arange(len(digits)) % 2 == 0), digits, -1)  # half of six digits
        >>> kmeans = SemiSupervisedKMeans(n_clusters=10, random_state=0).fit(X, y)
        >>> kmeans.predict(X[:2])
        array([0, 1])
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_init: int = 10,
        max_iter: int = 200,
        tol: float = 1e-4,
        random_state: Any = None,
        fix_labelled: bool = False,
    ):
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.fix_labelled = fix_labelled

    def fit(self, X: Any, y: Any = None) -> "SemiSupervisedKMeans":
        """Cluster points ``(N, D)`` of which ``y`` ``(N,)`` labels some with whole numbers from 0 on; -1 is unlabelled.

        Raises:
            ValueError: shapes, labels or parameters do not fit together.
            TypeError: a parameter of another type.
        """
        for name in ("n_clusters", "n_init", "max_iter"):
            check_scalar(getattr(self, name), name, Integral, min_val=1)
        check_scalar(self.tol, "tol", Real, min_val=0)
        points = points_of(self, X)
        labels = read_labels(y, len(points))
        free = labels < 0
        num_clusters, known = self.n_clusters, len(np.unique(labels[~free]))
        if not free.any() and num_clusters > known:  # nothing that a new cluster could be made of
            warnings.warn(
                f"n_clusters={num_clusters} is above the {known} labelled categories, and no points are left: "
                f"using {known}. Give -1 in y for points that may be of new categories.",
                ConvergenceWarning,
                stacklevel=2,
            )
            num_clusters = known
        elif num_clusters - known > free.sum():
            raise DataError(
                f"n_samples={free.sum()} without a label should be >= n_clusters={num_clusters} without the {known} "
                "that are labelled: ask for fewer clusters."
            )
        kmeans = AnchoredKMeans(
            num_clusters,
            self.n_init,
            self.max_iter,
            self.tol,
            seed_from(self.random_state),
            self.fix_labelled,
        )
        kmeans.fit(*map(torch.from_numpy, (points[free], points[~free], labels[~free])))
        self.labels_ = labels
        self.labels_[free] = kmeans.labels_.numpy()
        self.cluster_centers_ = kmeans.cluster_centers_.numpy()
        self.cluster_ids_ = kmeans.cluster_ids_.numpy()
        self.inertia_, self.n_iter_ = kmeans.inertia_, kmeans.n_iter_
        return self

    def fit_predict(self, X: Any, y: Any = None) -> NumericArray:
        """Fit, then return `labels_`."""
        return self.fit(X, y).labels_

    def predict(self, X: Any) -> NumericArray:
        """Category ``(N,)`` of the nearest centre."""
        nearest = self._nearest(X)[0]
        return self.cluster_ids_[nearest]

    def score(self, X: Any, y: Any = None) -> float:
        """Sum of squared distances to the nearest centres, negative: the higher, the better."""
        return -float(self._nearest(X)[1].sum())

    def _nearest(self, X: Any) -> tuple[NumericArray, NumericArray]:
        check_is_fitted(self, "cluster_centers_")
        points = torch.from_numpy(points_of(self, X, reset=False))
        nearest, distances = nearest_centres(points, torch.from_numpy(self.cluster_centers_))
        return nearest.numpy(), distances.numpy()


class CategoryCounter(BaseEstimator):  # type: ignore[misc, unused-ignore]
    """How many categories points belong to, some of which may be labelled, as a scikit-learn estimator.

    Clusters are split and merged as long as that becomes likelier. Points are scaled to unit length.

    Args:
        start: number of clusters to begin with; `None` is that of labelled categories, or 2 without.
        prior: of categories: ``"paper"``, ``"matched"`` or ``"calibrated"`` to the labelled ones, or ``"assumed"``
            without labels; ``"auto"`` calibrates where at least five categories have two labelled points. Elsewhere it
            is ``"assumed"``, and the range goes from a third to three times the estimate.
        random_state: seeds the search; `None` is 0.

    Attributes:
        n_categories_: the estimate.
        range_: the fewest and the most that it could as well be.
        estimate_: both, with how they were found (`CountEstimate`).

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, digits = load_digits(return_X_y=True)
        >>> y = np.where((digits < 6) & (np.arange(len(digits)) % 2 == 0), digits, -1)  # half of six digits
        >>> counter = CategoryCounter(random_state=0).fit(X, y)
        >>> counter.range_[0] <= counter.n_categories_ <= counter.range_[1]
        True
    """

    def __init__(self, *, start: int | None = None, prior: str = "auto", random_state: Any = None):
        self.start = start
        self.prior = prior
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> "CategoryCounter":
        """Count the categories of points ``(N, D)``; ``y`` as in `SemiSupervisedKMeans.fit`.

        Raises:
            ValueError: shapes, labels or parameters do not fit together.
            TypeError: a parameter of another type.
        """
        if self.start is not None:
            check_scalar(self.start, "start", Integral, min_val=1)
        if self.prior not in ("auto", *PRIORS):
            raise DataError(f"Expected a prior of auto, {', '.join(PRIORS)}, got {self.prior!r}.")
        points = torch.from_numpy(points_of(self, X, ensure_min_samples=2))
        fixed = torch.from_numpy(read_labels(y, len(points)))
        known = fixed[fixed >= 0]
        sizes = known.unique(return_counts=True)[1]
        categories, prior = len(sizes), self.prior
        if prior == "auto":
            prior = "calibrated" if (sizes > 1).sum() >= FEWEST_TO_CALIBRATE else "assumed"
        elif prior in ("matched", "calibrated") and not (sizes > 1).any():
            raise DataError(
                f"prior={prior!r} needs a category with two labelled points, got {len(known)} labelled points of "
                f"{categories} categories. Label more points, or set prior='auto'."
            )
        features = torch.nn.functional.normalize(points)
        self.estimate_ = estimate_as_taught(
            features,
            max(2, categories) if self.start is None else self.start,
            fixed=fixed,
            labelled=features[fixed >= 0],
            labels=known,
            seed=seed_from(self.random_state) or 0,
            prior=prior,
        )
        self.n_categories_, self.range_ = self.estimate_.count, self.estimate_.range
        return self


def points_of(estimator: Any, X: Any, reset: bool = True, **options: Any) -> NumericArray:
    """Points as floating numbers, checked as scikit-learn does; tensors are taken too."""
    if isinstance(X, torch.Tensor):
        X = (X.float() if X.dtype == torch.bfloat16 else X).detach().cpu().numpy()  # NumPy has no bfloat16
    rows: NumericArray = validate_data(
        estimator, X, reset=reset, dtype=[np.float64, np.float32], order="C", **options
    )
    return rows if rows.flags.writeable else rows.copy()


def read_labels(y: Any, number: int) -> npt.NDArray[np.int64]:
    """Labels ``(N,)``, a copy; -1 everywhere without labels."""
    if y is None:
        return np.full(number, -1, np.int64)
    given = column_or_1d(y.detach().cpu().numpy() if isinstance(y, torch.Tensor) else y)
    if len(given) != number:
        raise DataError(f"Expected a label or -1 for each of {number} points, got {len(given)}.")
    try:
        numbers = given.astype(float)
        are_labels = (numbers >= -1) & (numbers < 2**53) & (numbers == np.floor(numbers))
    except (TypeError, ValueError):
        are_labels = np.zeros(1, bool)
    if not are_labels.all():
        raise DataError(
            f"Expected whole numbers from 0 on in y, and -1 for unknown, got {given[are_labels.argmin()]!r}: number "
            "the categories, as sklearn.preprocessing.LabelEncoder does."
        )
    return numbers.astype(np.int64)


def seed_from(random_state: Any) -> int | None:
    """A seed from scikit-learn's ``random_state``; `None` stays, and means a fresh seed."""
    if random_state is None or isinstance(random_state, Integral):
        return None if random_state is None else int(random_state)
    return int(check_random_state(random_state).randint(2**31))

"""Clustering accuracy: the one number of the field, in three parts. NumPy and SciPy only."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from promptccd.errors import DataError


class ClusteringAccuracy(NamedTuple):
    """Accuracies in percent; NaN where there is no image of the kind.

    Attributes:
        all: over all images.
        old: over images of initially labelled categories.
        new: over the others.
    """

    all: float
    old: float
    new: float


PARTS = ClusteringAccuracy._fields


def clustering_accuracy(y_true: ArrayLike, y_pred: ArrayLike, old_classes: Iterable) -> ClusteringAccuracy:
    """Share of images whose cluster is matched to their category, under the best one-to-one matching.

    One Hungarian assignment over all images ("v2" in the field's code); Old and New are read off that same
    matching, so All is always their mean weighted by numbers of images. The names of clusters do not matter.
    There may be more clusters than categories or fewer.

    Args:
        y_true: category of every image, ``(N,)``, integers or strings, gaps allowed.
        y_pred: cluster of every image, ``(N,)``, integers or strings.
        old_classes: the initially labelled categories, in the values of `y_true`. Categories discovered at
            earlier stages count as new, at every stage.

    Raises:
        DataError: the lengths differ, there is no image, or a value is neither integer nor string.
    """
    true, pred, is_old = _checked_pair(y_true, y_pred, old_classes)
    correct = _correct(true, pred)
    return ClusteringAccuracy(_percent(correct), _percent(correct[is_old]), _percent(correct[~is_old]))


def separate_clustering_accuracy(
    y_true: ArrayLike, y_pred: ArrayLike, old_classes: Iterable
) -> ClusteringAccuracy:
    """Old and New under an assignment of their own each ("v1" in the field's code), All their weighted mean.

    A cluster may thus count for an old and for a new category at once: Old and New are never below those of
    `clustering_accuracy`. Published by some papers, MetaGCD's among them; compare only with such figures.

    Args:
        y_true: category of every image, ``(N,)``, integers or strings, gaps allowed.
        y_pred: cluster of every image, ``(N,)``, integers or strings.
        old_classes: the initially labelled categories, in the values of `y_true`.

    Raises:
        DataError: the lengths differ, there is no image, or a value is neither integer nor string.
    """
    true, pred, is_old = _checked_pair(y_true, y_pred, old_classes)
    correct = np.zeros(len(true), dtype=bool)
    for part in (is_old, ~is_old):
        if part.any():
            correct[part] = _correct(true[part], pred[part])
    return ClusteringAccuracy(_percent(correct), _percent(correct[is_old]), _percent(correct[~is_old]))


def _correct(true: np.ndarray, pred: np.ndarray) -> np.ndarray:
    """Which images lie in the cluster that is matched to their category."""
    categories, clusters = _codes(true), _codes(pred)
    return _best_matching(clusters, categories)[clusters] == categories


def _checked_pair(
    y_true: ArrayLike, y_pred: ArrayLike, old_classes: Iterable
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both as arrays, and which images are old."""
    true, pred = _checked(y_true, "y_true"), _checked(y_pred, "y_pred")
    if len(true) != len(pred):
        raise DataError(f"Expected y_true and y_pred of one length, got {len(true)} and {len(pred)}.")
    if len(true) == 0:
        raise DataError("Expected at least one image to score, got none.")
    return true, pred, np.isin(true, np.asarray(list(old_classes)))


def matched_categories(y_true: ArrayLike, y_pred: ArrayLike) -> dict[int, int]:
    """The category that every cluster is matched to by `clustering_accuracy`.

    Clusters that share no image with what is left for them are not in it.

    Args:
        y_true: category of every image, ``(N,)`` integers.
        y_pred: cluster of every image, ``(N,)`` integers.

    Raises:
        DataError: as `clustering_accuracy`.
    """
    true, pred = _checked(y_true, "y_true"), _checked(y_pred, "y_pred")
    if len(true) != len(pred) or not len(true):
        raise DataError(f"Expected y_true and y_pred of one length above 0, got {len(true)} and {len(pred)}.")
    clusters, categories = np.unique(pred), np.unique(true)
    matching = _best_matching(np.searchsorted(clusters, pred), np.searchsorted(categories, true))
    return {
        int(cluster): int(categories[column])
        for cluster, column in zip(clusters, matching, strict=True)
        if column >= 0
    }


def _best_matching(clusters: np.ndarray, categories: np.ndarray) -> np.ndarray:
    """Category matched to every cluster, -1 for clusters that share no image with what is left for them."""
    # Here, because it takes longer to import than an audit takes.
    from scipy.optimize import linear_sum_assignment

    num_clusters, num_categories = clusters.max() + 1, categories.max() + 1
    pairs = np.bincount(clusters * num_categories + categories, minlength=num_clusters * num_categories)
    counts = pairs.reshape(num_clusters, num_categories)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    matching = np.full(num_clusters, -1)
    # Which of the empty pairs the solver picks says nothing.
    matching[rows] = np.where(counts[rows, columns] > 0, columns, -1)
    return matching


def _codes(values: np.ndarray) -> np.ndarray:
    """Position of every label among the distinct ones, so that gaps cost nothing; ids in a row need no sorting."""
    if values.dtype.kind in "iu":
        low, high = int(values.min()), int(values.max())
        if high - low < 4096 + 4 * len(values):
            wide = values if values.dtype.kind == "u" else values.astype(np.int64)  # 100 - -100 is no int8
            shifted = (wide - low).astype(np.int64)
            return (np.cumsum(np.bincount(shifted) > 0) - 1)[shifted]
    return np.unique(values, return_inverse=True)[1]


def _checked(values: ArrayLike, name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iuUS" and len(array)):
        raise DataError(
            f"Expected {name} to be a flat sequence of integers or strings, got {array.dtype} of shape {array.shape}."
        )
    return array


def _percent(correct: np.ndarray) -> float:
    return 100 * float(correct.mean()) if len(correct) else float("nan")

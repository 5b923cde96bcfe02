"""Clustering accuracy: the one number of the field, in three parts."""

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from promptccd.errors import DataError
from promptccd.evaluation.protocol_terms import ClusteringAccuracy


def clustering_accuracy(y_true: ArrayLike, y_pred: ArrayLike, old_classes: Iterable) -> ClusteringAccuracy:
    """Share of images whose cluster is matched to their category, under the best one-to-one matching.

    One Hungarian assignment over all images ("v2" in the field's code) gives all three, so All is always the mean
    of Old and New weighted by numbers of images. There may be more clusters than categories or fewer.

    Args:
        y_true: category of every image, ``(N,)``, integers or strings, gaps allowed.
        y_pred: cluster of every image, ``(N,)``, integers or strings.
        old_classes: the initially labelled categories, as values of `y_true`. Categories that earlier stages
            discovered are new at every stage.

    Raises:
        DataError: the lengths differ, there is no image, or a value is neither integer nor string.
    """
    true, pred, is_old = _checked_pair(y_true, y_pred, old_classes)
    return _accuracy(_correct(true, pred), is_old)


def separate_clustering_accuracy(
    y_true: ArrayLike, y_pred: ArrayLike, old_classes: Iterable
) -> ClusteringAccuracy:
    """Old and New under an assignment of their own each ("v1" in the field's code), All their weighted mean.

    A cluster may count for an old and for a new category at once: Old and New are never below
    `clustering_accuracy`. Some papers publish these figures, MetaGCD's among them; compare only with such figures.

    Args:
        y_true: see `clustering_accuracy`.
        y_pred: clusters.
        old_classes: initially labelled categories.

    Raises:
        DataError: as `clustering_accuracy`.
    """
    true, pred, is_old = _checked_pair(y_true, y_pred, old_classes)
    correct = np.zeros_like(is_old)
    for part in (is_old, ~is_old):
        if part.any():
            correct[part] = _correct(true[part], pred[part])
    return _accuracy(correct, is_old)


def _correct(true: np.ndarray, pred: np.ndarray) -> np.ndarray:
    """Which images are in the cluster that is matched to their category."""
    (categories, _), (clusters, _) = (pd.factorize(each, sort=True) for each in (true, pred))
    return _best_matching(clusters, categories)[clusters] == categories


def _checked_pair(
    y_true: ArrayLike, y_pred: ArrayLike, old_classes: Iterable
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both as arrays, and which images are old."""
    true, pred = _checked(y_true, "y_true"), _checked(y_pred, "y_pred")
    if len(true) != len(pred):
        raise DataError(f"Expected y_true and y_pred of one length, got {len(true)} and {len(pred)}.")
    if len(true) == 0:
        raise DataError("Expected at least one image to score, got 0.")
    if isinstance(old_classes, str) or not isinstance(old_classes, Iterable):
        raise DataError(
            f"Expected old_classes to be a sequence such as [{old_classes!r}], got {old_classes!r}."
        )
    old = _checked(list(old_classes), "old_classes")
    if len(old) and (old.dtype.kind == "U") != (true.dtype.kind == "U"):
        raise DataError(
            f"Expected old_classes of the type of y_true, such as {true[0].item()!r}, got {old[0].item()!r}. "
            "Give values of y_true."
        )
    # By sorting: NumPy 2.0's table of values overflows at labels beyond 2^63.
    return true, pred, np.isin(true, old, kind="sort")


def matched_categories(y_true: ArrayLike, y_pred: ArrayLike) -> dict[int, int]:
    """The category that `clustering_accuracy` matches every cluster to, without clusters that share no image with it.

    Raises:
        DataError: as `clustering_accuracy`.
    """
    true, pred, _ = _checked_pair(y_true, y_pred, ())
    (clusters, cluster_ids), (categories, category_ids) = (
        pd.factorize(each, sort=True) for each in (pred, true)
    )
    matching = _best_matching(clusters, categories)
    return {
        int(cluster_ids[cluster]): int(category_ids[category])
        for cluster, category in enumerate(matching)
        if category >= 0
    }


def _best_matching(clusters: np.ndarray, categories: np.ndarray) -> np.ndarray:
    """Category matched to every cluster, -1 for clusters that share no image with it.

    Clusters and categories are positions among the distinct labels, ascending, so that gaps cost nothing.
    """
    # Imported here, because the import takes longer than an audit.
    from scipy.optimize import linear_sum_assignment

    num_clusters, num_categories = clusters.max() + 1, categories.max() + 1
    pairs = np.bincount(clusters * num_categories + categories, minlength=num_clusters * num_categories)
    counts = pairs.reshape(num_clusters, num_categories)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    matching = np.full(num_clusters, -1)
    # The solver also matches pairs without an image.
    matching[rows] = np.where(counts[rows, columns] > 0, columns, -1)
    return matching


def _checked(values: ArrayLike, name: str) -> np.ndarray:
    array = np.asarray(values)
    # As pandas and CSV have it.
    if array.dtype.kind == "O" and all(isinstance(each, str) for each in array.flat):
        array = array.astype(str)
    if array.ndim != 1 or (array.dtype.kind not in "iuU" and len(array)):
        raise DataError(
            f"Expected {name} to be a flat sequence of integers or strings, got {array.dtype} of shape {array.shape}."
        )
    return array


def _accuracy(correct: np.ndarray, is_old: np.ndarray) -> ClusteringAccuracy:
    parts = (correct, correct[is_old], correct[~is_old])
    return ClusteringAccuracy(*(100 * float(part.mean()) if len(part) else math.nan for part in parts))


def normalised_mutual_information(y_true: ArrayLike, y_pred: ArrayLike) -> float:
    """Mutual information of categories and clusters over the mean of their entropies, in percent.

    Args:
        y_true: category of every image, ``(N,)``.
        y_pred: cluster of every image, ``(N,)``.
    """
    from sklearn.metrics import normalized_mutual_info_score

    return 100 * float(normalized_mutual_info_score(y_true, y_pred))


# Further figures of a grouping in percent, by name and title: a function of true categories and clusters. Each is a
# column of every table of scores: page, CSV, JSON, model card, terminal and trackers. A new entry is a new column.
FIGURES: Mapping[str, tuple[str, Callable[[ArrayLike, ArrayLike], float]]] = {
    "nmi": ("NMI", normalised_mutual_information)
}

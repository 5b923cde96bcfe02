"""MetaGCD's sessions: unlabelled test images of all categories seen so far, grouped by plain k-means."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptccd.clustering import SemiSupervisedKMeans
from promptccd.data.randomness import seed_of
from promptccd.evaluation.accuracy import (
    ClusteringAccuracy,
    clustering_accuracy,
    separate_clustering_accuracy,
)
from promptccd.evaluation.continual import ContinualScore, StageScore, stage_scores


@dataclass(frozen=True)
class SessionScore(ContinualScore):
    """All, Old and New per session, and once more as MetaGCD publishes them.

    Attributes:
        separate: per session what `separate_clustering_accuracy` (v1) says of the same clusters.
    """

    separate: Sequence[ClusteringAccuracy]

    @property
    def columns(self) -> Mapping[str, Sequence[float]]:
        """The accuracies under separate assignments."""
        return {
            f"{part}_v1": [getattr(each, part) for each in self.separate]
            for part in ClusteringAccuracy._fields
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "SessionScore":
        """What `to_dict` wrote."""
        columns = [
            [math.nan if value is None else value for value in values["columns"][f"{part}_v1"]]
            for part in ClusteringAccuracy._fields
        ]
        separate = [ClusteringAccuracy(*row) for row in zip(*columns, strict=True)]
        return cls(values["protocol"], stage_scores(values["stages"]), separate)


def session_accuracy(
    features_of: Callable[[int], Tensor],
    labels: Sequence[np.ndarray],
    num_categories: Sequence[int],
    *,
    num_known: int,
    restarts: int,
    seed: int,
) -> SessionScore:
    """Group the test images of every session without any label and score them twice.

    Args:
        features_of: for session s from 1 on, features of its test images under the model of stage s, ``(N, D)``.
        labels: true category ids of these images, for sessions 1, 2, ...
        num_categories: K for sessions 1, 2, ...: the categories seen so far.
        num_known: number of initially labelled categories; ids below it are Old in every session.
        restarts: restarts of k-means.
        seed: seed of the restarts.

    Raises:
        DataError: a session has fewer test images than categories.
    """
    rows, separate = [], []
    for session, (true_ids, count) in enumerate(zip(labels, num_categories, strict=True), start=1):
        kmeans = SemiSupervisedKMeans(count, restarts, random_state=seed_of("session", seed, session) % 2**32)
        clusters = torch.as_tensor(kmeans.fit_predict(features_of(session))).cpu().numpy()
        known = range(num_known)
        accuracy = clustering_accuracy(true_ids, clusters, known)
        rows.append(StageScore(session, *accuracy, len(np.unique(clusters)), len(true_ids)))
        separate.append(separate_clustering_accuracy(true_ids, clusters, known))
    return SessionScore("metagcd", rows, separate)

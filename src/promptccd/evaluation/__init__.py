"""A model and a stage in, numbers someone will quote out."""

from promptccd.evaluation.accuracy import ClusteringAccuracy, clustering_accuracy
from promptccd.evaluation.continual import (
    ContinualAccuracy,
    ContinualScore,
    Discovery,
    StageScore,
    continual_accuracy,
    discover_categories,
)

__all__ = [
    "ClusteringAccuracy",
    "ContinualAccuracy",
    "ContinualScore",
    "Discovery",
    "StageScore",
    "clustering_accuracy",
    "continual_accuracy",
    "discover_categories",
]

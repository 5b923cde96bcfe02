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
from promptccd.evaluation.count_by_accuracy import estimate_by_accuracy
from promptccd.evaluation.part_routing import score_part_routing

__all__ = [
    "ClusteringAccuracy",
    "ContinualAccuracy",
    "ContinualScore",
    "Discovery",
    "StageScore",
    "clustering_accuracy",
    "continual_accuracy",
    "discover_categories",
    "estimate_by_accuracy",
    "score_part_routing",
]

"""A model and a stage in, numbers someone will quote out."""

from promptccd.evaluation.accuracy import (
    ClusteringAccuracy,
    clustering_accuracy,
    separate_clustering_accuracy,
)
from promptccd.evaluation.audit import (
    AuditedRow,
    Interval,
    Verdict,
    audit_average,
    audit_row,
    audit_rows,
    implied_old_share,
)
from promptccd.evaluation.continual import (
    ContinualAccuracy,
    ContinualScore,
    Discovery,
    StageScore,
    continual_accuracy,
    discover_categories,
    labelled_categories,
)
from promptccd.evaluation.count_by_accuracy import estimate_by_accuracy
from promptccd.evaluation.declared_splits import SplitCounts, declared_split
from promptccd.evaluation.forgetting import (
    ForgettingScore,
    final_discovery,
    max_forgetting,
    mean_discovery,
)
from promptccd.evaluation.part_routing import score_part_routing
from promptccd.evaluation.published import PublishedRow, published_rows
from promptccd.evaluation.session_accuracy import SessionScore, session_accuracy

__all__ = [
    "AuditedRow",
    "ClusteringAccuracy",
    "ContinualAccuracy",
    "ContinualScore",
    "Discovery",
    "ForgettingScore",
    "Interval",
    "PublishedRow",
    "SessionScore",
    "SplitCounts",
    "StageScore",
    "Verdict",
    "audit_average",
    "audit_row",
    "audit_rows",
    "clustering_accuracy",
    "continual_accuracy",
    "declared_split",
    "discover_categories",
    "estimate_by_accuracy",
    "final_discovery",
    "implied_old_share",
    "labelled_categories",
    "max_forgetting",
    "mean_discovery",
    "published_rows",
    "score_part_routing",
    "separate_clustering_accuracy",
    "session_accuracy",
]

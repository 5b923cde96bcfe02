"""A model and a stage in, numbers someone will quote out."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.evaluation.accuracy import (
        ClusteringAccuracy,
        clustering_accuracy,
        separate_clustering_accuracy,
    )
    from promptccd.evaluation.audit import (
        AuditedRow,
        Interval,
        SplitCounts,
        Verdict,
        audit_average,
        audit_row,
        audit_rows,
        declared_split,
        implied_old_share,
    )
    from promptccd.evaluation.category_counts import estimate_by_accuracy
    from promptccd.evaluation.continual import (
        ContinualAccuracy,
        ContinualScore,
        Discovery,
        ForgettingScore,
        StageScore,
        continual_accuracy,
        discover_categories,
        final_discovery,
        labelled_categories,
        max_forgetting,
        mean_discovery,
        score_part_routing,
    )
    from promptccd.evaluation.protocol_terms import PROTOCOLS, ProtocolOptions
    from promptccd.evaluation.protocols import SessionScore, session_accuracy
    from promptccd.evaluation.published import PublishedRow, published_rows

__all__ = [
    "PROTOCOLS",
    "AuditedRow",
    "ClusteringAccuracy",
    "ContinualAccuracy",
    "ContinualScore",
    "Discovery",
    "ForgettingScore",
    "Interval",
    "ProtocolOptions",
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

give_names_on_demand(__name__)

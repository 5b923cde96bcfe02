"""Accuracies, evaluation protocols, and the paper's figures with their audit."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.evaluation.accuracy import clustering_accuracy as clustering_accuracy
    from promptccd.evaluation.accuracy import separate_clustering_accuracy as separate_clustering_accuracy
    from promptccd.evaluation.continual import ContinualAccuracy as ContinualAccuracy
    from promptccd.evaluation.continual import ContinualScore as ContinualScore
    from promptccd.evaluation.continual import Discovery as Discovery
    from promptccd.evaluation.continual import StageScore as StageScore
    from promptccd.evaluation.continual import continual_accuracy as continual_accuracy
    from promptccd.evaluation.continual import discover_categories as discover_categories
    from promptccd.evaluation.continual import labelled_categories as labelled_categories
    from promptccd.evaluation.continual import score_part_routing as score_part_routing
    from promptccd.evaluation.paper import audit as audit
    from promptccd.evaluation.paper import audit_row as audit_row
    from promptccd.evaluation.paper import implied_old_share as implied_old_share
    from promptccd.evaluation.paper import published as published
    from promptccd.evaluation.paper import published_rows as published_rows
    from promptccd.evaluation.protocol_terms import PROTOCOLS as PROTOCOLS

give_names_on_demand(__name__)

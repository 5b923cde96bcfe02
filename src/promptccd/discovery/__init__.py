"""Images of a person in; groups, names, corrections and results to take away out."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.discovery.adapt import adapt
    from promptccd.discovery.checkpoint import save_checkpoint
    from promptccd.discovery.discover import DiscoveryResult, discover
    from promptccd.discovery.exports import EXPORTS, AssignmentRow, assignment_rows, assignments_csv
    from promptccd.discovery.feature_edits import dissolve_category, move_images, split_category, split_in
    from promptccd.discovery.options import AdaptationOptions
    from promptccd.discovery.project import FeatureCache
    from promptccd.discovery.registry_edits import edit_registry, registry_in
    from promptccd.discovery.session import DiscoverySession, SessionStage

__all__ = [
    "EXPORTS",
    "AdaptationOptions",
    "AssignmentRow",
    "DiscoveryResult",
    "DiscoverySession",
    "FeatureCache",
    "SessionStage",
    "adapt",
    "assignment_rows",
    "assignments_csv",
    "discover",
    "dissolve_category",
    "edit_registry",
    "move_images",
    "registry_in",
    "save_checkpoint",
    "split_category",
    "split_in",
]

give_names_on_demand(__name__)

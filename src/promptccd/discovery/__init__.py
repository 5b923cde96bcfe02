"""Images of a person in; groups, names, corrections and results to take away out."""

from promptccd.discovery.adapt import AdaptationOptions, adapt
from promptccd.discovery.checkpoint import save_checkpoint
from promptccd.discovery.discover import DiscoveryResult, discover
from promptccd.discovery.embedding import FeatureCache
from promptccd.discovery.exports import EXPORTS, AssignmentRow, assignment_rows, assignments_csv
from promptccd.discovery.registry_edits import (
    dissolve_category,
    edit_registry,
    move_images,
    registry_in,
    split_category,
    split_in,
)
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

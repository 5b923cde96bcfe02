"""Categories that keep their number and name over stages, and every correction people made to them.

Nothing here knows images or models: keys of images, groups of them and prototypes come in; categories come out.
"""

from promptccd.registry.changes import GROUPING, LogEntry, StageChange
from promptccd.registry.edits import (
    Answer,
    Confirm,
    Edit,
    Gather,
    Merge,
    Move,
    NotACategory,
    Rename,
    Split,
)
from promptccd.registry.files import (
    JOURNAL,
    LONGEST_JOURNAL,
    PROTOTYPES,
    REGISTRY,
    Journal,
    has_registry,
    load_registry,
    save_registry,
)
from promptccd.registry.matching import StageGroups
from promptccd.registry.registry import ActivePrototypes, CategoryRegistry
from promptccd.registry.tables import Category, CategoryState

__all__ = [
    "GROUPING",
    "JOURNAL",
    "LONGEST_JOURNAL",
    "PROTOTYPES",
    "REGISTRY",
    "ActivePrototypes",
    "Answer",
    "Category",
    "CategoryRegistry",
    "CategoryState",
    "Confirm",
    "Edit",
    "Gather",
    "Journal",
    "LogEntry",
    "Merge",
    "Move",
    "NotACategory",
    "Rename",
    "Split",
    "StageChange",
    "StageGroups",
    "has_registry",
    "load_registry",
    "save_registry",
]

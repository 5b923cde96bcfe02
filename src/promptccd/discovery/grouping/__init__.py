"""Groups of images that nobody labelled, beside prototypes that stay where they are."""

from promptccd.discovery.grouping.open_grouping import (
    Grouping,
    GroupingRange,
    KnownCategories,
    group_for_counts,
    group_images,
)
from promptccd.discovery.grouping.questions import (
    GroupDescription,
    PairQuestion,
    describe_groups,
    pair_questions,
    suggest_split,
)

__all__ = [
    "GroupDescription",
    "Grouping",
    "GroupingRange",
    "KnownCategories",
    "PairQuestion",
    "describe_groups",
    "group_for_counts",
    "group_images",
    "pair_questions",
    "suggest_split",
]

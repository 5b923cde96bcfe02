"""Groups of images that nobody labelled, beside prototypes that stay where they are."""

from promptccd.discovery.grouping.open_grouping import (
    Grouping,
    KnownCategories,
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
    "KnownCategories",
    "PairQuestion",
    "describe_groups",
    "group_images",
    "pair_questions",
    "suggest_split",
]

"""Groups of images that nobody labelled, beside prototypes that stay where they are."""

from promptccd.discovery.grouping.open_grouping import KnownCategories, group_images
from promptccd.discovery.grouping.questions import PairQuestion, pair_questions, suggest_split

__all__ = ["KnownCategories", "PairQuestion", "group_images", "pair_questions", "suggest_split"]

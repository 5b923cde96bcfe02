"""Group unlabelled images into known categories and new groups, and choose questions about the groups."""

from promptccd.clustering.stream import EarlierImages, enough_earlier
from promptccd.discovery.grouping.open_grouping import KnownCategories, group_images
from promptccd.discovery.grouping.questions import PairQuestion, pair_questions, suggest_split

__all__ = [
    "EarlierImages",
    "KnownCategories",
    "PairQuestion",
    "enough_earlier",
    "group_images",
    "pair_questions",
    "suggest_split",
]

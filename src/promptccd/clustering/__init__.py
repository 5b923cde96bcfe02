"""Features in, groups out: clustering and mixture fitting on tensors, without images or files."""

from promptccd.clustering.category_count import CountEstimate, estimate_by_split_merge
from promptccd.clustering.constraints import GroupingConstraints
from promptccd.clustering.group_descriptions import GroupDescription, describe_groups, suggest_split
from promptccd.clustering.grouping_problem import Grouping, KnownCategories
from promptccd.clustering.mixture_fitting import MixtureParameters, fit_gaussian_mixture
from promptccd.clustering.open_grouping import GroupingRange, group_for_counts, group_images
from promptccd.clustering.pair_questions import PairQuestion, pair_questions
from promptccd.clustering.part_labels import PartLabels, fit_part_labels, sample_for_part_labels
from promptccd.clustering.semi_supervised_kmeans import SemiSupervisedKMeans
from promptccd.clustering.split_merge import SplitMergeResult, split_and_merge

__all__ = [
    "CountEstimate",
    "GroupDescription",
    "Grouping",
    "GroupingConstraints",
    "GroupingRange",
    "KnownCategories",
    "MixtureParameters",
    "PairQuestion",
    "PartLabels",
    "SemiSupervisedKMeans",
    "SplitMergeResult",
    "describe_groups",
    "estimate_by_split_merge",
    "fit_gaussian_mixture",
    "fit_part_labels",
    "group_for_counts",
    "group_images",
    "pair_questions",
    "sample_for_part_labels",
    "split_and_merge",
    "suggest_split",
]

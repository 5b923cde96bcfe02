"""Features in, groups out: clustering and mixture fitting on tensors, without images or files."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.clustering.category_count import CountEstimate
    from promptccd.clustering.constraints import GroupingConstraints
    from promptccd.clustering.count_prior import (
        PRIORS,
        CountCalibration,
        Trial,
        calibrate,
        estimate_as_taught,
        estimate_categories,
    )
    from promptccd.clustering.count_search import estimate_by_split_merge
    from promptccd.clustering.mixture import MixtureParameters, fit_gaussian_mixture
    from promptccd.clustering.part_labels import PartLabels, fit_part_labels, sample_for_part_labels
    from promptccd.clustering.semi_supervised_kmeans import SemiSupervisedKMeans
    from promptccd.clustering.split_merge import SplitMergeResult, split_and_merge

__all__ = [
    "PRIORS",
    "CountCalibration",
    "CountEstimate",
    "GroupingConstraints",
    "MixtureParameters",
    "PartLabels",
    "SemiSupervisedKMeans",
    "SplitMergeResult",
    "Trial",
    "calibrate",
    "estimate_as_taught",
    "estimate_by_split_merge",
    "estimate_categories",
    "fit_gaussian_mixture",
    "fit_part_labels",
    "sample_for_part_labels",
    "split_and_merge",
]

give_names_on_demand(__name__)

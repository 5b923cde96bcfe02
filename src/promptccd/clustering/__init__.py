"""Features in, groups out: clustering and mixture fitting on tensors, without images or files."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.clustering.category_count import CountEstimate as CountEstimate
    from promptccd.clustering.constraints import GroupingConstraints as GroupingConstraints
    from promptccd.clustering.count_prior import PRIORS as PRIORS
    from promptccd.clustering.count_prior import CountCalibration as CountCalibration
    from promptccd.clustering.count_prior import Trial as Trial
    from promptccd.clustering.count_prior import calibrate as calibrate
    from promptccd.clustering.count_prior import estimate_as_taught as estimate_as_taught
    from promptccd.clustering.count_prior import estimate_categories as estimate_categories
    from promptccd.clustering.count_search import estimate_by_split_merge as estimate_by_split_merge
    from promptccd.clustering.estimators import CategoryCounter as CategoryCounter
    from promptccd.clustering.estimators import SemiSupervisedKMeans as SemiSupervisedKMeans
    from promptccd.clustering.mixture import MixtureParameters as MixtureParameters
    from promptccd.clustering.mixture import fit_gaussian_mixture as fit_gaussian_mixture
    from promptccd.clustering.part_labels import PartLabels as PartLabels
    from promptccd.clustering.part_labels import fit_part_labels as fit_part_labels
    from promptccd.clustering.part_labels import sample_for_part_labels as sample_for_part_labels
    from promptccd.clustering.semi_supervised_kmeans import AnchoredKMeans as AnchoredKMeans
    from promptccd.clustering.split_merge import SplitMergeResult as SplitMergeResult
    from promptccd.clustering.split_merge import split_and_merge as split_and_merge

give_names_on_demand(__name__)

"""Features in, groups out: clustering and mixture fitting on tensors, without images or files."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.clustering.calibrated import CalibratedMixture as CalibratedMixture
    from promptccd.clustering.constraints import GroupingConstraints as GroupingConstraints
    from promptccd.clustering.count_estimate import CountEstimate as CountEstimate
    from promptccd.clustering.counting import PRIORS as PRIORS
    from promptccd.clustering.counting import CountCalibration as CountCalibration
    from promptccd.clustering.counting import Trial as Trial
    from promptccd.clustering.counting import calibrate as calibrate
    from promptccd.clustering.counting import estimate_as_taught as estimate_as_taught
    from promptccd.clustering.counting import estimate_by_split_merge as estimate_by_split_merge
    from promptccd.clustering.counting import estimate_categories as estimate_categories
    from promptccd.clustering.kmeans import AnchoredKMeans as AnchoredKMeans
    from promptccd.clustering.mixture_fit import fit_gaussian_mixture as fit_gaussian_mixture
    from promptccd.clustering.parts import PartLabeller as PartLabeller
    from promptccd.clustering.parts import fit_part_labels as fit_part_labels
    from promptccd.clustering.parts import sample_for_part_labels as sample_for_part_labels
    from promptccd.clustering.sklearn import CategoryCounter as CategoryCounter
    from promptccd.clustering.sklearn import SemiSupervisedKMeans as SemiSupervisedKMeans
    from promptccd.clustering.split_merge import split_and_merge as split_and_merge

give_names_on_demand(__name__)

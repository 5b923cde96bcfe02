"""Features in, groups out: clustering and mixture fitting on tensors, without images or files."""

from promptccd.clustering.mixture_fitting import MixtureParameters, fit_gaussian_mixture
from promptccd.clustering.semi_supervised_kmeans import SemiSupervisedKMeans

__all__ = ["MixtureParameters", "SemiSupervisedKMeans", "fit_gaussian_mixture"]

"""Gaussian mixtures by expectation-maximisation from a k-means start: N points, D width, K components."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from promptccd.clustering.mixture_steps import COVARIANCES, MixtureSteps, State
from promptccd.clustering.semi_supervised_kmeans import SemiSupervisedKMeans, as_features
from promptccd.errors import DataError

KMEANS_RESTARTS, KMEANS_ITERATIONS = 4, 10  # several short runs beat one long one: EM goes on from the best


@dataclass(frozen=True)
class MixtureParameters:
    """A fitted mixture.

    Attributes:
        means: ``(K, D)``.
        variances: ``(K, D)`` if diagonal, ``(K, 1)`` if spherical, covariances ``(K, D, D)`` if full;
            regularisation included.
        log_weights: ``(K,)``.
        log_likelihood: mean per point, in nats, under exactly these parameters.
        num_iterations: M-steps after the initialisation.
        converged: whether the tolerance was met before the iterations ran out.
    """

    means: Tensor
    variances: Tensor
    log_weights: Tensor
    log_likelihood: float
    num_iterations: int
    converged: bool


@torch.no_grad()
def fit_gaussian_mixture(
    features: Tensor,
    num_components: int,
    *,
    covariance_type: Literal["diag", "spherical", "full"] = "diag",
    max_iter: int = 100,
    tol: float = 1e-7,
    regularisation: float = 1e-3,
    seed: int,
) -> MixtureParameters:
    """Fit a mixture by EM from a k-means start.

    Args:
        features: ``(N, D)``.
        num_components: K.
        covariance_type: one variance per dimension (``"diag"``), one per component (``"spherical"``), or a matrix
            per component (``"full"``).
        max_iter: most M-steps.
        tol: stop when the mean log-likelihood changes by at most this, *relative* to its size.
        regularisation: added to every variance, once and not times D.
        seed: of the k-means start.

    Returns:
        The parameters, on the device and in the dtype of the features.

    Raises:
        DataError: fewer points than components, NaN or infinite features, or an unknown covariance type.
    """
    if covariance_type not in COVARIANCES:
        raise DataError(f"Expected covariance_type {' or '.join(COVARIANCES)}, got {covariance_type!r}.")
    features = as_features(features, "features")
    if not 1 <= num_components <= len(features):
        raise DataError(
            f"Expected 1 <= num_components <= number of samples ({len(features)}), got {num_components}: "
            "ask for fewer components or give more images."
        )
    origin = features.mean(0)
    data = COVARIANCES[covariance_type](features - origin)
    state = start(data, num_components, regularisation, seed)
    fit = iterate(data, state, max_iter, tol, regularisation)
    return replace(fit, means=fit.means + origin)


def start(data: MixtureSteps, num_components: int, regularisation: float, seed: int) -> State:
    """The means, covariances and sizes of k-means clusters."""
    kmeans = SemiSupervisedKMeans(num_components, KMEANS_RESTARTS, KMEANS_ITERATIONS, random_state=seed)
    kmeans.fit(data.points)
    one_hot = torch.nn.functional.one_hot(torch.as_tensor(kmeans.labels_), num_components).to(data.points)
    overall = data.overall_variance(regularisation)  # what a component without points falls back to
    empty = State(
        means=torch.as_tensor(kmeans.cluster_centers_).double(),
        variances=overall.expand(num_components, *overall.shape),
        log_weights=overall.new_zeros(num_components),
    )
    return data.maximisation(one_hot, empty, regularisation)


def iterate(
    data: MixtureSteps, state: State, max_iter: int, tol: float, regularisation: float
) -> MixtureParameters:
    """EM from a state; the means returned are centred like the points."""
    previous = -math.inf
    for iteration in range(max_iter + 1):
        responsibilities, log_likelihood = data.expectation(state)
        converged = abs(log_likelihood - previous) <= tol * abs(log_likelihood)
        if converged or iteration == max_iter:
            break
        previous, state = log_likelihood, data.maximisation(responsibilities, state, regularisation)
    return MixtureParameters(
        means=state.means.to(data.points),
        variances=state.variances.to(data.points),
        log_weights=state.log_weights.to(data.points),
        log_likelihood=log_likelihood,
        num_iterations=iteration,
        converged=converged,
    )

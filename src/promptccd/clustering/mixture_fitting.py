"""Gaussian mixtures by expectation-maximisation in matrix form: N points, D width, K components.

The log densities of all points under all components are two matrix products (one if spherical). In the width
of [CLS] features responsibilities are nearly one-hot: the M-step is a sum over the few that are not zero.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from promptccd.clustering.kmeans_restarts import sum_rows
from promptccd.clustering.semi_supervised_kmeans import SemiSupervisedKMeans, as_features
from promptccd.errors import DataError

SMALLEST_RESPONSIBILITY = 1e-7  # what lies below float32's resolution of 1 does not move a mean
KMEANS_RESTARTS, KMEANS_ITERATIONS = 4, 10  # several short runs beat one long one: EM goes on from the best
MAX_SPARSE_SHARE = 0.1  # of all N x K responsibilities; with more of them the matrix product is quicker


@dataclass(frozen=True)
class MixtureParameters:
    """A fitted mixture.

    Attributes:
        means: ``(K, D)``.
        variances: ``(K, D)`` if diagonal, ``(K, 1)`` if spherical; regularisation included.
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
    covariance_type: Literal["diag", "spherical"] = "diag",
    max_iter: int = 100,
    tol: float = 1e-7,
    regularisation: float = 1e-3,
    seed: int,
) -> MixtureParameters:
    """Fit a mixture by EM from a k-means start.

    Args:
        features: ``(N, D)``.
        num_components: K.
        covariance_type: one variance per dimension (``"diag"``) or per component (``"spherical"``).
        max_iter: most M-steps.
        tol: stop when the mean log-likelihood changes by at most this, *relative* to its size.
        regularisation: added to every variance, once and not times D.
        seed: of the k-means start.

    Returns:
        The parameters, on the device and in the dtype of the features.

    Raises:
        DataError: fewer points than components, NaN or infinite features, or an unknown covariance type.
    """
    if covariance_type not in ("diag", "spherical"):
        raise DataError(f"Expected covariance_type 'diag' or 'spherical', got {covariance_type!r}.")
    features = as_features(features, "features")
    if not 1 <= num_components <= len(features):
        raise DataError(
            f"Expected 1 <= num_components <= number of samples ({len(features)}), got {num_components}: "
            "ask for fewer components or give more images."
        )
    origin = features.mean(0)
    data = _prepare(features - origin, covariance_type)
    start = _start(data, num_components, regularisation, seed)
    fit = _iterate(data, start, max_iter, tol, regularisation)
    return replace(fit, means=fit.means + origin)


@dataclass(frozen=True)
class _Data:
    """The points, centred, and their squares: one column for each variance of a component."""

    points: Tensor  # (N, D)
    squares: Tensor  # (N, D) if diagonal; (N, 1), the mean over D, if spherical


def _prepare(points: Tensor, covariance_type: str) -> _Data:
    """The points as EM wants them. They must be centred: float32 cancels far from the origin."""
    squares = points.square()
    return _Data(points, squares if covariance_type == "diag" else squares.mean(1, keepdim=True))


@dataclass(frozen=True)
class _State:
    means: Tensor  # (K, D) float64
    variances: Tensor  # (K, D) or (K, 1) float64
    log_weights: Tensor  # (K,) float64


def _start(data: _Data, num_components: int, regularisation: float, seed: int) -> _State:
    """The means, variances and sizes of k-means clusters."""
    kmeans = SemiSupervisedKMeans(num_components, KMEANS_RESTARTS, KMEANS_ITERATIONS, random_state=seed)
    kmeans.fit(data.points)
    one_hot = torch.nn.functional.one_hot(torch.as_tensor(kmeans.labels_), num_components).to(data.points)
    overall = data.squares.mean(0, dtype=torch.float64)  # what a component without points falls back to
    empty = _State(
        means=torch.as_tensor(kmeans.cluster_centers_).double(),
        variances=overall.expand(num_components, -1) + regularisation,
        log_weights=overall.new_zeros(num_components),
    )
    return _maximisation(data, one_hot, empty, regularisation)


def _iterate(
    data: _Data, state: _State, max_iter: int, tol: float, regularisation: float
) -> MixtureParameters:
    """EM from ``state``; the means returned are centred like the points."""
    previous = -math.inf
    for iteration in range(max_iter + 1):
        responsibilities, log_likelihood = _expectation(data, state)
        converged = abs(log_likelihood - previous) <= tol * abs(log_likelihood)
        if converged or iteration == max_iter:
            break
        previous, state = log_likelihood, _maximisation(data, responsibilities, state, regularisation)
    return MixtureParameters(
        means=state.means.to(data.points),
        variances=state.variances.to(data.points),
        log_weights=state.log_weights.to(data.points),
        log_likelihood=log_likelihood,
        num_iterations=iteration,
        converged=converged,
    )


def _expectation(data: _Data, state: _State) -> tuple[Tensor, float]:
    """Responsibilities ``(N, K)`` and the mean log-likelihood."""
    width, dtype = data.points.shape[1], data.points.dtype
    per_column = width // data.squares.shape[1]  # dimensions that one variance stands for: 1 or D
    precisions = 1 / state.variances
    constant = (
        state.log_weights
        - 0.5 * width * math.log(2 * math.pi)
        - 0.5 * per_column * state.variances.log().sum(1)
        - 0.5 * (state.means.square() * precisions).sum(1)
    )
    log_joint = torch.addmm(constant.to(dtype), data.points, (state.means * precisions).to(dtype).T)
    log_joint.addmm_(data.squares, (-0.5 * per_column * precisions).to(dtype).T)
    responsibilities = log_joint.softmax(1)
    # log sum exp = max - log(softmax at the max), without a second and, for tiny values, slow pass of exp
    log_density = log_joint.amax(1).double() - responsibilities.amax(1).double().log()
    return responsibilities, float(log_density.mean())


def _maximisation(data: _Data, responsibilities: Tensor, state: _State, regularisation: float) -> _State:
    """Weighted moments; a component that no point belongs to keeps its mean and variance."""
    mass, first, second = _moments(data, responsibilities)
    alive = (mass > 0)[:, None]
    scale = 1 / mass.clamp(min=torch.finfo(mass.dtype).tiny)[:, None]
    means = first * scale
    centre_squares = means.square()
    if data.squares.shape[1] == 1:
        centre_squares = centre_squares.mean(1, keepdim=True)
    variances = (second * scale - centre_squares).clamp(min=0) + regularisation
    # A weight of exactly zero could never be left again and its logarithm is not finite.
    weights = mass + 10 * torch.finfo(data.points.dtype).eps
    return _State(
        means=torch.where(alive, means, state.means),
        variances=torch.where(alive, variances, state.variances),
        log_weights=(weights / weights.sum()).log(),
    )


def _moments(data: _Data, responsibilities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over points, weighted by responsibility, of 1 ``(K,)``, x ``(K, D)`` and x^2: float64."""
    by_component = responsibilities.T
    component, point = (by_component > SMALLEST_RESPONSIBILITY).nonzero().unbind(1)
    if len(point) > MAX_SPARSE_SHARE * responsibilities.numel():
        sums = [by_component @ table for table in (data.points, data.squares)]
        mass = responsibilities.sum(0, dtype=torch.float64)
    else:
        weights = responsibilities[point, component]
        sizes = torch.bincount(component, minlength=responsibilities.shape[1])
        sums = [sum_rows(table, point, weights, sizes) for table in (data.points, data.squares)]
        mass = sum_rows(torch.ones_like(data.squares[:, :1]), point, weights, sizes)[:, 0].double()
    return mass, sums[0].double(), sums[1].double()

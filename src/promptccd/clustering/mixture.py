"""The Gaussian mixture of PromptCCD, fitted to labelled and unlabelled features."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from promptccd.clustering.kmeans_restarts import sum_rows
from promptccd.clustering.semi_supervised_kmeans import SemiSupervisedKMeans, as_features
from promptccd.errors import DataError

SMALLEST_RESPONSIBILITY = 1e-7  # what lies below float32's resolution of 1 does not move a mean
MAX_SPARSE_SHARE = 0.1  # of all N x K responsibilities; with more of them the matrix product is quicker


@dataclass(frozen=True)
class State:
    """Parameters between two steps, in float64; means are centred like the points."""

    means: Tensor  # (K, D)
    variances: Tensor  # (K, D) diagonal, (K, 1) spherical, (K, D, D) full
    log_weights: Tensor  # (K,)


class MixtureSteps(ABC):
    """The points of a fit and the steps on them.

    Args:
        points: ``(N, D)``, centred: float32 cancels far from the origin.
    """

    def __init__(self, points: Tensor):
        self.points = points

    @abstractmethod
    def overall_variance(self, regularisation: float) -> Tensor:
        """Variance of all points about their mean, shaped as that of one component, regularised."""

    @abstractmethod
    def log_joint(self, state: State) -> Tensor:
        """Log pi_c + log N(x | mu_c, Sigma_c), ``(N, K)``, in the dtype of the points."""

    @abstractmethod
    def maximisation(self, responsibilities: Tensor, state: State, regularisation: float) -> State:
        """Weighted moments; a component that no point belongs to keeps its mean and variance."""

    def expectation(self, state: State) -> tuple[Tensor, float]:
        """Responsibilities ``(N, K)`` and the mean log-likelihood."""
        log_joint = self.log_joint(state)
        responsibilities = log_joint.softmax(1)
        # log sum exp = max - log(softmax at the max), without a second and, for tiny values, slow pass of exp
        log_density = log_joint.amax(1).double() - responsibilities.amax(1).double().log()
        return responsibilities, float(log_density.mean())

    def _log_weights(self, mass: Tensor) -> Tensor:
        # A weight of exactly zero could never be left again and its logarithm is not finite.
        weights = mass + 10 * torch.finfo(self.points.dtype).eps
        return (weights / weights.sum()).log()


class AxisAligned(MixtureSteps):
    """One variance per dimension or, if the squares are averaged over dimensions, per component.

    Args:
        points: ``(N, D)``, centred.
        squares: ``(N, D)`` if diagonal; ``(N, 1)``, the mean over D, if spherical.
    """

    def __init__(self, points: Tensor, squares: Tensor):
        super().__init__(points)
        self.squares = squares

    @classmethod
    def diagonal(cls, points: Tensor) -> "AxisAligned":
        """One variance per dimension."""
        return cls(points, points.square())

    @classmethod
    def spherical(cls, points: Tensor) -> "AxisAligned":
        """One variance per component."""
        return cls(points, points.square().mean(1, keepdim=True))

    def overall_variance(self, regularisation: float) -> Tensor:
        """``(D,)`` or ``(1,)``."""
        return self.squares.mean(0, dtype=torch.float64) + regularisation

    def log_joint(self, state: State) -> Tensor:
        """Two matrix products with ``(N, D)``; one of them with ``(N, 1)`` if spherical."""
        width, dtype = self.points.shape[1], self.points.dtype
        per_column = width // self.squares.shape[1]  # dimensions that one variance stands for: 1 or D
        precisions = 1 / state.variances
        constant = (
            state.log_weights
            - 0.5 * width * math.log(2 * math.pi)
            - 0.5 * per_column * state.variances.log().sum(1)
            - 0.5 * (state.means.square() * precisions).sum(1)
        )
        log_joint = torch.addmm(constant.to(dtype), self.points, (state.means * precisions).to(dtype).T)
        return log_joint.addmm_(self.squares, (-0.5 * per_column * precisions).to(dtype).T)

    def maximisation(self, responsibilities: Tensor, state: State, regularisation: float) -> State:
        """See the base class."""
        mass, first, second = self._moments(responsibilities)
        alive = (mass > 0)[:, None]
        scale = 1 / mass.clamp(min=torch.finfo(mass.dtype).tiny)[:, None]
        means = first * scale
        centre_squares = means.square()
        if self.squares.shape[1] == 1:
            centre_squares = centre_squares.mean(1, keepdim=True)
        variances = (second * scale - centre_squares).clamp(min=0) + regularisation
        return State(
            means=torch.where(alive, means, state.means),
            variances=torch.where(alive, variances, state.variances),
            log_weights=self._log_weights(mass),
        )

    def _moments(self, responsibilities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sums over points, weighted by responsibility, of 1 ``(K,)``, x ``(K, D)`` and x^2: float64."""
        by_component = responsibilities.T
        component, point = (by_component > SMALLEST_RESPONSIBILITY).nonzero().unbind(1)
        if len(point) > MAX_SPARSE_SHARE * responsibilities.numel():
            sums = [by_component @ table for table in (self.points, self.squares)]
            mass = responsibilities.sum(0, dtype=torch.float64)
        else:
            weights = responsibilities[point, component]
            sizes = torch.bincount(component, minlength=responsibilities.shape[1])
            sums = [sum_rows(table, point, weights, sizes) for table in (self.points, self.squares)]
            mass = sum_rows(torch.ones_like(self.squares[:, :1]), point, weights, sizes)[:, 0].double()
        return mass, sums[0].double(), sums[1].double()


class FullCovariance(MixtureSteps):
    """A covariance matrix per component: K D^2 values, for many points or a narrow backbone."""

    def overall_variance(self, regularisation: float) -> Tensor:
        """``(D, D)``."""
        return _regularised(self.points.double().T @ self.points.double() / len(self.points), regularisation)

    def log_joint(self, state: State) -> Tensor:
        """The Mahalanobis distance through the Cholesky factor, one component after the other."""
        width, dtype = self.points.shape[1], self.points.dtype
        factors = torch.linalg.cholesky(state.variances)
        log_det = 2 * factors.diagonal(dim1=1, dim2=2).log().sum(1)
        columns = []
        for mean, factor in zip(state.means.to(dtype), factors.to(dtype), strict=True):
            whitened = torch.linalg.solve_triangular(factor, (self.points - mean).T, upper=False)
            columns.append(whitened.square().sum(0))
        constant = state.log_weights - 0.5 * (log_det + width * math.log(2 * math.pi))
        return constant.to(dtype) - 0.5 * torch.stack(columns, dim=1)

    def maximisation(self, responsibilities: Tensor, state: State, regularisation: float) -> State:
        """See the base class; each component reads only the points that are its own."""
        mass = responsibilities.sum(0, dtype=torch.float64)
        means, variances = state.means.clone(), state.variances.clone()
        for component, column in enumerate(responsibilities.T):
            own = (column > SMALLEST_RESPONSIBILITY).nonzero().flatten()
            if len(own) == 0:
                continue
            points, weights = self.points[own].double(), column[own].double()
            means[component] = weights @ points / weights.sum()
            centred = (points - means[component]) * weights.sqrt()[:, None]
            variances[component] = _regularised(centred.T @ centred / weights.sum(), regularisation)
        return State(means, variances, self._log_weights(mass))


def _regularised(covariance: Tensor, regularisation: float) -> Tensor:
    """The regularisation added to the diagonal, once and not times D."""
    return covariance + regularisation * torch.eye(len(covariance)).to(covariance)


COVARIANCES: dict[str, Callable[[Tensor], MixtureSteps]] = {
    "diag": AxisAligned.diagonal,
    "spherical": AxisAligned.spherical,
    "full": FullCovariance,
}


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

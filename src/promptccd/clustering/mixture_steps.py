"""The two steps of expectation-maximisation in matrix form, for every kind of covariance.

For diagonal and spherical covariance the log densities of all points under all components are two matrix products
(one if spherical). In the width of [CLS] features responsibilities are nearly one-hot: the M-step is a sum over the
few that are not zero. Letters: N points, D width, K components.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from promptccd.clustering.kmeans_restarts import sum_rows

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

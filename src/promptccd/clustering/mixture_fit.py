"""The Gaussian mixture of PromptCCD, fitted to labelled and unlabelled features."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from promptccd.clustering.kmeans import POINTS_PER_BLOCK, AnchoredKMeans, as_features, sum_rows
from promptccd.errors import DataError

SMALLEST_RESPONSIBILITY = 1e-7  # weights below float32's resolution of 1 do not move a mean
MAX_SPARSE_SHARE = 0.1  # of all N x K responsibilities; with more the matrix product is quicker
SMALLEST_FLOOR = 1e-10  # for features that are all alike, which have no variance to take a share of
# Of the start; with few restarts, all may halve one new category.
KMEANS_RESTARTS, KMEANS_ITERATIONS = 20, 10
SQUARES_AT_ONCE = 2**23  # of features that are squared at a time, 32 MB: squares of all rarely exist


@dataclass(frozen=True)
class MixtureParameters:
    """A mixture, fitted or between two steps. Those of steps are in float64, and means are centred like the points.

    Attributes:
        means: ``(K, D)``.
        variances: ``(K, D)`` if diagonal, ``(K, 1)`` if spherical; floor included.
        log_weights: ``(K,)``.
        floor: ``()``, added to every variance.
        log_likelihood: mean per point, in nats, under exactly these parameters; of a fixed point with its component.
        num_iterations: M-steps after the initialisation, fewer than allowed if the tolerance was met.
    """

    means: Tensor
    variances: Tensor
    log_weights: Tensor
    floor: Tensor
    log_likelihood: float = -math.inf
    num_iterations: int = 0


@dataclass(frozen=True)
class MixtureSteps:
    """Expectation-maximisation on some points.

    Attributes:
        points: ``(N, D)``, centred: float32 cancels far from the origin.
        fixed: ``(N,)`` component of every point, -1 where it is free.
        floor: added to every variance.
        spherical: whether a component has one variance, the mean over dimensions, and not one per dimension.
    """

    points: Tensor
    fixed: Tensor
    floor: float
    spherical: bool

    def initialize(self, members: Tensor, centres: Tensor) -> MixtureParameters:
        """The means, variances and sizes of groups ``(N,)``; those without points have centres ``(K, D)``."""
        responsibilities = self.points.new_zeros(len(members), len(centres)).scatter_(1, members[:, None], 1)
        variances = [columns.mean(0, dtype=torch.float64) for columns in self._square_columns()]
        overall = torch.cat(variances) + self.floor
        empty = MixtureParameters(
            means=centres.double(),
            variances=overall.expand(len(centres), *overall.shape),
            log_weights=overall.new_zeros(len(centres)),
            floor=overall.new_tensor(self.floor),
        )
        return self.m_step(responsibilities, empty)

    def run(self, state: MixtureParameters, max_iter: int, tol: float) -> MixtureParameters:
        """Iterate until the mean log-likelihood changes little; the result is in the dtype of the points."""
        previous = -math.inf
        for iteration in range(max_iter + 1):
            responsibilities, log_likelihood = self.e_step(state)
            if abs(log_likelihood - previous) <= tol * abs(log_likelihood):
                break
            if iteration < max_iter:
                previous, state = log_likelihood, self.m_step(responsibilities, state)
            del responsibilities  # before the next arrays are made
        names = ("means", "variances", "log_weights", "floor")
        fitted = {name: getattr(state, name).to(self.points) for name in names}
        return MixtureParameters(**fitted, log_likelihood=log_likelihood, num_iterations=iteration)

    def e_step(self, state: MixtureParameters) -> tuple[Tensor, float]:
        """Responsibilities ``(N, K)``, of a fixed point 1 on its own component, and the mean log-likelihood."""
        log_joint_of, log_density = self.log_joint(state), []
        responsibilities = self.points.new_empty(len(self.points), len(state.means))
        rows = self._rows_at_once()
        for points, own, out in zip(
            self.points.split(rows), self.fixed.split(rows), responsibilities.split(rows), strict=True
        ):
            log_joint = log_joint_of(points)
            which = (own >= 0).nonzero().flatten()
            of_own = log_joint[which, own[which]]
            log_joint[which] = -math.inf
            log_joint[which, own[which]] = of_own
            out.copy_(log_joint.softmax(1))
            # log sum exp = max - log(softmax at the max), which saves a second pass of exp, slow for tiny values
            log_density.append(log_joint.amax(1) - out.amax(1).double().log())
        return responsibilities, float(torch.cat(log_density).mean())

    def _rows_at_once(self) -> int:
        return max(1, SQUARES_AT_ONCE // self.points.shape[1])

    def _squares(self, points: Tensor) -> Tensor:
        """Of points ``(B, D)``: ``(B, D)``, or ``(B, 1)`` where dimensions share a variance."""
        squares = points.square()
        return squares.mean(1, keepdim=True) if self.spherical else squares

    def _square_columns(self) -> Iterator[Tensor]:
        """The squares of all points, a few columns at a time."""
        if self.spherical:
            yield torch.cat([self._squares(points) for points in self.points.split(self._rows_at_once())])
        else:
            for columns in self.points.split(max(1, SQUARES_AT_ONCE // len(self.points)), dim=1):
                yield columns.square()

    def log_joint(self, state: MixtureParameters) -> Callable[[Tensor], Tensor]:
        """Log pi_c + log N(x | mu_c, Sigma_c) of any points ``(B, D)``: ``(B, K)``, in their dtype, by two products."""
        width, dtype = self.points.shape[1], self.points.dtype
        per_column = width if self.spherical else 1  # dimensions that share one variance
        precisions = 1 / state.variances
        constant = (
            state.log_weights
            - 0.5 * width * math.log(2 * math.pi)
            - 0.5 * per_column * state.variances.log().sum(1)
            - 0.5 * (state.means.square() * precisions).sum(1)
        ).to(dtype)
        linear = (state.means * precisions).to(dtype).T
        quadratic = (-0.5 * per_column * precisions).to(dtype).T
        return lambda points: torch.addmm(constant, points, linear).addmm_(self._squares(points), quadratic)

    def m_step(self, responsibilities: Tensor, state: MixtureParameters) -> MixtureParameters:
        """Weighted moments; a component without points keeps its mean and variance."""
        mass, first, second = self._weighted_sums(responsibilities)
        alive = (mass > 0)[:, None]
        scale = 1 / mass.clamp(min=torch.finfo(mass.dtype).tiny)[:, None]
        means = first * scale
        centre_squares = means.square()
        if self.spherical:
            centre_squares = centre_squares.mean(1, keepdim=True)
        variances = (second * scale - centre_squares).clamp(min=0) + self.floor
        # A weight of exactly zero could never grow again, and its logarithm is not finite.
        weights = mass + 10 * torch.finfo(self.points.dtype).eps
        return replace(
            state,
            means=torch.where(alive, means, state.means),
            variances=torch.where(alive, variances, state.variances),
            log_weights=(weights / weights.sum()).log(),
        )

    def _weighted_sums(self, responsibilities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sums over points, weighted by responsibility, of 1 ``(K,)`` in float64, of x ``(K, D)`` and of x^2."""
        by_component = responsibilities.T
        at_once = max(1, SQUARES_AT_ONCE // len(self.points))
        blocks = by_component.split(at_once)
        felt = torch.stack([(block > SMALLEST_RESPONSIBILITY).count_nonzero() for block in blocks])
        if int(felt.sum()) > MAX_SPARSE_SHARE * responsibilities.numel():
            mass = responsibilities.sum(0, dtype=torch.float64)
            return mass, by_component @ self.points, by_component @ self._squares(self.points)
        places = [(block > SMALLEST_RESPONSIBILITY).nonzero() for block in blocks]
        for number, place in enumerate(places):
            place[:, 0] += number * at_once
        component, point = torch.cat(places).unbind(1)
        weights = responsibilities[point, component]
        sizes = torch.bincount(component, minlength=responsibilities.shape[1])
        # It lets go of columns before the next.
        total = partial(sum_rows, points=point, weights=weights, sizes=sizes)
        mass = total(self.points.new_ones(len(self.points))[:, None])[:, 0].double()
        return mass, total(self.points), torch.cat([*map(total, self._square_columns())], dim=1)


@torch.no_grad()
def fit_gaussian_mixture(
    features: Tensor,
    num_components: int,
    *,
    fixed: Tensor | None = None,
    covariance_type: Literal["diag", "spherical"] = "diag",
    max_iter: int = 100,
    tol: float = 1e-7,
    floor_share: float = 0.01,
    seed: int,
) -> MixtureParameters:
    """Fit a mixture by EM, started by semi-supervised k-means.

    Features with a known component, labelled images and replay of the last stage, belong to it from start to end, so
    that a component stays its category. (The released code starts every fit from plain k-means and fixes no
    feature; then categories share components. If they are fixed in the start alone, EM merges categories that overlap.)

    The floor is a share of the features' own variance. (The released code adds 1e-3, about the whole variance of a unit
    vector of 768 dimensions in each of them.)

    Args:
        features: ``(N, D)``.
        num_components: K.
        fixed: component in 0..K-1 of every feature ``(N,)``, -1 where it is free; by default all are free.
        covariance_type: one variance per dimension (``"diag"``), or one per component (``"spherical"``).
        max_iter: most M-steps.
        tol: stop when the mean log-likelihood changes by at most this, *relative* to its size.
        floor_share: of the features' mean variance per dimension; added to every variance, once and not times D.
        seed: of the k-means start.

    Returns:
        The parameters, on the device and in the dtype of the features.

    Raises:
        DataError: fewer points than components, or NaN or infinite features.
    """
    features = as_features(features, "features")
    if not 1 <= num_components <= len(features):
        raise DataError(
            f"Expected 1 <= num_components <= number of samples ({len(features)}), got {num_components}: "
            "ask for fewer components or give more images."
        )
    if fixed is None:
        fixed = features.new_full((len(features),), -1, dtype=torch.int64)
    fixed = fixed.to(features.device)
    mean_point = features.mean(0)
    members, centres = initial_groups(features, mean_point, fixed, num_components, seed)
    points = features - mean_point
    squares = [block.double().square().sum() for block in points.split(POINTS_PER_BLOCK)]
    floor = max(floor_share * float(torch.stack(squares).sum() / features.numel()), SMALLEST_FLOOR)
    steps = MixtureSteps(points, fixed, floor, covariance_type == "spherical")
    fit = steps.run(steps.initialize(members, centres), max_iter, tol)
    return replace(fit, means=fit.means + mean_point)


def initial_groups(
    features: Tensor, mean_point: Tensor, fixed: Tensor, num_components: int, seed: int
) -> tuple[Tensor, Tensor]:
    """The component ``(N,)`` that every point starts in, by semi-supervised k-means, and centres ``(K, D)``.

    It makes its own centred points, free and fixed, so that there is no third copy of the features.
    """
    centres, members = features.new_zeros(num_components, features.shape[1]), fixed.clone()
    free = fixed < 0
    if free.any():
        # Centres of known categories stay: a free centre without a category of its own must not replace a known
        # category.
        kmeans = AnchoredKMeans(
            num_components, KMEANS_RESTARTS, KMEANS_ITERATIONS, random_state=seed, fix_labelled=True
        )
        kmeans.fit(features[free].sub_(mean_point), features[~free].sub_(mean_point), fixed[~free])
        ids = kmeans.cluster_ids_
        # Fixed clusters, which come first, keep their components, other clusters get vacant components.
        own, every = fixed[~free].unique(), torch.arange(num_components, device=fixed.device)
        component = torch.cat([own, every[~torch.isin(every, own)]])
        members[free] = component[torch.searchsorted(ids, kmeans.labels_)]
        centres[component] = kmeans.cluster_centers_
    return members, centres

"""A mixture with calibrated probabilities: known categories from labels, new categories from a stream.

Letters: N images, D width, K categories, L labelled categories.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_scalar
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from promptccd.clustering.counting import estimate_by_split_merge
from promptccd.clustering.kmeans import AnchoredKMeans, nearest_centres
from promptccd.clustering.sklearn import points_of, read_labels, seed_from
from promptccd.clustering.spread import shrinkage_of
from promptccd.data.randomness import seed_of, torch_generator
from promptccd.errors import DataError
from promptccd.models.assignment import CategoryGaussians, log_density, squared_distances, two_shares

FOLDS = 5  # of categories and of images, when labels teach the temperature
POWER = 0.5  # of the covariance that is divided out: 0 keeps distances as they are, 1 whitens
STEPS = 30  # of expectation-maximisation; a fixed number, so that a GPU is not waited for
RESTARTS = 10  # of the k-means that a stream starts from
TEMPERATURES = torch.logspace(np.log10(0.003), np.log10(3), 40, dtype=torch.float64)
BALANCES = torch.linspace(0, 1, 41, dtype=torch.float64)
LEAST_VARIANCE = 1e-6  # within categories, as a share of all: features equal to their means have no spread
VALUES_AT_ONCE = 2**19  # in float64, 4 MB: neither a second copy of all features nor all densities ever exist
AFFINITIES_AT_ONCE = 2**20  # by k-means; few, so that a small stream needs little more than its copy
# Points that a stream's k-means sees, sampled at random from more: its copy and its distances are the largest arrays.
MOST_STARTED, STARTED_PER_CATEGORY = 2**14, 20


class CalibratedMixture(ClassifierMixin, BaseEstimator):  # type: ignore[misc, unused-ignore]
    """Gaussians around category means, with two shares: that of known and that of new categories.

    `fit` keeps the mean m_k and the number n_k of images of every labelled category, and of all of them one covariance
    within categories, shrunk towards one variance in all directions (Ledoit and Wolf, 2004). Features are multiplied by
    its power -1/4, half of whitening, and scaled to a variance of 1 per dimension. Labels teach a factor t: left-out
    images of left-out categories are likeliest under the logits ``-t |x - m_k|^2 / 2``. In many dimensions t lies far
    below 1, where a Gaussian would be much too sure.

    `partial_fit` clusters a stream by k-means, once with known means fixed, once into the new categories alone, where
    images that lie nearer to a known mean leave their cluster. Expectation-maximisation on the stream then fits the new
    means and the share a of images of known categories, with known means fixed; the likelier of both fits stays::

        p(k | x) ~ w_k exp(-t (|x - m_k|^2 - D / n_k) / 2),  w_k = a / K_known, known
        p(k | x) ~ w_k exp(-t |x - m_k|^2 / 2),              w_k = (1 - a) / K_new, new

    D / n_k is the part of the distance that comes from the error of the mean. New categories are known for the
    next stream.

    Streams in which new categories prevail attract images of known categories. Predictions therefore use shares between
    the estimated ones and one share for all categories: as near to the estimated shares as possible, if that costs at
    most the share `known_loss` of the known images that the model expects to find with one share for all.

    Left-out images of categories that the metric is made of give another factor t'. Probabilities are the powers t' / t
    of those above, divided by their sum.

    Args:
        known_loss: share of images of known categories that may be lost for a higher accuracy over all.
        random_state: seed of the folds, of k-means and of the estimated number of categories.

    Attributes:
        classes_: ``(K,)``, the labels that were given, then max + 1, max + 2, ... for new categories.
        gaussians_: the fitted mixture by itself, as a checkpoint stores it; in float64.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, digits = load_digits(return_X_y=True)
        >>> is_labelled = (digits < 7) & (np.arange(len(digits)) % 2 == 0)
        >>> mixture = CalibratedMixture().fit(X[is_labelled], digits[is_labelled])
        >>> mixture.partial_fit(X[~is_labelled], num_categories=10).classes_
        array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """

    def __init__(self, *, known_loss: float = 0.01, random_state: Any = 0):
        self.known_loss = known_loss
        self.random_state = random_state

    @torch.no_grad()
    def fit(self, X: Any, y: Any) -> "CalibratedMixture":
        """Learn the labelled categories from points ``(N, D)`` with whole numbers from 0 on in ``y`` ``(N,)``.

        Raises:
            ValueError: shapes, labels or parameters do not fit together, or fewer than two categories have two images.
            TypeError: a parameter of another type.
        """
        check_scalar(self.known_loss, "known_loss", (int, float), min_val=0, max_val=1)
        points = _on_device(self, X).double()
        labels = torch.from_numpy(read_labels(y, len(points))).to(points.device)
        if (labels < 0).any():
            raise DataError(
                "Expected a label for every point, got -1: give unlabelled points to partial_fit."
            )
        classes, rows = labels.unique(return_inverse=True)
        sizes = rows.bincount()
        if (sizes > 1).sum() < 2:
            raise DataError(
                f"Expected at least two categories of two points, got {len(classes)} categories of {sizes.tolist()}: "
                "label more points."
            )
        means, products, squares = _scatter(points, rows, len(classes))
        shrinkage = shrinkage_of(products.cpu(), squares.cpu())
        least = _least_variance(points)
        whitener = _whitener(products, len(points), shrinkage, least)
        residuals = (points - means[rows]) @ whitener
        # A mean is nearer to its own images than to new ones: the variance is of images outside of the mean.
        apart = (sizes.double() / (sizes - 1).clamp(min=1))[rows]
        variance = max(
            (residuals.square().sum(1) * apart).mean() / points.shape[1], _least_variance(points @ whitener)
        )
        whitener = whitener / variance.sqrt()
        temperature, sharper = _taught_factors(points, rows, shrinkage, self._seed)
        self.gaussians_ = CategoryGaussians(
            whitener, means @ whitener, sizes.double(), classes.tolist(), num_known=len(classes), known_share=1.0,
            temperature=temperature, sharpness=sharper / temperature, balance=1.0,
        )  # fmt: skip
        return self

    @classmethod
    def of(
        cls, gaussians: CategoryGaussians, device: torch.device | str = "cpu", *, random_state: Any = 0
    ) -> "CalibratedMixture":
        """A fitted mixture, to learn the next stream on a device."""
        mixture, names = cls(random_state=random_state), ("whitener", "means", "sizes")
        tensors = {name: getattr(gaussians, name).to(device, torch.float64) for name in names}
        mixture.gaussians_, mixture.n_features_in_ = replace(gaussians, **tensors), len(gaussians.whitener)
        return mixture

    @property
    def classes_(self) -> npt.NDArray[np.int64]:
        """The categories ``(K,)``."""
        check_is_fitted(self, "gaussians_")
        return np.array(self.gaussians_.ids)

    @torch.no_grad()
    def partial_fit(self, X: Any, y: Any = None, *, num_categories: int | None = None) -> "CalibratedMixture":
        """Learn the new categories of a stream of points ``(N, D)`` without labels.

        Args:
            X: ``(N, D)``.
            y: ignored.
            num_categories: K, the categories of earlier streams included; None estimates it by splitting and merging.

        Raises:
            ValueError: fewer categories than are known, or more new categories than points.
        """
        check_is_fitted(self, "gaussians_")
        points, found = _on_device(self, X, reset=False), self.gaussians_
        known = len(found.ids)
        if num_categories is None:
            num_categories = _estimated(_whitened(points, found.whitener), found.means, self._seed)
        num_new = num_categories - known
        if not 0 <= num_new <= len(points):
            raise DataError(
                f"Expected num_categories from the {known} known ones to {known + len(points)}, "
                f"got {num_categories}."
            )
        found = replace(found, num_known=known, known_share=1.0, balance=1.0)
        if num_new:
            starts = _starts(points, found, num_new, seed_of("calibrated", self._seed, known))
            _, found = max((_fitted(points, found, new) for new in starts), key=lambda fit: fit[0])
            found = replace(found, balance=_balance(points, found, self.known_loss))
        self.gaussians_ = found
        return self

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """Category ``(N,)``, as in `classes_`."""
        check_is_fitted(self, "gaussians_")
        return self.gaussians_.predict(_on_device(self, X, reset=False)).cpu().numpy()

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probability ``(N, K)`` of every category of `classes_`, under the balance of `predict`."""
        check_is_fitted(self, "gaussians_")
        return self.gaussians_.log_joint(_on_device(self, X, reset=False)).softmax(1).cpu().numpy()

    @property
    def _seed(self) -> int:
        return seed_from(self.random_state) or 0


def _fitted(points: Tensor, before: CategoryGaussians, new: Tensor) -> tuple[float, CategoryGaussians]:
    """Expectation-maximisation from new means ``(num, D)``; known means stay.

    Returns:
        The log-likelihood of the last step up to a constant of the points, and the mixture with the new categories.
    """
    known, whitener, means = len(before.ids), before.whitener, torch.cat([before.means, new])
    share, total = means.new_tensor(0.5), len(means)
    for _ in range(STEPS):
        weights = two_shares(share, known, total)
        mass, sums = means.new_zeros(total), torch.zeros_like(new)
        likelihood = torch.zeros_like(share)
        for some in _blocks(points, total):
            joint = weights + log_density(some, whitener, means, before.sizes, before.temperature)
            posterior = joint.softmax(1)
            likelihood += joint.logsumexp(1).sum()
            mass += posterior.sum(0)
            sums += posterior[:, known:].T @ some
        lost = mass[known:, None] < 1e-9  # stays where it is
        moved = sums @ whitener / mass[known:, None].clamp(min=1e-9)
        means = torch.cat([means[:known], torch.where(lost, means[known:], moved)])
        share = (mass[:known].sum() + known) / (len(points) + total)
    first = max(before.ids) + 1
    ids, sizes = [*before.ids, *range(first, first + len(new))], torch.cat([before.sizes, mass[known:]])
    return float(likelihood), replace(before, means=means, sizes=sizes, ids=ids, known_share=float(share))


def _balance(points: Tensor, fitted: CategoryGaussians, known_loss: float) -> float:
    """The least balance with which the expected number of known images is `known_loss` below that of 1 at most."""
    known, total, means = fitted.num_known, len(fitted.ids), fitted.means
    weights = two_shares(means.new_tensor(fitted.known_share), known, total)
    found, expected = weights.new_zeros(len(BALANCES)), weights.new_zeros(())
    for some in _blocks(points, max(total, len(BALANCES))):
        density = log_density(some, fitted.whitener, means, fitted.sizes[:known], fitted.temperature)
        joint = weights + density
        best = joint[:, :known].amax(1)
        margin = joint[:, known:].amax(1) - best
        is_known = margin[:, None] < BALANCES.to(weights) * (weights[-1] - weights[0])
        found += (best - joint.logsumexp(1)).exp() @ is_known.to(weights)
        expected += joint.softmax(1)[:, :known].sum()
    return float(BALANCES[int((found >= found[-1] - known_loss * expected).int().argmax())])


def _on_device(estimator: Any, X: Any, reset: bool = True) -> Tensor:
    """Points ``(N, D)`` in float32 or float64, where `X` is if it is a tensor."""
    return torch.from_numpy(points_of(estimator, X, reset=reset)).to(getattr(X, "device", "cpu"))


def _scatter(points: Tensor, rows: Tensor, num: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means ``(L, D)``, the sum of outer products of residuals ``(D, D)`` and the square of each residual ``(N,)``."""
    sums = points.new_zeros(num, points.shape[1]).index_add_(0, rows, points)
    means = sums / rows.bincount(minlength=num).clamp(min=1)[:, None]
    residuals = points - means[rows]
    return means, residuals.T @ residuals, residuals.square().sum(1)


def _least_variance(points: Tensor) -> Tensor:
    """The variance per dimension below which features count as equal; 1 if all points are equal."""
    overall = (points - points.mean(0)).square().mean()
    return torch.where(overall > 0, LEAST_VARIANCE * overall, 1.0)


def _whitener(products: Tensor, num: int, shrinkage: float, least: Tensor) -> Tensor:
    """The shrunk covariance to the power of minus half `POWER`, ``(D, D)``; no variance is below `least`."""
    values, vectors = torch.linalg.eigh(products / num)
    values = (1 - shrinkage) * values.clamp(min=0) + shrinkage * values.mean()
    return (vectors * values.clamp(min=least).pow(-POWER / 2)) @ vectors.T


def _taught_factors(points: Tensor, rows: Tensor, shrinkage: float, seed: int) -> tuple[float, float]:
    """The factors of squared distances under which left-out images are likeliest.

    The first is taught by images of left-out categories, in a metric that is made without these categories, the second
    by images of all categories, in a metric that is made without these images.
    """
    num, least = int(rows.max()) + 1, _least_variance(points)
    of_category = torch.randperm(num, generator=torch_generator("calibrated categories", seed)) % FOLDS
    of_image = torch.randperm(len(rows), generator=torch_generator("calibrated images", seed)) % FOLDS
    of_category, of_image = of_category.to(rows.device)[rows], of_image.to(rows.device)
    losses = torch.zeros(2, len(TEMPERATURES), dtype=torch.float64)
    for which, folds in enumerate((of_category, of_image)):
        for inside in (folds != fold for fold in range(FOLDS)):
            teachers, own = rows[inside].unique(return_inverse=True)
            products = _scatter(points[inside], own, len(teachers))[1]
            whitened = points @ _whitener(products, len(own), shrinkage, least)
            for rest in (of_image != part for part in range(FOLDS)):
                present = rows[rest].bincount(minlength=num) > 0
                tested = ~inside & ~rest & present[rows]
                if not tested.any():
                    continue
                means, _, squares = _scatter(whitened[rest], rows[rest], num)
                variance = max(squares.mean() / points.shape[1], _least_variance(whitened))
                squared = squared_distances(whitened[tested], means) / variance
                logits, own = (-0.5 * squared).masked_fill(~present, -torch.inf), rows[tested]
                for place, factor in enumerate(TEMPERATURES):
                    losses[which, place] += F.cross_entropy(factor * logits, own, reduction="sum").cpu()
    of_categories, of_images = TEMPERATURES[losses.argmin(1)].tolist()
    return of_categories, of_images


def _starts(points: Tensor, before: CategoryGaussians, num: int, seed: int) -> list[Tensor]:
    """First new means ``(num, D)``: with known means fixed, and of the whole stream without images nearer to these.

    The second finds more where new categories are many, and fails where clusters consist of known images alone.
    """
    known, whitener = before.means, before.whitener
    if len(points) > (most := max(MOST_STARTED, STARTED_PER_CATEGORY * (len(known) + num))):
        rows = torch.randperm(len(points), generator=torch_generator("calibrated start", seed))[:most]
        points = points[rows.to(points.device)]
    points = _whitened(points, whitener)
    origin = points.mean(0)  # k-means then needs no centred copy
    points -= origin
    known = known.to(points) - origin
    kmeans = partial(
        AnchoredKMeans, n_init=RESTARTS, random_state=seed, affinities_at_once=AFFINITIES_AT_ONCE
    )
    around = kmeans(len(known) + num, fix_labelled=True)
    around.fit(points, known, torch.arange(len(known), device=known.device))
    alone = kmeans(num).fit(points)
    stays = nearest_centres(points, torch.cat([known, alone.cluster_centers_]))[0] >= len(known)
    clusters = alone.labels_.where(stays, num)
    sizes = clusters.bincount(minlength=num + 1)[:num, None]
    sums = points.new_zeros(num + 1, points.shape[1]).index_add_(0, clusters, points)[:num]
    means = torch.where(sizes > 1, sums / sizes.clamp(min=1), alone.cluster_centers_)
    return [(each + origin).to(whitener) for each in (around.cluster_centers_[len(known) :], means)]


def _whitened(points: Tensor, whitener: Tensor) -> Tensor:
    """A copy of the points ``(N, D)`` in the metric, in their own type."""
    whitened, first = torch.empty_like(points), 0
    for some in _blocks(points, 1):
        whitened[first : first + len(some)] = some @ whitener
        first += len(some)
    return whitened


def _estimated(points: Tensor, known: Tensor, seed: int) -> int:
    """The number of categories of a stream and the known categories, each represented by its mean."""
    rows = torch.nn.functional.normalize(torch.cat([known.to(points), points]))
    fixed = torch.full((len(rows),), -1)
    fixed[: len(known)] = torch.arange(len(known))
    return estimate_by_split_merge(rows, len(known), fixed=fixed, seed=seed).count


def _blocks(points: Tensor, width: int) -> Iterator[Tensor]:
    """The points in float64, so many at a time that rows of both widths fit `VALUES_AT_ONCE`."""
    return (some.double() for some in points.split(max(1, VALUES_AT_ONCE // max(width, points.shape[1]))))

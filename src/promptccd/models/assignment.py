"""The category of each image, with its confidence, and the second nearest category."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

SEPARATED = 0.9  # digits after training: 0.95 to 1; Caltech-101 with features that were not trained on it: 0.72 to 0.75
NEWCOMERS = 1.4  # spread of an untrained category, relative to known categories; chosen on digits
DISTANCE_ELEMENTS = 2**20  # of features, or of distances to categories, in memory at once: 8 MB in float64


@dataclass(frozen=True, eq=False)
class CategorySpread:
    """How far images of known categories lie from their prototypes, in a metric in which all categories are round.

    Attributes:
        whitener: ``(D, D)``; features times it have the same variance in all directions within known categories.
            Squared distances there are per direction.
        spreads: ``(C,)`` mean squared distance of an image to the prototype of its category, by row: typical for
            measured categories, larger for later categories.
        typical: mean squared distance over the images of the checkpoint; about 1.
        reach: one in twenty images of known categories is farther from its prototype than this many spreads.
        border: distance from the nearest prototype at which "no category" is as likely as any category; in roots
            of a spread.
        slope: decrease of the log odds of being of a category per such distance.
        temperature: of the soft-max over categories, in the same distance. With squared distances, as of Gaussians,
            the calibration error on test images of Caltech-101 is 0.067 instead of 0.032: real images have heavy tails.
        separation: probability, 0.5 to 1, that an image of a known category lies nearer to its nearest prototype than
            one whose own category was removed.
    """

    whitener: Tensor
    spreads: Tensor
    typical: float
    reach: float
    border: float
    slope: float
    temperature: float
    separation: float

    # The sizes of its tensors; the remaining fields are numbers, which a configuration stores.
    shapes: ClassVar = {"whitener": "DD", "spreads": "C"}

    @property
    def tells_new(self) -> bool:
        """Whether images of unknown categories can be distinguished; without training on the images they cannot."""
        return self.separation >= SEPARATED

    def of(self, rows: Sequence[int | None]) -> "CategorySpread":
        """The same for these rows of `spreads`, on the CPU; `None` means an unmeasured category."""
        spreads, unmeasured = self.spreads.cpu(), NEWCOMERS * self.typical
        chosen = [unmeasured if row is None else float(spreads[row]) for row in rows]
        return replace(self, whitener=self.whitener.cpu(), spreads=spreads.new_tensor(chosen))

    def squared(self, features: Tensor, prototypes: Tensor) -> Tensor:
        """Squared distances ``(N, C)`` of features to prototypes ``(C, D)`` in the metric, in typical spreads.

        An image gets the nearest category. In spreads of each category, an image beyond the measured
        images would go to the widest category: of fresh photographs of Caltech-101 72 to 79 % then get
        the right category, with typical spreads 79 to 86 %.
        """
        whitener = self.whitener.to(prototypes)
        origin = prototypes.mean(0)  # smaller numbers are rounded less
        points, centres = (features.to(prototypes) - origin) @ whitener, (prototypes - origin) @ whitener
        return squared_distances(points, centres).div_(self.typical)

    def known_probability(self, squared: Tensor) -> Tensor:
        """Probability ``(N,)`` that images are of any of the categories, given `squared` ``(N, C)``.

        It depends on the distance to the nearest category, in its own spread.
        """
        nearest = (squared * (self.typical / self.spreads.to(squared))).amin(1).sqrt()
        return torch.sigmoid(self.slope * (self.border - nearest))


@dataclass(frozen=True, eq=False)
class CategoryGaussians:
    """A Gaussian around each category, with one covariance and two shares: a fitted `CalibratedMixture`.

    Attributes:
        whitener: ``(D, D)``; features times it have a variance of 1 per direction within categories.
        means: ``(K, D)`` of the categories, in its metric; known categories come first.
        sizes: ``(K,)`` how many images each mean is that of.
        ids: ``(K,)`` the categories.
        num_known: number of categories that were known before the last stream.
        known_share: share of images of known categories in the last stream.
        temperature: factor of squared distances.
        sharpness: power of the joint probability with which it predicts as often rightly as it expects.
        balance: how far a prediction moves from that share (0) to one share for all categories (1).
    """

    whitener: Tensor
    means: Tensor
    sizes: Tensor
    ids: list[int]
    num_known: int
    known_share: float
    temperature: float
    sharpness: float
    balance: float

    shapes: ClassVar = {"whitener": "DD", "means": "KD", "sizes": "K"}  # see `CategorySpread`

    @torch.no_grad()
    def log_joint(self, features: Tensor) -> Tensor:
        """Log of the joint probability ``(N, K)`` of features ``(N, D)`` and categories.

        A constant of each image is missing. It is computed in float64, where the features are.
        """
        known, points = self.num_known, features.double()
        whitener, means, sizes = (each.to(points) for each in (self.whitener, self.means, self.sizes))
        weights = two_shares(points.new_tensor(self.known_share), known, len(means))
        weights[:known] += self.balance * (weights[-1] - weights[0])
        return self.sharpness * (
            weights + log_density(points, whitener, means, sizes[:known], self.temperature)
        )

    def predict(self, features: Tensor) -> Tensor:
        """The likeliest category ``(N,)`` of features ``(N, D)``."""
        return torch.tensor(self.ids, device=features.device)[self.log_joint(features).argmax(1)]


# What a model knows of its categories besides prototypes, by the name of its configuration's field.
MEASURED: dict[str, type[CategorySpread] | type[CategoryGaussians]] = {
    "spread": CategorySpread,
    "gaussians": CategoryGaussians,
}


def log_density(
    features: Tensor, whitener: Tensor, means: Tensor, sizes: Tensor, temperature: float
) -> Tensor:
    """Log densities ``(N, K)`` of features under Gaussians, up to a constant of each image.

    The Gaussians have a variance of 1 around means ``(K, D)`` in the metric of the whitener. |z - m|^2 of z = x W is a
    constant of the image and |m|^2 - 2 x.(W m), so that no image is whitened.

    The means of the first categories are of `sizes` other images: images are farther from such a mean than from
    the true mean, by D / n in the mean, which is subtracted from squared distances.
    """
    squares = means.square().sum(1)
    squares[: len(sizes)] -= means.shape[1] / sizes.clamp(min=1)
    return torch.addmm(-0.5 * temperature * squares, features, temperature * whitener @ means.T)


def two_shares(share: Tensor, known: int, total: int) -> Tensor:
    """Log weights ``(K,)``: the share of known categories, even among them, and the remainder, even among new ones."""
    weights = (share / known).log().repeat(known)
    return torch.cat([weights, ((1 - share) / (total - known)).log().repeat(total - known)])


@dataclass(frozen=True, eq=False)
class Assignment:
    """Images and their categories.

    Attributes:
        features: unit features ``(N, D)``.
        prototypes: ``(K, D)`` float32, one per category.
        ids: ``(K,)`` the categories.
        num_known: how many of them, from the first, existed before these images.
        category_ids: ``(N,)`` int64.
        confidences: ``(N,)`` in 0..1, soft-max over negative squared distances; where the spread of categories is
            known, over distances, times the probability of being of any category; 1 where a person has decided.
        distances: ``(N,)`` squared distance of the unit feature to the prototype of its category, in typical spreads
            where they are known.
        second_ids: ``(N,)`` the nearest other category, -1 if there is none.
        second_distances: ``(N,)`` squared distance to it, or infinity.
        novel: ``(N,)`` whether the image more likely belongs to no category; never where the spread is
            unknown or a person has decided.
        keys: names of the images; may be empty.
    """

    features: Tensor
    prototypes: Tensor
    ids: tuple[int, ...]
    num_known: int
    category_ids: Tensor
    confidences: Tensor
    distances: Tensor
    second_ids: Tensor
    second_distances: Tensor
    novel: Tensor
    keys: Sequence[str] = ()

    @property
    def margins(self) -> Tensor:
        """``(N,)`` how much nearer an image is to its category than to the next; below 0 if it was moved there."""
        return self.second_distances - self.distances

    def rows_of(self, category: int) -> list[int]:
        """Positions of a category's images."""
        return (self.category_ids == category).nonzero().flatten().tolist()

    def select(self, rows: Tensor) -> "Assignment":
        """The images at these positions, in this order."""
        keys = tuple(self.keys[row] for row in rows.tolist()) if self.keys else ()
        return replace(
            self, keys=keys, **{name: getattr(self, name)[rows] for name in ("features", *_OF_IMAGES)}
        )


_OF_IMAGES = ("category_ids", "confidences", "distances", "second_ids", "second_distances", "novel")


def assign(
    features: Tensor,
    prototypes: Tensor,
    ids: Sequence[int],
    *,
    temperature: float,
    spread: CategorySpread | None = None,
    rows: Tensor | None = None,
    decided: Tensor | None = None,
    num_known: int | None = None,
    keys: Sequence[str] = (),
) -> Assignment:
    """Assign images to the nearest prototypes, or to given prototypes.

    Args:
        features: unit features ``(N, D)``.
        prototypes: ``(K, D)``; distances are computed in their precision.
        ids: ``(K,)`` categories of the prototypes.
        temperature: of the confidences, in squared distance; a known spread has its own.
        spread: of the categories, in the order of the prototypes; `None` where it was not measured.
        rows: ``(N,)`` row of each image's category among the prototypes; `None` takes the nearest.
        decided: ``(N,)`` whether a person has decided; `None` for no image.
        num_known: see `Assignment`; `None` counts all categories.
        keys: names of the images.
    """
    most = max(1, DISTANCE_ELEMENTS // max(prototypes.shape))
    numbers = torch.tensor([*ids, -1], device=prototypes.device)
    parts = [
        _of_images(
            _distances(features[block], prototypes, temperature, spread),
            numbers,
            None if rows is None else rows[block],
            None if decided is None else decided[block],
        )
        for block in (slice(start, start + most) for start in range(0, max(1, len(features)), most))
    ]
    return Assignment(
        features=features,
        prototypes=prototypes.float(),
        ids=tuple(ids),
        num_known=len(ids) if num_known is None else num_known,
        keys=keys,
        **{name: torch.cat([part[name] for part in parts]) for name in _OF_IMAGES},
    )


def _of_images(
    distances: tuple[Tensor, Tensor, Tensor], numbers: Tensor, rows: Tensor | None, decided: Tensor | None
) -> dict[str, Tensor]:
    """Fields `_OF_IMAGES` of an `Assignment`; `numbers` ``(K + 1,)`` are the ids of the categories, and -1."""
    squared, shares, explained = distances
    own = (squared.min(1).indices if rows is None else rows)[:, None]
    sure = torch.zeros_like(explained, dtype=torch.bool) if decided is None else decided.to(explained.device)
    confidences = (shares.gather(1, own)[:, 0] * explained).float()
    # A last column that is no category, so that there is a second category even with a single prototype.
    second_distances, second = F.pad(squared.scatter(1, own, torch.inf), (0, 1), value=torch.inf).min(1)
    return {
        "category_ids": numbers[own[:, 0]],
        "confidences": confidences.where(~sure, 1.0),
        "distances": squared.gather(1, own)[:, 0].float(),
        "second_ids": numbers[second].where(second_distances.isfinite(), -1),
        "second_distances": second_distances.float(),
        "novel": (explained < 0.5) & ~sure,
    }


def _distances(
    features: Tensor, prototypes: Tensor, temperature: float, spread: CategorySpread | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances ``(N, C)`` to categories, their probabilities, and the probability ``(N,)`` of any."""
    if spread is None:
        squared = squared_distances(features.to(prototypes.dtype), prototypes)
        return squared, torch.softmax(-squared / temperature, dim=1), squared.new_ones(len(squared))
    squared = spread.squared(features, prototypes)
    shares = torch.softmax(-squared.sqrt() / spread.temperature, dim=1)
    return squared, shares, spread.known_probability(squared)


def nearest(
    features: Tensor,
    prototypes: Tensor,
    ids: Sequence[int],
    top_k: int,
    *,
    temperature: float,
    spread: CategorySpread | None = None,
) -> tuple[Tensor, Tensor]:
    """The `top_k` nearest categories of each image and their confidences, ``(N, k)`` both; the first is `assign`'s.

    With fewer categories than `top_k`, all of them. The other arguments as in `assign`.
    """
    squared, shares, explained = _distances(features, prototypes, temperature, spread)
    order = squared.sort(stable=True).indices[:, :top_k]
    confidences = shares.gather(1, order) * explained[:, None]
    return torch.tensor(ids, device=squared.device)[order], confidences


@torch.no_grad()
def squared_distances(points: Tensor, centres: Tensor) -> Tensor:
    """Squared distances ``(N, K)`` of points ``(N, D)`` to centres ``(K, D)``, in their precision."""
    products = points @ (2 * centres).T
    squares = points.square().sum(1)[:, None]
    return products.neg_().add_(squares).add_(centres.square().sum(1)).clamp_(min=0)

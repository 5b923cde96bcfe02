"""How far images of known categories spread around their prototypes, measured at the end of a stage.

Letters: N images, D width, C categories.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor

from promptccd.data.randomness import torch_generator
from promptccd.models.assignment import SEPARATED, CategorySpread, squared_distances

FOLDS = 5  # prototypes and metric for an image are made without it
NOISE_SHARE = 1e-10  # share of all variance by which equal float32 features may vary
LEAST_SHRINKAGE = 0.01  # of the covariance within categories, towards one variance in all directions
REACHED = 0.95  # share of images of known categories that lie within reach
# Distance beyond 1 spread of a new category, relative to a removed known category, where training has driven
# known categories apart (digits: 0.42 to 0.49); otherwise, new categories are as far away as known ones.
NEARER = 0.5
# Assumed images of new categories per image of a known category: when in doubt, an image is known.
STRANGERS = 0.25
# In float64 at a time, 128 MB a copy: neither all features nor all distances exist at once.
DOUBLES_AT_ONCE = 2**24
TEMPERATURES = torch.logspace(-3, 1, 41, dtype=torch.float64)


@torch.no_grad()
def measure_spread(
    features: Tensor, rows: Tensor, prototypes: Tensor, *, seed: int, labelled: Tensor | None = None
) -> CategorySpread | None:
    """The metric in which known categories are round, and how far their images are from prototypes there.

    Distances are cross-validated over folds. The same images, without their own category, represent images of new
    categories. Features are unit features ``(N, D)`` on any device, `rows` ``(N,)`` the row of its category
    among the prototypes ``(C, D)``, -1 for an image that is left out, `labelled` ``(N,)`` whether a person gave it
    (`None`: all of them): only labelled images decide how likely the nearest category is right.

    Returns:
        None where it cannot be measured: with fewer than two categories, with fewer than two images per category on
        average, or if all images equal their prototypes.
    """
    means = prototypes.cpu().double()
    images, chosen = _Images(features, rows.cpu(), means), (rows.cpu() >= 0).nonzero()[:, 0]
    num, categories = len(chosen), len(means)
    if categories < 2 or num < 2 * categories:
        return None
    products, squares = images.scatter(chosen, means)
    if squares.sum() <= NOISE_SHARE * num:
        return None
    shrinkage = shrinkage_of(products, squares)
    places = torch.randperm(num, generator=torch_generator("spread", seed)) % FOLDS
    folds = [images.fold(chosen, places == left_out, shrinkage) for left_out in range(FOLDS)]
    own, nearest, without_own = torch.empty(3, len(rows), dtype=torch.float64)
    for fold in folds:
        for which, distances in images.distances(*fold):
            column = images.rows[which, None]
            own[which] = distances.gather(1, column)[:, 0]
            nearest[which] = distances.amin(1)
            without_own[which] = distances.scatter(1, column, torch.inf).amin(1)
    typical = own[chosen].mean()
    own, nearest, without_own = (each[chosen] / typical for each in (own, nearest, without_own))
    is_unknown = np.arange(2 * num) >= num
    separation = float(roc_auc_score(is_unknown, torch.cat([nearest, without_own]).numpy()))
    nearer = NEARER if separation >= SEPARATED else 1.0
    border, slope = _border(nearest, 1 + nearer * (without_own - 1).clamp(min=0), images.rows[chosen])
    reliable = images.rows >= 0
    if labelled is not None and labelled.cpu()[chosen].any():
        reliable &= labelled.cpu()
    return CategorySpread(
        whitener=_whitener(products, num, shrinkage, categories).float(),
        spreads=typical.float().repeat(categories),
        typical=float(typical),
        reach=float(own.quantile(REACHED)),
        border=border,
        slope=slope,
        temperature=_temperature(images, folds, reliable, typical),
        separation=separation,
    )


@dataclass(frozen=True)
class _Images:
    """Features on their device, which are read in float64 on the host, so many at a time as there is room for."""

    features: Tensor  # (N, D)
    rows: Tensor  # (N,)
    prototypes: Tensor  # (C, D) float64

    def blocks(self, which: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The images at positions `which`: positions ``(B,)`` and their features ``(B, D)``."""
        for some in which.split(max(1, DOUBLES_AT_ONCE // max(self.prototypes.shape))):
            yield some, self.features[some.to(self.features.device)].cpu().double()

    def scatter(self, which: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the outer products ``(D, D)`` of residuals from the means, and the square of each ``(M,)``."""
        products, squares = means.new_zeros(means.shape[1], means.shape[1]), []
        for some, points in self.blocks(which):
            residuals = points.sub_(means[self.rows[some]])
            products += residuals.T @ residuals
            squares.append(residuals.square().sum(1))
        return products, torch.cat(squares)

    def means(self, which: Tensor) -> Tensor:
        """Mean of every category; its prototype where its images are absent."""
        sizes = self.rows[which].bincount(minlength=len(self.prototypes))[:, None]
        sums = torch.zeros_like(self.prototypes)
        for some, points in self.blocks(which):
            sums.index_add_(0, self.rows[some], points)
        return torch.where(sizes > 0, sums / sizes.clamp(min=1), self.prototypes)

    def fold(self, chosen: Tensor, left_out: Tensor, shrinkage: float) -> tuple[Tensor, Tensor, Tensor]:
        """Positions of the left-out images, and the metric and the whitened means of the other chosen images."""
        inside = chosen[~left_out]
        means = self.means(inside)
        whitener = _whitener(self.scatter(inside, means)[0], len(inside), shrinkage, len(means))
        return chosen[left_out], whitener, means @ whitener

    def distances(self, which: Tensor, whitener: Tensor, centres: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Positions ``(B,)`` and squared distances ``(B, C)`` of images in a metric, a block at a time."""
        for some, points in self.blocks(which):
            yield some, squared_distances(points @ whitener, centres)


def shrinkage_of(products: Tensor, squares: Tensor) -> float:
    """How far to shrink a covariance towards one variance in all directions (Ledoit and Wolf, 2004)."""
    num, width = len(squares), len(products)
    covariance = products / num
    spherical = covariance.trace() / width * torch.eye(width, dtype=covariance.dtype)
    distance = (covariance - spherical).square().sum()
    noise = squares.square().sum() / num**2 - covariance.square().sum() / num
    return float((noise / distance).clamp(LEAST_SHRINKAGE, 1)) if distance > 0 else 1.0


def _whitener(products: Tensor, num: int, shrinkage: float, categories: int) -> Tensor:
    """``(D, D)``: multiplies residuals to a variance of about 1 / D in every direction."""
    values, vectors = torch.linalg.eigh(products / (num - categories))
    values = (1 - shrinkage) * values.clamp(min=0) + shrinkage * values.mean()
    return vectors / (values * len(products)).sqrt()


def _border(known: Tensor, new: Tensor, rows: Tensor) -> tuple[float, float]:
    """Distance at which an image is as likely new as known, and how fast the odds fall there.

    Of squared distances of images to the nearest category, in typical spreads, as they are and as if of a new category.
    There every category has equal weight: large twins would otherwise represent all new categories.
    """
    strangers = STRANGERS * len(rows) / len(rows.unique()) / rows.bincount()[rows]
    weights = torch.cat([torch.ones_like(known), strangers]).numpy()
    distances = torch.cat([known, new]).sqrt().numpy()
    is_known = np.arange(len(distances)) < len(known)
    fitted = LogisticRegression(C=np.inf).fit(distances[:, None], is_known, weights)
    slope = max(-float(fitted.coef_[0, 0]), 1e-3)
    return max(float(fitted.intercept_[0]) / slope, 1e-3), min(slope, 1e3)


def _temperature(
    images: _Images, folds: list[tuple[Tensor, Tensor, Tensor]], reliable: Tensor, typical: Tensor
) -> float:
    """The temperature under which the categories of left-out images are likeliest."""
    losses = torch.zeros_like(TEMPERATURES)
    for outside, *metric in folds:
        for some, squared in images.distances(outside[reliable[outside]], *metric):
            logits, rows = squared.div_(typical).sqrt_().neg_(), images.rows[some]
            for place, each in enumerate(TEMPERATURES):
                losses[place] += torch.nn.functional.cross_entropy(logits / each, rows, reduction="sum")
    return float(TEMPERATURES[int(losses.argmin())])

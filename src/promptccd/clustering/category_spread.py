"""How far images of known categories spread around their prototypes, measured at the end of a stage.

Letters: N images, D width, C categories.
"""

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor

from promptccd.data.randomness import torch_generator
from promptccd.models.assignment import SEPARATED, CategorySpread, squared_distances

FOLDS = 5  # prototypes and metric for an image are made without it
ROUNDING = 1e-10  # share of all variance by which equal float32 features may vary
LEAST_SHRINKAGE = 0.01  # of the covariance within categories, towards one variance in all directions
REACHED = 0.95  # share of images of known categories that lie within reach
# Distance beyond 1 spread of a new category, relative to a known one that is taken away, where training has driven
# known ones apart (digits: 0.42 to 0.49); where it has not, new ones lie as far off as those.
NEARER = 0.5
# Assumed images of new categories per image of a known one: when in doubt, an image is known.
STRANGERS = 0.25
TEMPERATURES = torch.logspace(-3, 1, 41, dtype=torch.float64)


@torch.no_grad()
def measure_spread(
    features: Tensor, rows: Tensor, prototypes: Tensor, *, seed: int, labelled: Tensor | None = None
) -> CategorySpread | None:
    """The metric in which known categories are round, and how far their images lie from prototypes there.

    Distances are cross-validated over folds. The same images, without their own category, stand in for images of new
    categories. Features are unit features ``(N, D)`` of images of known categories, `rows` ``(N,)`` the row of each
    one's category among the prototypes ``(C, D)``, `labelled` ``(N,)`` whether a person gave it (`None`: all of them):
    only these say how likely the nearest category is the right one.

    Returns:
        None where it cannot be measured: with fewer than two categories, with fewer than two images per category on
        average, or if all images equal their prototypes.
    """
    points, means, rows = features.cpu().double(), prototypes.cpu().double(), rows.cpu()
    num, categories = len(points), len(means)
    if categories < 2 or num < 2 * categories:
        return None
    residuals = points - means[rows]
    if residuals.square().sum() <= ROUNDING * points.square().sum():
        return None
    shrinkage = _shrinkage(residuals)
    fold = torch.randperm(num, generator=torch_generator("spread", seed)) % FOLDS
    relative = torch.empty(num, categories, dtype=torch.float64)
    for left_out in range(FOLDS):
        inside, outside = fold != left_out, fold == left_out
        of_fold = _means(points[inside], rows[inside], means)
        whitener = _whitener(points[inside] - of_fold[rows[inside]], shrinkage, categories)
        relative[outside] = squared_distances(points[outside] @ whitener, of_fold @ whitener)
    typical = relative.gather(1, rows[:, None]).mean()
    relative /= typical
    own = relative.gather(1, rows[:, None])[:, 0]
    without_own = relative.scatter(1, rows[:, None], torch.inf).amin(1)
    separation = _separation(relative.amin(1), without_own)
    nearer = NEARER if separation >= SEPARATED else 1.0
    border, slope = _border(relative.amin(1), 1 + nearer * (without_own - 1).clamp(min=0), rows)
    told = slice(None) if labelled is None or not labelled.any() else labelled.cpu()
    return CategorySpread(
        whitener=_whitener(residuals, shrinkage, categories).float(),
        spreads=typical.float().repeat(categories),
        typical=float(typical),
        reach=float(own.quantile(REACHED)),
        border=border,
        slope=slope,
        temperature=_temperature(relative[told], rows[told]),
        separation=separation,
    )


def _means(points: Tensor, rows: Tensor, instead: Tensor) -> Tensor:
    """Mean of every category; its prototype where none of its images is among the points."""
    sizes = rows.bincount(minlength=len(instead))[:, None]
    sums = torch.zeros_like(instead).index_add_(0, rows, points)
    return torch.where(sizes > 0, sums / sizes.clamp(min=1), instead)


def _shrinkage(residuals: Tensor) -> float:
    """How far to shrink a covariance towards one variance in all directions (Ledoit and Wolf, 2004)."""
    num, width = residuals.shape
    covariance = residuals.T @ residuals / num
    distance = (
        (covariance - covariance.trace() / width * torch.eye(width, dtype=covariance.dtype)).square().sum()
    )
    noise = residuals.square().sum(1).square().sum() / num**2 - covariance.square().sum() / num
    return float((noise / distance).clamp(LEAST_SHRINKAGE, 1)) if distance > 0 else 1.0


def _whitener(residuals: Tensor, shrinkage: float, categories: int) -> Tensor:
    """``(D, D)``: multiplies residuals to a variance of about 1 / D in every direction."""
    width = residuals.shape[1]
    covariance = residuals.T @ residuals / (len(residuals) - categories)
    values, vectors = torch.linalg.eigh(covariance)
    values = (1 - shrinkage) * values.clamp(min=0) + shrinkage * values.mean()
    return vectors / (values * width).sqrt()


def _border(known: Tensor, new: Tensor, rows: Tensor) -> tuple[float, float]:
    """Distance at which an image is as likely new as known, and how fast the odds fall there.

    Of squared distances of images to the nearest category, in typical spreads, as they are and as if of a new one.
    There every category counts alike: twins that are large would otherwise stand for all that is new.
    """
    strangers = STRANGERS * len(rows) / len(rows.unique()) / rows.bincount()[rows]
    # mutant: scikit-learn reads a tensor as it reads an array
    weights = torch.cat([torch.ones_like(known), strangers]).numpy()
    # mutant without .numpy(): scikit-learn reads a tensor as it reads an array
    distances = torch.cat([known, new]).sqrt().numpy()
    is_known = np.arange(len(distances)) < len(known)
    fitted = LogisticRegression(C=np.inf).fit(distances[:, None], is_known, weights)
    slope = max(-float(fitted.coef_[0, 0]), 1e-3)
    return max(float(fitted.intercept_[0]) / slope, 1e-3), min(slope, 1e3)


def _separation(known: Tensor, unknown: Tensor) -> float:
    """Chance that an image lies nearer to a category than an image without its own category."""
    is_unknown = np.arange(len(known) + len(unknown)) >= len(known)
    # mutant without .numpy(): scikit-learn reads a tensor as it reads an array
    return float(roc_auc_score(is_unknown, torch.cat([known, unknown]).numpy()))


def _temperature(squared: Tensor, rows: Tensor) -> float:
    """The temperature under which the categories of left-out images are likeliest."""
    losses = [torch.nn.functional.cross_entropy(-squared.sqrt() / each, rows) for each in TEMPERATURES]
    return float(TEMPERATURES[int(torch.stack(losses).argmin())])

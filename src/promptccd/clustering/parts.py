"""Pseudo part labels from frozen patch features (PromptCCD++, "Constructing Part-Level Correspondence Labels").

Letters: I images, L patches of an image, T = I * L patches, D width, P parts, background included.
Two PCAs and one k-means: the first principal direction tells object from background; k-means over the next three, of
features whose background is set to zero, finds the parts of the object.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import initialization as init

from promptccd.clustering.kmeans import AnchoredKMeans
from promptccd.data.randomness import numpy_generator, seed_of
from promptccd.errors import DataError

OBJECT_THRESHOLD = 0.6  # of a score in 0..1; the paper does not give the scale of its score
PROJECTION_WIDTH = 3


class PartLabeller(nn.Module):
    """Part ids of patches: objectness mask, projection to three dimensions, nearest centre. P parts, D width.

    `fit_part_labels` fits it, never by gradient, so everything is a buffer. The number of parts sizes the buffers.
    Before `load` every patch is part 0.

    Attributes:
        object_direction: ``(D,)``, unit length; its product with a patch is large for objects.
        object_range: ``(2,)``, smallest and largest of these products in the fit.
        projection: ``(D, 3)``, principal axes of the features with the background set to zero.
        projection_mean: ``(3,)``, of the projected features.
        projection_scale: ``(3,)``, their standard deviation.
        centres: ``(P, 3)``; row 0 is the background.
    """

    object_direction: Tensor
    object_range: Tensor
    projection: Tensor
    projection_mean: Tensor
    projection_scale: Tensor
    centres: Tensor

    def __init__(self, num_parts: int, width: int):
        super().__init__()
        axes = PROJECTION_WIDTH
        shapes = {"object_direction": (width,), "object_range": (2,), "projection": (width, axes)}
        shapes |= {"projection_mean": (axes,), "projection_scale": (axes,), "centres": (num_parts, axes)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.full(shape, float(name == "projection_scale")))

    def initialise(self, std: float) -> None:
        """As transformers initialises a module whose weights are not loaded."""
        for name, buffer in self.named_buffers():
            (init.ones_ if name == "projection_scale" else init.zeros_)(buffer)

    @property
    def num_parts(self) -> int:
        """P, background included."""
        return len(self.centres)

    def load(self, fitted: Mapping[str, Tensor]) -> None:
        """Copy fitted buffers, by name; the number of parts may change."""
        for name, value in fitted.items():
            setattr(self, name, value.to(self.centres, copy=True))

    @torch.no_grad()
    def forward(self, features: Tensor) -> Tensor:
        """Part ids ``(B, L)`` of patch features ``(B, L, D)`` of the frozen backbone, after the final norm.

        0 is the background, the other parts are in order of decreasing size. Always in float32: a label flips where a
        rounded score crosses a threshold.
        """
        with torch.autocast(features.device.type, enabled=False):
            features = features.float()
            scores = objectness(features, self.object_direction.float(), self.object_range.float())
            masked = features * (scores > OBJECT_THRESHOLD)[..., None]
            points = (masked @ self.projection.float() - self.projection_mean) / self.projection_scale
            return (points[..., None, :] - self.centres.float()).square().sum(-1).argmin(-1)


def objectness(features: Tensor, direction: Tensor, score_range: Tensor) -> Tensor:
    """Score in 0..1 of how much patches ``(..., D)`` belong to the object rather than the background.

    `score_range` ``(2,)`` are the products with `direction` ``(D,)`` that mean 0 and 1; further values are clipped.
    """
    low, high = score_range.unbind()
    tiny = torch.finfo(score_range.dtype).tiny
    return ((features @ direction - low) / (high - low).clamp_min(tiny)).clamp(0, 1)


CANDIDATES: Sequence[int] = range(3, 13)  # numbers of parts that "auto" tries
ENOUGH_PATCHES = 2_000  # to fit on; 8 images of 16 x 16 patches
KMEANS_RESTARTS, KMEANS_ITERATIONS = 20, 100
SMALLEST_SPREAD = 1e-4  # relative; below it float32 features differ by rounding and little else


@torch.no_grad()
def fit_part_labels(
    features: Tensor, grid: tuple[int, int], num_parts: int | Literal["auto"], *, seed: int
) -> dict[str, Tensor]:
    """Find the parts that recur in the patches of a few images.

    The order of the images has no influence. Part 0 is the background; the other parts follow by size.

    Args:
        features: ``(I, L, D)`` patch features of the frozen backbone, row by row, without [CLS] or registers.
        grid: rows and columns of patches; their product is L.
        num_parts: P >= 2, background included, or ``"auto"`` for the member of `CANDIDATES` that maximises the smallest
            distance between centres times the smallest over the largest number of patches of a part.
        seed: of k-means.

    Returns:
        The buffers of a `PartLabeller` by name, on the device and in the dtype of the features.

    Raises:
        DataError: patches that are all equal, or fewer distinct ones than parts.
    """
    numbers = CANDIDATES if num_parts == "auto" else [num_parts]
    is_wide = features.dtype in (torch.float32, torch.float64)
    features = _in_fixed_order(features.detach() if is_wide else features.detach().float())
    values = features.double()
    direction, score_range = _object_direction(values, grid)
    is_object = objectness(values, direction, score_range) > OBJECT_THRESHOLD
    masked = (values * is_object[..., None]).flatten(0, 1)

    projection = _principal_axes(masked, PROJECTION_WIDTH)
    projected = masked @ projection
    mean, scale = projected.mean(0), projected.std(0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    points = (projected - mean) / scale

    num_distinct = len((points / SMALLEST_SPREAD).round().unique(dim=0))
    possible = [number for number in numbers if number <= num_distinct]
    fits = {number: _ordered_parts(points, is_object.flatten(), number, seed) for number in possible}

    def criterion(number: int) -> float:
        """min_{i != j} |k_i - k_j| * min_i |S_i| / max_j |S_j|."""
        centres, sizes = fits[number]
        return float(torch.pdist(centres).min() * sizes.min() / sizes.max())

    chosen = max(fits, key=criterion, default=min(numbers))  # the smallest of equals
    if chosen not in fits:
        raise DataError(
            f"Expected at least {chosen} distinct patches for {chosen} parts, got {num_distinct} (including "
            f"the background) in {len(features)} images: set fewer parts or give more varied images."
        )
    found = {"object_direction": direction, "object_range": score_range, "projection": projection}
    found |= {"projection_mean": mean, "projection_scale": scale, "centres": fits[chosen][0]}
    return {name: value.to(features) for name, value in found.items()}


def sample_for_part_labels(category_ids: Sequence[int], patches_per_image: int, *, seed: int) -> list[int]:
    """Ascending positions of labelled images to fit part labels on: one per category, as in the paper, or a few more.

    Where one per category has fewer than `ENOUGH_PATCHES` patches in total, more are used: with 4 patches per image and
    50 categories ten of each. A category with fewer images gives all of them. Each category has its own draw.
    """
    ids = np.asarray(category_ids)
    categories = np.unique(ids)
    per_category = math.ceil(ENOUGH_PATCHES / (patches_per_image * len(categories)))
    chosen: list[int] = []
    for category in categories:
        members = np.flatnonzero(ids == category)
        draw = numpy_generator("part label images", seed, int(category)).permutation(members)
        chosen.extend(draw[:per_category].tolist())
    return sorted(chosen)


def _in_fixed_order(features: Tensor) -> Tensor:
    """The images sorted by their content, so that sums and draws do not depend on their order."""
    content = features.cpu().numpy()
    order = sorted(range(len(content)), key=lambda index: content[index].tobytes())
    return features[torch.tensor(order, device=features.device)]


def _object_direction(features: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """First principal direction ``(D,)``, pointing to the object, and the range of the scores ``(2,)``.

    The sign of a principal axis is arbitrary. Objects tend to be in the middle, so with the chosen sign the border of
    the grid scores lower on average than its inside. In a grid that is all border, such as 2 x 2, the object is the
    side on which fewer patches pass the threshold.
    """
    direction = _principal_axes(features.flatten(0, 1), 1)[:, 0]
    scores = features @ direction
    low, high = scores.aminmax()
    if high - low <= SMALLEST_SPREAD * scores.abs().max():
        raise DataError(
            f"Expected patches that differ, got {len(features)} images whose patch features are all equal: "
            "object and background cannot be told apart; give other images or use another backbone."
        )
    inner = torch.zeros(grid, dtype=torch.bool, device=features.device)
    inner[1:-1, 1:-1] = True
    inner = inner.flatten()
    if inner.any():
        flip = scores[:, ~inner].mean() > scores[:, inner].mean()
    else:
        margin = (1 - OBJECT_THRESHOLD) * (high - low)
        flip = (scores > high - margin).sum() > (scores < low + margin).sum()
    if flip:
        return -direction, torch.stack([-high, -low])
    return direction, torch.stack([low, high])


def _principal_axes(points: Tensor, count: int) -> Tensor:
    """Axes of largest variance of ``(T, D)``, largest first: unit vectors ``(D, count)``.

    The loading of largest size is positive. An axis without variance is zero, so that rounding is not scaled up.
    """
    centred = points - points.mean(0)
    variances, axes = torch.linalg.eigh(centred.T @ centred)
    variances, axes = variances.flip(0)[:count], axes.flip(1)[:, :count]
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    axes = axes * largest.sign() * (variances > SMALLEST_SPREAD**2 * variances[0])
    return torch.nn.functional.pad(axes, (0, count - axes.shape[1]))


def _ordered_parts(points: Tensor, is_object: Tensor, num_parts: int, seed: int) -> tuple[Tensor, Tensor]:
    """Centres ``(P, 3)`` and sizes ``(P,)`` of k-means: the background, then the other parts, largest first."""
    position = seed_of("part labels", seed, num_parts)
    kmeans = AnchoredKMeans(num_parts, KMEANS_RESTARTS, KMEANS_ITERATIONS, random_state=position)
    labels = kmeans.fit_predict(points)
    centres = kmeans.cluster_centers_
    sizes = torch.bincount(labels, minlength=num_parts)
    background = int(labels[~is_object][0])  # there is a single background patch: the patch of lowest score
    order = sorted(
        range(num_parts), key=lambda part: (part != background, -int(sizes[part]), centres[part].tolist())
    )
    return centres[order], sizes[order]

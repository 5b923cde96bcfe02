"""Pseudo part labels of patches, as part of a model.

They supervise the router of patches. They are computed from frozen features of the same view, so crops and flips need
no bookkeeping.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from transformers import initialization as init

OBJECT_THRESHOLD = 0.6  # of a score in 0..1; the paper does not give the scale of its score
PROJECTION_WIDTH = 3


@dataclass(frozen=True)
class PartLabelParameters:
    """Parameters that turn patch features into part ids. P parts, D width.

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


class PartLabeller(nn.Module):
    """Part ids of patches: objectness mask, projection to three dimensions, nearest centre.

    `promptccd.clustering.fit_part_labels` fits it, never by gradient, so the `PartLabelParameters` are buffers. The
    number of parts sizes the buffers and must stand in the model's configuration. Before `load` every patch is part 0.

    Args:
        num_parts: P, background included.
        width: D.
    """

    object_direction: Tensor
    object_range: Tensor
    projection: Tensor
    projection_mean: Tensor
    projection_scale: Tensor
    centres: Tensor

    def __init__(self, num_parts: int, width: int):
        super().__init__()
        self.register_buffer("object_direction", torch.zeros(width))
        self.register_buffer("object_range", torch.zeros(2))
        self.register_buffer("projection", torch.zeros(width, PROJECTION_WIDTH))
        self.register_buffer("projection_mean", torch.zeros(PROJECTION_WIDTH))
        self.register_buffer("projection_scale", torch.ones(PROJECTION_WIDTH))
        self.register_buffer("centres", torch.zeros(num_parts, PROJECTION_WIDTH))

    def initialise(self, std: float) -> None:
        """As transformers initialises a module whose weights are not loaded."""
        for name, buffer in self.named_buffers():
            (init.ones_ if name == "projection_scale" else init.zeros_)(buffer)

    @property
    def num_parts(self) -> int:
        """P, background included."""
        return len(self.centres)

    def load(self, parameters: PartLabelParameters) -> None:
        """Take the parameters of a fit; the number of parts may change."""
        like = self.centres
        for field in fields(PartLabelParameters):
            value = getattr(parameters, field.name)
            setattr(self, field.name, value.to(device=like.device, dtype=like.dtype).clone())

    @torch.no_grad()
    def forward(self, features: Tensor) -> Tensor:
        """Part ids ``(B, L)`` of patches; 0 is the background, the others are in order of decreasing size.

        Always in float32: a label flips where a rounded score crosses a threshold.

        Args:
            features: ``(B, L, D)`` patch features of the frozen backbone, after the final norm.
        """
        with torch.autocast(features.device.type, enabled=False):
            features = features.float()
            scores = objectness(features, self.object_direction.float(), self.object_range.float())
            masked = features * (scores > OBJECT_THRESHOLD)[..., None]
            points = (masked @ self.projection.float() - self.projection_mean) / self.projection_scale
            return (points[..., None, :] - self.centres.float()).square().sum(-1).argmin(-1)


def objectness(features: Tensor, direction: Tensor, score_range: Tensor) -> Tensor:
    """Score in 0..1 of how much a patch belongs to the object rather than the background.

    Args:
        features: ``(..., D)``.
        direction: ``(D,)``.
        score_range: ``(2,)``, the products that mean 0 and 1; others are clipped.
    """
    low, high = score_range.unbind()
    tiny = torch.finfo(score_range.dtype).tiny
    return ((features @ direction - low) / (high - low).clamp_min(tiny)).clamp(0, 1)

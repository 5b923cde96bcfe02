"""A linear classifier with a bias, which grows with the categories."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from .cosine_classifier import CosineClassifier


class LinearClassifier(CosineClassifier):
    """``logits = sqrt(D) unit(f) . w + b``.

    The networks this was made for read features as they come. What a stage extracts, clusters and stores here are unit
    features, and an answer must not depend on who asks: so lengths are set to sqrt(D), which a layer norm without
    scale and shift gives (ours).

    Args:
        num_classes: K, how many rows; 0 before stage 0.
        width: D, of the features.
    """

    def __init__(self, num_classes: int, width: int):
        super().__init__(num_classes, width)
        self.bias = nn.Parameter(torch.empty(num_classes))

    def initialise(self, std: float) -> None:
        """See the base class."""
        super().initialise(std)
        init.zeros_(self.bias)

    def grow(self, rows: Tensor) -> None:
        """Put further rows ``(n, D)`` below those that are there, with a bias of one less than the lowest there is.

        (The first rows begin with no bias.)
        """
        held = self.bias.detach()
        start = float(held.min()) - 1 if len(held) else 0.0
        grown = torch.cat([held, held.new_full((len(rows),), start)])
        self.bias = nn.Parameter(grown, requires_grad=self.bias.requires_grad)
        super().grow(rows)

    def forward(self, features: Tensor) -> Tensor:
        """Logits ``(..., K)`` of features ``(..., D)`` of any length."""
        return F.linear(F.normalize(features, dim=-1) * features.shape[-1] ** 0.5, self.weight, self.bias)

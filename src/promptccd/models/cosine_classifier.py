"""A classifier whose rows are compared with features by cosine, and which grows with the categories."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init


class CosineClassifier(nn.Module):
    """``logits = unit(f) . unit(w)``: no bias and no scale, so that the largest logit is that of the nearest row.

    Args:
        num_classes: K, how many rows; 0 before stage 0.
        width: D, of the features.
    """

    def __init__(self, num_classes: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, width))

    def initialise(self, std: float) -> None:
        """As transformers initialises a module whose weights are not loaded; what trains it draws its own rows."""
        init.trunc_normal_(self.weight, std=std)

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.weight)

    def grow(self, rows: Tensor) -> None:
        """Put further rows ``(n, D)`` below those that are there, which keep every bit."""
        grown = torch.cat([self.weight.detach(), rows.to(self.weight)])
        self.weight = nn.Parameter(grown, requires_grad=self.weight.requires_grad)

    def forward(self, features: Tensor) -> Tensor:
        """Cosines ``(..., K)`` of features ``(..., D)`` with every row."""
        return F.normalize(features, dim=-1) @ F.normalize(self.weight, dim=-1).T

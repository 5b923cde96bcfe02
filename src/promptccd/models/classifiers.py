"""Classifiers that grow with the categories: by cosine, or linear with a bias."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init


class CosineClassifier(nn.Module):
    """``logits = unit(f) . unit(w)``, without bias and scale: the largest logit is that of the nearest row.

    Args:
        num_classes: K, how many rows; 0 before stage 0.
        width: D, of the features.
    """

    def __init__(self, num_classes: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, width))

    def initialise(self, std: float) -> None:
        """As transformers initialises a module whose weights are not loaded; training sets the rows itself."""
        init.trunc_normal_(self.weight, std=std)

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.weight)

    def grow(self, rows: Tensor) -> None:
        """Append rows ``(n, D)``; the others keep every bit."""
        grown = torch.cat([self.weight.detach(), rows.to(self.weight)])
        self.weight = nn.Parameter(grown, requires_grad=self.weight.requires_grad)

    def forward(self, features: Tensor) -> Tensor:
        """Cosines ``(..., K)`` of features ``(..., D)`` with every row."""
        # mutant without dim= #2, without - #2: features are (B, D)
        return F.normalize(features, dim=-1) @ F.normalize(self.weight, dim=-1).T


class LinearClassifier(CosineClassifier):
    """``logits = sqrt(D) unit(f) . w + b``.

    The original networks read features of any length. Here a stage clusters and stores unit features, and logits must
    not depend on the length: so it is set to sqrt(D), that of a layer norm without scale and shift (ours).
    """

    def __init__(self, num_classes: int, width: int):
        super().__init__(num_classes, width)
        self.bias = nn.Parameter(torch.empty(num_classes))

    def initialise(self, std: float) -> None:
        """See the base class."""
        super().initialise(std)
        init.zeros_(self.bias)

    def grow(self, rows: Tensor) -> None:
        """Append rows ``(n, D)`` with a bias of one less than the lowest so far, or 0 for the first rows."""
        held = self.bias.detach()
        start = float(held.min()) - 1 if len(held) else 0.0
        grown = torch.cat([held, held.new_full((len(rows),), start)])
        self.bias = nn.Parameter(grown, requires_grad=self.bias.requires_grad)
        super().grow(rows)

    def forward(self, features: Tensor) -> Tensor:
        """Logits ``(..., K)`` of features ``(..., D)`` of any length."""
        return F.linear(F.normalize(features, dim=-1) * features.shape[-1] ** 0.5, self.weight, self.bias)

"""Categories that all spread alike, and far more in some directions than in others, as those of a backbone do."""

from collections.abc import Iterable

import torch
from torch import Tensor


class World:
    """Known and new categories around random centres, within a covariance that is far from round.

    Args:
        known: categories with a prototype.
        new: others.
        width: of the features.
        seed: of centres and covariance.
        apart: how far centres lie from each other, against the spread within.
    """

    def __init__(self, known: int, new: int, width: int, seed: int, apart: float = 1.0):
        generator = torch.Generator().manual_seed(seed)
        self.scales = 0.3 * torch.logspace(0, -1.5, width)
        self.turn = torch.linalg.qr(torch.randn(width, width, generator=generator)).Q
        centres = torch.randn(known + new, width, generator=generator)
        # As far apart in every direction as images spread there: the wide ones hide what the narrow ones show.
        self.centres = (1.6 * apart * centres * self.scales) @ self.turn
        self.prototypes = self.centres[:known]

    def draw(self, categories: Iterable[int], images: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """So many images of each category ``(N, D)``, and which category they are of."""
        labels = torch.tensor(list(categories)).repeat_interleave(images)
        generator = torch.Generator().manual_seed(1000 + seed)
        noise = torch.randn(len(labels), self.centres.shape[1], generator=generator)
        return self.centres[labels] + (noise * self.scales) @ self.turn, labels

"""ORCA: a cosine classifier straight on the features, which labelled categories may not learn too fast."""

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init

from .modeling_classifier import ClassifierConfig, HeadlessClassifierModel


@strict
class ORCAConfig(ClassifierConfig):
    """ORCA.

    Attributes:
        logit_scale: what cosines are multiplied by.
        largest_margin: the most that is added to the true class's cosine; the mean uncertainty, where that is less.
    """

    model_type = "orca"

    logit_scale: float = 10.0
    largest_margin: float = 0.5


class ORCAModel(HeadlessClassifierModel):
    """The last block and a cosine classifier; the margin of the epoch is kept for a stage that goes on inside it."""

    config: ORCAConfig
    margin: Tensor

    def add_buffers(self, config: ClassifierConfig) -> None:
        """See the base class."""
        self.register_buffer("margin", torch.zeros(()))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ORCAModel):
            init.zeros_(module.margin)

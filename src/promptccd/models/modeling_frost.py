"""FRoST: RankStats' heads, and where the features of its classes lie and how far they spread."""

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init

from .modeling_classifier import ClassifierConfig, RememberingModel
from .modeling_rankstats import RankStatsConfig, RankStatsModel


@strict
class FrostConfig(RankStatsConfig):
    """FRoST.

    Attributes:
        drawn_per_class: features drawn around every old class's mean for a batch.
        drift_weight: of the distance to the features before.
        num_means: classes whose mean is known; sizes the buffer.
    """

    model_type = "frost"

    pseudo_weight: float = 0.01
    drawn_per_class: int = 2
    drift_weight: float = 10.0
    num_means: int = 0


class FrostModel(RankStatsModel, RememberingModel):
    """The last block, a joint linear head, and what later stages draw features from.

    `class_deviation`, ``(D,)``, is the standard deviation in every direction around the mean of a class, mean over
    the classes.
    """

    config: FrostConfig
    class_deviation: Tensor

    def add_buffers(self, config: ClassifierConfig) -> None:
        """See the base class."""
        super().add_buffers(config)
        self.register_buffer("class_deviation", torch.zeros(config.vision_config.hidden_size))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, FrostModel):
            init.zeros_(module.class_deviation)

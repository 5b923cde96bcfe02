"""Happy: SimGCD's model, which also keeps where its classes lie and how far their features spread."""

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init

from .modeling_classifier import ClassifierModel
from .modeling_simgcd import SelfDistillationConfig


@strict
class HappyConfig(SelfDistillationConfig):
    """Happy.

    Attributes:
        discovery_temperature: of the answer that teaches, at unlabelled stages.
        hardness_temperature: of the soft-max that draws classes which lie near others more often.
        num_means: classes whose mean is known; sizes the buffer.
        class_radius: root of the mean variance, per direction, of features around the mean of their class.
    """

    model_type = "happy"

    entropy_weight: float = 1.0
    discovery_temperature: float = 0.05
    hardness_temperature: float = 0.1
    num_means: int = 0
    class_radius: float = 0.0


class HappyModel(ClassifierModel):
    """The last block, an MLP and a cosine classifier, and the means that later stages draw features around."""

    config: HappyConfig
    class_means: Tensor

    def register_memory(self) -> None:
        """See the base class."""
        width = self.config.vision_config.hidden_size
        self.register_buffer("class_means", torch.zeros(self.config.num_means, width))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, HappyModel):
            init.zeros_(module.class_means)

    def remember(self, means: Tensor) -> None:
        """Keep the unit means ``(n, D)`` of the classes that follow those whose means are known."""
        self.class_means = torch.cat([self.class_means, means.to(self.class_means)])
        self.config.num_means = len(self.class_means)


__all__ = ["HappyConfig", "HappyModel"]

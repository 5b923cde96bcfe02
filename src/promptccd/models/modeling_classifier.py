"""What parametric methods share: a classifier beside the head, which answers by itself, and means of its classes."""

from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init

from .backbones import class_row, run_prefix
from .classifiers import CosineClassifier
from .configuration_promptccd import CategoryDiscoveryConfig
from .modeling_base import CategoryDiscoveryModel, CategoryDiscoveryOutput
from .projection_head import BottleneckHead, UnitHead


@strict
class ClassifierConfig(CategoryDiscoveryConfig):
    """What a model with a classifier stores beside the others.

    Attributes:
        num_classes: K, rows of the classifier; 0 until stage 0 begins.
    """

    num_classes: int = 0


class ClassifierModel(CategoryDiscoveryModel):
    """A model without prompts whose classifier grows from stage to stage.

    Its losses compare the head's bottleneck itself: these methods never train the wide last layer, so it is not there.
    """

    config: ClassifierConfig
    roles: ClassVar = {"classifier": "classifier"}

    def __init__(self, config: ClassifierConfig):
        super().__init__(config)
        self.classifier = self.build_classifier(config)
        self.add_buffers(config)
        self.post_init()
        self.freeze()

    @staticmethod
    def build_classifier(config: ClassifierConfig) -> CosineClassifier:
        """What answers."""
        return CosineClassifier(config.num_classes, config.vision_config.hidden_size)

    def add_buffers(self, config: ClassifierConfig) -> None:
        """Register what is kept beside weights, before those are initialised; nothing here."""

    @staticmethod
    def build_head(config: CategoryDiscoveryConfig) -> UnitHead:
        """See the base class; ``projection_output_size`` is not used."""
        return BottleneckHead(
            config.vision_config.hidden_size,
            config.projection_hidden_size,
            config.projection_bottleneck_size,
        )

    def freeze(self) -> None:
        """Let the last block, the head and the classifier learn."""
        super().freeze()
        self.classifier.requires_grad_(True)

    def grow(self, rows: Tensor) -> None:
        """Further classes, whose rows ``(n, D)`` stand behind those that are there."""
        self.classifier.grow(rows)
        self.config.num_classes = self.classifier.num_classes

    def forward(
        self, pixel_values: Tensor, prompted: bool | None = None, project: bool = False
    ) -> CategoryDiscoveryOutput:
        """Features, and with the projection also the tokens that enter the last block."""
        rotation = self.rotation(pixel_values)
        entering = run_prefix(self.backbone, self.embed(pixel_values), rotation)
        features = class_row(self.backbone, entering, rotation=rotation)
        return self._output_with_tokens(features, project, entering, rotation)

    @torch.no_grad()
    def assign_natively(self, features: Tensor) -> Tensor:
        """The classifier's own answer: row of the largest logit for features ``(N, D)``, ``(N,)``."""
        return self.classifier(features.to(self.classifier.weight)).argmax(-1)


class HeadlessClassifierModel(ClassifierModel):
    """The same for methods whose losses read the classifier and the features alone."""

    @staticmethod
    def build_head(config: CategoryDiscoveryConfig) -> UnitHead:
        """See the base class; no size of a projection is used."""
        return UnitHead()


class RememberingModel(CategoryDiscoveryModel):
    """What a model adds that also keeps where its classes lie.

    Its configuration has ``num_means``, how many are known, which sizes the buffer.
    """

    class_means: Tensor

    def __init__(self, config: Any):
        super().__init__(config)
        self.register_buffer("class_means", torch.zeros(config.num_means, config.vision_config.hidden_size))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RememberingModel):
            init.zeros_(module.class_means)

    def remember(self, means: Tensor) -> None:
        """Keep the means ``(n, D)`` of the classes that follow those whose means are known."""
        self.class_means = torch.cat([self.class_means, means.to(self.class_means)])
        self.config.num_means = len(self.class_means)

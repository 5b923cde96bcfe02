"""What parametric methods share: a classifier beside the head, and means of its classes."""

from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor

from .backbones import class_row, run_prefix
from .classifiers import CosineClassifier
from .configuration_promptccd import CategoryDiscoveryConfig
from .modeling_base import CategoryDiscoveryModel, CategoryDiscoveryOutput
from .projection_head import BottleneckHead, UnitHead
from .untrusted import bounded


@strict
class ClassifierConfig(CategoryDiscoveryConfig):
    """Configuration of a model with a classifier.

    Attributes:
        num_classes: K, rows of the classifier; 0 until stage 0 begins.
    """

    num_classes: int = bounded(0, 0, 1_000_000)


class ClassifierModel(CategoryDiscoveryModel):
    """A model without prompts whose classifier grows from stage to stage.

    Its losses compare the head's bottleneck, so the head has no wide last layer.
    """

    config: ClassifierConfig
    roles: ClassVar = {"classifier": "classifier"}
    head_class: ClassVar[type[UnitHead]] = BottleneckHead
    classifier_class: ClassVar[type[CosineClassifier]] = CosineClassifier

    def __init__(self, config: ClassifierConfig):
        super().__init__(config)
        self.classifier = self.classifier_class(config.num_classes, config.vision_config.hidden_size)
        self.post_init()

    def freeze(self) -> None:
        """Let the last block, the head and the classifier learn."""
        super().freeze()
        self.classifier.requires_grad_(True)

    def grow(self, rows: Tensor) -> None:
        """Append classes with these rows ``(n, D)`` to the classifier."""
        self.classifier.grow(rows)
        self.config.num_classes = self.classifier.num_classes

    def forward(
        self, pixel_values: Tensor, prompted: bool | None = None, project: bool = False
    ) -> CategoryDiscoveryOutput:
        """Features, and with the projection also the tokens that enter the last block."""
        rotation = self.rotation(pixel_values)
        entering = run_prefix(self.backbone, self.embed(pixel_values), rotation)
        features = class_row(self.backbone, entering, rotation=rotation)
        tokens = {"entering": entering, "rotation": rotation} if project else {}
        return self._output(features, project, **tokens)

    @torch.no_grad()
    def assign_natively(self, features: Tensor) -> Tensor:
        """Row ``(N,)`` of the classifier with the largest logit for features ``(N, D)``."""
        return self.classifier(features.to(self.prototypes)).argmax(1)


class HeadlessClassifierModel(ClassifierModel):
    """The same for methods whose losses read only the classifier and the features."""

    head_class: ClassVar = UnitHead


class RememberingModel(CategoryDiscoveryModel):
    """Mixin of a model that also keeps the mean feature of its classes.

    Its configuration has ``num_means``, the number of known means, which sizes the buffer.
    """

    class_means: Tensor

    def __init__(self, config: Any):
        super().__init__(config)
        self.add_buffer("class_means", config.num_means, config.vision_config.hidden_size)

    def remember(self, means: Tensor) -> None:
        """Append the means ``(n, D)`` of the next classes."""
        self.class_means = torch.cat([self.class_means, means.to(self.class_means)])
        self.config.num_means = len(self.class_means)

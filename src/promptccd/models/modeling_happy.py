"""Happy: SimGCD's model, which also keeps where its classes lie and how far their features spread."""

from huggingface_hub.dataclasses import strict

from .modeling_classifier import ClassifierModel, RememberingModel
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


class HappyModel(ClassifierModel, RememberingModel):
    """The last block, an MLP and a cosine classifier, and the unit means that later stages draw features around."""

    config: HappyConfig

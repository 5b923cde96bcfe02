"""Happy: SimGCD's model with mean and spread of the features of its classes."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from .modeling_classifier import ClassifierModel, RememberingModel
from .modeling_simgcd import SelfDistillationConfig
from .untrusted import bounded


@strict
class HappyConfig(SelfDistillationConfig):
    """Happy.

    Attributes:
        discovery_temperature: of the teaching prediction at unlabelled stages.
        discovery_entropy_weight: of the terms that keep predictions even between and within old and new classes.
        clustered_rows: whether new rows of the classifier start at cluster centres far from the old ones, or at random.
        replay_weight: of the cross-entropy of features drawn around the means of old classes.
        hardness_temperature: of the soft-max by which classes near others are drawn more often.
        drift_weight: of the squared distance to the features of the stage before.
        num_means: classes whose mean is known; sizes the buffer.
        class_radius: root of the mean variance, per direction, of features around the mean of their class.
    """

    model_type = "happy"

    entropy_weight: float = bounded(1.0, 0, 1e6)
    discovery_temperature: float = bounded(0.05, 1e-6, 1e6)
    discovery_entropy_weight: float = bounded(1.0, 0, 1e6)
    clustered_rows: bool = True
    replay_weight: float = bounded(1.0, 0, 1e6)
    hardness_temperature: float = bounded(0.1, 1e-6, 1e6)
    drift_weight: float = bounded(1.0, 0, 1e6)
    num_means: int = bounded(0, 0, 1_000_000)
    class_radius: float = bounded(0.0, 0, 1e3)


class HappyModel(ClassifierModel, RememberingModel):
    """The last block, an MLP and a cosine classifier, and the unit means that later stages draw features around."""

    config: HappyConfig
    shares_prefix: ClassVar = True

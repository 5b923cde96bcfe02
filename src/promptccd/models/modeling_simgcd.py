"""SimGCD: a cosine classifier that learns from its own prediction of another view."""

from huggingface_hub.dataclasses import strict

from .modeling_classifier import ClassifierConfig, ClassifierModel
from .untrusted import bounded


@strict
class SelfDistillationConfig(ClassifierConfig):
    """What methods share whose classifier learns from its own prediction of another view.

    Attributes:
        entropy_weight: epsilon, weight of the term that keeps the mean prediction even over all classes.
        student_temperature: of the learning prediction.
        first_teacher_temperature: of the teaching prediction, at the first epoch of a stage.
        teacher_temperature: the same from epoch `teacher_epochs` - 1 on; it falls linearly.
        teacher_epochs: epochs of that fall, both ends included.
    """

    entropy_weight: float = bounded(2.0, 0, 1e6)
    student_temperature: float = bounded(0.1, 1e-6, 1e6)
    first_teacher_temperature: float = bounded(0.07, 1e-6, 1e6)
    teacher_temperature: float = bounded(0.04, 1e-6, 1e6)
    teacher_epochs: int = bounded(30, 1, 1_000_000)


@strict
class SimGCDConfig(SelfDistillationConfig):
    """SimGCD."""

    model_type = "simgcd"


class SimGCDModel(ClassifierModel):
    """The last block, an MLP and a cosine classifier."""

    config: SimGCDConfig

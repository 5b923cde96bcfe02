"""SimGCD: a cosine classifier that learns from its own prediction of another view."""

from huggingface_hub.dataclasses import strict

from .modeling_classifier import ClassifierConfig, ClassifierModel


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

    entropy_weight: float = 2.0
    student_temperature: float = 0.1
    first_teacher_temperature: float = 0.07
    teacher_temperature: float = 0.04
    teacher_epochs: int = 30


@strict
class SimGCDConfig(SelfDistillationConfig):
    """SimGCD."""

    model_type = "simgcd"


class SimGCDModel(ClassifierModel):
    """The last block, an MLP and a cosine classifier."""

    config: SimGCDConfig

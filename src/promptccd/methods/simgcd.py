"""SimGCD under the continual protocol: its classifier grows, and later stages keep its unlabelled terms."""

from huggingface_hub.dataclasses import strict

from promptccd.methods.base import Method
from promptccd.methods.classifier import (
    DISTILLATION_LOSSES,
    ClassifierModel,
    SelfDistillationConfig,
    SelfDistillationObjective,
)


@strict
class SimGCDConfig(SelfDistillationConfig):
    """SimGCD."""

    model_type = "simgcd"


class SimGCDModel(ClassifierModel):
    """The last block, an MLP and a cosine classifier."""

    config: SimGCDConfig


METHOD = Method(
    name="simgcd",
    model=SimGCDModel,
    objective=SelfDistillationObjective,
    title="SimGCD",
    summary="a cosine classifier that learns from its own predictions",
    parts={"classifier": "cosine classifier"},
    losses=DISTILLATION_LOSSES,
    published={"exemplars": "simgcd-replay"},
    predicts_natively=True,
    uses_exemplars=True,
)

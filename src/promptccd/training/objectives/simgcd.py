"""SimGCD under the continual protocol: its classifier grows, and later stages keep its unlabelled terms."""

from promptccd.models.modeling_simgcd import SimGCDModel
from promptccd.training.methods import Method
from promptccd.training.objectives.self_distillation import SelfDistillationObjective

METHOD = Method(
    name="simgcd",
    model=SimGCDModel,
    objective=SelfDistillationObjective,
    title="SimGCD",
    summary="a cosine classifier that learns from its own answers",
    parts={"classifier": "cosine classifier"},
    losses={
        "distillation": "self-distillation",
        "entropy": "unevenness of the mean answer, weighted",
        "classification": "cross-entropy of labels",
    },
    published={"exemplars": "simgcd-replay"},
    answers_natively=True,
    takes_exemplars=True,
)

"""GCD: the same model, head and losses without prompts; the baseline every prompt is held against."""

from promptccd.models import GCDModel
from promptccd.training.methods import Method
from promptccd.training.objectives.contrastive import ContrastiveObjective

METHOD = Method(
    name="promptccd-gcd",
    model=GCDModel,
    objective=ContrastiveObjective,
    title="GCD",
    summary="the baseline without prompts",
    published={"exemplars": "gcd-replay"},
    takes_exemplars=True,
)

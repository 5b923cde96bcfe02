"""PromptCCD-B: a fixed pool of learnt prompts."""

from promptccd.models import PromptCCDBModel
from promptccd.training.methods import Method
from promptccd.training.objectives.contrastive import ContrastiveObjective

METHOD = Method(
    name="promptccd-b",
    model=PromptCCDBModel,
    objective=ContrastiveObjective,
    title="PromptCCD-B",
    summary="prompted from a fixed pool that is learnt",
    parts={"pool": "prompt pool"},
    losses={"cos": "distance of queries to chosen keys"},
    published={"l2p": "promptccd-b-l2p", "dualprompt": "promptccd-b-dp"},
)

"""PromptCCD++: part-level prompt pools; its terms are the model's, for they read what prompts every patch."""

from promptccd.models import PromptCCDPlusPlusModel
from promptccd.training.methods import Method
from promptccd.training.objectives.contrastive import ContrastiveObjective

METHOD = Method(
    name="promptccd-pp",
    model=PromptCCDPlusPlusModel,
    objective=ContrastiveObjective,
    title="PromptCCD++",
    summary="prompted patch by patch, from a pool for every object part",
    parts={"pools": "part pools", "router": "part router"},
    losses={
        "cos": "distance of patches to chosen keys",
        "route": "cross-entropy of part labels",
        "distill": "distance to the teacher's embeddings",
        "anchor": "divergence from the teacher's shares of parts",
    },
)

"""GCD: the same model, head and losses without prompts; the baseline of every prompt."""

from huggingface_hub.dataclasses import strict

from promptccd.methods.base import Method
from promptccd.models.base import CategoryDiscoveryModel
from promptccd.models.configuration import CategoryDiscoveryConfig


@strict
class GCDConfig(CategoryDiscoveryConfig):
    """Generalized category discovery: the same model without prompts."""

    model_type = "promptccd-gcd"


class GCDModel(CategoryDiscoveryModel):
    """Generalized category discovery under the continual protocol: the baseline of every prompt."""

    config: GCDConfig

    def __init__(self, config: GCDConfig):
        super().__init__(config)
        self.post_init()


METHOD = Method(
    name="promptccd-gcd",
    model=GCDModel,
    title="GCD",
    summary="the baseline without prompts",
    published={"exemplars": "gcd-replay"},
    uses_exemplars=True,
)

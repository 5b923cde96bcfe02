"""GCD: the model without prompts."""

from .configuration_promptccd import GCDConfig
from .modeling_base import CategoryDiscoveryModel


class GCDModel(CategoryDiscoveryModel):
    """Generalized category discovery under the continual protocol: the baseline of every prompt."""

    config: GCDConfig

    def __init__(self, config: GCDConfig):
        super().__init__(config)
        self.post_init()

"""GCD: the same model, head and losses without prompts."""

from .configuration_promptccd import GCDConfig
from .modeling_base import CategoryDiscoveryModel


class GCDModel(CategoryDiscoveryModel):
    """Generalized category discovery under the continual protocol: the baseline every prompt is held against."""

    config: GCDConfig

    def __init__(self, config: GCDConfig):
        super().__init__(config)
        self.post_init()
        self.freeze()

"""What is saved and loaded. These files import only each other and third parties."""

from .configuration_promptccd import (
    CategoryDiscoveryConfig,
    GCDConfig,
    PromptCCDBConfig,
    PromptCCDConfig,
    PromptCCDPlusPlusConfig,
)
from .modeling_base import Assignment, CategoryDiscoveryModel, CategoryDiscoveryOutput
from .modeling_gcd import GCDModel
from .modeling_promptccd import PromptCCDModel
from .modeling_promptccd_b import PromptCCDBModel
from .modeling_promptccd_pp import PromptCCDPlusPlusModel

# Every variant by the name that its configuration, its recipes and its checkpoints call it.
VARIANTS: dict[str, type[CategoryDiscoveryModel]] = {
    model.config_class.model_type: model
    for model in (PromptCCDModel, GCDModel, PromptCCDBModel, PromptCCDPlusPlusModel)
}

__all__ = [
    "VARIANTS",
    "Assignment",
    "CategoryDiscoveryConfig",
    "CategoryDiscoveryModel",
    "CategoryDiscoveryOutput",
    "GCDConfig",
    "GCDModel",
    "PromptCCDBConfig",
    "PromptCCDBModel",
    "PromptCCDConfig",
    "PromptCCDModel",
    "PromptCCDPlusPlusConfig",
    "PromptCCDPlusPlusModel",
]

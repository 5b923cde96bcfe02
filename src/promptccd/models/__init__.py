"""What is saved and loaded. These files import only each other and third parties."""

from .assignment import Assignment, CategorySpread
from .configuration_promptccd import (
    CategoryDiscoveryConfig,
    GCDConfig,
    PromptCCDBConfig,
    PromptCCDConfig,
    PromptCCDPlusPlusConfig,
)
from .modeling_base import CategoryDiscoveryModel, CategoryDiscoveryOutput, Replay
from .modeling_gcd import GCDModel
from .modeling_promptccd import PromptCCDModel
from .modeling_promptccd_b import PromptCCDBModel
from .modeling_promptccd_pp import PromptCCDPlusPlusModel
from .untrusted import CheckpointError
from .variants import VARIANTS, backbone_configuration, register_variant, stored_configuration, stored_model
from .weights import MAX_MODEL_BYTES

__all__ = [
    "MAX_MODEL_BYTES",
    "VARIANTS",
    "Assignment",
    "CategoryDiscoveryConfig",
    "CategoryDiscoveryModel",
    "CategoryDiscoveryOutput",
    "CategorySpread",
    "CheckpointError",
    "GCDConfig",
    "GCDModel",
    "PromptCCDBConfig",
    "PromptCCDBModel",
    "PromptCCDConfig",
    "PromptCCDModel",
    "PromptCCDPlusPlusConfig",
    "PromptCCDPlusPlusModel",
    "Replay",
    "backbone_configuration",
    "register_variant",
    "stored_configuration",
    "stored_model",
]

"""What is saved and loaded. These files import only each other and third parties."""

from .configuration_promptccd import CategoryDiscoveryConfig, GCDConfig, PromptCCDConfig
from .modeling_base import Assignment, CategoryDiscoveryModel, CategoryDiscoveryOutput
from .modeling_gcd import GCDModel
from .modeling_promptccd import PromptCCDModel

__all__ = [
    "Assignment",
    "CategoryDiscoveryConfig",
    "CategoryDiscoveryModel",
    "CategoryDiscoveryOutput",
    "GCDConfig",
    "GCDModel",
    "PromptCCDConfig",
    "PromptCCDModel",
]

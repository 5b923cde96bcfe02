"""What is saved and loaded. These files import only each other and third parties."""

from .configuration_promptccd import (
    CategoryDiscoveryConfig,
    FixedPoolConfig,
    GCDConfig,
    PromptCCDConfig,
    PromptCCDPPConfig,
)
from .modeling_base import Assignment, CategoryDiscoveryModel, CategoryDiscoveryOutput
from .modeling_gcd import GCDModel
from .modeling_promptccd import PromptCCDModel
from .modeling_promptccd_b import FixedPoolModel
from .modeling_promptccd_pp import PromptCCDPPModel

__all__ = [
    "Assignment",
    "CategoryDiscoveryConfig",
    "CategoryDiscoveryModel",
    "CategoryDiscoveryOutput",
    "FixedPoolConfig",
    "FixedPoolModel",
    "GCDConfig",
    "GCDModel",
    "PromptCCDConfig",
    "PromptCCDModel",
    "PromptCCDPPConfig",
    "PromptCCDPPModel",
]

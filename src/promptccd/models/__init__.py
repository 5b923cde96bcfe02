"""What is saved and loaded. These files import only each other and third parties."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.models.assignment import Assignment, CategorySpread
    from promptccd.models.configuration_promptccd import (
        CategoryDiscoveryConfig,
        GCDConfig,
        PromptCCDBConfig,
        PromptCCDConfig,
        PromptCCDPlusPlusConfig,
    )
    from promptccd.models.modeling_base import CategoryDiscoveryModel, CategoryDiscoveryOutput, Replay
    from promptccd.models.modeling_gcd import GCDModel
    from promptccd.models.modeling_promptccd import PromptCCDModel
    from promptccd.models.modeling_promptccd_b import PromptCCDBModel
    from promptccd.models.modeling_promptccd_pp import PromptCCDPlusPlusModel
    from promptccd.models.untrusted import CheckpointError
    from promptccd.models.variants import (
        VARIANTS,
        backbone_configuration,
        register_variant,
        stored_configuration,
        stored_model,
    )
    from promptccd.models.weights import MAX_MODEL_BYTES

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

give_names_on_demand(__name__)

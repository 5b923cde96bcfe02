"""What is saved and loaded. These files import only each other and third parties."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.errors import CheckpointError as CheckpointError
    from promptccd.models.assignment import Assignment as Assignment
    from promptccd.models.assignment import CategorySpread as CategorySpread
    from promptccd.models.configuration_promptccd import CategoryDiscoveryConfig as CategoryDiscoveryConfig
    from promptccd.models.configuration_promptccd import GCDConfig as GCDConfig
    from promptccd.models.configuration_promptccd import PromptCCDBConfig as PromptCCDBConfig
    from promptccd.models.configuration_promptccd import PromptCCDConfig as PromptCCDConfig
    from promptccd.models.configuration_promptccd import PromptCCDPlusPlusConfig as PromptCCDPlusPlusConfig
    from promptccd.models.modeling_base import CategoryDiscoveryModel as CategoryDiscoveryModel
    from promptccd.models.modeling_base import CategoryDiscoveryOutput as CategoryDiscoveryOutput
    from promptccd.models.modeling_base import Replay as Replay
    from promptccd.models.modeling_gcd import GCDModel as GCDModel
    from promptccd.models.modeling_promptccd import PromptCCDModel as PromptCCDModel
    from promptccd.models.modeling_promptccd_b import PromptCCDBModel as PromptCCDBModel
    from promptccd.models.modeling_promptccd_pp import PromptCCDPlusPlusModel as PromptCCDPlusPlusModel
    from promptccd.models.variants import VARIANTS as VARIANTS
    from promptccd.models.variants import backbone_configuration as backbone_configuration
    from promptccd.models.variants import register_variant as register_variant
    from promptccd.models.variants import stored_configuration as stored_configuration
    from promptccd.models.variants import stored_model as stored_model
    from promptccd.models.weights import MAX_MODEL_BYTES as MAX_MODEL_BYTES

give_names_on_demand(__name__)

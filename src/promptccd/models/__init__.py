"""The base of every model that is saved and loaded, without a method's own."""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand

if TYPE_CHECKING:
    from promptccd.errors import CheckpointError as CheckpointError
    from promptccd.models.assignment import Assignment as Assignment
    from promptccd.models.assignment import CategorySpread as CategorySpread
    from promptccd.models.base import VARIANTS as VARIANTS
    from promptccd.models.base import CategoryDiscoveryModel as CategoryDiscoveryModel
    from promptccd.models.base import CategoryDiscoveryOutput as CategoryDiscoveryOutput
    from promptccd.models.base import Replay as Replay
    from promptccd.models.base import backbone_configuration as backbone_configuration
    from promptccd.models.base import load_configuration as load_configuration
    from promptccd.models.base import load_model as load_model
    from promptccd.models.base import register_variant as register_variant
    from promptccd.models.checkpoint import MAX_MODEL_BYTES as MAX_MODEL_BYTES
    from promptccd.models.configuration import CategoryDiscoveryConfig as CategoryDiscoveryConfig

give_names_on_demand(__name__)

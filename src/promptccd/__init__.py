"""Continual category discovery with prompt pools over DINOv2.

Names are imported when they are first used. ``import promptccd.pipeline`` registers the models and the pipeline with
transformers.
"""

from typing import TYPE_CHECKING

from promptccd.on_demand import give_names_on_demand
from promptccd.version import __version__ as __version__

if TYPE_CHECKING:
    from promptccd.methods.gcd import GCDConfig as GCDConfig
    from promptccd.methods.gcd import GCDModel as GCDModel
    from promptccd.methods.promptccd import PromptCCDConfig as PromptCCDConfig
    from promptccd.methods.promptccd import PromptCCDModel as PromptCCDModel
    from promptccd.methods.promptccd_b import PromptCCDBConfig as PromptCCDBConfig
    from promptccd.methods.promptccd_b import PromptCCDBModel as PromptCCDBModel
    from promptccd.methods.promptccd_pp import PromptCCDPlusPlusConfig as PromptCCDPlusPlusConfig
    from promptccd.methods.promptccd_pp import PromptCCDPlusPlusModel as PromptCCDPlusPlusModel
    from promptccd.pipeline import CategoryDiscoveryPipeline as CategoryDiscoveryPipeline
    from promptccd.trainer import CategoryDiscoveryTrainer as CategoryDiscoveryTrainer
    from promptccd.training.options import TrainingArguments as TrainingArguments
    from promptccd.training.progress import CategoryDiscoveryCallback as CategoryDiscoveryCallback

give_names_on_demand(__name__)

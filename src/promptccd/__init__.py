"""Continual category discovery with prompt pools over DINOv2.

Importing it costs next to nothing: names are imported when they are asked for, and the models make themselves known to
transformers' auto classes and pipelines as soon as those are there.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from promptccd.on_demand import after_import, give_names_on_demand
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
    from promptccd.training.callbacks import CategoryDiscoveryCallback as CategoryDiscoveryCallback
    from promptccd.training.options import TrainingArguments as TrainingArguments

give_names_on_demand(__name__)
# Whoever has an auto class has this module; importing the pipeline registers it and every model.
after_import("transformers.models.auto.configuration_auto", lambda: import_module("promptccd.pipeline"))

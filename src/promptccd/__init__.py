"""Continual category discovery with prompt pools over DINOv2.

Importing it costs next to nothing: names are imported when they are asked for, and the models make themselves known to
transformers' auto classes and pipelines as soon as those are there.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from promptccd.on_demand import after_import, give_names_on_demand

if TYPE_CHECKING:
    from promptccd.models import (
        GCDConfig,
        GCDModel,
        PromptCCDBConfig,
        PromptCCDBModel,
        PromptCCDConfig,
        PromptCCDModel,
        PromptCCDPlusPlusConfig,
        PromptCCDPlusPlusModel,
    )
    from promptccd.pipeline import CategoryDiscoveryPipeline
    from promptccd.trainer import CategoryDiscoveryTrainer
    from promptccd.training.arguments import TrainingArguments
    from promptccd.training.callbacks import CategoryDiscoveryCallback

__version__ = "0.1.0"
__all__ = [
    "CategoryDiscoveryCallback",
    "CategoryDiscoveryPipeline",
    "CategoryDiscoveryTrainer",
    "GCDConfig",
    "GCDModel",
    "PromptCCDBConfig",
    "PromptCCDBModel",
    "PromptCCDConfig",
    "PromptCCDModel",
    "PromptCCDPlusPlusConfig",
    "PromptCCDPlusPlusModel",
    "TrainingArguments",
    "__version__",
]

give_names_on_demand(__name__)
# Whoever has an auto class has this module; importing the pipeline registers it and every model.
after_import("transformers.models.auto.configuration_auto", lambda: import_module("promptccd.pipeline"))

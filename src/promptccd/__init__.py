"""Continual category discovery with prompt pools over DINOv2."""

from transformers import AutoConfig, AutoModel

from promptccd.models import (
    VARIANTS,
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

for _name, _model in VARIANTS.items():
    AutoConfig.register(_name, _model.config_class, exist_ok=True)
    AutoModel.register(_model.config_class, _model, exist_ok=True)
    # The flat files of models/ travel with every checkpoint, for machines that do not have this package.
    _model.config_class.register_for_auto_class()
    _model.register_for_auto_class("AutoModel")

__version__ = "0.1.0"
__all__ = [
    "CategoryDiscoveryPipeline",
    "GCDConfig",
    "GCDModel",
    "PromptCCDBConfig",
    "PromptCCDBModel",
    "PromptCCDConfig",
    "PromptCCDModel",
    "PromptCCDPlusPlusConfig",
    "PromptCCDPlusPlusModel",
    "__version__",
]

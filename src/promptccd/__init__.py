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

for _name, _model in VARIANTS.items():
    AutoConfig.register(_name, _model.config_class, exist_ok=True)
    AutoModel.register(_model.config_class, _model, exist_ok=True)

__version__ = "0.1.0"
__all__ = [
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

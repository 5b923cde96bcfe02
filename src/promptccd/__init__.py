"""Continual category discovery with prompt pools over DINOv2."""

from transformers import AutoConfig, AutoModel

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

for _config, _model in (
    (PromptCCDConfig, PromptCCDModel),
    (GCDConfig, GCDModel),
    (PromptCCDBConfig, PromptCCDBModel),
    (PromptCCDPlusPlusConfig, PromptCCDPlusPlusModel),
):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _model, exist_ok=True)

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

"""Continual category discovery with prompt pools over DINOv2."""

from transformers import AutoConfig, AutoModel

from promptccd.models import (
    FixedPoolConfig,
    FixedPoolModel,
    GCDConfig,
    GCDModel,
    PromptCCDConfig,
    PromptCCDModel,
    PromptCCDPPConfig,
    PromptCCDPPModel,
)

for _config, _model in (
    (PromptCCDConfig, PromptCCDModel),
    (GCDConfig, GCDModel),
    (FixedPoolConfig, FixedPoolModel),
    (PromptCCDPPConfig, PromptCCDPPModel),
):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _model, exist_ok=True)

__version__ = "0.1.0"
__all__ = [
    "FixedPoolConfig",
    "FixedPoolModel",
    "GCDConfig",
    "GCDModel",
    "PromptCCDConfig",
    "PromptCCDModel",
    "PromptCCDPPConfig",
    "PromptCCDPPModel",
    "__version__",
]

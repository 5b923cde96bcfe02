"""Continual category discovery with prompt pools over DINOv2."""

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

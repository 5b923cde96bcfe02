"""Low-rank adapters (LoRA) of peft, which learn in place of the last block: beside every product of the blocks.

They are there while a stage trains, and become part of the weights when it ends: what is saved needs no peft. A next
stage begins with new ones. Each starts as a product of zero, so that a stage starts with the model before it.
"""

import math
import re
from typing import Any

import torch
from torch import nn

from promptccd.errors import ConfigurationError
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.backbones import blocks_of

INSTALL = "pip install 'promptccd[peft]'"


class Adapters:
    """Adapters in the blocks of a model, of which only they learn from then on; its other parts learn as before.

    Models that `shares_prefix` have them in the block that learns otherwise, all others in every block.

    Args:
        model: on any device.
        rank: of their products; they are scaled by 1.
        generator: of the CPU, that draws their first factors; the second ones are zero.

    Raises:
        ConfigurationError: peft is not installed.
    """

    def __init__(self, model: CategoryDiscoveryModel, rank: int, generator: torch.Generator | None = None):
        try:
            import peft
        except ImportError as error:
            raise ConfigurationError(
                f"lora_rank {rank} takes peft, which is not installed: {INSTALL}, or leave it out."
            ) from error
        blocks = [model.acting_block] if model.shares_prefix else [*blocks_of(model.backbone)]
        inside = {id(part) for block in blocks for part in (*block.modules(), *block.parameters())}
        products = [
            name for name, part in model.named_modules() if id(part) in inside and isinstance(part, nn.Linear)
        ]
        others = [each for each in model.parameters() if each.requires_grad and id(each) not in inside]
        options = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules="|".join(map(re.escape, products)))
        self._tuner: Any = peft.LoraModel(
            model, {"default": options}, "default", low_cpu_mem_usage=model.device.type == "meta"
        )
        for each in others:  # which peft has frozen
            each.requires_grad_(True)
        if generator is not None:
            for name, factor in model.named_parameters():
                if ".lora_A." in name:  # as peft draws them
                    drawn = nn.init.kaiming_uniform_(
                        torch.empty(factor.shape), math.sqrt(5), generator=generator
                    )
                    factor.data.copy_(drawn)

    def merge(self) -> None:
        """Add their products to the weights and take them away; the model learns as without them again."""
        model: CategoryDiscoveryModel = self._tuner.merge_and_unload()
        model.freeze()

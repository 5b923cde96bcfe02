"""Low-rank adapters (LoRA) of peft, which learn in place of the last block: beside every product of the blocks.

They are there while a stage trains, and become part of the weights when it ends: what is saved needs no peft. A next
stage begins with new ones. Each starts as a product of zero, so that a stage starts with the model before it.

Beside its weights, a stage keeps what those of all stages so far added to the backbone, as one adapter of peft's.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from promptccd.errors import CheckpointError, ConfigurationError
from promptccd.models import CategoryDiscoveryModel
from promptccd.models.backbones import blocks_of
from promptccd.models.weights import stored_weights
from promptccd.storage import write_json

INSTALL = "pip install 'promptccd[peft]'"
ADAPTER = "adapter"  # folder of a stage
_FACTORS = "adapter_model"  # how peft calls its file
_PLACE = "base_model.model."  # and the model inside of its own


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

    def merge(self) -> dict[str, Tensor]:
        """Add their products to the weights and take them away; the model learns as without them again.

        Returns:
            The factors of those in the backbone, by the names that peft saves them under for the backbone alone.
        """
        start = f"{CategoryDiscoveryModel.base_model_prefix}."
        factors = {
            f"{_PLACE}{name.removeprefix(start).replace('.default.', '.')}": factor.detach().cpu()
            for name, factor in self._tuner.model.named_parameters()
            if name.startswith(start) and ".lora_" in name
        }
        model: CategoryDiscoveryModel = self._tuner.merge_and_unload()
        model.freeze()
        return factors


@dataclass(frozen=True, eq=False)
class StageAdapter:
    """What makes a stage's backbone of the plain one that its run started from, as peft loads it.

    Attributes:
        plain: repository of the plain backbone; `None` if none is known.
        factors: by their names in peft's file. A stage adds its rank to that of the stages before it: the product of
            factors that stand side by side is the sum of their products.
    """

    plain: str | None
    factors: Mapping[str, Tensor]

    @classmethod
    def after(cls, stage: Path | None, learnt: Mapping[str, Tensor], plain: str | None) -> "StageAdapter":
        """That of a stage by what it learnt, see `Adapters.merge`, and by that of the one before, a stranger's perhaps.

        Raises:
            OSError: the stage before has none.
            CheckpointError: its is not of the same products.
        """
        if stage is None:
            return cls(plain, learnt)
        if not (stage / ADAPTER).exists():
            raise FileNotFoundError(f"{stage.name} has none: adapters alone did not train it.")
        with stored_weights(str(stage / ADAPTER), stem=_FACTORS) as (slices, _):
            before = {name: part[...] for name, part in slices.items()}
        other = CheckpointError(f"That of {stage.name} is not of the products that learn here.")
        try:
            ranks = {each.shape[_side(name)] for name, each in before.items()}
            joined = {name: torch.cat([before[name], each], _side(name)) for name, each in learnt.items()}
        except (IndexError, KeyError, RuntimeError) as error:
            raise other from error
        if len(ranks) > 1 or (joined and before.keys() != joined.keys()):
            raise other
        return cls(plain, joined or before)  # beside a branch that learns, the backbone rests

    def save(self, stage: Path) -> None:
        """Write it into a stage's folder."""
        (stage / ADAPTER).mkdir()
        firsts = sorted(name for name in self.factors if ".lora_A." in name)
        products = [name.removeprefix(_PLACE).removesuffix(".lora_A.weight") for name in firsts]
        rank = next(each.shape[_side(name)] for name, each in self.factors.items())
        values = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": products}
        values |= {"base_model_name_or_path": self.plain, "inference_mode": True}
        write_json(stage / ADAPTER / "adapter_config.json", values)
        save_file({**self.factors}, stage / ADAPTER / f"{_FACTORS}.safetensors", {"format": "pt"})


def _side(name: str) -> int:
    """Which side of a factor is as long as the rank."""
    return int(".lora_B." in name)

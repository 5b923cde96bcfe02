"""Pools of learnt prompts: how prompts are chosen by key, and the two ways they enter a backbone.

Letters: B images, M prompts, P chosen ones, S tokens per prompt, D width.
"""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .backbones import (
    Rotation,
    blocks_of,
    class_token,
    final_norm,
    recomputed,
    run_block,
    run_block_class_row,
)
from .configuration_promptccd import PromptCCDBConfig
from .prompt_places import insert_prompts


@dataclass(frozen=True)
class Selection:
    """Prompts chosen for queries, best first.

    Attributes:
        indices: ``(..., k)`` int64.
        cosines: ``(..., k)``, between the query and the chosen keys; gradients reach the keys alone.
    """

    indices: Tensor
    cosines: Tensor


def arbitrary_scores(features: Tensor, count: int) -> Tensor:
    """Random scores of `count` choices: ``(..., D)`` to ``(..., count)``.

    The ablation "random-k" draws prompts at random. These scores are a hash of the feature, so the same view always
    gets the same prompts: in training, when a run is resumed, and when a checkpoint predicts.
    """
    with torch.autocast(features.device.type, enabled=False):
        # mutant * to /, 10000.0 to 20000.0: as arbitrary, and as much a function of the image alone
        return torch.sin(1e4 * (features.float() @ _directions(features.shape[-1], count, features.device)))


@cache
def _directions(width: int, count: int, device: torch.device) -> Tensor:
    # mutant: a new generator has one fixed seed too: other directions, as arbitrary as these
    generator = torch.Generator().manual_seed(count)
    return torch.randn(width, count, generator=generator).to(device)


class Pool(nn.Module):
    """Prompts with keys; a subclass adds the prompts.

    Args:
        config: with ``prompt_reach`` and ``key_reach``.
        keys: shape of the keys, ``(M, D)``, or ``(P, M, D)`` of P pools.
        top_k: prompts per query.
    """

    def __init__(self, config: Any, keys: tuple[int, ...], top_k: int):
        super().__init__()
        self.top_k = top_k
        self.reach, self.key_reach = config.prompt_reach, config.key_reach
        self.keys = nn.Parameter(torch.empty(keys))

    def cosines(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Unit queries ``(..., D)`` and their cosines ``(..., M)`` with all keys."""
        # Not in mixed precision: keys grow alike, and bfloat16 cannot rank them.
        with torch.autocast(query.device.type, enabled=False):
            unit = F.normalize(query.float(), dim=-1)
            return unit, unit @ F.normalize(self.keys.float(), dim=-1).flatten(0, -2).T

    def initialise(self, std: float) -> None:
        """As transformers initialises a module whose weights are not loaded."""
        for parameter in self.parameters():
            reach = self.key_reach if parameter is self.keys else self.reach
            init.uniform_(parameter, -reach, reach)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw keys and prompts anew.

        L2P and DualPrompt draw both in -1..1. PromptCCD++ gives no first values and gets the same ones: prompts that
        start much smaller never grow, and move no feature.
        """
        for parameter in self.parameters():
            reach = self.key_reach if parameter is self.keys else self.reach
            drawn = torch.empty(parameter.shape).uniform_(-reach, reach, generator=generator)
            parameter.data.copy_(drawn)


class PromptPool(Pool):
    """A pool whose prompts are chosen per image; a subclass says how they enter a backbone."""

    def __init__(self, config: PromptCCDBConfig):
        super().__init__(
            config, (config.pool_size, config.vision_config.hidden_size), config.prompts_per_image
        )

    def forward(self, query: Tensor, arbitrary: bool = False) -> tuple[Any, Selection]:
        """The prompts that suit queries ``(B, D)``, as `enter` takes them, and which they are (`select`)."""
        selection = self.select(query, arbitrary)
        return self.gather(selection.indices), selection

    def gather(self, indices: Tensor) -> Any:
        """The chosen prompts ``(B, P)``, as `enter` takes them."""
        raise NotImplementedError

    @staticmethod
    def enter(backbone: PreTrainedModel, tokens: Tensor, prompts: Any, rotation: Rotation | None) -> Tensor:
        """[CLS] features ``(B, D)`` of tokens entering block 0 with gathered prompts."""
        raise NotImplementedError

    def select(self, query: Tensor, arbitrary: bool = False) -> Selection:
        """The P prompts whose keys are most alike to each query, ``(B, D)``, or arbitrary ones.

        (The released code takes the majority of a batch on most data sets, so that a feature depends on the other
        images of the batch.)
        """
        unit, cosines = self.cosines(query)
        ranked_by = arbitrary_scores(unit, len(self.keys)) if arbitrary else cosines
        best = ranked_by.topk(self.top_k).indices
        return Selection(best, cosines.gather(1, best))


class L2PPool(PromptPool):
    """Learning to prompt (L2P): prompts are tokens behind [CLS]; 46,080 parameters at the paper's sizes."""

    def __init__(self, config: PromptCCDBConfig):
        super().__init__(config)
        size, width = self.keys.shape
        self.prompts = nn.Parameter(torch.empty(size, config.prompt_length, width))

    def gather(self, indices: Tensor) -> Tensor:
        """Tokens ``(B, P * S, D)``."""
        return self.prompts[indices].flatten(1, 2)

    @staticmethod
    def enter(
        backbone: PreTrainedModel, tokens: Tensor, prompts: Tensor, rotation: Rotation | None
    ) -> Tensor:
        """See the base class."""
        return class_token(backbone, insert_prompts(backbone, tokens, prompts), rotation)


class DualPromptPool(PromptPool):
    """DualPrompt: prompts are keys and values of attention (prefix tuning); 253,440 parameters at ViT-B.

    The first two blocks get one general prompt, the next three the expert prompts chosen for the image, of which
    half are keys and half are values of the block's attention; queries are unchanged. (The port that the released
    code builds on mixes these axes up in a reshape, and at later stages trains nothing at all: neither is kept.)
    A backbone of fewer blocks gets what fits.
    """

    def __init__(self, config: PromptCCDBConfig):
        super().__init__(config)
        depth, length = config.vision_config.num_hidden_layers, config.prompt_length
        size, width = self.keys.shape
        self.first_expert = min(2, depth - 1)
        num_experts = min(3, depth - self.first_expert)
        self.general = nn.Parameter(torch.empty(self.first_expert, 2, length, width))
        self.experts = nn.Parameter(torch.empty(num_experts, 2, size, length, width))

    def gather(self, indices: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values ``(B, ., D)`` that the attention of the first blocks gets in addition, block by block."""
        images = indices.shape[0]  # not len(), which an exported model would keep for good
        general = [pair.unsqueeze(1).expand(-1, images, -1, -1) for pair in self.general]
        experts = [pair[:, indices].flatten(2, 3) for pair in self.experts]
        return [(key, value) for key, value in (*general, *experts)]

    @staticmethod
    def enter(
        backbone: PreTrainedModel,
        tokens: Tensor,
        prompts: list[tuple[Tensor, Tensor]],
        rotation: Rotation | None,
    ) -> Tensor:
        """See the base class."""
        *before, last = blocks_of(backbone)
        prefixes = dict(enumerate(prompts))
        for number, block in enumerate(before):
            tokens = recomputed(block, partial(run_block, block), tokens, prefixes.get(number), rotation)
        row = run_block_class_row(last, tokens, prefixes.get(len(before)), rotation)
        return final_norm(backbone)(row)


POOLS = {"l2p": L2PPool, "dualprompt": DualPromptPool}

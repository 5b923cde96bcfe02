"""PromptCCD-B: a fixed pool of learnt prompts, L2P or DualPrompt, chosen by the pretrained [CLS].

Letters: B images, M prompts, P chosen prompts, S tokens per prompt, D width.
"""

from typing import ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from promptccd.methods.base import Method
from promptccd.methods.prompts import Pool
from promptccd.models.backbone import (
    Prefix,
    Rotation,
    blocks_of,
    class_row,
    insert_prompts,
    open_attention,
    run_prefix,
)
from promptccd.models.base import CategoryDiscoveryModel, CategoryDiscoveryOutput
from promptccd.models.configuration import CategoryDiscoveryConfig, bounded


@strict
class PromptCCDBConfig(CategoryDiscoveryConfig):
    """PromptCCD-B: a fixed pool of learnt prompts, chosen per image by key.

    Attributes:
        pool: how prompts enter: ``"l2p"``, as tokens behind [CLS], or ``"dualprompt"``, as keys and values of the
            attention of the first blocks.
        pool_size: M, number of prompts that are chosen from.
        prompt_length: tokens of one prompt.
        prompts_per_image: how many prompts an image gets (top-k).
        random_prompts: take arbitrary prompts instead (an ablation).
        prompt_reach: first values of prompts and keys are uniform in -prompt_reach..prompt_reach.
    """

    model_type = "promptccd-b"

    pool: Literal["l2p", "dualprompt"] = "l2p"
    pool_size: int = bounded(10, 1, 65_536)
    prompt_length: int = bounded(5, 1, 4_096)
    prompts_per_image: int = bounded(5, 1, 65_536)
    random_prompts: bool = False
    prompt_reach: float = bounded(1.0, 0, 1e3)

    def validate_pool(self) -> None:
        """Refuse more prompts per image than the pool has."""
        if (given := self.prompts_per_image) > self.pool_size:
            raise ValueError(f"Expected prompts_per_image <= pool_size ({self.pool_size}), got {given}.")


# Weight of the term that pulls chosen keys towards the query, as in the released configurations; the paper's equation
# has 1.
COS_WEIGHT = 0.1


class L2PPool(Pool):
    """Learning to prompt (L2P): prompts are tokens behind [CLS]; 46,080 parameters at the paper's sizes."""

    num_prefixed = 0  # blocks whose attention receives keys and values

    def __init__(self, config: PromptCCDBConfig):
        size, width = config.pool_size, config.vision_config.hidden_size
        super().__init__(config.prompt_reach, (size, width), config.prompts_per_image)
        self.prompts = nn.Parameter(torch.empty(size, config.prompt_length, width))

    def forward(self, indices: Tensor) -> tuple[Tensor, list[Prefix]]:
        """Tokens ``(B, P * S, D)`` of the chosen prompts ``(B, P)``, and no keys and values."""
        return self.prompts[indices].flatten(1, 2), []


class DualPromptPool(Pool):
    """DualPrompt: prompts are keys and values of attention (prefix tuning); 253,440 parameters at ViT-B.

    The first two blocks get one general prompt, the next three the expert prompts chosen for the image, of which
    half are keys and half are values of the block's attention; queries are unchanged. (The port that the released
    code builds on mixes these axes up in a reshape, and at later stages trains nothing at all: neither is kept.)
    A backbone of fewer blocks gets what fits.
    """

    def __init__(self, config: PromptCCDBConfig):
        size, width = config.pool_size, config.vision_config.hidden_size
        super().__init__(config.prompt_reach, (size, width), config.prompts_per_image)
        depth, length = config.vision_config.num_hidden_layers, config.prompt_length
        self.first_expert = min(2, depth - 1)
        num_experts = min(3, depth - self.first_expert)
        self.num_prefixed = self.first_expert + num_experts
        self.general = nn.Parameter(torch.empty(self.first_expert, 2, length, width))
        self.experts = nn.Parameter(torch.empty(num_experts, 2, size, length, width))

    def forward(self, indices: Tensor) -> tuple[None, list[Prefix]]:
        """No tokens, and keys and values ``(B, ., D)`` of the first blocks, for the chosen prompts ``(B, P)``."""
        images = indices.shape[0]  # not len(), which an exported model would keep for good
        general = [pair.unsqueeze(1).expand(-1, images, -1, -1) for pair in self.general]
        experts = [pair[:, indices].flatten(2, 3) for pair in self.experts]
        return None, [(key, value) for key, value in (*general, *experts)]


POOLS = {"l2p": L2PPool, "dualprompt": DualPromptPool}


class PromptCCDBModel(CategoryDiscoveryModel):
    """Category discovery with a fixed prompt pool (paper, "PromptCCD-B").

    The query is [CLS] of the frozen pretrained backbone. (The released code takes it from a second model with random
    prompts.) That backbone differs from the model only in the last block, so only that block is kept twice. Prompts
    act at test too.

    Example:
        >>> model = PromptCCDBModel.from_pretrained("facebook/dinov2-base", pool="dualprompt")
    """

    config: PromptCCDBConfig
    roles: ClassVar = {"pool.keys": "key", "pool": "prompt"}

    def __init__(self, config: PromptCCDBConfig):
        super().__init__(config)
        self.keep_pretrained_block()
        self.pool = POOLS[config.pool](config)
        for block in blocks_of(self.backbone)[: self.pool.num_prefixed]:
            open_attention(block)
        self.post_init()

    @property
    def num_prompts(self) -> int:
        """M."""
        return len(self.pool.keys)

    def reset_prompts(self, generator: torch.Generator) -> None:
        """Draw the pool again."""
        self.pool.reset_parameters(generator)

    def compute_output(
        self, tokens: Tensor, rotation: Rotation | None, prompted: bool | None, project: bool
    ) -> CategoryDiscoveryOutput:
        """Features of images; see the base class. `prompted=None` means prompted."""
        if prompted is False:
            return super().compute_output(tokens, rotation, prompted, project)
        with torch.no_grad():
            entering = run_prefix(self.backbone, tokens, rotation)
            query = class_row(self.backbone, entering, self.pretrained_block, rotation)
        indices, cosines = self.pool.select(query, self.config.random_prompts)
        prompts, prefixes = self.pool(indices)
        if prompts is not None:
            tokens = insert_prompts(self.backbone, tokens, prompts)
        before = len(blocks_of(self.backbone)) - 1
        entering = run_prefix(self.backbone, tokens, rotation, prefixes[:before])
        last = prefixes[before] if before < len(prefixes) else None
        features = class_row(self.backbone, entering, rotation=rotation, prefix=last)
        return self._output(features, project, components=indices, scores=cosines)

    def auxiliary_losses(self, output: CategoryDiscoveryOutput) -> dict[str, Tensor]:
        """The pull of chosen keys towards the query: the sum over prompts of 1 - cosine (paper, Eq. 8)."""
        if output.scores is None:
            return {}
        return {"cos": COS_WEIGHT * (1 - output.scores).sum(1)}


METHOD = Method(
    name="promptccd-b",
    model=PromptCCDBModel,
    title="PromptCCD-B",
    summary="prompted from a fixed pool that is learnt",
    parts={"pool": "prompt pool"},
    losses={"cos": "distance of queries to chosen keys"},
    published={"l2p": "promptccd-b-l2p", "dualprompt": "promptccd-b-dp"},
)

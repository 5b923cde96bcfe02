"""PromptCCD-B: a fixed pool of learnt prompts, L2P or DualPrompt, chosen by the pretrained [CLS]."""

from typing import ClassVar

import torch
from torch import Tensor

from .backbones import class_row, class_token, run_prefix
from .configuration_promptccd import PromptCCDBConfig
from .modeling_base import CategoryDiscoveryModel, CategoryDiscoveryOutput
from .prompt_pools import POOLS


class PromptCCDBModel(CategoryDiscoveryModel):
    """Category discovery with a fixed prompt pool (paper, "PromptCCD-B").

    The query is [CLS] of the frozen pretrained backbone. (The released code takes it from a second model with random
    prompts.) That backbone differs from the model only in the last block, so only that block is kept twice. Prompts
    act at test too.

    Example:
        >>> model = PromptCCDBModel.from_pretrained("facebook/dinov2-base", pool="dualprompt")
    """

    config: PromptCCDBConfig
    roles: ClassVar = {"pool.keys": "key"}
    shares_prefix: ClassVar = True

    def __init__(self, config: PromptCCDBConfig):
        super().__init__(config)
        self.keep_pretrained_block()
        self.pool = POOLS[config.pool](config)
        self.post_init()

    @property
    def num_prompts(self) -> int:
        """M."""
        return len(self.pool.keys)

    def prompt_parameters(self) -> list[torch.nn.Parameter]:
        """Keys and prompts of the pool."""
        return list(self.pool.parameters())

    def reset_prompts(self, generator: torch.Generator) -> None:
        """Draw the pool anew."""
        self.pool.reset_parameters(generator)

    def forward(
        self, pixel_values: Tensor, prompted: bool | None = None, project: bool = False
    ) -> CategoryDiscoveryOutput:
        """Features of images; see the base class. `prompted=None` means prompted."""
        tokens, rotation = self.embed(pixel_values), self.rotation(pixel_values)
        if prompted is False:
            return self._output(class_token(self.backbone, tokens, rotation), project)
        with torch.no_grad():
            entering = run_prefix(self.backbone, tokens, rotation)
            query = class_row(self.backbone, entering, self.pretrained_block, rotation)
        prompts, selection = self.pool(query, self.config.random_prompts)
        features = self.pool.enter(self.backbone, tokens, prompts, rotation)
        return self._output(features, project, components=selection.indices, scores=selection.cosines)

    def auxiliary_losses(self, output: CategoryDiscoveryOutput) -> dict[str, Tensor]:
        """The pull of chosen keys towards the query: the sum over prompts of 1 - cosine (paper, Eq. 8)."""
        if output.scores is None:
            return {}
        return {"cos": self.config.cos_weight * (1 - output.scores).sum(1)}

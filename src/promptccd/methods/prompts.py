"""Common parts of prompted methods: prompts as tokens behind [CLS], pools of learnt prompts, arbitrary choices."""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from promptccd.models.backbone import class_position


def insert_prompts(backbone: PreTrainedModel, tokens: Tensor, prompts: Tensor) -> Tensor:
    """Put ``(B, P, D)`` prompts behind [CLS]; each gets the position of [CLS], as in the released code."""
    return behind_class(tokens, prompts.to(tokens) + class_position(backbone))


def behind_class(tokens: Tensor, prompts: Tensor) -> Tensor:
    """Put ``(B, P, D)`` prompts behind [CLS], the first of tokens ``(B, T, D)``."""
    return torch.cat([tokens[:, :1], prompts.to(tokens), tokens[:, 1:]], dim=1)


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
        return torch.sin(1e4 * (features.float() @ _directions(features.shape[-1], count, features.device)))


@cache
def _directions(width: int, count: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(width, count, generator=generator).to(device)


class Pool(nn.Module):
    """Prompts with keys; a subclass adds the prompts.

    Args:
        reach: first values of keys and prompts are uniform in -reach..reach.
        keys: shape of the keys, ``(M, D)``, or ``(P, M, D)`` of P pools.
        top_k: prompts per query.
    """

    def __init__(self, reach: float, keys: tuple[int, ...], top_k: int):
        super().__init__()
        self.reach, self.top_k = reach, top_k
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
            init.uniform_(parameter, -self.reach, self.reach)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw keys and prompts again.

        L2P and DualPrompt draw both in -1..1. PromptCCD++ gives no first values and gets equal values: prompts that
        start much smaller never grow, and move no feature.
        """
        for parameter in self.parameters():
            drawn = torch.empty(parameter.shape).uniform_(-self.reach, self.reach, generator=generator)
            parameter.data.copy_(drawn)


def require_pool(size: int, top_k: int, name: str) -> None:
    """Raise a `ValueError` where more prompts are chosen than a pool has; `name` is the field that chooses."""
    if not 1 <= top_k <= size:
        raise ValueError(f"Expected 1 <= {name} <= pool_size ({size}), got {top_k}.")

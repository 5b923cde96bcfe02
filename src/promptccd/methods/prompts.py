"""Common parts of prompted methods: pools of learnt prompts, arbitrary choices."""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from accelerate.utils import align_module_device
from torch import Tensor, nn
from transformers import initialization as init


class Selection(NamedTuple):
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

    def select(self, query: Tensor, arbitrary: bool = False, pools: Tensor | None = None) -> Selection:
        """The k prompts whose keys are most alike to each query ``(..., D)``, or arbitrary prompts.

        (The released code takes the majority of a batch on most data sets, so that a feature depends on the other
        images of the batch.) Of several pools, `pools` ``(...)`` is the pool of each query; prompt m of pool p has the
        index ``p * M + m``.
        """
        size = self.keys.shape[-2]
        # Not in mixed precision: keys grow alike, and bfloat16 cannot rank them.
        # Accelerate brings offloaded keys for a forward only.
        with torch.autocast(query.device.type, enabled=False), align_module_device(self):
            unit = F.normalize(query.float(), dim=-1)
            cosines = unit @ F.normalize(self.keys.float(), dim=-1).flatten(0, -2).T
        indices = torch.arange(size, device=query.device).expand(*query.shape[:-1], size)
        if pools is not None:
            indices = pools[..., None] * size + indices
            cosines = cosines.gather(-1, indices)
        ranked_by = arbitrary_scores(unit, size) if arbitrary else cosines
        best = ranked_by.topk(self.top_k).indices
        return Selection(indices.gather(-1, best), cosines.gather(-1, best))

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

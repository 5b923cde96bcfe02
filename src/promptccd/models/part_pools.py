"""The prompt pools of PromptCCD++, one per object part, and the modulation of patches by them (Eqs. 12, 13)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .prompt_pools import Selection, arbitrary_scores


class PartPools(nn.Module):
    """P pools of M prompts of S tokens each: 168,960 parameters per part at the paper's sizes.

    Args:
        num_parts: P.
        size: M.
        length: S.
        width: D.
        per_patch: k, prompts that a patch gets.
        arbitrary: take arbitrary prompts of the part instead of the nearest ones.
    """

    def __init__(
        self, num_parts: int, size: int, length: int, width: int, per_patch: int, arbitrary: bool = False
    ):
        super().__init__()
        self.per_patch, self.arbitrary = per_patch, arbitrary
        self.keys = nn.Parameter(torch.empty(num_parts, size, width))
        self.values = nn.Parameter(torch.empty(num_parts, size, length, width))

    def select(self, contextual: Tensor, parts: Tensor) -> Selection:
        """The k prompts of its own part that each patch is most alike to.

        One product with the keys of all parts, of which every patch reads those of its own.

        Args:
            contextual: ``(B, L, D)``; detached here, so that only keys learn from the cosines.
            parts: part of every patch, ``(B, L)``.

        Returns:
            Indices into the prompts of all parts, ``p * M + m``, and cosines, ``(B, L, k)`` both.
        """
        size = self.keys.shape[1]
        # Not in mixed precision: bfloat16 cannot rank keys that are alike.
        with torch.autocast(contextual.device.type, enabled=False):
            unit = F.normalize(contextual.detach().float(), dim=-1)
            cosines = unit @ F.normalize(self.keys.float(), dim=-1).flatten(0, 1).T  # (B, L, P * M)
        own = parts[..., None] * size + torch.arange(size, device=parts.device)  # (B, L, M)
        own_cosines = cosines.gather(-1, own)
        scores = arbitrary_scores(unit, size) if self.arbitrary else own_cosines
        best = scores.topk(self.per_patch, dim=-1).indices
        return Selection(own.gather(-1, best), own_cosines.gather(-1, best))

    def bias(self, indices: Tensor) -> Tensor:
        """b, the mean over chosen prompts and their tokens, ``(B, L, k)`` to ``(B, L, D)``.

        A product with a matrix of weights: (P * M) is small, and its gradient is a product too.
        """
        means = self.values.mean(dim=2).flatten(0, 1)  # (P * M, D)
        weights = means.new_zeros(*indices.shape[:-1], len(means))
        return weights.scatter_(-1, indices, 1 / indices.shape[-1]) @ means

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Keys uniform in -1..1; values in -0.02..0.02, so that modulation starts close to none.

        The paper gives no initial values.
        """
        for parameter, reach in ((self.keys, 1.0), (self.values, 0.02)):
            drawn = torch.empty(parameter.shape).uniform_(-reach, reach, generator=generator)
            parameter.data.copy_(drawn)


def modulate(tokens: Tensor, bias: Tensor) -> Tensor:
    """Scale the patches, which stand last, by 1 + b; [CLS] and registers stay: ``(B, T, D)``, ``(B, L, D)``."""
    patches = bias.shape[1]
    modulated = tokens[:, -patches:] * (1 + bias.to(tokens.dtype))
    return torch.cat([tokens[:, :-patches], modulated], dim=1)


__all__ = ["PartPools", "modulate"]

"""Part-level prompts: one pool per part, and the router that weighs them (PromptCCD++)."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from .configuration_promptccd import PromptCCDPlusPlusConfig
from .projection_head import draw_truncated_normal
from .prompt_pools import Pool, Selection, arbitrary_scores


class PartPools(Pool):
    """P pools of M prompts of S tokens each: 168,960 parameters per part at the paper's sizes."""

    def __init__(self, config: PromptCCDPlusPlusConfig):
        parts, size, width = config.num_parts, config.pool_size, config.vision_config.hidden_size
        super().__init__(config, (parts, size, width), config.prompts_per_patch)
        self.values = nn.Parameter(torch.empty(parts, size, config.prompt_length, width))

    def forward(self, contextual: Tensor, parts: Tensor, arbitrary: bool = False) -> tuple[Tensor, Selection]:
        """What scales each patch, ``(B, L, D)``, and the prompts that it is made of; the arguments are `select`'s."""
        selection = self.select(contextual, parts, arbitrary)
        return self.bias(selection.indices), selection

    def select(self, contextual: Tensor, parts: Tensor, arbitrary: bool = False) -> Selection:
        """The k prompts of its own part that each patch is most alike to.

        Args:
            contextual: ``(B, L, D)``; detached here, so that only keys learn from the cosines.
            parts: part of every patch, ``(B, L)``.
            arbitrary: take arbitrary prompts of the part instead of the nearest ones.

        Returns:
            Indices into the prompts of all parts, ``p * M + m``, and cosines, ``(B, L, k)`` both.
        """
        size = self.keys.shape[1]
        unit, cosines = self.cosines(contextual.detach())  # (B, L, P * M)
        own = parts[..., None] * size + torch.arange(size, device=parts.device)  # (B, L, M)
        own_cosines = cosines.gather(-1, own)
        scores = arbitrary_scores(unit, size) if arbitrary else own_cosines
        best = scores.topk(self.top_k, dim=-1).indices  # mutant without dim=: what PyTorch takes by itself
        return Selection(own.gather(-1, best), own_cosines.gather(-1, best))

    def bias(self, indices: Tensor) -> Tensor:
        """b, the mean over chosen prompts and their tokens, ``(B, L, k)`` to ``(B, L, D)``.

        A product with a matrix of weights, since P * M is small, and the gradient is then a product too.
        """
        means = self.values.mean(dim=2).flatten(0, 1)  # (P * M, D)
        weights = means.new_zeros(*indices.shape[:-1], len(means))
        return weights.scatter(-1, indices, 1 / indices.shape[-1]) @ means


def modulate(tokens: Tensor, bias: Tensor) -> Tensor:
    """Scale the patches, the last tokens of ``(B, T, D)``, by 1 + b ``(B, L, D)``; [CLS] and registers stay."""
    patches = bias.shape[1]
    modulated = tokens[:, -patches:] * (1 + bias.to(tokens))
    return torch.cat([tokens[:, :-patches], modulated], dim=1)


@dataclass(frozen=True)
class Routing:
    """The parts of patches.

    Attributes:
        contextual: contextualised patch tokens ``(B, L, D)``, which also choose prompts.
        logits: routing logits ``(B, L, P)``.
    """

    contextual: Tensor
    logits: Tensor

    @property
    def parts(self) -> Tensor:
        """The likeliest part of every patch, ``(B, L)``."""
        return self.logits.argmax(dim=-1)


def log_shares(logits: Tensor) -> Tensor:
    """Log of the mean routing probability of every part in an image, ``(B, L, P)`` to ``(B, P)``.

    In logarithms, since the share of a part without patches would underflow to zero.
    """
    return logits.log_softmax(dim=-1).logsumexp(dim=1) - math.log(logits.shape[1])


class EncoderLayer(nn.Module):
    """A pre-norm Transformer layer of plain linear layers, without dropout.

    Not `nn.TransformerEncoderLayer`: its batched in-projection nearly doubles a step in bfloat16 on a CPU.

    Args:
        width: D.
        num_heads: heads of the attention.
    """

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """``(B, L, D)`` to ``(B, L, D)``."""
        normed = self.norm1(tokens)
        query, key, value = (
            projection(normed).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        tokens = tokens + self.out(mixed.transpose(1, 2).flatten(2))
        return tokens + self.mlp(self.norm2(tokens))


class PartRouter(nn.Module):
    """Patch tokens and [CLS] attention to routing logits: 14,690,720 parameters for ViT-B and 8 parts.

    x_aug = x_e + AttnProj(alpha); x~ = TransEnc(LN(x_aug)); r = g(x~) + x~ Q' / sqrt(D). The paper gives no
    widths; its parameter count fits a feed-forward of 4 D and a hidden layer of 640. Without fusion x~ = LN(x_e).
    """

    def __init__(self, config: PromptCCDPlusPlusConfig):
        super().__init__()
        width, num_heads = config.vision_config.hidden_size, config.vision_config.num_attention_heads
        hidden = config.router_hidden_size
        if hidden is None:
            hidden = round(width * 5 / 6)
        self.attention_projection = self.encoder = self.part_queries = None
        if config.router_fusion:
            self.attention_projection = nn.Sequential(
                nn.LayerNorm(num_heads), nn.Linear(num_heads, width), nn.GELU()
            )
            self.encoder = nn.Sequential(EncoderLayer(width, num_heads), EncoderLayer(width, num_heads))
        self.norm = nn.LayerNorm(width)
        if config.router_queries:
            self.part_queries = nn.Parameter(torch.empty(config.num_parts, width))
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, config.num_parts))

    def forward(self, patches: Tensor, attention: Tensor) -> Routing:
        """Route patches.

        Args:
            patches: x_e, patch tokens that enter block 0, with positions, ``(B, L, D)``.
            attention: alpha, how [CLS] of the plain forward attends to them, ``(B, L, H)``.
        """
        if self.encoder is None:
            contextual = self.norm(patches)
        else:
            assert self.attention_projection is not None  # both or neither
            own = self.norm.weight.dtype  # attention is float32, even where the router is bfloat16
            contextual = self.encoder(self.norm(patches + self.attention_projection(attention.to(own))))
        logits = self.mlp(contextual)
        if self.part_queries is not None:
            logits = logits + contextual @ self.part_queries.T / math.sqrt(contextual.shape[-1])
        return Routing(contextual, logits.float())

    def initialise(self, std: float) -> None:
        """As transformers initialises a module whose weights are not loaded."""
        if self.part_queries is not None:
            init.trunc_normal_(self.part_queries, std=std)

    def reset_parameters(self, generator: torch.Generator, std: float) -> None:
        """Truncated normal weights, zero biases, unit norms, drawn from a CPU generator."""
        draw_truncated_normal(self, generator, std)

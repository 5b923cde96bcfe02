"""The context-aware router of PromptCCD++: which object part every patch belongs to (paper, Eqs. 9 to 11)."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Routing:
    """Where patches go.

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
    """Log of the share of every part in an image, the mean of its routing probabilities.

    Taken in logarithms: a part that no patch goes to has a share that would underflow to zero.

    Args:
        logits: ``(B, L, P)``.

    Returns:
        ``(B, P)``.
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
    widths; a feed-forward of 4 D and a hidden layer of 640 are what its parameter count leaves.

    Args:
        width: D.
        num_heads: H, heads of the backbone and of the encoder.
        num_parts: P.
        hidden_size: width of the hidden layer of g; none means five sixths of D.
        fusion: whether attention is fused and tokens contextualised; without it x~ = LN(x_e).
        queries: whether part queries Q add to the logits.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        num_parts: int,
        hidden_size: int | None = None,
        fusion: bool = True,
        queries: bool = True,
    ):
        super().__init__()
        hidden = round(width * 5 / 6) if hidden_size is None else hidden_size
        self.attention_projection = self.encoder = self.part_queries = None
        if fusion:
            self.attention_projection = nn.Sequential(
                nn.LayerNorm(num_heads), nn.Linear(num_heads, width), nn.GELU()
            )
            self.encoder = nn.Sequential(EncoderLayer(width, num_heads), EncoderLayer(width, num_heads))
        self.norm = nn.LayerNorm(width)
        if queries:
            self.part_queries = nn.Parameter(torch.empty(num_parts, width))
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, num_parts))

    def forward(self, patches: Tensor, attention: Tensor) -> Routing:
        """Route patches.

        Args:
            patches: x_e, patch tokens that enter block 0, with positions, ``(B, L, D)``.
            attention: alpha, how [CLS] of the plain forward attends to them, ``(B, L, H)``.
        """
        if self.attention_projection is None or self.encoder is None:
            contextual = self.norm(patches)
        else:
            contextual = self.encoder(self.norm(patches + self.attention_projection(attention)))
        logits = self.mlp(contextual)
        if self.part_queries is not None:
            logits = logits + contextual @ self.part_queries.T / math.sqrt(contextual.shape[-1])
        return Routing(contextual, logits.float())

    def reset_parameters(self, generator: torch.Generator, std: float = 0.02) -> None:
        """Truncated normal weights, zero biases, unit norms, drawn from a CPU generator."""
        norms = [module for module in self.modules() if isinstance(module, nn.LayerNorm)]
        for norm in norms:
            norm.reset_parameters()
        fixed = {id(parameter) for norm in norms for parameter in norm.parameters()}
        for name, parameter in self.named_parameters():
            if id(parameter) in fixed:
                continue
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                drawn = torch.empty(parameter.shape)
                nn.init.trunc_normal_(drawn, std=std, generator=generator)
                parameter.data.copy_(drawn)


__all__ = ["EncoderLayer", "PartRouter", "Routing", "log_shares"]

"""Cheaper ways to the same values for blocks that are transformers' own, with nothing around them.

Only [CLS] is read from the last block's output: it needs query, attention and MLP of one token, a hundredth of a
block's work. The blocks before do not learn, so a step can use copies of their weights in lower precision. The copies
are never saved, and the results at the end of a stage are computed without them.
"""

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.dinov2.modeling_dinov2 import Dinov2Layer
from transformers.models.dinov2_with_registers.modeling_dinov2_with_registers import Dinov2WithRegistersLayer
from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTLayer
from transformers.models.vit.modeling_vit import ViTLayer

from promptccd.models import CategoryDiscoveryModel
from promptccd.models.backbone import Prefix, Rotation, blocks_of, run_block

logger = logging.getLogger(__name__)

_LAYERS = (Dinov2Layer, Dinov2WithRegistersLayer, DINOv3ViTLayer, ViTLayer)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_SAME = nn.Identity()  # where a block has no layer scale
DTYPES = {"same": None, "bf16": torch.bfloat16}


@contextmanager
def fast(model: CategoryDiscoveryModel, precision: str | None = None) -> Iterator[None]:
    """Run plain blocks of a model in cheaper ways within this context; an outer context wins over a plain inner one.

    Args:
        model: on its device.
        precision: ``frozen_precision`` of a recipe, for copies of all blocks before the last; `None` for features
            that are compared with a plain forward. A model that computes in half precision then runs whole,
            because a row alone is rounded differently.
    """
    outer = model.backbone.fast_blocks
    if precision is not None or (outer is None and model.config.precision == "float32"):
        model.backbone.fast_blocks = FastBlocks(model.backbone, precision or "same")
    try:
        yield
    finally:
        model.backbone.fast_blocks = outer


def is_plain(block: Any) -> bool:
    """Whether a block belongs to transformers, without hooks and replaced forwards."""
    if type(block) not in _LAYERS:
        return False
    if {type(block.attention.k_proj), type(block.attention.v_proj)} != {nn.Linear}:
        return False
    parts = list(block.modules())
    return not any("forward" in vars(part) or any(getattr(part, name) for name in _HOOKS) for part in parts)


class FastBlocks:
    """Runs the [CLS] row of plain blocks alone, and copies of blocks if there are any; `None` for other blocks.

    A block that learns or is not plain gets no copy, with a warning. `precision` is ``frozen_precision`` of a recipe.
    """

    def __init__(self, backbone: PreTrainedModel, precision: str = "same"):
        self.copies: dict[int, FrozenBlock] = {}
        if (dtype := DTYPES[precision]) is None:
            return
        for number, block in enumerate(blocks_of(backbone)[:-1]):
            if is_plain(block) and not any(each.requires_grad for each in block.parameters()):
                self.copies[number] = FrozenBlock(block, dtype)
            else:
                logger.warning("Block %d learns or has hooks: frozen_precision does not apply to it.", number)

    def prefix(
        self,
        blocks: Sequence[nn.Module],
        tokens: Tensor,
        rotation: Rotation | None,
        prefixes: Sequence[Prefix] = (),
    ) -> Tensor:
        """Tokens behind these blocks, with copies in place of some; tokens between copies are in their precision."""
        given = tokens.dtype
        for number, (block, prefix) in enumerate(zip_longest(blocks, prefixes)):
            copied = self.copies.get(number)
            if copied is None or prefix is not None or not is_plain(block):
                tokens = run_block(block, tokens.to(given), rotation, prefix)
            else:
                tokens = copied(tokens, rotation)
        return tokens.to(given)

    def class_row(self, block: Any, tokens: Tensor, rotation: Rotation | None) -> Tensor | None:
        """[CLS] behind a block ``(B, D)``, without values of the other tokens, and with keys only to rotate them.

        The weights sum to one, so the tokens are averaged before the value projection: two products with H rows instead
        of two with T.
        """
        if not is_plain(block):
            return None
        attention, normed = block.attention, _norms(block)[0](tokens)
        value, heads = attention.v_proj, (-1, attention.head_dim)
        weights = _class_weights(attention, normed, rotation)
        mixed = torch.einsum("bhD,hdD->bhd", weights @ normed, value.weight.unflatten(0, heads))
        if value.bias is not None:
            mixed = mixed + weights.sum(-1, keepdim=True) * value.bias.unflatten(0, heads)
        out = tokens[:, 0] + getattr(block, "layer_scale1", _SAME)(attention.o_proj(mixed.flatten(1)))
        return out + getattr(block, "layer_scale2", _SAME)(block.mlp(_norms(block)[1](out)))

    def class_weights(self, block: Any, tokens: Tensor, rotation: Rotation | None) -> Tensor | None:
        """Attention weights of [CLS] for all tokens, ``(B, H, T)``."""
        if not is_plain(block):
            return None
        return _class_weights(block.attention, _norms(block)[0](tokens), rotation)


def _class_weights(attention: Any, normed: Tensor, rotation: Rotation | None) -> Tensor:
    """Attention weights of token 0, ``(B, H, T)``.

    Without rotation q . (W x + b) = (W' q) . x + q . b: the one query goes through the key projection, not every token.
    """
    heads = -1, attention.head_dim
    query, projection = attention.q_proj(normed[:, 0]).unflatten(-1, heads), attention.k_proj  # (B, H, d)
    if rotation is not None:
        key = rotate(projection(normed).unflatten(-1, heads).transpose(1, 2), rotation)
        scores = (key @ query[..., None])[..., 0]
    else:
        seen = torch.einsum("bhd,hdD->bhD", query, projection.weight.unflatten(0, query.shape[1:]))
        scores = seen @ normed.transpose(1, 2)
        if projection.bias is not None:
            bias = projection.bias.unflatten(0, query.shape[1:])
            scores = scores + torch.einsum("bhd,hd->bh", query, bias)[..., None]
    return torch.softmax((scores * attention.scaling).float(), dim=-1).to(normed.dtype)


def rotate(rows: Tensor, rotation: Rotation | None) -> Tensor:
    """Queries or keys ``(B, H, T, d)``, with the patches, at the end, rotated."""
    if rotation is None:
        return rows
    cosines, sines = (part.to(rows) for part in rotation)
    before, patches = rows[..., : -len(sines), :], rows[..., -len(sines) :, :]
    first, second = patches.chunk(2, dim=-1)
    across = torch.cat([-second, first], dim=-1)
    return torch.cat([before, patches * cosines + across * sines], dim=-2)


def _norms(block: nn.Module) -> list[nn.Module]:
    """Before the attention and before the MLP."""
    return [each for each in block.children() if isinstance(each, nn.LayerNorm)]


class FrozenBlock(nn.Module):
    """A copy of a plain block that does not learn, with weights and arithmetic in `dtype`."""

    def __init__(self, block: Any, dtype: torch.dtype):
        super().__init__()
        attention = block.attention
        self.dtype, self.head_dim, self.scaling = dtype, attention.head_dim, attention.scaling
        self.norm1, self.norm2 = copy.deepcopy(_norms(block))
        self.qkv = _concatenated(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out, self.mlp = copy.deepcopy(attention.o_proj), copy.deepcopy(block.mlp)
        last = [each for each in self.mlp.modules() if isinstance(each, nn.Linear)][-1]
        for linear, name in ((self.out, "layer_scale1"), (last, "layer_scale2")):
            if hasattr(block, name):  # the scale becomes a part of the product before it
                scale = getattr(block, name).lambda1.detach()
                linear.weight.data = linear.weight.data * scale[:, None]
                if linear.bias is not None:
                    linear.bias.data = linear.bias.data * scale
        self.to(dtype)

    def forward(self, tokens: Tensor, rotation: Rotation | None) -> Tensor:
        """``(B, T, D)`` to ``(B, T, D)``."""
        tokens = tokens.to(self.dtype)
        with torch.autocast(tokens.device.type, enabled=False):
            rows = self.qkv(self.norm1(tokens)).unflatten(-1, (3, -1, self.head_dim))
            query, key, value = rows.permute(2, 0, 3, 1, 4)
            query, key = rotate(query, rotation), rotate(key, rotation)
            mixed = F.scaled_dot_product_attention(query, key, value, scale=self.scaling)
            tokens = tokens + self.out(mixed.transpose(1, 2).flatten(2))
            return tokens + self.mlp(self.norm2(tokens))


def _concatenated(*parts: nn.Linear) -> nn.Linear:
    """One product that gives the outputs of several, one behind the other."""
    weight = torch.cat([part.weight.detach() for part in parts])
    zero = weight.new_zeros(parts[0].out_features)
    bias = torch.cat([zero if part.bias is None else part.bias.detach() for part in parts])
    joined = nn.Linear(1, 1, device="meta")
    joined.weight, joined.bias = (nn.Parameter(each, requires_grad=False) for each in (weight, bias))
    return joined

"""A DINO backbone taken apart: embeddings, frozen prefix, and the last block's [CLS] row alone.

Only the last block learns (PromptCCD, "Why finetune the final block"), and of its output only [CLS] is ever
read. So the blocks before it need no graph, and the last one needs a query, attention and MLP for one token: a
hundredth of a block's work.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    Dinov2Model,
    Dinov2WithRegistersModel,
    PreTrainedConfig,
    PreTrainedModel,
    ViTModel,
)

_CLASSES = {
    "dinov2": (Dinov2Model, {}),
    "dinov2_with_registers": (Dinov2WithRegistersModel, {}),
    "vit": (ViTModel, {"add_pooling_layer": False}),
}


def build_backbone(config: PreTrainedConfig) -> PreTrainedModel:
    """A backbone with random weights. The configuration is copied: transformers shares it by reference."""
    model_class, options = _CLASSES[config.model_type]
    return model_class(copy.deepcopy(config), **options)


def blocks_of(backbone: PreTrainedModel) -> nn.ModuleList:
    """The transformer blocks, first to last."""
    return backbone.layers if hasattr(backbone, "layers") else backbone.encoder.layer


def embed(backbone: PreTrainedModel, pixel_values: Tensor) -> Tensor:
    """Tokens that enter block 0, with positions.

    Args:
        backbone: one of the three supported ones.
        pixel_values: normalised images ``(B, 3, H, W)``; any size the patch size divides.

    Returns:
        ``(B, L, D)`` in the order [CLS], registers if there are any, patches.
    """
    if backbone.config.model_type == "vit":  # the only one that refuses other sizes unless it is told not to
        return backbone.embeddings(pixel_values, interpolate_pos_encoding=True)
    return backbone.embeddings(pixel_values)


def patch_count(backbone: PreTrainedModel, tokens: Tensor) -> int:
    """Number of patch tokens among ``(B, T, D)`` tokens as `embed` gives them; they stand last."""
    return tokens.shape[1] - 1 - getattr(backbone.config, "num_register_tokens", 0)


def run_prefix(backbone: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Tokens that enter the last block, from those that enter block 0: ``(B, T, D)`` both.

    A graph is built only if the tokens themselves need a gradient, as learnt prompts do; frozen tokens cross
    the frozen blocks without one.
    """
    with torch.set_grad_enabled(torch.is_grad_enabled() and tokens.requires_grad):
        for block in blocks_of(backbone)[:-1]:
            tokens = block(tokens)
    return tokens


def class_row(backbone: PreTrainedModel, entering: Tensor, last_block: nn.Module | None = None) -> Tensor:
    """The [CLS] feature after the final norm, of tokens that enter the last block: ``(B, D)``.

    Args:
        backbone: one of the three supported ones, in eval mode.
        entering: ``(B, T, D)`` from `run_prefix`.
        last_block: another last block over the same prefix: a pretrained copy, or a teacher's.
    """
    block = blocks_of(backbone)[-1] if last_block is None else last_block
    return backbone.layernorm(run_block_class_row(block, entering))


def class_token(backbone: PreTrainedModel, tokens: Tensor) -> Tensor:
    """The [CLS] feature of tokens that enter block 0, after the final norm.

    Args:
        backbone: one of the three supported ones, in eval mode.
        tokens: ``(B, T, D)``.

    Returns:
        Features ``(B, D)``, equal to ``backbone(...).last_hidden_state[:, 0]`` of an unmodified forward.
    """
    return class_row(backbone, run_prefix(backbone, tokens))


def patch_features(backbone: PreTrainedModel, entering: Tensor, last_block: nn.Module) -> Tensor:
    """Patch features ``(B, L, D)`` after the final norm, of tokens that enter the given last block."""
    patches = patch_count(backbone, entering)
    return backbone.layernorm(run_block(last_block, entering)[:, -patches:])


def class_attention(block: Any, tokens: Tensor, num_patches: int) -> Tensor:
    """How [CLS] attends to the patches, per head, without the other rows of the attention.

    Args:
        block: the block whose attention is read.
        tokens: ``(B, T, D)``, what enters it.
        num_patches: L; patches stand last.

    Returns:
        ``(B, L, H)``: soft-max over all T tokens, of which the patch columns are returned.
    """
    weights = _class_weights(block.attention, _norms(block)[0](tokens))
    return weights[:, :, -num_patches:].transpose(1, 2).float()


def _class_weights(attention: Any, normed: Tensor, prefix_keys: Tensor | None = None) -> Tensor:
    """Attention weights of token 0, ``(B, H, T)``; keys that stand before the tokens' own come first.

    With one query, q . (W x + b) = (W' q) . x + q . b: the query goes through the key projection, once and per
    head, instead of every token.
    """
    heads = (attention.num_attention_heads, attention.head_dim)
    query = attention.q_proj(normed[:, 0]).unflatten(-1, heads)  # (B, H, d)
    key_weight = attention.k_proj.weight.unflatten(0, heads)  # (H, d, D)
    seen = torch.einsum("bhd,hdD->bhD", query, key_weight)
    scores = seen @ normed.transpose(1, 2)  # (B, H, T)
    if attention.k_proj.bias is not None:
        scores = (
            scores + torch.einsum("bhd,hd->bh", query, attention.k_proj.bias.unflatten(0, heads))[..., None]
        )
    if prefix_keys is not None:
        own = torch.einsum("bhd,bshd->bhs", query, prefix_keys.to(query.dtype).unflatten(-1, heads))
        scores = torch.cat([own, scores], dim=-1)
    return torch.softmax((scores * attention.scaling).float(), dim=-1).to(normed.dtype)


def class_position(backbone: PreTrainedModel) -> Tensor:
    """Position embedding of [CLS], ``(1, 1, D)``."""
    return backbone.embeddings.position_embeddings[:, :1]


def run_block(block: Any, tokens: Tensor, prefix: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """A pre-norm block whose attention may see more than its own tokens.

    Args:
        block: a block of any of the three backbones.
        tokens: ``(B, T, D)``.
        prefix: keys and values ``(B, S, D)`` each that every query also attends to (prefix tuning).

    Returns:
        ``(B, T, D)``.
    """
    attention = block.attention
    normed = _norms(block)[0](tokens)
    key, value = attention.k_proj(normed), attention.v_proj(normed)
    if prefix is not None:
        key = torch.cat([prefix[0].to(key.dtype), key], dim=1)
        value = torch.cat([prefix[1].to(value.dtype), value], dim=1)
    mixed = F.scaled_dot_product_attention(
        _heads(attention, attention.q_proj(normed)),
        _heads(attention, key),
        _heads(attention, value),
        scale=attention.scaling,
    )
    return _after_attention(block, tokens, mixed.transpose(1, 2).flatten(2))


def run_block_class_row(block: Any, tokens: Tensor, prefix: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """What `run_block` returns for token 0, computed for token 0 only: ``(B, T, D)`` to ``(B, D)``.

    Neither keys nor values of the other tokens are formed. The query is taken to the tokens (`_class_weights`), and
    as weights sum to one, the tokens are averaged first and go through the value projection afterwards: two
    products with H rows instead of two with T.
    """
    attention = block.attention
    heads = (attention.num_attention_heads, attention.head_dim)
    normed = _norms(block)[0](tokens)
    weights = _class_weights(attention, normed, None if prefix is None else prefix[0])
    before = 0 if prefix is None else prefix[0].shape[1]
    pooled = weights[..., before:] @ normed  # (B, H, D)
    mixed = torch.einsum("bhD,hdD->bhd", pooled, attention.v_proj.weight.unflatten(0, heads))
    if attention.v_proj.bias is not None:
        own = weights[..., before:].sum(-1, keepdim=True)  # one, unless a prefix takes its share
        mixed = mixed + own * attention.v_proj.bias.unflatten(0, heads)
    if prefix is not None:
        values = prefix[1].to(mixed.dtype).unflatten(-1, heads)
        mixed = mixed + torch.einsum("bhs,bshd->bhd", weights[..., :before], values)
    return _after_attention(block, tokens[:, 0], mixed.flatten(1))


def _after_attention(block: Any, tokens: Tensor, mixed: Tensor) -> Tensor:
    """The rest of a block: output projection, MLP, layer scales and residuals, row by row."""
    is_vit = hasattr(block, "layernorm_before")
    scale_attention = nn.Identity() if is_vit else block.layer_scale1
    scale_mlp = nn.Identity() if is_vit else block.layer_scale2
    out = tokens + scale_attention(block.attention.o_proj(mixed))
    return out + scale_mlp(block.mlp(_norms(block)[1](out)))


def _norms(block: Any) -> tuple[nn.Module, nn.Module]:
    if hasattr(block, "layernorm_before"):
        return block.layernorm_before, block.layernorm_after
    return block.norm1, block.norm2


def _heads(attention: Any, rows: Tensor) -> Tensor:
    """``(B, T, D)`` to ``(B, H, T, D / H)``."""
    return rows.unflatten(-1, (attention.num_attention_heads, attention.head_dim)).transpose(1, 2)


__all__ = [
    "blocks_of",
    "build_backbone",
    "class_attention",
    "class_position",
    "class_row",
    "class_token",
    "embed",
    "patch_count",
    "patch_features",
    "run_block",
    "run_block_class_row",
    "run_prefix",
]

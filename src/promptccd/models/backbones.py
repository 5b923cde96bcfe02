"""A DINO backbone taken apart: embeddings, frozen prefix, and the last block's [CLS] row alone.

Only the last block learns (PromptCCD, "Why finetune the final block"), and of its output only [CLS] is ever
read. So the blocks before it need no graph, and the last one needs queries, attention and MLP for one token:
that is a sixth of a block's work and two of its twelve activations.
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


def class_token(backbone: PreTrainedModel, tokens: Tensor) -> Tensor:
    """The [CLS] feature of tokens that enter block 0, after the final norm.

    The prefix builds a graph only if the tokens themselves need a gradient, as learnt prompts do; frozen
    tokens cross it without one.

    Args:
        backbone: one of the three supported ones, in eval mode.
        tokens: ``(B, L, D)``.

    Returns:
        Features ``(B, D)``, equal to ``backbone(...).last_hidden_state[:, 0]`` of an unmodified forward.
    """
    *prefix, last = blocks_of(backbone)
    with torch.set_grad_enabled(torch.is_grad_enabled() and tokens.requires_grad):
        for block in prefix:
            tokens = block(tokens)
    return backbone.layernorm(_last_block_class_row(last, tokens))


def class_position(backbone: PreTrainedModel) -> Tensor:
    """Position embedding of [CLS], ``(1, 1, D)``."""
    return backbone.embeddings.position_embeddings[:, :1]


def _last_block_class_row(block: Any, tokens: Tensor) -> Tensor:
    """What a pre-norm block returns for token 0, computed for token 0 only: ``(B, L, D)`` to ``(B, D)``."""
    is_vit = hasattr(block, "layernorm_before")
    norm_before, norm_after = (
        (block.layernorm_before, block.layernorm_after) if is_vit else (block.norm1, block.norm2)
    )
    scale_attention = nn.Identity() if is_vit else block.layer_scale1
    scale_mlp = nn.Identity() if is_vit else block.layer_scale2

    attention = block.attention
    normed = norm_before(tokens)
    batch = len(tokens)
    heads = (batch, -1, attention.num_attention_heads, attention.head_dim)
    query = attention.q_proj(normed[:, :1]).view(heads).transpose(1, 2)
    key = attention.k_proj(normed).view(heads).transpose(1, 2)
    value = attention.v_proj(normed).view(heads).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(query, key, value, scale=attention.scaling)
    row = tokens[:, 0] + scale_attention(attention.o_proj(mixed.transpose(1, 2).reshape(batch, -1)))
    return row + scale_mlp(block.mlp(norm_after(row)))


__all__ = ["blocks_of", "build_backbone", "class_position", "class_token", "embed"]

"""The parts of a DINO backbone: embeddings, frozen prefix, and the [CLS] row of the last block.

Only the last block learns (PromptCCD, "Why finetune the final block"), and of its output only [CLS] is ever
read. So the blocks before it need no graph, and the last one needs query, attention and MLP of one token: a
hundredth of a block's work.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    Dinov2Model,
    Dinov2WithRegistersModel,
    DINOv3ViTModel,
    PreTrainedConfig,
    PreTrainedModel,
    ViTModel,
)

from promptccd.models.block_calls import (
    DINOv3ViTLayer,
    at_hand,
    enter,
    let_in,
    product_of,
    run_piece,
    runs_whole,
)

_CLASSES = {
    "dinov2": (Dinov2Model, {}),
    "dinov2_with_registers": (Dinov2WithRegistersModel, {}),
    "dinov3_vit": (DINOv3ViTModel, {}),
    "vit": (ViTModel, {"add_pooling_layer": False}),
}

# Rotary position embedding (DINOv3): cosines and sines ``(L, D / H)`` for queries and keys of the patches.
Rotation = tuple[Tensor, Tensor]


def build_backbone(config: PreTrainedConfig) -> PreTrainedModel:
    """A backbone with random weights, whose blocks are called even for a piece (`promptccd.models.block_calls`)."""
    model_class, options = _CLASSES[config.model_type]
    backbone: PreTrainedModel = model_class(config, **options)
    for block in blocks_of(backbone):
        let_in(block)
    return backbone


def blocks_of(backbone: PreTrainedModel) -> nn.ModuleList:
    """The transformer blocks, first to last."""
    if hasattr(backbone, "layers"):
        return backbone.layers
    return backbone.model.layer if hasattr(backbone, "rope_embeddings") else backbone.encoder.layer


def final_norm(backbone: PreTrainedModel) -> nn.Module:
    """The norm behind the last block."""
    return backbone.norm if hasattr(backbone, "rope_embeddings") else backbone.layernorm


def embed(backbone: PreTrainedModel, pixel_values: Tensor) -> Tensor:
    """Tokens that enter block 0, ``(B, L, D)``: [CLS], registers if there are any, patches.

    Positions are added already, unless the backbone rotates queries and keys instead (`rotation_of`). A graph is built
    only if the embeddings learn, which here they never do.

    Args:
        backbone: a supported one.
        pixel_values: normalised images ``(B, 3, H, W)``; any size that the patch size divides.
    """
    # ViT is the only one that refuses other sizes by default.
    options = {"interpolate_pos_encoding": True} if backbone.config.model_type == "vit" else {}
    with torch.set_grad_enabled(torch.is_grad_enabled() and _learns(backbone.embeddings)):
        tokens: Tensor = backbone.embeddings(pixel_values, **options)
    return tokens


def rotation_of(backbone: PreTrainedModel, pixel_values: Tensor) -> Rotation | None:
    """Rotary position embedding of the patches in every block; `None` where positions are added to the tokens.

    Only patches are rotated, which are the last tokens: not [CLS], registers or prompts.
    """
    rotary = getattr(backbone, "rope_embeddings", None)
    return None if rotary is None else rotary(pixel_values.to(backbone.dtype))


def patch_count(backbone: PreTrainedModel, tokens: Tensor) -> int:
    """Number of patches, which are the last tokens, among ``(B, T, D)`` tokens of `embed`."""
    return tokens.shape[1] - 1 - getattr(backbone.config, "num_register_tokens", 0)


def run_prefix(backbone: PreTrainedModel, tokens: Tensor, rotation: Rotation | None = None) -> Tensor:
    """Tokens that enter the last block, from those that enter block 0: ``(B, T, D)`` both.

    A graph is built only if the tokens need a gradient, as learnt prompts do, or a block learns, as with an adapter.
    While a stage trains, the backbone may carry another way to run these blocks, `frozen_prefix`.
    """
    *before, _ = blocks_of(backbone)
    needs_graph = tokens.requires_grad or any(map(_learns, before))
    # mutant and to or: without gradients no token requires one
    with torch.set_grad_enabled(torch.is_grad_enabled() and needs_graph):
        if (other := getattr(backbone, "frozen_prefix", None)) is not None:
            return other(before, tokens, rotation)
        for block in before:
            tokens = recomputed(block, whole_block(block, rotation), tokens)
    return tokens


def _learns(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def entering(
    backbone: PreTrainedModel, tokens: Tensor, rotation: Rotation | None = None
) -> tuple[Tensor, ...]:
    """Tokens that enter each block, and those that leave the last, without the final norm: ``(B, T, D)`` each.

    Args:
        backbone: a supported one.
        tokens: ``(B, T, D)`` that enter block 0, of `embed`, perhaps with prompts among them.
        rotation: `rotation_of` the images.
    """
    states = [tokens]
    for block in blocks_of(backbone):
        states.append(whole_block(block, rotation)(states[-1]))
    return tuple(states)


def whole_block(block: Any, rotation: Rotation | None) -> Callable[[Tensor], Tensor]:
    """A block as a function of the tokens alone, ``(B, T, D)`` to ``(B, T, D)``."""
    return partial(block, **_positions(block, rotation))


def recomputed(block: Any, function: Callable[..., Tensor], *tensors: Any) -> Tensor:
    """Apply a function of a block, with activation checkpointing if that is on.

    The blocks do so by themselves only in training mode, in which the backbone never is.
    """
    if torch.is_grad_enabled() and getattr(block, "gradient_checkpointing", False):
        function = partial(block._gradient_checkpointing_func, function)
    return function(*tensors)


def class_row(
    backbone: PreTrainedModel,
    entering: Tensor,
    last_block: nn.Module | None = None,
    rotation: Rotation | None = None,
) -> Tensor:
    """The [CLS] feature after the final norm, of tokens that enter the last block: ``(B, D)``.

    Args:
        backbone: a supported one, in eval mode.
        entering: ``(B, T, D)`` from `run_prefix`.
        last_block: a block that replaces the backbone's own last one, such as a pretrained copy.
        rotation: `rotation_of` the images.
    """
    block = blocks_of(backbone)[-1] if last_block is None else last_block
    return final_norm(backbone)(run_block_class_row(block, entering, rotation=rotation))


def class_token(backbone: PreTrainedModel, tokens: Tensor, rotation: Rotation | None = None) -> Tensor:
    """The [CLS] feature ``(B, D)`` after the final norm, of tokens ``(B, T, D)`` that enter block 0.

    Without prompts it equals ``backbone(...).last_hidden_state[:, 0]``. `rotation` is `rotation_of` the images.
    """
    return class_row(backbone, run_prefix(backbone, tokens, rotation), rotation=rotation)


def patch_features(
    backbone: PreTrainedModel, entering: Tensor, last_block: nn.Module, rotation: Rotation | None = None
) -> Tensor:
    """Patch features ``(B, L, D)`` after the final norm, of tokens that enter this last block."""
    patches = patch_count(backbone, entering)
    return final_norm(backbone)(run_block(last_block, entering, rotation=rotation)[:, -patches:])


def class_attention(block: Any, tokens: Tensor, num_patches: int, rotation: Rotation | None = None) -> Tensor:
    """Attention weights ``(B, L, H)`` of [CLS] for the patches, after a soft-max over all T tokens.

    Args:
        block: of any supported backbone.
        tokens: ``(B, T, D)``, which enter it.
        num_patches: L; patches are the last tokens.
        rotation: `rotation_of` the images.
    """

    def attention_of(block: Any, tokens: Tensor) -> Tensor:
        return _class_weights(block.attention, _norms(block)[0](tokens), rotation)

    weights: Tensor = run_piece(block, tokens, attention_of, **_positions(block, rotation))
    return weights[:, :, -num_patches:].transpose(1, 2).float()


def whole_attention(block: Any, tokens: Tensor, rotation: Rotation | None = None) -> Tensor:
    """Attention weights ``(B, H, T, T)`` of all tokens ``(B, T, D)``."""

    def attention_of(block: Any, tokens: Tensor) -> Tensor:
        attention, normed = block.attention, _norms(block)[0](tokens)
        query = turned(_heads(attention, attention.q_proj(normed)), rotation)
        key = turned(_heads(attention, attention.k_proj(normed)), rotation)
        return torch.softmax(query @ key.transpose(2, 3) * attention.scaling, dim=-1)

    return run_piece(block, tokens, attention_of, **_positions(block, rotation))


def _class_weights(
    attention: Any, normed: Tensor, rotation: Rotation | None, prefix_keys: Tensor | None = None
) -> Tensor:
    """Attention weights of token 0, ``(B, H, T)``, after those of the prefix keys if there are any."""
    heads = _heads_of(attention)
    # mutant without -: the query of one token is (B, H * d), whose last dimension is 1
    query = attention.q_proj(normed[:, 0]).unflatten(-1, heads)  # (B, H, d)
    product = product_of(attention.k_proj) if rotation is None else None
    if product is None:
        key = turned(_heads(attention, attention.k_proj(normed)), rotation)
        scores = (key @ query[..., None])[..., 0]
    else:
        scores = _class_scores(query, normed, *product)
    if prefix_keys is not None:
        own = torch.einsum("bhd,bshd->bhs", query, prefix_keys.to(query).unflatten(-1, heads))
        scores = torch.cat([own, scores], dim=-1)
    # mutant without .float(): PyTorch sums a soft-max of halves in float32 by itself
    return torch.softmax((scores * attention.scaling).float(), dim=-1).to(normed.dtype)


def _class_scores(query: Tensor, normed: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Scores ``(B, H, T)`` of one query ``(B, H, d)`` with keys that are a product, without rotation.

    q . (W x + b) = (W' q) . x + q . b: instead of every token, the one query goes through the key projection.
    """
    heads = query.shape[1:]
    seen = torch.einsum("bhd,hdD->bhD", query, weight.unflatten(0, heads))
    scores = seen @ normed.transpose(1, 2)  # (B, H, T)
    if bias is None:
        return scores
    return scores + torch.einsum("bhd,hd->bh", query, bias.unflatten(0, heads))[..., None]


def turned(rows: Tensor, rotation: Rotation | None) -> Tensor:
    """Queries or keys ``(B, H, T, d)``, those of the patches, the last ones, rotated."""
    if rotation is None:
        return rows
    cosines, sines = (part.to(rows) for part in rotation)
    before, patches = rows[..., : -len(sines), :], rows[..., -len(sines) :, :]
    first, second = patches.chunk(2, dim=-1)
    across = torch.cat([-second, first], dim=-1)
    return torch.cat([before, patches * cosines + across * sines], dim=-2)


def class_position(backbone: PreTrainedModel) -> Tensor:
    """Position embedding of [CLS], ``(1, 1, D)``; zero where only patches have positions."""
    if hasattr(backbone, "rope_embeddings"):
        (token,) = at_hand(backbone.embeddings, "cls_token")
        return torch.zeros_like(token)
    (positions,) = at_hand(backbone.embeddings, "position_embeddings")
    return positions[:, :1]


def run_block(
    block: Any,
    tokens: Tensor,
    prefix: tuple[Tensor, Tensor] | None = None,
    rotation: Rotation | None = None,
) -> Tensor:
    """A pre-norm block, ``(B, T, D)`` to ``(B, T, D)``, whose attention may see more than its own tokens.

    Args:
        block: of any supported backbone.
        tokens: ``(B, T, D)``.
        prefix: keys and values ``(B, S, D)`` each that every query also attends to (prefix tuning).
        rotation: `rotation_of` the images.
    """
    if prefix is None and runs_whole(block):
        return whole_block(block, rotation)(tokens)

    def with_prefix(block: Any, tokens: Tensor) -> Tensor:
        attention = block.attention
        normed = _norms(block)[0](tokens)
        key, value = attention.k_proj(normed), attention.v_proj(normed)
        if prefix is not None:
            key = torch.cat([prefix[0].to(key), key], dim=1)
            value = torch.cat([prefix[1].to(value), value], dim=1)
        # mutant without scale=: every supported backbone has PyTorch's own scale
        mixed = F.scaled_dot_product_attention(
            turned(_heads(attention, attention.q_proj(normed)), rotation),
            turned(_heads(attention, key), rotation),
            _heads(attention, value),
            scale=attention.scaling,
        )
        return _after_attention(block, tokens, mixed.transpose(1, 2).flatten(2))

    _require_rotation(block, rotation)
    return enter(block, tokens, with_prefix)


def run_block_class_row(
    block: Any,
    tokens: Tensor,
    prefix: tuple[Tensor, Tensor] | None = None,
    rotation: Rotation | None = None,
) -> Tensor:
    """Row 0 of `run_block`, computed alone: ``(B, T, D)`` to ``(B, D)``.

    Where projections are products (`product_of`), it forms no values of the other tokens, and keys only to rotate them.
    The query goes to the tokens (`_class_scores`). Since weights sum to one, the tokens are averaged before the value
    projection: two products with H rows instead of two with T.
    """
    if runs_whole(block):
        return run_block(block, tokens, prefix, rotation)[:, 0]

    def row_of(block: Any, tokens: Tensor) -> Tensor:
        normed = _norms(block)[0](tokens)
        weights = _class_weights(block.attention, normed, rotation, None if prefix is None else prefix[0])
        before = 0 if prefix is None else prefix[0].shape[1]
        mixed = _class_mix(block.attention, weights[..., before:], normed)
        if prefix is not None:
            values = prefix[1].to(mixed).unflatten(-1, mixed.shape[1:])
            mixed = mixed + torch.einsum("bhs,bshd->bhd", weights[..., :before], values)
        return _after_attention(block, tokens[:, 0], mixed.flatten(1))

    _require_rotation(block, rotation)
    return enter(block, tokens, row_of)


def _class_mix(attention: Any, weights: Tensor, normed: Tensor) -> Tensor:
    """Values ``(B, H, d)`` of the tokens, mixed by weights ``(B, H, T)``."""
    product = product_of(attention.v_proj)
    if product is None:
        return (weights[..., None, :] @ _heads(attention, attention.v_proj(normed)))[..., 0, :]
    weight, bias = product
    heads = _heads_of(attention)
    mixed = torch.einsum("bhD,hdD->bhd", weights @ normed, weight.unflatten(0, heads))
    if bias is None:
        return mixed
    return mixed + weights.sum(-1, keepdim=True) * bias.unflatten(0, heads)  # one without a prefix


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
    return rows.unflatten(-1, _heads_of(attention)).transpose(1, 2)


def _heads_of(attention: Any) -> tuple[int, int]:
    """H and D / H; the first as what is left, since what stands in for a projection need not know its own width."""
    return -1, attention.head_dim


def _positions(block: Any, rotation: Rotation | None) -> dict[str, Rotation]:
    """What a block gets beside tokens."""
    _require_rotation(block, rotation)
    return {} if rotation is None else {"position_embeddings": rotation}


def _require_rotation(block: Any, rotation: Rotation | None) -> None:
    """Refuse to run a block of DINOv3 without the positions of its patches."""
    if rotation is None and isinstance(block, DINOv3ViTLayer):
        raise ValueError(
            "This backbone turns queries and keys by the place of their patch: hand the rotation on, which is "
            "self.rotation(pixel_values) in a model and rotation_of(backbone, pixel_values) elsewhere."
        )

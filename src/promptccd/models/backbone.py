"""The network in parts: embeddings and blocks of a DINO backbone, the [CLS] feature behind them, and projection heads.

Blocks are modules of transformers and run whole, so that hooks, adapters, offload, quantised weights and shards
act. Only the last block learns (PromptCCD, "Why finetune the final block"): the blocks before it need no graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import align_module_device
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers import initialization as init

from promptccd.models.configuration import CategoryDiscoveryConfig

_OPEN = "promptccd_open"  # name of `_open_attention` in transformers

# Rotary position embedding (DINOv3): cosines and sines ``(L, D / H)`` for queries and keys of the patches.
Rotation = tuple[Tensor, Tensor]
Prefix = tuple[Tensor, Tensor]  # keys and values ``(B, S, D)``


def blocks_of(backbone: PreTrainedModel) -> nn.ModuleList:
    """The transformer blocks, first to last."""
    if hasattr(backbone, "layers"):
        return backbone.layers
    return backbone.model.layer if hasattr(backbone, "rope_embeddings") else backbone.encoder.layer


def final_norm(backbone: PreTrainedModel) -> nn.Module:
    """The norm behind the last block."""
    return backbone.norm if hasattr(backbone, "rope_embeddings") else backbone.layernorm


def embed(backbone: PreTrainedModel, pixel_values: Tensor) -> tuple[Tensor, Rotation | None]:
    """Tokens that enter block 0, ``(B, L, D)``: [CLS], registers if there are any, patches; and their rotation.

    Positions are added already, and the rotation is `None`, unless the backbone rotates queries and keys in every block
    instead. Only patches are rotated, which are the last tokens: not [CLS], registers or prompts. A graph is built only
    if the embeddings learn, which here they never do.

    Args:
        backbone: a supported backbone.
        pixel_values: normalised images ``(B, 3, H, W)``; any size that the patch size divides.
    """
    # only ViT refuses other sizes by default.
    options = {"interpolate_pos_encoding": True} if backbone.config.model_type == "vit" else {}
    with torch.set_grad_enabled(torch.is_grad_enabled() and _learns(backbone.embeddings)):
        tokens: Tensor = backbone.embeddings(pixel_values, **options)
    rotary = getattr(backbone, "rope_embeddings", None)
    return tokens, None if rotary is None else rotary(pixel_values.to(backbone.dtype))


def patch_count(backbone: PreTrainedModel, tokens: Tensor) -> int:
    """Number of patches, which are the last tokens, among ``(B, T, D)`` tokens of `embed`."""
    return tokens.shape[1] - 1 - getattr(backbone.config, "num_register_tokens", 0)


def insert_prompts(backbone: PreTrainedModel | None, tokens: Tensor, prompts: Tensor) -> Tensor:
    """Put ``(B, P, D)`` prompts behind [CLS], the first of tokens ``(B, T, D)``.

    Before block 0 of a backbone each prompt gets the position of [CLS], as in the released code.
    """
    prompts = prompts.to(tokens)
    if backbone is not None and not hasattr(backbone, "rope_embeddings"):  # there only patches have positions
        with align_module_device(backbone.embeddings):  # accelerate may have offloaded it
            prompts = prompts + backbone.embeddings.position_embeddings[:, :1]
    return torch.cat([tokens[:, :1], prompts, tokens[:, 1:]], dim=1)


def run_prefix(
    backbone: PreTrainedModel,
    tokens: Tensor,
    rotation: Rotation | None = None,
    prefixes: Sequence[Prefix] = (),
) -> Tensor:
    """Tokens that enter the last block, from tokens that enter block 0: ``(B, T, D)`` both.

    A graph is built only if the tokens need a gradient, as learnt prompts do, or a block learns, as with an adapter.

    Args:
        backbone: a supported backbone, in eval mode.
        tokens: of `embed`, perhaps with prompts among them.
        rotation: of `embed`.
        prefixes: of the first blocks, whose attention is open.

    Raises:
        ValueError: the backbone rotates queries and keys, and there is no rotation.
    """
    if rotation is None and hasattr(backbone, "rope_embeddings"):
        raise ValueError("This backbone rotates queries and keys: pass the rotation= that embed gives.")
    blocks = blocks_of(backbone)[:-1]
    needs_graph = (
        tokens.requires_grad or any(map(_learns, blocks)) or any(key.requires_grad for key, _ in prefixes)
    )
    with torch.set_grad_enabled(torch.is_grad_enabled() and needs_graph):
        if backbone.fast_blocks is not None and backbone.fast_blocks.copies:
            return backbone.fast_blocks.prefix(blocks, tokens, rotation, prefixes)
        for block, prefix in zip_longest(blocks, prefixes):
            tokens = run_block(block, tokens, rotation, prefix)
    return tokens


def class_row(
    backbone: PreTrainedModel,
    entering: Tensor,
    last_block: nn.Module | None = None,
    rotation: Rotation | None = None,
    prefix: Prefix | None = None,
) -> Tensor:
    """The [CLS] feature after the final norm, of tokens that enter the last block: ``(B, D)``.

    Args:
        backbone: a supported backbone, in eval mode.
        entering: ``(B, T, D)`` from `run_prefix`.
        last_block: a block that replaces the backbone's own last block, such as a pretrained copy.
        rotation: of `embed`.
        prefix: as in `run_block`.
    """
    block, row = blocks_of(backbone)[-1] if last_block is None else last_block, None
    if backbone.fast_blocks is not None and prefix is None:
        row = backbone.fast_blocks.class_row(block, entering, rotation)
    if row is None:
        row = run_block(block, entering, rotation, prefix)[:, 0]
    return final_norm(backbone)(row)


def patch_features(
    backbone: PreTrainedModel, entering: Tensor, last_block: nn.Module, rotation: Rotation | None = None
) -> Tensor:
    """Patch features ``(B, L, D)`` after the final norm, of tokens that enter this last block."""
    patches = patch_count(backbone, entering)
    return final_norm(backbone)(run_block(last_block, entering, rotation)[:, -patches:])


def class_attention(
    backbone: PreTrainedModel, entering: Tensor, last_block: Any, rotation: Rotation | None = None
) -> Tensor:
    """Attention weights ``(B, L, H)`` of [CLS] for the patches, after a soft-max over all T tokens.

    Args:
        backbone: a supported backbone.
        entering: ``(B, T, D)``, which enter the block.
        last_block: the backbone's own, or a copy of it.
        rotation: of `embed`.
    """
    weights: Tensor | None = None
    if backbone.fast_blocks is not None:
        weights = backbone.fast_blocks.class_weights(last_block, entering, rotation)
    if weights is None:
        read = AttentionRead()
        run_block(last_block, entering, rotation, read=read)
        scores = (read.query[:, :, :1] @ read.key.transpose(2, 3))[:, :, 0] * last_block.attention.scaling
        weights = torch.softmax(scores.float(), dim=-1).to(entering.dtype)
    return weights[:, :, -patch_count(backbone, entering) :].transpose(1, 2).float()


def run_block(
    block: Any,
    tokens: Tensor,
    rotation: Rotation | None = None,
    prefix: Prefix | None = None,
    read: "AttentionRead | None" = None,
) -> Tensor:
    """A block, called whole: ``(B, T, D)`` to ``(B, T, D)``.

    Args:
        block: of any supported backbone.
        tokens: ``(B, T, D)``.
        rotation: of `embed`.
        prefix: keys and values that every query also attends to (prefix tuning).
        read: receives queries and keys; like a prefix, only of a block with an open attention (`open_attention`).
    """
    given = {"position_embeddings": rotation, "prefix": prefix, "read": read}
    options = {name: value for name, value in given.items() if value is not None}
    found: Tensor = block(tokens, **options)
    return found


@dataclass
class AttentionRead:
    """Queries and keys ``(B, H, T, D / H)`` of an attention, rotated if the backbone rotates."""

    query: Any = None
    key: Any = None


def open_attention(block: Any) -> None:
    """Let the attention of a block take ``prefix`` and ``read`` of `run_block`."""
    config = block.attention.config
    if config._attn_implementation != _OPEN:  # by this name transformers finds `_open_attention`
        block.attention.config = SimpleNamespace(_attn_implementation=_OPEN, config=config)


def _open_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    prefix: Prefix | None = None,
    read: "AttentionRead | None" = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers calls it; the weights are returned only where the kernel is ``eager``, as there."""
    if read is not None:
        read.query, read.key = query, key
    if prefix is not None:
        more = [each.to(key).unflatten(-1, (-1, module.head_dim)).transpose(1, 2) for each in prefix]
        key, value = torch.cat([more[0], key], dim=2), torch.cat([more[1], value], dim=2)
    mixed = F.scaled_dot_product_attention(query, key, value, scale=scaling).transpose(1, 2)
    if module.config.config._attn_implementation != "eager":
        return mixed, None
    return mixed, torch.softmax(query @ key.transpose(2, 3) * scaling, dim=-1)


AttentionInterface.register(_OPEN, _open_attention)


def _learns(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


# Projection heads


def draw_truncated_normal(module: nn.Module, generator: torch.Generator, std: float = 0.02) -> None:
    """Reset weights from a CPU generator, truncated normal; biases become zero, norms the identity."""
    for name, parameter in module.named_parameters():
        owner = module.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, nn.LayerNorm):
            owner.reset_parameters()
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            drawn = torch.empty_like(parameter, device="cpu")
            nn.init.trunc_normal_(drawn, std=std, generator=generator)
            parameter.data.copy_(drawn)


class UnitHead(nn.Module):
    """No head: losses read the unit features themselves."""

    def __init__(self, config: CategoryDiscoveryConfig):
        super().__init__()

    reset_parameters = draw_truncated_normal

    def forward(self, features: Tensor) -> Tensor:
        """Features ``(B, D)`` to the L2-normalised bottleneck ``(B, d)``."""
        return F.normalize(features)

    def similarities(self, bottleneck: Tensor) -> Tensor:
        """Cosine similarities of all pairs of embeddings, ``(B, d)`` to ``(B, B)``."""
        return bottleneck @ bottleneck.T


class BottleneckHead(UnitHead):
    """MLP D -> H -> H -> d with GELU, L2-normalised: 6,295,808 learnable parameters at the paper's sizes."""

    def __init__(self, config: CategoryDiscoveryConfig):
        super().__init__(config)
        hidden = config.projection_hidden_size
        self.mlp = nn.Sequential(
            nn.Linear(config.vision_config.hidden_size, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, config.projection_bottleneck_size),
        )

    def forward(self, features: Tensor) -> Tensor:
        """See the base class."""
        return F.normalize(self.mlp(features))


class ProjectionHead(BottleneckHead):
    """The same MLP, then a weight-normalised linear layer to O outputs.

    The gain of the last layer is fixed at 1, so its rows are unit vectors and it has ``O * d`` learnable
    parameters: 23,073,024 in all at the paper's sizes (768, 2048, 256, 65,536). Training only; features are
    clustered without it.
    """

    def __init__(self, config: CategoryDiscoveryConfig):
        super().__init__(config)
        sizes = config.projection_output_size, config.projection_bottleneck_size
        self.last_weight = nn.Parameter(torch.empty(sizes))

    def initialise(self, std: float) -> None:
        """As transformers initialises a module whose weights are not loaded."""
        init.trunc_normal_(self.last_weight, std=std)

    def outputs(self, bottleneck: Tensor) -> Tensor:
        """Embeddings ``(B, O)``: bottleneck rows times the normalised last layer, L2-normalised."""
        return F.normalize(bottleneck @ F.normalize(self.last_weight).T)

    def similarities(self, bottleneck: Tensor) -> Tensor:
        """Cosine similarities of the O-wide outputs, ``(B, d)`` to ``(B, B)``.

        With W the normalised last layer, u_i . u_j = h_i' (W'W) h_j: the d x d Gram matrix is enough, and the O-wide
        outputs are never formed. Both ways have the same value and gradient; the Gram matrix costs d*d*O, the outputs
        (d + B)*B*O, and the cheaper way is used.
        """
        rows, width = bottleneck.shape
        if rows * (rows + width) <= width * width:
            embeddings = self.outputs(bottleneck)
            return embeddings @ embeddings.T
        with torch.autocast(bottleneck.device.type, enabled=False):  # a 65,536-term sum: keep it in float32
            weight = F.normalize(self.last_weight.float())
            hidden = bottleneck.float()
            products = hidden @ (weight.T @ weight) @ hidden.T
            norms = products.diagonal().clamp_min(1e-24).sqrt()
            return products / (norms[:, None] * norms[None, :])

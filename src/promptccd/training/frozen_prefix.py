"""The blocks before the last one as a training may run them: in a precision of their own.

They do not learn, so what a step computes of their weights can be computed once: q, k and v as one product, layer
scales inside the products before them, and bfloat16 weights that autocast would cast anew in each of its passes. The
copies lie beside the model while a stage trains. Nothing saves them, and what ends a stage is computed without them, as
whoever loads the checkpoint will.
"""

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from promptccd.models import CategoryDiscoveryModel
from promptccd.models.backbones import Rotation, recomputed, turned, whole_block
from promptccd.models.block_calls import Enterable, has_hooks
from promptccd.training.devices import has_bf16

logger = logging.getLogger(__name__)

DTYPES = {"same": None, "bf16": torch.bfloat16}


class FrozenBlock(nn.Module):
    """A copy of a block that does not learn; it gives the block's tokens up to rounding.

    Args:
        block: of any supported backbone, one of which `why_not_copied` says nothing.
        dtype: of its weights and of all that it computes.
    """

    def __init__(self, block: Any, dtype: torch.dtype):
        super().__init__()
        attention = block.attention
        self.head_dim, self.scaling = attention.head_dim, attention.scaling
        self.norm1, self.norm2 = copy.deepcopy(_norms(block))
        self.qkv = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out, self.mlp = copy.deepcopy(attention.o_proj), copy.deepcopy(block.mlp)
        _scale(self.out, block, "layer_scale1")
        _scale(
            [each for each in self.mlp.modules() if isinstance(each, nn.Linear)][-1], block, "layer_scale2"
        )
        self.to(dtype)

    def forward(self, tokens: Tensor, rotation: Rotation | None) -> Tensor:
        """``(B, T, D)`` to ``(B, T, D)``."""
        with torch.autocast(tokens.device.type, enabled=False):
            rows = self.qkv(self.norm1(tokens)).unflatten(-1, (3, -1, self.head_dim))
            query, key, value = rows.permute(2, 0, 3, 1, 4)
            # mutant without scale=: that of every backbone so far
            mixed = F.scaled_dot_product_attention(
                turned(query, rotation), turned(key, rotation), value, scale=self.scaling
            )
            tokens = tokens + self.out(mixed.transpose(1, 2).flatten(2))
            return tokens + self.mlp(self.norm2(tokens))


def _norms(block: nn.Module) -> list[nn.Module]:
    """Before the attention and before the MLP."""
    return [each for each in block.children() if isinstance(each, nn.LayerNorm)]


def _joined(*parts: nn.Linear) -> nn.Linear:
    """One product that gives the outputs of several, one behind the other."""
    weight = torch.cat([part.weight.detach() for part in parts])
    zero = weight.new_zeros(parts[0].out_features)
    bias = torch.cat([zero if part.bias is None else part.bias.detach() for part in parts])
    # mutant 1 to 2, 1 to 2 #2: the sizes of weights that are replaced
    joined = nn.Linear(1, 1, device="meta")
    joined.weight, joined.bias = (nn.Parameter(each, requires_grad=False) for each in (weight, bias))
    return joined


def _scale(linear: nn.Linear, block: nn.Module, name: str) -> None:
    """Put a layer scale into the product before it; backbones without one have none."""
    scale = getattr(getattr(block, name, None), "lambda1", None)
    if scale is None:
        return
    linear.weight.data = linear.weight.data * scale.detach()[:, None]
    if linear.bias is not None:
        linear.bias.data = linear.bias.data * scale.detach()


def why_not_copied(block: Any, usual: dict[str, type]) -> str:
    """What a copy of this block would not do as the block does; empty where there is nothing.

    Args:
        block: that does not learn, or so it should be.
        usual: kinds of its modules as its class builds them, of `kinds_built_by`.
    """
    if not usual:
        return f"{type(block).__name__} is a block of one's own"
    own = {name: type(module) for name, module in block.named_modules()}
    for name in [*usual, *own]:
        if own.get(name) is not usual.get(name):
            return f"{name} is {_named(own.get(name))} and not {_named(usual.get(name))}"
    return next(
        (f"{name or 'it'} {why}" for name, each in block.named_modules() if (why := _acting(each))), ""
    )


def kinds_built_by(block: Any) -> dict[str, type]:
    """Kinds of all modules of a new block of this class, by name; empty for a class of somebody else."""
    kind: Any = type(block)
    if not kind.__module__.startswith(("transformers.models.", Enterable.__module__)):
        return {}  # mutant returns None: as empty
    with torch.device("meta"):
        return {name: type(module) for name, module in kind(block.attention.config).named_modules()}


def _named(kind: type | None) -> str:
    return "nothing" if kind is None else kind.__name__


def _acting(module: nn.Module) -> str:
    """What a module does besides computing with weights that stay."""
    if has_hooks(module) or "forward" in vars(module):
        return "has a hook"
    if module.training:
        return "is in training mode"
    if any(each is not None and each.requires_grad for each in module._parameters.values()):
        return "learns"
    return ""


class FrozenPrefix:
    """Runs the frozen blocks of a backbone through copies, which follow their weights.

    A block that learns, or has adapters or hooks, runs itself, which is said.

    Args:
        dtype: of the copies, as in `FrozenBlock`.
    """

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self._copies: dict[int, FrozenBlock | None] = {}
        self._made_of: dict[int, list[Any]] = {}
        self._usual: dict[type, dict[str, type]] = {}

    def __call__(self, blocks: Sequence[Any], tokens: Tensor, rotation: Rotation | None) -> Tensor:
        """Tokens that leave these blocks, ``(B, T, D)``, in the dtype of those that enter."""
        given = tokens.dtype
        turned_by = None if rotation is None else (rotation[0].to(self.dtype), rotation[1].to(self.dtype))
        if not torch.compiler.is_compiling():  # addresses are nothing to trace; who compiles calls it before
            self.follow(blocks)
        for number, block in enumerate(blocks):
            if (copied := self._copies[number]) is None:
                tokens = recomputed(block, whole_block(block, rotation), tokens.to(given))
            else:
                tokens = recomputed(block, copied, tokens.to(self.dtype), turned_by)
        return tokens.to(given)

    def follow(self, blocks: Sequence[Any]) -> None:
        """Make the copies of blocks anew that were moved, loaded or changed since."""
        for number, block in enumerate(blocks):
            if type(block) not in self._usual:
                self._usual[type(block)] = kinds_built_by(block)
            why = why_not_copied(block, self._usual[type(block)])
            made_of = [why, *((each.data_ptr(), each._version, each.device) for each in block.parameters())]
            if self._made_of.get(number) == made_of:
                continue
            if why:
                logger.warning(
                    "Frozen block %d runs as it is, in spite of frozen_precision: %s.", number, why
                )
            self._copies[number] = None if why else FrozenBlock(block, self.dtype)
            self._made_of[number] = made_of


@contextmanager
def frozen_prefix(model: CategoryDiscoveryModel, precision: str) -> Iterator[None]:
    """Run the frozen blocks of a model in this precision, as long as this lasts.

    Args:
        model: on its device.
        precision: ``frozen_precision`` of a recipe.
    """
    if (dtype := DTYPES[precision]) is None:
        yield
        return
    model.backbone.frozen_prefix = FrozenPrefix(dtype)
    try:
        yield
    finally:
        del model.backbone.frozen_prefix


def tell_of_emulation(precision: str, device: torch.device) -> None:
    """Warn of a device that has not this ``frozen_precision`` in hardware."""
    if DTYPES[precision] is not None and not has_bf16(device):
        logger.warning(
            "frozen_precision %s: %s has no bfloat16 in hardware, and steps take several times as long as in float32. "
            "Give --frozen_precision same and --mixed_precision no, in a new --output_dir.",
            precision,
            device,
        )

"""Blocks that are called also where only a piece of them is wanted: so hooks, offload, adapters and FSDP act.

Whatever stands around a module, or in for it, acts when the module is called. What reads weights by itself passes it
by. So a piece of a block runs inside of a call of the block, its projections are called, and their weights are read
only where they are nothing but weights (`product_of`).
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)
from transformers.models.dinov2 import modeling_dinov2
from transformers.models.dinov2_with_registers import modeling_dinov2_with_registers
from transformers.models.dinov3_vit import modeling_dinov3_vit
from transformers.models.vit import modeling_vit

Piece = Callable[[Any, Tensor], Any]
# PyTorch fills these in place, whoever hangs hooks on all modules.
_GLOBAL = _global_forward_hooks, _global_forward_pre_hooks, _global_backward_hooks, _global_backward_pre_hooks
# Those of transformers for hidden states stay and see its own forward alone; PyTorch's counter of work asks for names.
_CONTENT = "transformers.", "torch.utils.module_tracker"


class Enterable(nn.Module):
    """A block whose forward can run a piece of it, instead of itself or beside itself."""

    enterable = True  # wrappers that hand all on, as those of FSDP and torch.compile, have it too

    def forward(
        self,
        hidden_states: Tensor,
        *args: Any,
        piece: Piece | None = None,
        beside: Piece | None = None,
        **kwargs: Any,
    ) -> Any:
        """As the block's own, unless a piece is given, which gets the block and the tokens that enter it."""
        if piece is not None:
            return piece(self, hidden_states)
        if beside is not None:
            beside(self, hidden_states)
        return super().forward(hidden_states, *args, **kwargs)


# By the names of transformers, which says by name what must not be split over devices.
class Dinov2Layer(Enterable, modeling_dinov2.Dinov2Layer):
    """Of DINOv2."""


class Dinov2WithRegistersLayer(Enterable, modeling_dinov2_with_registers.Dinov2WithRegistersLayer):
    """Of DINOv2 with registers."""


class DINOv3ViTLayer(Enterable, modeling_dinov3_vit.DINOv3ViTLayer):
    """Of DINOv3."""


class ViTLayer(Enterable, modeling_vit.ViTLayer):
    """Of DINO."""


_ENTERABLE = {
    each.__mro__[2]: each for each in (Dinov2Layer, Dinov2WithRegistersLayer, DINOv3ViTLayer, ViTLayer)
}


def let_in(block: nn.Module) -> None:
    """Make a block of transformers enterable."""
    block.__class__ = _ENTERABLE[type(block)]


def is_watched(module: nn.Module) -> bool:
    """Whether something hangs on a module or a part of it that expects to see what usually goes in and comes out."""
    return _hang_there(*_GLOBAL) or any(
        has_hooks(part) or ("forward" in vars(part) and not _keeps_elsewhere(part))
        for part in module.modules()
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks hang on a module itself."""
    return _hang_there(
        module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    )


def _hang_there(*hooks: Mapping[int, Any]) -> bool:
    """Whether there are hooks that need more than that a module is called."""
    return any(
        not str(getattr(hook, "__module__", None)).startswith(_CONTENT)
        for each in hooks
        for hook in each.values()
    )


def runs_whole(block: nn.Module) -> bool:
    """Whether a block has to run whole: it is watched, or another one that somebody put in its place."""
    return not hasattr(block, "enterable") or is_watched(block)


def run_piece(block: Any, tokens: Tensor, piece: Piece, **whole: Any) -> Any:
    """What a piece of a block finds within a call of it.

    Args:
        block: of any supported backbone.
        tokens: ``(B, T, D)``, which enter it.
        piece: gets the block and the tokens.
        whole: further arguments of the block. A watched one runs whole, beside its piece.
    """
    if not is_watched(block):
        return enter(block, tokens, piece)
    found: list[Any] = []
    enter(block, tokens, beside=lambda *args: found.append(piece(*args)), **whole)
    return found[0]


def enter(block: Any, tokens: Tensor, piece: Piece | None = None, **options: Any) -> Any:
    """Call a block with a piece of it.

    Raises:
        TypeError: it is another one, which does not know of pieces.
    """
    if not hasattr(block, "enterable"):
        raise TypeError(
            f"A {type(block).__name__} stands in for a block whose attention is needed by itself: let its class derive "
            "from that of the block, or hang a hook on the block instead."
        )
    return block(tokens, piece=piece, **options)


def product_of(projection: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Weight and bias of a projection that is their product with what it is given, and nothing else.

    `None` of all that stands in for such a one, or acts around it: adapters, quantised and sharded weights, hooks.
    """
    if type(projection) is not nn.Linear or is_watched(projection):
        return None
    weight, bias = at_hand(projection, "weight", "bias")
    # Integers with a scale, and shards, do arithmetic of their own. Stand-ins of torch.export for plain tensors do not.
    return None if hasattr(weight, "__tensor_flatten__") else (weight, bias)


def at_hand(module: nn.Module, *names: str) -> list[Any]:
    """Parameters as the forward of their module sees them, also where accelerate keeps them elsewhere until then."""
    if not _keeps_elsewhere(module):
        return [getattr(module, name) for name in names]
    hook: Any = module._hf_hook
    hook.pre_forward(module)
    here = [getattr(module, name) for name in names]
    hook.post_forward(module, None)
    return here


def _keeps_elsewhere(module: nn.Module) -> bool:
    """Whether accelerate brings the parameters of a module for its forward, and does nothing else to it."""
    hook = getattr(module, "_hf_hook", None)
    # Told by what it has: code that travels with a checkpoint must not import accelerate, which may not be there.
    return hasattr(hook, "offload") and hasattr(hook, "execution_device")

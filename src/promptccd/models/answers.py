"""What the forward of every transformers model can also return: hidden states, attentions, a tuple."""

from collections.abc import Callable, Collection
from functools import update_wrapper
from inspect import Parameter, signature
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from promptccd.models.backbones import Rotation, blocks_of, entering, whole_attention

OPTIONS: dict[str, Any] = {
    "output_hidden_states": bool | list[int] | None,
    "output_attentions": bool | list[int] | None,
    "return_dict": bool | None,
}


def answering(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options ``output_hidden_states``, ``output_attentions`` and ``return_dict`` to a model's forward.

    Their default is in the configuration, as in transformers; a list keeps some layers. States and attentions are those
    that transformers gives for the plain backbone, whatever prompts do. They take a second forward, which runs only on
    request.
    """

    def answer(
        self: Any,
        pixel_values: Tensor,
        *args: Any,
        output_hidden_states: bool | list[int] | None = None,
        output_attentions: bool | list[int] | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        output = forward(self, pixel_values, *args, **kwargs)
        if type(self).forward is not answer:  # called by the forward of a subclass, which adds the rest
            return output
        config = self.config
        with_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        with_attentions = config.output_attentions if output_attentions is None else output_attentions
        if with_states or with_attentions:
            tokens, rotation = self.embed(pixel_values), self.rotation(pixel_values)
            states = entering(self.backbone, tokens, rotation)
            if with_states:
                output.hidden_states = _wanted(states, with_states)
            if with_attentions:
                output.attentions = _wanted(attentions(self.backbone, states, rotation), with_attentions)
        as_tuple = not (config.return_dict if return_dict is None else return_dict)
        return output.to_tuple() if as_tuple else output

    update_wrapper(answer, forward)
    vars(answer).pop("__wrapped__")  # Accelerate would follow it, and put the original forward back
    own = signature(forward)
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kinds)
        for name, kinds in OPTIONS.items()
    ]
    answer.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*own.parameters.values(), *options]
    )
    return answer


def _wanted(layers: tuple[Tensor, ...], which: bool | int | Collection[int]) -> tuple[Tensor | None, ...]:
    """All layers, or those at some places, which may be counted from the end, and `None` for the others."""
    if isinstance(which, bool):
        return layers
    places = {which} if isinstance(which, int) else {*which}
    return tuple(
        layer if places & {place, place - len(layers)} else None for place, layer in enumerate(layers)
    )


def attentions(
    backbone: PreTrainedModel, states: tuple[Tensor, ...], rotation: Rotation | None
) -> tuple[Tensor, ...]:
    """Attention weights of each block, ``(B, H, T, T)``, whichever kernel the blocks use."""
    return tuple(
        whole_attention(block, state, rotation)
        for block, state in zip(blocks_of(backbone), states[:-1], strict=True)
    )

"""What every forward answers beside its method's own output, as transformers' models do: states, attentions, tuples."""

from collections.abc import Callable
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from .backbones import Rotation, blocks_of, whole_attention, whole_block

OPTIONS = ("output_hidden_states", "output_attentions", "return_dict")


def answering(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A model's forward that also takes ``output_hidden_states``, ``output_attentions`` and ``return_dict``.

    States and attentions are those of the plain backbone, whatever prompts do: of all variants the same, and what
    `transformers` gives for it. They cost a forward of their own, so nobody pays who does not ask. Where nothing is
    said, the configuration decides, as it does in transformers.
    """

    def answer(
        self: Any,
        pixel_values: Tensor,
        *args: Any,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        output = forward(self, pixel_values, *args, **kwargs)
        if type(self).forward is not answer:  # a subclass asks for what its parent makes
            return output
        config = self.config
        with_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        with_attentions = config.output_attentions if output_attentions is None else output_attentions
        if with_states or with_attentions:
            tokens, rotation = self.embed(pixel_values), self.rotation(pixel_values)
            states = hidden_states(self.backbone, tokens, rotation)
            if with_states:
                output.hidden_states = states
            if with_attentions:
                output.attentions = attentions(self.backbone, states, rotation)
        as_tuple = not (config.return_dict if return_dict is None else return_dict)
        return output.to_tuple() if as_tuple else output

    update_wrapper(answer, forward)
    # Accelerate looks behind a wrapper for the forward of before, and would put that in its place.
    vars(answer).pop("__wrapped__")
    answer.__signature__ = _signature_of(forward)  # type: ignore[attr-defined]
    return answer


def _signature_of(forward: Callable[..., Any]) -> Signature:
    """What a forward takes, and what all take."""
    own = signature(forward)
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=bool | None) for name in OPTIONS
    ]
    return own.replace(parameters=[*own.parameters.values(), *options])


def hidden_states(backbone: PreTrainedModel, tokens: Tensor, rotation: Rotation | None) -> tuple[Tensor, ...]:
    """What enters each block, and what leaves the last, before the final norm: ``(B, T, D)`` each."""
    states = [tokens]
    for block in blocks_of(backbone):
        states.append(whole_block(block, rotation)(states[-1]))
    return tuple(states)


def attentions(
    backbone: PreTrainedModel, states: tuple[Tensor, ...], rotation: Rotation | None
) -> tuple[Tensor, ...]:
    """How the tokens attend to each other in each block, ``(B, H, T, T)``, whichever kernel the blocks use."""
    return tuple(
        whole_attention(block, state, rotation)
        for block, state in zip(blocks_of(backbone), states, strict=False)  # the last state enters none
    )

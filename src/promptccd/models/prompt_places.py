"""Prompts as tokens behind [CLS]: where they enter a backbone, and how long they are there.

Letters: B images, P prompts, T tokens, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .backbones import Rotation, class_position, patch_count, run_prefix


def insert_prompts(backbone: PreTrainedModel, tokens: Tensor, prompts: Tensor) -> Tensor:
    """Put ``(B, P, D)`` prompts behind [CLS]; each gets the position of [CLS], as in the released code."""
    return _behind_class(tokens, prompts.to(tokens) + class_position(backbone))


def _behind_class(tokens: Tensor, prompts: Tensor) -> Tensor:
    return torch.cat([tokens[:, :1], prompts.to(tokens), tokens[:, 1:]], dim=1)


@dataclass(frozen=True)
class Passage:
    """Images on their way through the frozen prefix.

    Attributes:
        backbone: a supported one.
        embedded: tokens that enter block 0, ``(B, T, D)``.
        entering: tokens that enter the last block, without prompts.
        rotation: `rotation_of` the images.
    """

    backbone: PreTrainedModel
    embedded: Tensor
    entering: Tensor
    rotation: Rotation | None


@dataclass(frozen=True)
class Place:
    """Before which block prompts enter.

    Attributes:
        tokens: those that prompts come to stand among.
        enter: puts prompts ``(B, P, D)`` among them and goes on to the last block: ``(B, T + P, D)`` that enter it.
    """

    tokens: Callable[[Passage], Tensor]
    enter: Callable[[Passage, Tensor], Tensor]


def _before_the_first_block(passage: Passage, prompts: Tensor) -> Tensor:
    prompted = insert_prompts(passage.backbone, passage.embedded, prompts)
    return run_prefix(passage.backbone, prompted, passage.rotation)


PLACES = {
    "first": Place(lambda passage: passage.embedded, _before_the_first_block),
    # No token has a position of its own there any more, and no second pass through the prefix is needed.
    "last": Place(
        lambda passage: passage.entering, lambda passage, prompts: _behind_class(passage.entering, prompts)
    ),
}


def as_long_as_patches(prompts: Tensor, length: Tensor, backbone: PreTrainedModel, tokens: Tensor) -> Tensor:
    """The prompts, longer by one factor for each image: that by which its patches are longer than a usual prompt.

    Args:
        prompts: ``(B, P, D)``.
        length: ``()``, that of a usual prompt.
        backbone: a supported one.
        tokens: ``(B, T, D)``, which prompts come to stand among; [CLS] and registers are of other lengths.
    """
    patches = tokens[:, -patch_count(backbone, tokens) :].float().norm(dim=-1).mean(dim=1)
    # mutant 1e-12 to 2e-12: only a lone component that was centred is so short, and stays zero
    return prompts * (patches / length.clamp_min(1e-12))[:, None, None]


SCALES = {"raw": lambda prompts, length, backbone, tokens: prompts, "tokens": as_long_as_patches}

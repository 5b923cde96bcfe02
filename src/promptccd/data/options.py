"""Options as fields of dataclasses, which declare ranges of numbers beside their defaults, and those of views.

The views themselves are apart, so that help need not import torch.
"""

import math
import reprlib
import types
import typing
from dataclasses import dataclass, field, fields
from typing import Any

from promptccd.errors import ConfigurationError

_RANGE = "range"
MAX_SIDE = 8_192  # of a view, in pixels; the positions of a DINOv2 reach 518


def number(default: Any, low: float, high: float = math.inf, *, above: bool = False) -> Any:
    """A field of a dataclass whose numbers `require_in_range` checks; it accepts `None` too.

    Args:
        default: default value of the field.
        low: the lowest number.
        high: the highest number.
        above: whether `low` itself is too low.
    """
    return field(default=default, metadata={_RANGE: (low, high, above)})


def option(
    default: Any,
    meaning: str,
    low: float | None = None,
    high: float = math.inf,
    *,
    above: bool = False,
    common: bool = False,
) -> Any:
    """A field of a recipe's section, written once: default, help and, for a number, its range.

    Args:
        default: default value; a function for one that is made anew, such as ``list``.
        meaning: help of the command line, a noun phrase.
        low: the lowest number; `None` for a field without numbers.
        high: the highest number.
        above: whether `low` itself is too low.
        common: whether ``--help`` shows it; ``--help-all`` shows every field.
    """
    metadata = {"help": meaning, "common": common, **({} if low is None else {_RANGE: (low, high, above)})}
    value = {"default_factory": default} if callable(default) else {"default": default}
    return field(metadata=metadata, **value)


def require_in_range(section: Any) -> None:
    """Refuse a dataclass with a number outside the range that its field declares.

    Raises:
        ConfigurationError: naming the field, its range and the value.
    """
    for item in fields(section):
        allowed, value = item.metadata.get(_RANGE), getattr(section, item.name)
        if allowed is None or value is None or isinstance(value, str):  # some fields also take a word
            continue
        if (expected := _expected_instead(value, *allowed)) is not None:
            raise ConfigurationError(f"Expected {item.name} {expected}, got {reprlib.repr(value)}.")


def _expected_instead(value: float, low: float, high: float, above: bool) -> str | None:
    """The range that a value violates, such as ``>= 1``; `None` if it is in range."""
    if isinstance(value, int) and value.bit_length() > 62:
        return "to have at most 18 digits"
    if value <= low and (above or value < low):
        return f"> {low}" if above else f">= {low}"
    if value > high:
        return f"<= {high}"
    return None if math.isfinite(value) else "to be a finite number"


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types that a type hint allows: the members of a union, or the hint itself."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def with_floats(value: Any, hint: Any) -> Any:
    """The value with integers turned into floats where the type hint asks for floats, inside lists too."""
    options = alternatives(hint)
    if isinstance(value, int) and not isinstance(value, bool) and float in options:
        return float(value) if value.bit_length() <= 64 else value
    for option in options:
        if isinstance(value, list) and typing.get_origin(option) is list:
            return [with_floats(item, typing.get_args(option)[0]) for item in value]
    return value


def takes_whole_numbers(section: Any) -> Any:
    """Let the float fields of a strict dataclass take integers too, as in PyTorch: ``momentum=0``."""
    assign, hints = section.__setattr__, {each.name: each.type for each in fields(section)}

    def assign_floats(self: Any, name: str, value: Any) -> None:
        assign(self, name, with_floats(value, hints.get(name)))

    section.__setattr__ = assign_floats
    return section


@dataclass(frozen=True)
class ViewOptions:
    """The views of an image."""

    image_size: int = option(224, "side of the square crop, in pixels", 1, MAX_SIDE, common=True)
    resize_size: int = option(256, "length of the shorter side before cropping, in pixels", 1, MAX_SIDE)
    horizontal_flip: float = option(0.5, "probability of a mirrored training view", 0, 1)
    num_views: int = option(2, "training views per image", 1, 4_096)
    rotation: float = option(0.0, "largest angle of a rotated training view, in degrees", 0, 180)
    zoom: float = option(0.0, "largest change of the side of a training view, as a fraction", 0, 0.9)

    def __post_init__(self) -> None:
        require_in_range(self)
        if self.image_size > self.resize_size:
            raise ConfigurationError(
                f"Expected image_size <= resize_size, got {self.image_size} and {self.resize_size}: a crop is no "
                "larger than what it is cut from."
            )

"""Numbers a person may set: the range that a field of a dataclass takes is declared beside its default."""

import math
import reprlib
import types
import typing
from dataclasses import dataclass, field, fields
from typing import Any

from promptccd.errors import ConfigurationError

_RANGE = "range"


@dataclass(frozen=True)
class Range:
    """Finite numbers between two ends.

    Attributes:
        low: the lowest.
        high: the highest.
        above: whether `low` itself is too low.
    """

    low: float
    high: float = math.inf
    above: bool = False

    def problem(self, value: float) -> str | None:
        """What was expected instead of a value, such as ``>= 1``; none if it is in the range."""
        if isinstance(value, int) and value.bit_length() > 62:
            return "to have at most 18 digits"
        if value <= self.low and (self.above or value < self.low):
            return f"> {self.low}" if self.above else f">= {self.low}"
        if value > self.high:
            return f"<= {self.high}"
        return None if math.isfinite(value) else "to be a finite number"


def number(default: Any, low: float, high: float = math.inf, *, above: bool = False) -> Any:
    """A field of a dataclass that `require_in_range` holds to a range; none is let through.

    Args:
        default: value of the field where none is given.
        low: the lowest number.
        high: the highest.
        above: whether `low` itself is too low.
    """
    return field(default=default, metadata={_RANGE: Range(low, high, above)})


def require_in_range(section: Any) -> None:
    """Refuse a dataclass with a number outside of the range that its field was declared with.

    Raises:
        ConfigurationError: naming the field, what it takes and what was given.
    """
    for item in fields(section):
        allowed, value = item.metadata.get(_RANGE), getattr(section, item.name)
        if allowed is None or value is None or isinstance(value, str):  # a word the field takes besides
            continue
        if (expected := allowed.problem(value)) is not None:
            raise ConfigurationError(f"Expected {item.name} {expected}, got {reprlib.repr(value)}.")


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types a hint allows: the members of a union, or the hint itself."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def with_floats(value: Any, hint: Any) -> Any:
    """A value whose whole numbers are floats where its field wants floats, inside lists too."""
    options = alternatives(hint)
    if isinstance(value, int) and not isinstance(value, bool) and float in options:
        return float(value) if value.bit_length() <= 64 else value
    for option in options:
        if isinstance(value, list) and typing.get_origin(option) is list:
            return [with_floats(item, typing.get_args(option)[0]) for item in value]
    return value


def takes_whole_numbers(section: Any) -> Any:
    """A strict dataclass whose fields for floats take whole numbers too, as PyTorch's options do: ``momentum=0``."""
    assign, hints = section.__setattr__, {each.name: each.type for each in fields(section)}

    def assign_floats(self: Any, name: str, value: Any) -> None:
        assign(self, name, with_floats(value, hints.get(name)))

    section.__setattr__ = assign_floats
    return section

"""Options as fields of dataclasses, which declare ranges of numbers with their defaults, and the options of views.

The views themselves are apart, so that help need not import torch.
"""

import contextlib
import math
import reprlib
import types
import typing
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any, ClassVar, Literal

import yaml

from promptccd.errors import ConfigurationError

_RANGE = "range"
WORDS_FOR_NONE = ("none", "null", "~")
_MOST_DIGITS = 20  # of a whole number in words
MAX_SIDE = 8_192  # of a view, in pixels; the positions of a DINOv2 reach 518


def option(
    default: Any,
    meaning: str = "",
    low: float | None = None,
    high: float = math.inf,
    *,
    above: bool = False,
    common: bool = False,
) -> Any:
    """A field of a dataclass, written once: default, help and, for a number, its range, of which `None` is free.

    Args:
        default: default value; a function for a new object each time, such as ``list``.
        meaning: help of the command line, a noun phrase; empty for a field without an option.
        low: the lowest number; `None` for a field without numbers.
        high: the highest number.
        above: whether `low` itself is too low.
        common: whether ``--help`` shows it; ``--help-all`` shows every field.
    """
    metadata = {"help": meaning, "common": common, **({} if low is None else {_RANGE: (low, high, above)})}
    value = {"default_factory": default} if callable(default) else {"default": default}
    return field(metadata=metadata, **value)


class Options:
    """Base class of sections of options, which are dataclasses: values are read and checked when one is made."""

    section: ClassVar[str]  # name of the section

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type] # every section is a dataclass
            value = read_value(f"{self.section}.{item.name}", getattr(self, item.name), item.type)
            object.__setattr__(self, item.name, value)  # some sections are frozen
            allowed = item.metadata.get(_RANGE)
            if allowed is None or value is None or isinstance(value, str | list):  # some take these too
                continue
            (low, high, above), is_finite = allowed, isinstance(value, int) or math.isfinite(value)
            if not low <= value <= high or (above and value == low) or not is_finite:
                expected = f"<= {high}" if value > high else f"{'>' if above else '>='} {low}"
                expected = expected if is_finite else "to be finite"
                raise ConfigurationError(f"Expected {item.name} {expected}, got {reprlib.repr(value)}.")


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types that a type hint allows: the members of a union, or the hint itself."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def describe_type(hint: Any) -> str:
    """A type in words a person would use: ``int``, ``no | bf16``, ``list[float] or none``."""
    if typing.get_origin(hint) is Literal:
        return " | ".join(str(choice) for choice in typing.get_args(hint))
    if len(alternatives(hint)) > 1:
        return " or ".join(describe_type(part) for part in alternatives(hint))
    if hint is type(None):
        return "none"
    return str(hint).replace("typing.", "") if typing.get_origin(hint) else hint.__name__


class _Words(yaml.BaseLoader):
    """Words alone, and `None` where nothing is written; a key is given once."""

    def construct_scalar(self, node: yaml.ScalarNode) -> Any:
        return None if node.value == "" and node.style is None else super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        values = super().construct_mapping(node, deep)  # refuses lists and mappings as keys
        seen = set[str]()
        for key, _ in node.value:
            if key.value in seen:
                said = f"{reprlib.repr(key.value)} is given twice, leave one out:"
                raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
            seen.add(key.value)
        return values


def read_yaml(text: str) -> Any:
    """A YAML document with words alone: the type of a field decides whether ``1e-4`` or ``no`` is a number.

    Raises:
        ValueError: it is not YAML, gives a key twice, or is nested too deeply.
    """
    try:
        return yaml.load(text, Loader=_Words)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())[:300]) from error


def read_value(name: str, value: Any, hint: Any) -> Any:
    """The value of a field, from Python, or from words of a file or a command line.

    Raises:
        ConfigurationError: it does not fit the type; the name of the field is in the message.
    """
    kinds = sorted(alternatives(hint), key=lambda kind: kind is not type(None))  # none is no text
    forms = [value]
    if isinstance(value, list) and [*map(type, value)] == [str] and list[str] not in kinds:
        forms.insert(0, value[0])  # an option of a list with a word that is one, such as [1, 2] or none
    for form, kind in product(forms, kinds):
        with contextlib.suppress(ValueError, OverflowError):
            return _as_kind(form, kind)
    raise ConfigurationError(
        f"Expected {name} to be {describe_type(hint)}, got {reprlib.repr(value)} ({type(value).__name__})."
    )


def _as_kind(value: Any, kind: Any) -> Any:
    """The value as one type; a `ValueError` if it is none of that type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if value in inner:  # a choice
        return value
    if kind == list[str] and isinstance(value, str):
        value = [value]
    elif origin in (list, dict) and isinstance(value, str) and set(value) & set(",[{"):
        value = read_yaml(value if value.startswith(("[", "{")) else f"[{value}]")
    if origin is list and isinstance(value, list):
        return [_as_kind(each, inner[0]) for each in value]
    if origin is dict and isinstance(value, dict):
        return {str(key): _as_kind(each, inner[1]) for key, each in value.items()}
    return _as_scalar(value) if kind is Any else _as_plain(value, kind)


def _as_plain(value: Any, kind: type) -> Any:
    """The value as None, a switch, a number or a text; a `ValueError` if it is none of that type."""
    is_text, is_whole = isinstance(value, str), type(value) is int
    word = value.strip().lower() if is_text else None
    if kind is type(None) and (value is None or word in WORDS_FOR_NONE or value == ["none"]):
        return None
    if kind is bool and (isinstance(value, bool) or word in ("true", "false")):
        return value is True or word == "true"
    if kind is int and (is_whole or (is_text and len(value) <= _MOST_DIGITS)):
        return int(value)
    if kind is float and (is_text or is_whole or isinstance(value, float)):
        return float(value)
    if kind is str and word and "\0" not in value:
        return value
    raise ValueError


def _as_scalar(value: Any) -> Any:
    """A value of unknown type: a word that looks like a number or a switch is one, also inside of lists."""
    if isinstance(value, list):
        return [_as_scalar(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _as_scalar(each) for key, each in value.items()}
    for kind in (type(None), bool, int, float):
        with contextlib.suppress(ValueError):
            return _as_plain(value, kind)
    return value


@dataclass(frozen=True)
class ViewOptions(Options):
    """The views of an image."""

    section: ClassVar = "views"

    image_size: int = option(224, "side of the square crop, in pixels", 1, MAX_SIDE, common=True)
    resize_size: int = option(256, "length of the shorter side before cropping, in pixels", 1, MAX_SIDE)
    horizontal_flip: float = option(0.5, "probability of a mirrored training view", 0, 1)
    num_views: int = option(2, "training views per image", 1, 4_096)
    rotation: float = option(0.0, "largest angle of a rotated training view, in degrees", 0, 180)
    zoom: float = option(0.0, "largest change of the side of a training view, as a fraction", 0, 0.9)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size > self.resize_size:
            raise ConfigurationError(
                f"Expected image_size <= resize_size, got {self.image_size} and {self.resize_size}: a crop is no "
                "larger than what it is cut from."
            )

"""Values of a recipe as people write them: YAML, words on a command line, and what type a field takes."""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

import yaml
from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError

from promptccd.errors import ConfigurationError


def read_yaml(text: str) -> Any:
    """A document or a single value.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    return yaml.load(text, Loader=_Loader)


def field_types(section: Any) -> dict[str, Any]:
    """Type of every field of a section."""
    hints = typing.get_type_hints(section)
    return {item.name: hints[item.name] for item in dataclasses.fields(section)}


def parse_value(text: str) -> Any:
    """A value as the command line gives it, read by the rules of the YAML file (``1e-4`` is a number)."""
    try:
        return read_yaml(text)
    except yaml.YAMLError:
        return text


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types a hint allows: the members of a union, or the hint itself."""
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


class _Loader(yaml.SafeLoader):
    """Safe YAML 1.2 where 1.1 surprises: ``1e-4`` is a number, and ``no`` is a word, not false."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and the shape are PyYAML's
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


def build_section(name: str, section: Any, values: Mapping[str, Any]) -> Any:
    """A section's dataclass from plain values.

    Args:
        name: its name, for messages.
        section: the dataclass.
        values: by field; what is not given keeps its default.

    Raises:
        ConfigurationError: an unknown field, or a value of the wrong type or range.
    """
    hints = field_types(section)
    require_known(f"field of section {name!r}", values, hints)
    prepared = {key: _with_floats(value, hints[key]) for key, value in values.items()}
    for key, value in prepared.items():
        # A class of this one field: types are checked before ranges, which may span several fields.
        check: Any = strict(dataclasses.make_dataclass("Field", [(key, hints[key])]))
        try:
            check(**{key: value})
        except StrictDataclassError as error:
            raise ConfigurationError(
                f"Wrong type for {name}.{key}: expected {describe_type(hints[key])}, got {value!r} "
                f"({type(value).__name__})."
            ) from error
    return section(**prepared)


def require_known(what: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse keys that nobody knows, with the likeliest one that is known.

    Raises:
        ConfigurationError: naming the key.
    """
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigurationError(f"Unknown {what} {key!r}.{hint} It takes: {', '.join(known)}.")


def _with_floats(value: Any, hint: Any) -> Any:
    """Whole numbers become floats where floats are wanted, inside lists too."""
    options = alternatives(hint)
    if isinstance(value, int) and not isinstance(value, bool) and float in options:
        return float(value)
    for option in options:
        if isinstance(value, list) and typing.get_origin(option) is list:
            return [_with_floats(item, typing.get_args(option)[0]) for item in value]
    return value

"""What a stranger wrote is read here first: plain JSON under limits, and messages that stay on one line."""

import json
import math
import reprlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

MOST_JSON_BYTES = 8 * 2**20  # a hundred thousand categories with their names
MOST_LEVELS = 8
_LONGEST_MESSAGE = 400

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class CheckpointError(ValueError):
    """A checkpoint is refused; the message is one line that names the file and what is wrong with it."""


def shown(value: object) -> str:
    """A stranger's value inside a message: short, on one line, without control characters."""
    return _SHORT.repr(value)


def one_line(error: object) -> str:
    """The message of an error, or any text, on one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST_MESSAGE])
    return plain + ("..." if len(text) > _LONGEST_MESSAGE else "")


def read_json(path: str, name: str) -> dict[str, Any]:
    """An object of plain values.

    Args:
        path: a regular file.
        name: what to call it in messages.

    Raises:
        CheckpointError: it is larger than `MOST_JSON_BYTES`, nested deeper than `MOST_LEVELS`, no UTF-8, no JSON
            object, or holds a key twice, a number that is not finite, or text that is no text.
    """
    with open(path, "rb") as stream:
        content = stream.read(MOST_JSON_BYTES + 1)
    if len(content) > MOST_JSON_BYTES:
        raise CheckpointError(f"{name} is larger than {MOST_JSON_BYTES} bytes: no model of ours needs that.")
    try:
        text = content.decode("utf-8")
        values = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise CheckpointError(f"{name} is nested too deeply for a configuration.") from error
    except ValueError as error:
        raise CheckpointError(f"{name} is no plain JSON: {one_line(error)}.") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{name} holds a {type(values).__name__}, expected a JSON object.")
    _require_plain(values, name)
    return values


def _require_plain(values: dict[str, Any], name: str) -> None:
    """Level by level, so that depth costs nothing."""
    level: Iterable[Any] = [values]
    for _ in range(MOST_LEVELS):
        level = [part for value in level for part in _parts(value, name)]
        if not level:
            return
    raise CheckpointError(f"{name} is nested deeper than {MOST_LEVELS} levels.")


def _parts(value: Any, name: str) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:  # half of a character, which could not even be printed
            raise CheckpointError(f"{name} holds {shown(value)}, which is no text.") from error
    return value if isinstance(value, list) else ()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {shown(twice)} stands twice")
    return values


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is too large for a number")
    return value


__all__ = [
    "MOST_JSON_BYTES",
    "MOST_LEVELS",
    "CheckpointError",
    "one_line",
    "read_json",
    "shown",
]

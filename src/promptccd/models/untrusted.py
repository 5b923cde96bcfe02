"""Reading what a stranger wrote: JSON within limits, bounds of all numbers, and messages of one line."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from promptccd.errors import CheckpointError, one_line, shown

MOST_JSON_BYTES = 8 * 2**20  # a hundred thousand categories with their names
MOST_LEVELS = 8


def remedy_of_copy(path: str) -> str:
    """What to do about a damaged file, if it is the Hub's copy in the cache; empty for a file of a person."""
    folders = Path(path).parts
    if "snapshots" not in folders or not any(each.startswith("models--") for each in folders):
        return ""
    return (
        f" Its copy in the cache may be damaged: delete {os.path.realpath(path)}, or give force_download=True, and it "
        "is fetched again."
    )


def read_json(path: str, name: str) -> dict[str, Any]:
    """Read a JSON object from a regular file, which messages call `name`; errors are those of `json_object`."""
    with open(path, "rb") as stream:
        # mutant 1 to 2: one byte more than are allowed tells that there are too many; two tell the same
        return json_object(stream.read(MOST_JSON_BYTES + 1), name, remedy_of_copy(path))


def json_object(content: bytes, name: str, remedy: str = "") -> dict[str, Any]:
    """The JSON object of some bytes.

    Args:
        content: of a file.
        name: what messages call it.
        remedy: ends a message about what is no JSON.

    Raises:
        CheckpointError: it is larger than `MOST_JSON_BYTES`, nested deeper than `MOST_LEVELS`, no UTF-8, no JSON
            object, or holds a key twice, a number that is not finite, or half a character.
    """
    if len(content) > MOST_JSON_BYTES:
        raise CheckpointError(f"{name} is larger than {MOST_JSON_BYTES} bytes: no model of ours needs that.")
    try:
        values = strict_json(content)
    except ValueError as error:
        raise CheckpointError(f"{name} is no plain JSON: {one_line(error)}.{remedy}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{name} holds a {type(values).__name__}, expected a JSON object.")
    _require_plain(values, name)
    return values


def strict_json(content: bytes) -> Any:
    """Values of JSON, which is in UTF-8, gives no key twice and has finite numbers alone; or else a `ValueError`."""
    text = content.decode("utf-8")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:  # see `promptccd.storage.parsed_json`
        raise ValueError("it is nested too deeply") from error


def _require_plain(values: dict[str, Any], name: str) -> None:
    """Check depth and texts level by level, without recursion."""
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


# The largest published DINO is 1,536 wide and 40 deep; these bounds allow a few times that. Those of fields that no
# backbone and no recipe has stand at the fields, see `bounded`.
WHOLE = {
    "hidden_size": (1, 8_192),
    "num_hidden_layers": (1, 128),
    "num_attention_heads": (1, 256),
    "intermediate_size": (1, 65_536),
    "mlp_ratio": (1, 64),
    "num_channels": (3, 3),
    "image_size": (1, 4_096),
    "patch_size": (1, 256),
    "num_register_tokens": (0, 1_024),
    "projection_hidden_size": (1, 65_536),
    "projection_bottleneck_size": (1, 16_384),
    "projection_output_size": (1, 1_048_576),
    "stage": (0, 1_000_000),
    "num_known": (0, 1_000_000),
    "num_components": (0, 1_000_000),
    "num_parts": (2, 1_024),
    "pool_size": (1, 65_536),
    "prompt_length": (1, 4_096),
    "prompts_per_image": (1, 65_536),
    "prompts_per_patch": (1, 65_536),
    "prompt_copies": (1, 1_024),
    "router_hidden_size": (1, 65_536),
}
REAL = {
    "hidden_dropout_prob": (0, 1),
    "attention_probs_dropout_prob": (0, 1),
    "drop_path_rate": (0, 1),
    "layer_norm_eps": (1e-15, 1),
    "attention_dropout": (0, 1),
    "layerscale_value": (-1e3, 1e3),
    "rope_theta": (1e-3, 1e9),
    "pos_embed_shift": (0, 1e3),
    "pos_embed_jitter": (1e-3, 1e3),
    "pos_embed_rescale": (1e-3, 1e3),
    "initializer_range": (0, 10),
    "prompt_reach": (0, 1e3),
    "key_reach": (0, 1e3),
}
CHOICES = {
    "hidden_act": ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "swish"),
    "dtype": ("float32", "bfloat16", "float16", "float64"),
}  # fmt: skip
_ABSENT = (  # these may be `None`
    "stage", "router_hidden_size", "dtype", "pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale",
)  # fmt: skip
_BOUNDS = "promptccd.bounds"  # in the metadata of a field
STORED = {"promptccd.stored": True}  # metadata of a field that training writes: not an option
MOST_CATEGORIES = 100_000
MOST_TOKENS = 16_384  # patches of one image: 1,792 pixels a side in patches of 14


def bounded(default: float | None, low: float, high: float, *, stored: bool = False) -> Any:
    """A field of a configuration whose number is at least `low` and at most `high`, or `None` if that is its default.

    It is whole if the default is, or without one the bounds. A subclass that gives the field another default keeps its
    bounds. Training writes a `stored` field: it is not an option.
    """
    is_whole = isinstance(low if default is None else default, int)
    return field(default=default, metadata={_BOUNDS: (low, high, is_whole), **(STORED if stored else {})})


def bounds_of(config_class: type) -> dict[str, tuple[float, float, bool]]:
    """Lowest and highest value of every field that may have a number, and whether that is whole."""
    found: dict[str, tuple[float, float, bool]] = {name: (*limits, True) for name, limits in WHOLE.items()}
    found |= {name: (*limits, False) for name, limits in REAL.items()}
    for parent in reversed(config_class.__mro__):
        declared = vars(parent).get("__dataclass_fields__", {})
        found |= {name: each.metadata[_BOUNDS] for name, each in declared.items() if _BOUNDS in each.metadata}
    return found


def require_bounds(values: Mapping[str, Any], config_class: type) -> None:
    """Refuse fields with a number, a choice or a ratio of numbers that no model of the family has.

    Raises:
        ValueError: naming the field, its value and its bound.
    """
    bounds, declared = bounds_of(config_class), getattr(config_class, "__dataclass_fields__", {})
    for name, value in values.items():
        if value is None and (name in _ABSENT or (name in declared and declared[name].default is None)):
            continue
        if name in bounds:
            _require_between(name, value, *bounds[name])
        elif name in CHOICES and value not in CHOICES[name]:
            raise ValueError(f"Expected {name} to be one of {', '.join(CHOICES[name])}, got {shown(value)}.")
    _require_ratios(values)


def require_side(side: int, patch_size: int, what: str) -> None:
    """Refuse a side of an image that holds no patch, or too many.

    Raises:
        ValueError: naming both numbers.
    """
    if not patch_size <= side:
        raise ValueError(f"Expected {what} >= patch_size ({patch_size}), got {side}: that holds no patch.")
    if (side // patch_size) ** 2 > MOST_TOKENS:
        raise ValueError(
            f"Expected at most {MOST_TOKENS} patches in an image, got {what} {side} in patches of {patch_size}."
        )


def _require_ratios(values: Mapping[str, Any]) -> None:
    side, patch = values.get("image_size"), values.get("patch_size")
    if side is not None and patch is not None:
        require_side(side, patch, "image_size")
    width, heads = values.get("hidden_size"), values.get("num_attention_heads")
    if width is not None and heads is not None and width % heads:
        raise ValueError(f"Expected a hidden_size that num_attention_heads divides, got {width} and {heads}.")
    if "rope_theta" in values and width is not None and heads is not None and width // heads % 4:
        raise ValueError(
            f"Expected heads whose width 4 divides where positions turn them, got hidden_size {width} and "
            f"num_attention_heads {heads}."
        )


def _require_between(name: str, value: Any, low: float, high: float, whole: bool) -> None:
    if not _is_number(value, whole):
        raise ValueError(f"Expected {name} to be a {'whole ' if whole else ''}number, got {shown(value)}.")
    if not low <= value:
        raise ValueError(f"Expected {name} >= {low}, got {shown(value)}.")
    if not value <= high:
        raise ValueError(
            f"Expected {name} <= {high}, got {shown(value)}: no model of this family is like that."
        )


def _is_number(value: Any, whole: bool) -> bool:
    if isinstance(value, float):
        return not whole and math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)

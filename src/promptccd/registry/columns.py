"""What a registry knows of every image, as columns: with millions of them JSON is ten times as large and slow.

Keys that are hashes come first, as 32 bytes each, then the others, as one list of JSON; every further column has a
value for each of both.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from promptccd.columns import HASH, hash_column, hashes_in, json_column, narrow
from promptccd.errors import RegistryError, shown
from promptccd.registry.tables import LONGEST_KEY, Tables

MOST_IMAGES = 10_000_000
COLUMNS = ("images", "members", "confidences")  # tables that are written as columns
_NAMES = ("hashes", "names", *COLUMNS)
_NONE = -1  # no value


def columns_of(tables: Tables) -> dict[str, np.ndarray]:
    """The columns of `COLUMNS`, by name.

    Raises:
        RegistryError: there are more images than are read again, or a confidence is none.
    """
    require_room(len(tables.images))
    hashes = sorted(filter(HASH.fullmatch, tables.images))
    names = sorted(tables.images.keys() - hashes)
    keys = [*hashes, *names]
    confidences = np.array([tables.confidences.get(key, _NONE) for key in keys], dtype=np.float64)
    _require_confidences(confidences)
    return {
        "hashes": hash_column(hashes),
        "names": json_column(names),
        "images": narrow([tables.images[key] for key in keys]),
        "members": narrow([tables.members.get(key, _NONE) for key in keys]),
        "confidences": confidences,
    }


def require_room(count: int) -> None:
    """Refuse more images than are read again with a `RegistryError`."""
    if count > MOST_IMAGES:
        raise RegistryError(
            f"A registry may have {MOST_IMAGES} images, and these are {count}, which could not be read again: group "
            "them in several parts, each with an --out of its own."
        )


def take_columns(tables: Tables, columns: Mapping[str, np.ndarray]) -> None:
    """Fill the tables of `COLUMNS` from columns that anybody may have written.

    Raises:
        RegistryError: they are none.
    """
    if missing := [name for name in _NAMES if name not in columns]:
        raise RegistryError(f"The column {missing[0]!r} of images is missing.")
    try:
        hashes, names = hashes_in(columns["hashes"]), _names(columns["names"])
    except ValueError as error:
        raise RegistryError(str(error)) from error
    keys = hashes + names
    if (count := len(keys)) > MOST_IMAGES:
        raise RegistryError(f"Expected at most {MOST_IMAGES} images, got {count}.")
    for name in COLUMNS:
        column, kinds = columns[name], "f" if name == "confidences" else "iu"
        if column.shape != (count,) or column.dtype.kind not in kinds:
            raise RegistryError(
                f"Expected {count} numbers in the column {name!r}, got {column.dtype} {list(column.shape)}."
            )
    _require_confidences(columns["confidences"])
    for name in COLUMNS:
        found = dict(zip(keys, columns[name].tolist(), strict=True))
        if len(found) != count:
            raise RegistryError("An image is there twice.")
        least, most = columns[name].min(initial=0), columns[name].max(initial=0)
        if least < (0 if name == "images" else _NONE) or most >= 2**53:
            raise RegistryError(f"Expected numbers from 0 on in the column {name!r}, got {least} to {most}.")
        if least < 0:
            found = {key: value for key, value in found.items() if value != _NONE}
        setattr(tables, name, found)


def _names(column: np.ndarray) -> list[str]:
    try:
        found: Any = strict_json(column.astype(np.uint8, casting="safe").tobytes())
    except (ValueError, TypeError) as error:
        raise RegistryError(f"The names of images are damaged ({str(error)[:100]}).") from error
    if type(found) is not list or not all(
        type(each) is str and 0 < len(each) <= LONGEST_KEY for each in found
    ):
        raise RegistryError(
            f"Expected the names of images to be a list of texts of 1 to {LONGEST_KEY} characters."
        )
    return found


def _require_confidences(column: np.ndarray) -> None:
    if not (((column >= 0) & (column <= 1)) | (column == _NONE)).all():
        raise RegistryError("Expected confidences of 0 to 1, got one outside or NaN.")


def strict_json(content: bytes) -> Any:
    """Values of JSON, which is in UTF-8, gives no key twice and has only finite numbers; or else a `ValueError`."""
    text = content.decode("utf-8")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


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

"""Values of millions of things as columns of one file, in as few bytes as hold them."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from promptccd.disk import plain_json

HASH_BYTES = 32  # of a SHA-256
HASH = re.compile("[0-9a-f]{64}")  # the same as text


def sealed(columns: Mapping[str, np.ndarray], order: Sequence[str] = ()) -> bytes:
    """The content of a file of columns that holds their checksum, taken in this order, or else in that of names."""
    return save({**columns, "sum": np.frombuffer(_sum(columns, order), np.uint8)})


def unsealed(content: bytes, order: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The columns of such a file, or else a `ValueError`: anybody may have written it."""
    try:
        columns: dict[str, np.ndarray] = load(content)
        if columns.pop("sum").tobytes() != _sum(columns, order):
            raise ValueError("its checksum differs")
        return columns
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(str(error)) from error


def _sum(columns: Mapping[str, np.ndarray], order: Sequence[str]) -> bytes:
    digest = hashlib.sha256()
    for name in order or sorted(columns):
        digest.update(columns[name].data)
    return digest.digest()


def narrow(values: Sequence[int] | np.ndarray) -> np.ndarray:
    """Integers in as few bytes each as hold all of them."""
    column = np.array(values, dtype=np.int64)
    least, most = column.min(initial=0), column.max(initial=0)
    return column.astype(np.min_scalar_type(min(least, -most - 1) if least < 0 else most))


def hash_column(hashes: Sequence[str]) -> np.ndarray:
    """Hashes of 64 hexadecimal digits as ``(N, 32)`` uint8."""
    return np.array(bytearray.fromhex("".join(hashes)), dtype=np.uint8).reshape(-1, HASH_BYTES)


def hashes_in(column: np.ndarray) -> list[str]:
    """The hashes of a column that anybody may have written, or else a `ValueError`."""
    if column.dtype != np.uint8 or column.ndim != 2 or column.shape[1] != HASH_BYTES:
        raise ValueError(f"Expected hashes of {HASH_BYTES} bytes, got {column.dtype} {list(column.shape)}.")
    text, digits = column.tobytes().hex(), 2 * HASH_BYTES
    return [text[start : start + digits] for start in range(0, len(text), digits)]


def json_column(value: Any) -> np.ndarray:
    """Plain values as the bytes of their JSON."""
    return np.array(bytearray(plain_json(value)), dtype=np.uint8)

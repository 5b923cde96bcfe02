"""Columns hold what they were made of in as few bytes as can be."""

import re

import numpy as np
import pytest
from safetensors.numpy import save

from promptccd.columns import hash_column, hashes_in, json_column, narrow, sealed, unsealed


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([], "uint8"), ([0, 255], "uint8"), ([256], "uint16"), ([-1, 127], "int8"), ([-1, 128], "int16"),
        ([-129], "int16"), ([-128], "int8"), ([2**16], "uint32"), ([-1, 2**31], "int64"), ([-1, 2**40], "int64"),
        ([2**62], "uint64"), ([-(2**62), 1], "int64"),
    ],
)  # fmt: skip
def test_numbers_take_as_few_bytes_as_hold_them(values: list[int], dtype: str) -> None:
    column = narrow(values)
    assert (column.tolist(), column.dtype) == (values, np.dtype(dtype))


def test_hashes_come_back() -> None:
    hashes = ["0f" * 32, "a0" * 32]
    assert hash_column(hashes).shape == (2, 32)
    assert hashes_in(hash_column(hashes)) == hashes
    assert hashes_in(hash_column([])) == []
    for odd in (np.zeros((1, 31), np.uint8), np.zeros(32, np.uint8), np.zeros((1, 32), np.int8)):
        with pytest.raises(ValueError, match="Expected hashes of 32 bytes"):
            hashes_in(odd)


COLUMNS = {"b": np.arange(3), "a": np.array([7], np.uint8)}


@pytest.mark.parametrize("order", [(), ("b", "a"), ("b",)])
def test_sealed_columns_come_back_and_others_are_refused(order: tuple[str, ...]) -> None:
    content = sealed(COLUMNS, order)
    found = unsealed(content, order)
    assert found.keys() == COLUMNS.keys()
    assert all(
        found[name].dtype == each.dtype and (found[name] == each).all() for name, each in COLUMNS.items()
    )
    at = content.index(COLUMNS["b"].tobytes())
    for odd, why in (
        (content[:at] + b"\1" + content[at + 1 :], "its checksum differs"),
        (save(COLUMNS), "sum"),
        (content[:-1], "incomplete"),
        (b"", "too small"),
    ):
        with pytest.raises(ValueError, match=why):
            unsealed(odd, order)


def test_the_checksum_is_of_the_columns_in_their_order() -> None:
    """By name, if nothing is said: a file that was written in another order is the same."""
    assert unsealed(sealed(dict(reversed(COLUMNS.items()))))
    assert unsealed(sealed(COLUMNS, ("a", "b")))
    with pytest.raises(ValueError, match="its checksum differs"):
        unsealed(sealed(COLUMNS, ("b", "a")))
    with pytest.raises(ValueError, match=re.escape("'c'")):
        unsealed(sealed(COLUMNS), ("c",))


def test_plain_values_become_their_json() -> None:
    column = json_column({"a": [1, None]})
    assert column.dtype == np.uint8
    assert column.tobytes() == b'{"a":[1,null]}'

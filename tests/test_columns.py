"""Columns hold what they were made of in as few bytes as can be."""

import numpy as np
import pytest

from promptccd.columns import hash_column, hashes_in, narrow


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

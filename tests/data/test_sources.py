"""A file is read with the memory that it takes, as it was when it was opened."""

import os

import pytest

from promptccd.data.sources import read_regular_file
from promptccd.images.limits import ByteBudget, IntakeLimits, SkippedFileError


@pytest.fixture
def budget():
    return ByteBudget(IntakeLimits(), "a test")


def test_the_largest_file_that_is_read_is_as_large_as_the_limit(tmp_path):
    place, budget = tmp_path / "large.png", ByteBudget(IntakeLimits(max_file_bytes=10), "a test")
    place.write_bytes(b"0123456789")
    assert read_regular_file(str(place), budget) == b"0123456789"
    place.write_bytes(b"0123456789a")
    with pytest.raises(SkippedFileError, match="file of 11 bytes exceeds the limit of 10"):
        read_regular_file(str(place), budget)


def test_a_file_that_grows_while_it_is_read_is_skipped(tmp_path, budget, monkeypatch):
    place = tmp_path / "grows.png"
    place.write_bytes(b"0123456789")
    status = os.fstat

    def fstat(descriptor):
        before = status(descriptor)
        with place.open("ab") as more:
            more.write(b"0123456789")
        return before

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(SkippedFileError, match="grew while it was read"):
        read_regular_file(str(place), budget)

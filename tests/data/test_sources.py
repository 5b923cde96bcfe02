"""A file is read with the memory that it takes, as it was when it was opened."""

import os

import pytest

from promptccd.data.sources import read_regular_file
from promptccd.images.limits import ByteBudget, IntakeLimits, SkippedFileError


@pytest.fixture
def budget():
    return ByteBudget(IntakeLimits(), "a test")


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

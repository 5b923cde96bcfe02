"""Workbooks that cannot be read are refused in a line that says what to do; other tables are in `tests.data.tables`."""

import sys
from pathlib import Path

import pytest

from promptccd.data import spreadsheets
from promptccd.data.tables import load_images
from promptccd.errors import DataError
from tests.data.tables import workbook
from tests.messages import TEXT


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(str(workbook("list.xlsx")(tmp_path)))


def test_a_workbook_without_its_reader_names_the_extra(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(DataError, match=TEXT["list-xlsx-needs-openpyxl-pip-install"]):
        load_images(str(file))


def test_a_workbook_that_is_damaged_or_too_large_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spreadsheets, "MOST_UNPACKED", 1000)
    with pytest.raises(DataError, match=TEXT["list-xlsx-is-no-workbook-unpacks"]):
        load_images(str(file))
    monkeypatch.undo()
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(DataError, match=TEXT["list-xlsx-is-no-workbook-that"]):
        load_images(str(file))

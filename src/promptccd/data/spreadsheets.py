"""Tables as people write them, as text, in a workbook or as JSON: a row for each image.

Excel divides columns by what its user's language leaves free, and writes tabs in UTF-16, UTF-8 with a byte order mark,
or an old code page. Marks decide. A code page without a mark is refused: a guess would change names. A first line
`sep=;` is left out.
"""

import codecs
import csv
import io
import json
import logging
import re
import zipfile
from collections.abc import Collection
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pandas as pd

from promptccd.data.labels import called
from promptccd.data.names import display_name
from promptccd.errors import DataError, ForeignTableError, one_line
from promptccd.images.kinds import FIRST_BYTES, UNKNOWN, kind_of

logger = logging.getLogger(__name__)

LISTS = (".csv", ".tsv", ".tab", ".txt", ".jsonl", ".ndjson")  # suffixes of tables that are text
_EXCEL = (".xlsx", ".xlsm")  # suffixes of workbooks that are read
_JSON = (".jsonl", ".ndjson")
WORKBOOKS = (*_EXCEL, ".xlsb", ".xls", ".ods", ".fods", ".gsheet", ".numbers")
MOST_UNPACKED = 2**29  # bytes of a workbook
_DIVIDERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_SAYS_DIVIDER = re.compile(r'\A"?sep=."?[,;\t|]*(?=[\r\n])', re.IGNORECASE)  # a first line that Excel reads
_MARKS = {codecs.BOM_UTF8: "UTF-8-sig", codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
_SAVE_AS_CSV = (
    "save the sheet as 'CSV UTF-8' in the spreadsheet (LibreOffice: Text CSV, character set UTF-8; Numbers: Export To "
    "CSV, Unicode), and give that file"
)


def read_sheet(file: Path, known: Collection[str] = ()) -> pd.DataFrame:
    """Read a table whose first line names its columns.

    Args:
        file: text in UTF-8, or with the mark of UTF-16 in front, its columns divided by commas, semicolons,
            tabs or bars; lines of JSON; or a workbook of Excel, of which the first sheet is read.
        known: usual names of columns, by which the mark between columns is found.

    Returns:
        Rows that are not empty, indexed by the number of their last line from 1. Cells are texts without blanks around
        them. How the table is written is logged if not in UTF-8 with commas.

    Raises:
        ForeignTableError: the file is no table.
        DataError: the table is damaged; the message gives the line and the remedy.
    """
    name = display_name(file.name)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"Cannot read the table {name!r}: {error.strerror}.") from error
    if file.suffix.lower() in _JSON:
        return _json_lines(content, name)
    is_workbook = file.suffix.lower() in _EXCEL and content.startswith(b"PK")
    cells = _workbook(content, name) if is_workbook else _text(content, name, known)
    cells = cells.fillna("").map(lambda value: str(value).strip())
    cells = cells[cells.ne("").any(axis=1)]
    columns = cells.iloc[0].tolist() if len(cells) else []
    while columns and not columns[-1]:  # a spreadsheet writes empty cells behind short rows
        columns.pop()
    rows, width = cells.iloc[1:], len(columns)
    if len(long := rows.index[rows.iloc[:, width:].ne("").any(axis=1)]):
        raise DataError(
            f"Line {long[0]} of {name!r} has more columns than the {width} that the first line names: put texts that "
            f"contain the separator into quotes, or {_SAVE_AS_CSV}."
        )
    return rows.iloc[:, :width].set_axis(columns, axis=1)


def _json_lines(content: bytes, name: str) -> pd.DataFrame:
    """Records of JSON, one per line."""
    try:
        lines = content.decode("utf-8-sig").splitlines()
        sheet = pd.DataFrame([json.loads(each) for each in lines if each.strip()], dtype=object)
    except (ValueError, AttributeError, TypeError) as error:
        raise ForeignTableError(f"{name!r} is no table in lines of JSON ({str(error)[:100]}).") from error
    return sheet.fillna("").map(lambda value: str(value).strip())


def _workbook(content: bytes, name: str) -> pd.DataFrame:
    """Cells of the first sheet of a workbook."""
    try:
        import openpyxl  # noqa: F401 - pandas reads workbooks with it
    except ImportError:
        raise DataError(
            f"Reading {name!r} needs openpyxl: pip install 'promptccd[excel]'. Without it, {_SAVE_AS_CSV}."
        ) from None
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            if (size := sum(each.file_size for each in packed.infolist())) > MOST_UNPACKED:
                raise ValueError(f"it unpacks to {size} bytes, more than {MOST_UNPACKED}")
        with pd.ExcelFile(io.BytesIO(content), engine="openpyxl") as book:
            first, *others = book.sheet_names
            sheet = pd.read_excel(book, first, header=None, dtype=str, keep_default_na=False)
    except Exception as error:  # a dozen kinds of zipfile, openpyxl and its parser
        raise ForeignTableError(
            f"{name!r} is no workbook that can be read ({one_line(error)[:200]}): {_SAVE_AS_CSV}."
        ) from error
    if others:
        logger.info("%s: its first sheet, %r, is read.", name, first)
    return sheet.set_axis(sheet.index + 1)


def _text(content: bytes, name: str, known: Collection[str]) -> pd.DataFrame:
    """Cells of a table of text."""
    mark = next((each for each in _MARKS if content.startswith(each)), b"")
    encoding, kind = _MARKS.get(mark, "UTF-8"), kind_of(content[:FIRST_BYTES])[0]
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        if kind != UNKNOWN and not mark:
            raise _no_table(name, kind) from error
        line = len((content[: error.start].decode(encoding, "ignore") + ".").splitlines())
        raise DataError(
            f"Line {line} of {name!r} is not {encoding} (byte {content[error.start]:#04x}): the table is damaged, or "
            f"in an older code page, in which letters cannot be read. To mend it, {_SAVE_AS_CSV}."
        ) from error
    if "\0" in text:
        raise _no_table(name, kind)
    text = _SAYS_DIVIDER.sub("", text)
    # The divider by which the first line names most of the usual columns, or else most columns.
    heads: dict[str, list[str]] = {
        each: next(filter(any, _lines(text, each, strict=False)), []) for each in _DIVIDERS
    }
    divider = max(heads, key=lambda each: (len(called(heads[each], known)), len(heads[each])))
    if divider != "," or mark not in (b"", codecs.BOM_UTF8):
        logger.info("%s: %s, divided by %s.", name, encoding, _DIVIDERS[divider])
    lines = _lines(text, divider, strict=True)
    try:
        records = dict((lines.line_num, cells) for cells in lines)
    except csv.Error as error:
        raise DataError(
            f"Line {lines.line_num} of {name!r} is no row ({error}): a quoted text ends with a quote, and a "
            f"quote inside it is doubled. Mend the line, or {_SAVE_AS_CSV}."
        ) from error
    rows = zip(*zip_longest(*records.values(), fillvalue=""), strict=True)
    return pd.DataFrame(rows, index=[*records], dtype=object)


def _no_table(name: str, kind: str) -> ForeignTableError:
    return ForeignTableError(
        f"{name!r} is no table of text (starts like {kind}). If it is one, {_SAVE_AS_CSV}."
    )


def _lines(text: str, divider: str, strict: bool) -> Any:
    return csv.reader(io.StringIO(text, newline=""), delimiter=divider, skipinitialspace=True, strict=strict)

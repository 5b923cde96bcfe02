"""Tables as people write them, as text, in a workbook or as JSON: a row for each image.

Excel divides columns by what its user's language leaves free, and writes tabs in UTF-16, UTF-8 with a byte order mark,
or an old code page. Marks and a line `sep=;` decide. A code page without a mark is refused: a guess would change names.
"""

import codecs
import csv
import io
import json
import re
import zipfile
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import pandas as pd

from promptccd.data.labels import called
from promptccd.data.names import display_name
from promptccd.errors import DataError
from promptccd.images.kinds import FIRST_BYTES, UNKNOWN, is_text, kind_name

LISTS = (".csv", ".tsv", ".tab", ".txt", ".jsonl", ".ndjson")  # suffixes of tables that are text
NUMBERS_PACKAGE = ".numbers"  # may be a folder
_EXCEL = (".xlsx", ".xlsm")  # suffixes of workbooks that are read
_JSON = (".jsonl", ".ndjson")
WORKBOOKS = (*_EXCEL, ".xlsb", ".xls", ".ods", ".fods", ".gsheet", NUMBERS_PACKAGE)
MOST_UNPACKED = 2**29  # bytes of a workbook
_DIVIDERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_SAYS_DIVIDER = re.compile(r'"?sep=(.)"?[,;\t|]*', re.IGNORECASE)  # a first line that Excel reads
_MARKS = (  # the longer ones first: that of UTF-32 begins like that of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig", ""),
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
_NO_TABLES = (b"<", b"{", b"version https://git-lfs")
# Control characters, and the mark of a lost letter.
_LOST_LETTER = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ufffd]")
_SAVE_AS_CSV = (
    "save the sheet as 'CSV UTF-8' in the spreadsheet (LibreOffice: Text CSV, character set UTF-8; Numbers: Export To "
    "CSV, Unicode), and give that file"
)
_Records = Iterator[tuple[int, list[str]]]  # number of the first line in the file, from 1, and the cells


class ForeignTableError(DataError):
    """A file is no table, or lacks the columns that are needed: it may be another program's."""


def read_sheet(file: Path, known: Collection[str] = ()) -> pd.DataFrame:
    """Read a table whose first line names its columns.

    Args:
        file: text in UTF-8, or with the mark of UTF-16 or UTF-32 in front, its columns divided by commas, semicolons,
            tabs or bars; lines of JSON; or a workbook of Excel, of which the first sheet is read.
        known: usual names of columns, by which the mark between columns is found.

    Returns:
        Rows that are not empty, indexed by the number of their line from 1. Cells are texts without blanks around
        them. ``attrs["notes"]`` says how the table is written if not in UTF-8 with commas.

    Raises:
        ForeignTableError: the file is no table.
        DataError: the table is damaged; the line is named, and what to do.
    """
    name = display_name(file.name)
    if file.is_dir():
        raise ForeignTableError(_of_a_program(name))
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"Cannot read the table {name!r}: {error.strerror}.") from error
    if file.suffix.lower() in _JSON:
        sheet = _json_lines(content, name)
        sheet.attrs["notes"] = []
        return sheet
    is_workbook = file.suffix.lower() in _EXCEL and content.startswith(b"PK")
    records, notes = _workbook(content, name) if is_workbook else _text(content, file, known)
    columns = next((cells for _, cells in records if cells), [])
    rows = {line: _row(line, cells, columns, name) for line, cells in records if cells}
    sheet = pd.DataFrame.from_dict(rows, orient="index", columns=columns, dtype=object)
    sheet.attrs["notes"] = [*filter(None, notes)]
    return sheet


def _of_a_program(name: str) -> str:
    return f"{name!r} is a spreadsheet program's own file, and no table of text: {_SAVE_AS_CSV}."


def _json_lines(content: bytes, name: str) -> pd.DataFrame:
    """Records of JSON, one in a line."""
    try:
        lines = content.decode("utf-8-sig").splitlines()
        rows = {line: json.loads(text) for line, text in enumerate(lines, 1) if text.strip()}
        sheet = pd.DataFrame.from_dict(rows, orient="index", dtype=object)
    except (ValueError, AttributeError, TypeError) as error:
        raise ForeignTableError(f"{name!r} is no table in lines of JSON ({str(error)[:100]}).") from error
    return sheet.map(lambda value: "" if value is None or value != value else str(value).strip()).fillna("")


def _workbook(content: bytes, name: str) -> tuple[_Records, list[str]]:
    """Records of the first sheet of a workbook, and its name if there are others."""
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
            f"{name!r} is no workbook that can be read ({' '.join(str(error).split())[:200]}): {_SAVE_AS_CSV}."
        ) from error
    rows = (_trimmed([*map(str, row)]) for row in sheet.fillna("").itertuples(index=False))
    return iter(enumerate(rows, 1)), [f"its first sheet, {first!r}, is read"] * bool(others)


def _text(content: bytes, file: Path, known: Collection[str]) -> tuple[_Records, list[str]]:
    """Records of a table of text, and how it is written if not in UTF-8 with commas."""
    name = display_name(file.name)
    _require_table(content[:FIRST_BYTES], file)
    _, encoding, kind = next((each for each in _MARKS if content.startswith(each[0])), (b"", "utf-8", ""))
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        before = content[: error.start].decode(encoding, "ignore") + "."
        line, guess = sum(1 for _ in io.StringIO(before, newline="")), content.decode("latin-1")
        is_ours = kind or len(called(_head(guess, _divider_of(guess, known)), known)) > 1
        raise (DataError if is_ours else ForeignTableError)(
            f"Line {line} of {name!r} is not {kind or 'UTF-8'} (byte {content[error.start]:#04x}): the table is "
            f"{'damaged' if kind else 'in an older code page, in which letters cannot be read'}. To mend it, "
            f"{_SAVE_AS_CSV}."
        ) from error
    first = next(io.StringIO(text, newline=""), "")
    if says := _SAYS_DIVIDER.fullmatch(first.strip("\r\n")):
        text = text[len(first) :]
    divider = says[1] if says else _divider_of(text, known)
    notes = [kind, f"divided by {_DIVIDERS.get(divider, repr(divider))}" if divider != "," else ""]
    return _records(text, divider, name, 1 if says else 0), notes


def _require_table(head: bytes, file: Path) -> None:
    """Refuse a file that by its first bytes is no table of text."""
    if head.startswith(tuple(mark for mark, *_ in _MARKS)):
        return
    kind, name = kind_name(head), display_name(file.name)
    is_code_page = kind == UNKNOWN and b"\0" not in head  # its line is named later
    if not head.lstrip().startswith(_NO_TABLES) if is_text(head) else is_code_page:
        return
    if file.suffix.lower() in WORKBOOKS or kind == "an office file":
        raise ForeignTableError(_of_a_program(name))
    raise ForeignTableError(
        f"{name!r} is no table of text (starts like {kind}). If it is one, {_SAVE_AS_CSV}."
    )


def _divider_of(text: str, known: Collection[str]) -> str:
    """The divider by which the first line names most of the usual columns, or else most columns."""
    heads = {divider: _head(text, divider) for divider in _DIVIDERS}
    return max(heads, key=lambda divider: (len(called(heads[divider], known)), len(heads[divider])))


def _head(text: str, divider: str) -> list[str]:
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=divider, skipinitialspace=True)
    try:
        return [cell.strip() for cell in next(filter(any, lines), [])]
    except csv.Error:  # reported when the rows are read
        return []


def _records(text: str, divider: str, name: str, before: int) -> _Records:
    """Records of a text in front of which there are `before` lines."""
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=divider, skipinitialspace=True, strict=True)
    while True:
        line = before + lines.line_num + 1
        try:
            yield line, _trimmed(next(lines))
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"Line {line} of {name!r} is no row ({error}): a text in quotes needs one at its end, and two for one "
                f"inside. Mend the line, or {_SAVE_AS_CSV}."
            ) from error


def _row(line: int, cells: list[str], columns: Sequence[str], name: str) -> list[str]:
    if len(cells) > len(columns):
        raise DataError(
            f"Line {line} of {name!r} has {len(cells)} columns, and the first line names {len(columns)}: put a text "
            f"that holds what divides columns into quotes, or {_SAVE_AS_CSV}."
        )
    if lost := _LOST_LETTER.search("".join(cells)):
        raise DataError(
            f"Line {line} of {name!r} holds {lost[0]!a}, which stands for a letter that was lost on the way. Open what "
            f"it was made from, and {_SAVE_AS_CSV}."
        )
    return [cell for cell, _ in zip_longest(cells, columns, fillvalue="")]


def _trimmed(cells: list[str]) -> list[str]:
    """The cells without blanks, and without the empty ones that a spreadsheet writes behind short rows."""
    stripped = [cell.strip() for cell in cells]
    while stripped and not stripped[-1]:
        stripped.pop()
    return stripped

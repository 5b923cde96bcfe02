"""Tables as people write them, as text or in a workbook: a row for each image.

Excel divides columns by what its user's language leaves free, and writes tabs in UTF-16, UTF-8 with a byte order mark,
or an old code page. What a table says of itself is believed. A code page says nothing of itself and is refused: a guess
would change names.
"""

import codecs
import csv
import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from promptccd.data.names import display_name
from promptccd.errors import DataError
from promptccd.images.kinds import FIRST_BYTES, UNKNOWN, is_text, kind_name

LISTS = (".csv", ".tsv", ".tab", ".txt")  # suffixes of tables that are text
NUMBERS_PACKAGE = ".numbers"  # may be a folder
_EXCEL = (".xlsx", ".xlsm")  # suffixes of workbooks that are read
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
_LOST_LETTER = re.compile(
    r"[\x00-\x08\x0e-\x1f\x7f\ufffd]"
)  # control characters, and the mark of a lost letter
_SAVE_AS_CSV = (
    "save the sheet as 'CSV UTF-8' in the spreadsheet (LibreOffice: Text CSV, character set UTF-8; Numbers: Export To "
    "CSV, Unicode), and give that file"
)

_Records = Iterator[
    tuple[int, list[str]]
]  # number of the first line of each in the file, from 1, and its cells


class ForeignTableError(DataError):
    """A file is no table, or lacks the columns that are needed: it may be another program's."""


@dataclass(frozen=True)
class Row:
    """A row that is not empty.

    Attributes:
        line: number of its first line in the file, from 1.
        cells: its texts by column, without blanks around them; empty where there is none.
    """

    line: int
    cells: dict[str, str]


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes:
        columns: their names as they are written.
        chosen: the column found for each that was needed.
        rows: all that are not empty.
        notes: how it is written if not in UTF-8 with commas, and columns that were ignored; empty for most.
    """

    columns: tuple[str, ...]
    chosen: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: str


def read_sheet(file: Path, *wanted: Sequence[str]) -> Sheet:
    """Read a table whose first line names its columns.

    Args:
        file: text in UTF-8, or with the mark of UTF-16 or UTF-32 in front, its columns divided by commas, semicolons,
            tabs or bars; or a workbook of Excel, of which the first sheet is read.
        wanted: for each column that is needed the names it may have, in any case, the preferred one first. The first
            column names images, one in each row.

    Raises:
        ForeignTableError: the file is no table, or a column that is needed is not there.
        DataError: the table is damaged; the line is named, and what to do.
    """
    name = display_name(file.name)
    if file.is_dir():
        raise ForeignTableError(_of_a_program(name))
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"Cannot read the table {name!r}: {error.strerror}.") from error
    is_workbook = file.suffix.lower() in _EXCEL and content.startswith(b"PK")
    records, notes = _workbook(content, name) if is_workbook else _text_records(content, file, wanted)
    columns = next((cells for _, cells in records if cells), [])
    found = [_called(columns, names) for names in wanted]
    if not all(found):
        listed = " and ".join(f"one of {', '.join(names)}" for names in wanted)
        raise ForeignTableError(
            f"The first line of {name!r} names the columns {[*map(display_name, columns)]}: expected "
            f"{listed}, such as {','.join(names[0] for names in wanted)}."
        )
    for column, *others in found:
        if twins := _called(others, [column]):
            raise DataError(
                f"The first line of {name!r} names {len(twins) + 1} columns {column!r}: leave one."
            )
        notes += [f"column {column!r} is read and not {', '.join(map(repr, others))}"] * bool(others)
    chosen = tuple(column for column, *_ in found)
    rows = tuple(_row(line, cells, columns, name) for line, cells in records if cells)
    if (bare := next((row for row in rows if not row.cells[chosen[0]]), None)) is not None:
        raise DataError(
            f"Line {bare.line} of {name!r} has no {chosen[0]}: name the image, or remove the line."
        )
    return Sheet(tuple(columns), chosen, rows, "; ".join(filter(None, notes)))


def _of_a_program(name: str) -> str:
    return f"{name!r} is a spreadsheet program's own file, and no table of text: {_SAVE_AS_CSV}."


def _workbook(content: bytes, name: str) -> tuple[_Records, list[str]]:
    """Records of the first sheet of a workbook, and its name if there are others."""
    try:
        import openpyxl  # noqa: F401 - pandas reads workbooks with it
        import pandas
    except ImportError:
        raise DataError(
            f"Reading {name!r} needs openpyxl: pip install 'promptccd[excel]'. Without it, {_SAVE_AS_CSV}."
        ) from None
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            if (size := sum(each.file_size for each in packed.infolist())) > MOST_UNPACKED:
                raise ValueError(f"it unpacks to {size} bytes, more than {MOST_UNPACKED}")
        with pandas.ExcelFile(io.BytesIO(content), engine="openpyxl") as book:
            first, *others = book.sheet_names
            sheet = pandas.read_excel(book, first, header=None, dtype=str, keep_default_na=False)
    except Exception as error:  # a dozen kinds of zipfile, openpyxl and its parser
        raise ForeignTableError(
            f"{name!r} is no workbook that can be read ({' '.join(str(error).split())[:200]}): {_SAVE_AS_CSV}."
        ) from error
    rows = (_trimmed(map(str, row)) for row in sheet.fillna("").itertuples(index=False))
    return iter(enumerate(rows, 1)), [f"its first sheet, {first!r}, is read"] * bool(others)


def _text_records(content: bytes, file: Path, wanted: Sequence[Sequence[str]]) -> tuple[_Records, list[str]]:
    """Records of a table of text, and how it is written if not in UTF-8 with commas."""
    name = display_name(file.name)
    _require_table(content[:FIRST_BYTES], file)
    _, encoding, called = next((each for each in _MARKS if content.startswith(each[0])), (b"", "utf-8", ""))
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        before = content[: error.start].decode(encoding, "ignore") + "."
        line, guess = sum(1 for _ in io.StringIO(before, newline="")), content.decode("latin-1")
        is_ours = called or all(_called(_head(guess, _divider_of(guess, wanted)), names) for names in wanted)
        raise (DataError if is_ours else ForeignTableError)(
            f"Line {line} of {name!r} is not {called or 'UTF-8'} (byte {content[error.start]:#04x}): the table is "
            f"{'damaged' if called else 'in an older code page, in which letters cannot be read'}. To mend it, "
            f"{_SAVE_AS_CSV}."
        ) from error
    first = next(io.StringIO(text, newline=""), "")
    if says := _SAYS_DIVIDER.fullmatch(first.strip("\r\n")):
        text = text[len(first) :]
    divider = says[1] if says else _divider_of(text, wanted)
    notes = [called, f"divided by {_DIVIDERS.get(divider, repr(divider))}" if divider != "," else ""]
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


def _divider_of(text: str, wanted: Sequence[Sequence[str]]) -> str:
    """The divider by which the first line names most of the columns that are needed, or else most columns."""

    def named(divider: str) -> tuple[int, int]:
        columns = _head(text, divider)
        return sum(bool(_called(columns, names)) for names in wanted), len(columns)

    return max(_DIVIDERS, key=named)


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


def _row(line: int, cells: list[str], columns: Sequence[str], name: str) -> Row:
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
    return Row(line, dict(zip_longest(columns, cells, fillvalue="")))


def _trimmed(cells: Iterable[str]) -> list[str]:
    """The cells without blanks, and without the empty ones that a spreadsheet writes behind short rows."""
    stripped = [cell.strip() for cell in cells]
    while stripped and not stripped[-1]:
        stripped.pop()
    return stripped


def _called(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns that have one of the names, by the order of these; case and blanks do not matter."""
    wanted = dict.fromkeys(map(_plain, names))
    return [column for name in wanted for column in columns if _plain(column) == name]


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "", name.casefold())

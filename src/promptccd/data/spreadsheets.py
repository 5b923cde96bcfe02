"""Tables as spreadsheets write them: lists of images, and what is said of images, a row for each.

Excel divides columns by what its user's language leaves free, writes tabs in UTF-16, UTF-8 with a mark in front, or an
old code page; LibreOffice and Numbers write what they are told. What a table says of itself is believed. A code page
says nothing of itself and is refused: a guess would change names.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptccd.data.names import display_name
from promptccd.errors import DataError
from promptccd.images.kinds import FIRST_BYTES, UNKNOWN, is_text, kind_name

LISTS = (".csv", ".tsv", ".tab", ".txt")  # suffixes of tables that are text
PACKAGE = ".numbers"  # may be a folder
WORKBOOKS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods", ".fods", ".gsheet", PACKAGE)
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
_LOST = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ufffd]")  # control characters, and what stands for a lost letter
_SAVE = (
    "save the sheet as 'CSV UTF-8' in the spreadsheet (LibreOffice: Text CSV, character set UTF-8; Numbers: Export To "
    "CSV, Unicode), and give that file"
)


class ForeignTableError(DataError):
    """No table, or one without the columns that are asked for; it may be another program's."""


@dataclass(frozen=True)
class Row:
    """A row with anything in it.

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
        chosen: the column found for each that was asked for.
        rows: all that are not empty.
        said: how it is written if not in UTF-8 with commas, and which columns were not chosen; empty for most.
    """

    columns: tuple[str, ...]
    chosen: tuple[str, ...]
    rows: tuple[Row, ...]
    said: str


def read_sheet(file: Path, *wanted: Sequence[str]) -> Sheet:
    """Read a table of text whose first line names its columns.

    Args:
        file: commas, semicolons, tabs or bars divide its columns; it is in UTF-8, or has the mark of UTF-16 or UTF-32
            in front; its lines end as on any system.
        wanted: for each column that is needed the names it may have, in any case, the one to take first in front. The
            first column names images, one in each row.

    Raises:
        ForeignTableError: a column that is needed is not there.
        DataError: it is no such table; the line is named, and how to save it.
    """
    name = display_name(file.name)
    if file.is_dir():
        raise ForeignTableError(_of_a_program(name))
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"Cannot read the table {name!r}: {error.strerror}.") from error
    require_table(content[:FIRST_BYTES], file)
    text, encoding = _decoded(content, name, wanted)
    first = next(io.StringIO(text, newline=""), "")
    said = _SAYS_DIVIDER.fullmatch(first.strip("\r\n"))
    text = text[len(first) :] if said else text
    divider = said[1] if said else _divider_of(text, wanted)
    records = _records(text, divider, name, 1 if said else 0)
    columns = _without_empty_ends(next((cells for _, cells in records if any(cells)), []))
    if _found(columns, wanted) < len(wanted):
        listed = " and ".join(f"one of {', '.join(names)}" for names in wanted)
        raise ForeignTableError(
            f"The first line of {name!r} names the columns {[*map(display_name, columns)]}: expected "
            f"{listed}, such as {','.join(names[0] for names in wanted)}."
        )
    chosen = tuple(_chosen(columns, names, name) for names in wanted)
    rows = tuple(_row(line, cells, columns, name) for line, cells in records if any(cells))
    if (bare := next((row for row in rows if not row.cells[chosen[0]]), None)) is not None:
        raise DataError(
            f"Line {bare.line} of {name!r} has no {chosen[0]}: name the image, or remove the line."
        )
    notes = [encoding, f"divided by {_DIVIDERS.get(divider, repr(divider))}" if divider != "," else ""]
    for names, column in zip(wanted, chosen, strict=True):
        others = [each for each in columns if _is_one_of(each, names) and each != column]
        notes += [f"column {column!r} is read and not {', '.join(map(repr, others))}"] * bool(others)
    return Sheet(tuple(columns), chosen, rows, "; ".join(filter(None, notes)))


def require_table(head: bytes, file: Path) -> None:
    """Refuse a file that by its first bytes is no table of text, and say what it is.

    Raises:
        ForeignTableError: it is none.
    """
    if head.startswith(tuple(mark for mark, *_ in _MARKS)):
        return
    kind = kind_name(head)
    if is_text(head):
        if not head.lstrip().startswith(_NO_TABLES):
            return
    elif kind == UNKNOWN and b"\0" not in head:
        return  # a code page, whose line is named later
    name = display_name(file.name)
    if file.suffix.lower() in WORKBOOKS or kind == "an office file":
        raise ForeignTableError(_of_a_program(name))
    raise ForeignTableError(f"{name!r} is no table of text (starts like {kind}). If it is one, {_SAVE}.")


def _of_a_program(name: str) -> str:
    return f"{name!r} is a spreadsheet program's own file, and no table of text: {_SAVE}."


def _decoded(content: bytes, name: str, wanted: Sequence[Sequence[str]]) -> tuple[str, str]:
    """The text, and what it is written in if that is not UTF-8."""
    _, encoding, called = next((each for each in _MARKS if content.startswith(each[0])), (b"", "utf-8", ""))
    try:
        return content.decode(encoding), called
    except UnicodeDecodeError as error:
        before = content[: error.start].decode(encoding, "ignore") + "."
        line, guess = sum(1 for _ in io.StringIO(before, newline="")), content.decode("latin-1")
        is_ours = called or _found(_head(guess, _divider_of(guess, wanted)), wanted) == len(wanted)
        raise (DataError if is_ours else ForeignTableError)(
            f"Line {line} of {name!r} is not {called or 'UTF-8'} (byte {content[error.start]:#04x}): the table is "
            f"{'damaged' if called else 'in an older code page, in which letters cannot be told'}. To mend it, {_SAVE}."
        ) from error


def _divider_of(text: str, wanted: Sequence[Sequence[str]]) -> str:
    """What divides the columns: that by which the first line names most of those that are needed, or most at all."""

    def named(divider: str) -> tuple[int, int]:
        columns = _head(text, divider)
        return _found(columns, wanted), len(columns)

    return max(_DIVIDERS, key=named)


def _head(text: str, divider: str) -> list[str]:
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=divider, skipinitialspace=True)
    try:
        return [cell.strip() for cell in next(filter(any, lines), [])]
    except csv.Error:  # it is told when the rows are read
        return []


def _records(text: str, divider: str, name: str, before: int) -> Iterator[tuple[int, list[str]]]:
    """The cells of every record, and the number of its first line; `before` lines stand above the text."""
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=divider, skipinitialspace=True, strict=True)
    while True:
        line = before + lines.line_num + 1
        try:
            yield line, [cell.strip() for cell in next(lines)]
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"Line {line} of {name!r} is no row ({error}): a text in quotes needs one at its end, and two for one "
                f"inside. Mend the line, or {_SAVE}."
            ) from error


def _row(line: int, cells: list[str], columns: Sequence[str], name: str) -> Row:
    cells = _without_empty_ends(cells)
    if len(cells) > len(columns):
        raise DataError(
            f"Line {line} of {name!r} has {len(cells)} columns, and the first line names {len(columns)}: put a text "
            f"that holds what divides columns into quotes, or {_SAVE}."
        )
    if lost := _LOST.search("".join(cells)):
        raise DataError(
            f"Line {line} of {name!r} holds {lost[0]!a}, which stands for a letter that was lost on the way. Open what "
            f"it was made from, and {_SAVE}."
        )
    return Row(line, dict.fromkeys(columns, "") | dict(zip(columns, cells, strict=False)))


def _without_empty_ends(cells: list[str]) -> list[str]:
    """The cells but for the empty ones behind: a spreadsheet writes as many as its widest row ever had."""
    return cells[: max((place for place, cell in enumerate(cells, 1) if cell), default=0)]


def _chosen(columns: Sequence[str], names: Sequence[str], file: str) -> str:
    """The column with the first of the names that is there."""
    found = next(each for name in names if (each := [one for one in columns if _is_one_of(one, [name])]))
    if len(found) > 1:
        raise DataError(f"The first line of {file!r} names {len(found)} columns {found[0]!r}: leave one.")
    return found[0]


def _found(columns: Sequence[str], wanted: Sequence[Sequence[str]]) -> int:
    """For how many of the columns that are needed there is one."""
    return sum(any(_is_one_of(column, names) for column in columns) for names in wanted)


def _is_one_of(column: str, names: Sequence[str]) -> bool:
    """Whether a column has one of the names; case and blanks do not tell names apart."""
    return re.sub(r"[\s_]+", "", column.casefold()) in {name.replace("_", "") for name in names}

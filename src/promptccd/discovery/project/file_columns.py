"""What was seen of files as columns, a hundred bytes a file besides its path.

Photographs of which there is nothing to note have columns; lines of JSON say the rest, as they say what came since.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from operator import attrgetter
from pathlib import Path

import numpy as np

from promptccd.columns import hash_column, hashes_in, json_column, narrow, sealed, unsealed
from promptccd.data.sources import Stamp
from promptccd.disk import parsed_json, read_file
from promptccd.images.decode import Status, Verdict
from promptccd.images.identity import SeenImage

Look = tuple[Verdict, SeenImage | None]  # the result of decoding a file
LARGEST_COLUMNS = 4 * 2**30  # bytes, of some 20 million files
ELSEWHERE = np.empty((0, 0), np.uint8)  # in place of a miniature that is in its pack
_STAMPS = tuple(item.name for item in fields(Stamp) if item.name != "path")
_numbers_of = attrgetter(*_STAMPS)  # for millions, `astuple` takes long
_NO_DATE, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_LENGTH_OF_DATE = 19  # of 2026-01-31T23:59:59
_YEARS = np.array(["0000-01-01", "10000-01-01"], "datetime64[s]").astype(np.int64)


class FileColumns:
    """Contents of files, each with a picture, and which file held which.

    Args:
        tensors: of the file, which anybody may have written; by default there is nothing.

    Attributes:
        settings: what made them, a line of JSON.
        lines: what no column says; they overrule the columns.
        paths: of files.
        row_of: row of each content, by its hash.
        were_held: contents that were ever in a file, those of the lines left out; others were rows of a data set.

    Raises:
        ValueError: they are not valid.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray] | None = None):
        self._columns = columns = unsealed(packed(b"", (), {}, {}, ())) if tensors is None else tensors
        self.settings, lines = columns["settings"].tobytes(), columns["lines"].tobytes()
        self.lines = lines.split(b"\n") if lines else []
        self._contents, self._keys = hashes_in(columns["contents"]), hashes_in(columns["keys"])
        self.paths: list[str] = parsed_json(columns["paths"].tobytes())
        self.row_of = {digest: row for row, digest in enumerate(self._contents)}
        count, dates = len(self._contents), columns["dates"]
        if not isinstance(self.paths, list) or not all(isinstance(path, str) for path in self.paths):
            raise ValueError("a path is no text")
        if not len(self._keys) == len(self.row_of) == count or len(self._file_of) != len(self.paths):
            raise ValueError("something is there twice, or missing")
        for names, length in ((("widths", "heights", "dates"), count), (("held", *_STAMPS), len(self.paths))):
            if odd := [
                name
                for name in names
                if columns[name].shape != (length,) or columns[name].dtype.kind not in "iu"
            ]:
                raise ValueError(f"{odd[0]} are not {length} integers")
        for values, least, most in (
            (columns["held"], 0, count - 1),
            (columns["widths"], 1, 2**31 - 1),
            (columns["heights"], 1, 2**31 - 1),
            (dates[dates != _NO_DATE], *(_YEARS - (0, 1))),
        ):
            if len(values) and (values.min() < least or values.max() > most):
                raise ValueError(f"a value is outside of {least} to {most}")
        self.were_held = {*hashes_in(columns["once_held"]), *self.holders.values()}

    @cached_property
    def _file_of(self) -> dict[str, int]:
        return {path: number for number, path in enumerate(self.paths)}

    @cached_property
    def dates(self) -> dict[str, str]:
        """When pictures were taken, by content, where something says so."""
        rows = np.flatnonzero(self._columns["dates"] != _NO_DATE)
        texts = np.datetime_as_string(self._columns["dates"][rows].astype("datetime64[s]")).tolist()
        return {self._contents[row]: text for row, text in zip(rows.tolist(), texts, strict=True)}

    def look(self, digest: str) -> Look | None:
        """The look at a content, as `SeenFiles.look` gives it; `None` if no column says it."""
        if (row := self.row_of.get(digest)) is None:
            return None
        size = int(self._columns["widths"][row]), int(self._columns["heights"][row])
        image = SeenImage(size, self._keys[row], ELSEWHERE, b"", taken=self.dates.get(digest, ""))
        return Verdict(Status.USED), image

    def held(self, path: str) -> tuple[Stamp, str] | None:
        """Stamp and content of the file at a path."""
        if (number := self._file_of.get(path)) is None:
            return None
        stamp = Stamp(path, *(int(self._columns[name][number]) for name in _STAMPS))
        return stamp, self._contents[self._columns["held"][number]]

    @property
    def holders(self) -> dict[str, str]:
        """The content of every file, by path."""
        held = self._columns["held"].tolist()
        return {path: self._contents[row] for path, row in zip(self.paths, held, strict=True)}

    @property
    def key_of(self) -> dict[str, str]:
        """The key of the picture of each content."""
        return dict(zip(self._contents, self._keys, strict=True))


def read_columns(path: Path) -> FileColumns:
    """The columns of a file; there is nothing in one that does not exist.

    Raises:
        ValueError: it is damaged.
        RunError: it is a link, no regular file, or too large.
    """
    try:
        return FileColumns(unsealed(read_file(path, LARGEST_COLUMNS)))
    except FileNotFoundError:
        return FileColumns()
    except (KeyError, TypeError) as error:
        raise ValueError(str(error)) from error


def has_columns(look: Look) -> bool:
    """Whether columns say all of a look."""
    verdict, image = look
    if image is None or image.depth is not None or verdict != Verdict(Status.USED):
        return False
    return not image.taken or _seconds(image.taken) != _NO_DATE


def fits_columns(stamp: Stamp) -> bool:
    """Whether columns say all of a stamp: broken clocks write dates beyond the year 2262."""
    return all(abs(value) <= _MOST for value in _numbers_of(stamp))


def packed(
    settings: bytes,
    lines: Sequence[bytes],
    looks: Mapping[str, SeenImage],
    held: Mapping[str, tuple[Stamp, str]],
    once_held: Collection[str],
) -> bytes:
    """The content of a file of columns.

    Args:
        settings: what made them.
        lines: what no column can say.
        looks: pictures by content.
        held: stamp and content of the file at every path.
        once_held: contents that were in a file and are not in `held`.
    """
    row_of, paths = {digest: row for row, digest in enumerate(looks)}, sorted(held)
    stamps = np.array([_numbers_of(held[path][0]) for path in paths], np.int64).reshape(-1, len(_STAMPS))
    columns = {
        "settings": np.array(bytearray(settings), np.uint8),
        "lines": np.array(bytearray(b"\n".join(lines)), np.uint8),
        "contents": hash_column([*looks]),
        "keys": hash_column([image.key for image in looks.values()]),
        "widths": narrow([image.size[0] for image in looks.values()]),
        "heights": narrow([image.size[1] for image in looks.values()]),
        "dates": np.array([_seconds(image.taken) for image in looks.values()], np.int64),
        "paths": json_column(paths),
        "held": narrow([row_of[held[path][1]] for path in paths]),
        "once_held": hash_column(sorted(once_held)),
        **{name: narrow(stamps[:, place]) for place, name in enumerate(_STAMPS)},
    }
    return sealed(columns)


def _seconds(taken: str) -> int:
    """A date as a number, where that gives the very date again: not with an offset, of which NumPy would warn."""
    try:
        date = np.datetime64(taken if len(taken) == _LENGTH_OF_DATE else "NaT", "s")
    except ValueError:
        return int(_NO_DATE)
    return int(date.astype(np.int64)) if str(date) == taken else int(_NO_DATE)

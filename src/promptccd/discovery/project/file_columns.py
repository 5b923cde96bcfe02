"""What was seen of files as columns, a hundred bytes a file besides its path; lines are for what came since."""

import hashlib
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from promptccd.columns import HASH_BYTES, hash_column, hashes_in, json_column, narrow
from promptccd.data.capture_dates import KEPT
from promptccd.data.depths import Depth
from promptccd.data.file_names import display_name
from promptccd.data.images import Status, Verdict
from promptccd.data.sources import Stamp
from promptccd.storage import read_file

LARGEST_COLUMNS = 4 * 2**30  # bytes, of some 20 million files
LONGEST_NOTE = 4096  # characters
_STATUSES = tuple(Status)
_STAMPS = tuple(item.name for item in fields(Stamp) if item.name != "path")
_NO_DATE = np.iinfo(np.int64).min
_NO_KEY = "00" * HASH_BYTES
_YEARS = np.array(["0000-01-01", "10000-01-01"], "datetime64[s]").astype(np.int64)


class FileColumns:
    """What was seen of contents, by row, and which file held which.

    Args:
        tensors: of the file, which anybody may have written; by default there is nothing.

    Attributes:
        settings: what made them, a line of JSON.
        contents: SHA-256 of each content.
        keys: of each picture; zeros where a content shows none.
        paths: of files.
        row_of: row of each content, by its hash.

    Raises:
        ValueError: they are not valid.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray] | None = None):
        self._columns = load(packed(b"", (), {}, ())) if tensors is None else tensors
        column = self._columns
        self.settings = column["settings"].tobytes()
        self.contents, self.keys = (hashes_in(column[name]) for name in ("contents", "keys"))
        self.paths: list[str] = json.loads(column["paths"].tobytes())
        self._more: dict[str, dict[str, Any]] = json.loads(column["more"].tobytes())
        self.row_of = {digest: row for row, digest in enumerate(self.contents)}
        shapes = {
            name: (len(self.contents),) for name in ("statuses", "dates", "widths", "heights", "of_files")
        }
        shapes |= {name: (len(self.paths),) for name in ("held", *_STAMPS)}
        if column["dates"].dtype != np.int64 or not isinstance(self.paths, list):
            raise ValueError("its columns are others")
        whole = all(
            column[name].shape == shape and column[name].dtype.kind in "iu" for name, shape in shapes.items()
        )
        if not whole or len(self.keys) != len(self.contents) or len(self.row_of) != len(self.contents):
            raise ValueError("its columns do not fit")
        if not all(isinstance(path, str) for path in self.paths) or len(self._file_of) != len(self.paths):
            raise ValueError("a path is there twice, or no text")
        seen, dates = column["statuses"] != _STATUSES.index(Status.SKIPPED), column["dates"]
        for values, least, most in (
            (column["statuses"], 0, len(_STATUSES) - 1),
            (column["held"], 0, len(self.contents) - 1),
            (column["widths"][seen], 1, 2**31 - 1),
            (column["heights"][seen], 1, 2**31 - 1),
            (dates[dates != _NO_DATE], _YEARS[0], _YEARS[1] - 1),
        ):
            if len(values) and (values.min() < least or values.max() > most):
                raise ValueError(f"a value is outside of {least} to {most}")
        for row, more in self._more.items():
            require_note(more["note"])
            if (
                not (more["taken"] == "" or KEPT.fullmatch(more["taken"]))
                or not row.isdecimal()
                or int(row) >= len(self.contents)
            ):
                raise ValueError("a date is none")
            if "depth" in more:
                Depth.from_dict(more["depth"])

    @cached_property
    def _file_of(self) -> dict[str, int]:
        return {path: number for number, path in enumerate(self.paths)}

    def verdict(self, row: int) -> Verdict:
        """Of a content."""
        return Verdict(
            _STATUSES[self._columns["statuses"][row]], self._more.get(str(row), {"note": ""})["note"]
        )

    def size(self, row: int) -> tuple[int, int]:
        """Width and height of a picture."""
        return int(self._columns["widths"][row]), int(self._columns["heights"][row])

    @cached_property
    def dates(self) -> dict[str, str]:
        """When pictures were taken, by content, where something says so."""
        column = self._columns["dates"]
        rows = np.flatnonzero(column != _NO_DATE)
        texts = np.datetime_as_string(column[rows].astype("datetime64[s]")).tolist()
        odd = {self.contents[int(row)]: more["taken"] for row, more in self._more.items() if more["taken"]}
        return {self.contents[row]: text for row, text in zip(rows.tolist(), texts, strict=True)} | odd

    def depth(self, row: int) -> Depth | None:
        """Of a picture with more than 8 bits a value."""
        values = self._more.get(str(row), {}).get("depth")
        return values and Depth.from_dict(values)

    @property
    def deep(self) -> Iterable[int]:
        """Rows of the pictures that have a depth."""
        return [int(row) for row, more in self._more.items() if "depth" in more]

    def held(self, path: str) -> tuple[Stamp, str] | None:
        """Stamp and content of the file at a path."""
        number = self._file_of.get(path)
        if number is None:
            return None
        stamp = Stamp(path, *(int(self._columns[name][number]) for name in _STAMPS))
        return stamp, self.contents[self._columns["held"][number]]

    @property
    def were_held(self) -> set[str]:
        """Contents that were ever in a file."""
        return {self.contents[row] for row in np.flatnonzero(self._columns["of_files"]).tolist()}

    @property
    def key_of(self) -> dict[str, str]:
        """The key of the picture of each content that shows one."""
        return {digest: key for digest, key in zip(self.contents, self.keys, strict=True) if key != _NO_KEY}

    @property
    def holders(self) -> dict[str, str]:
        """The content of every file, by path."""
        return {
            path: self.contents[row]
            for path, row in zip(self.paths, self._columns["held"].tolist(), strict=True)
        }


def read_columns(path: Path) -> FileColumns:
    """The columns of a file; there is nothing in one that does not exist.

    Raises:
        ValueError: it is damaged.
        RunError: it is a link, no regular file, or too large.
    """
    try:
        tensors = load(read_file(path, LARGEST_COLUMNS))
        if tensors.pop("sum").tobytes() != _sum(tensors):
            raise ValueError("its checksum differs")
        return FileColumns(tensors)
    except FileNotFoundError:
        return FileColumns()
    except (SafetensorError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error


Row = tuple[str, Verdict, tuple[int, int], str, str, Depth | None]


def packed(
    settings: bytes, looks: Sequence[Row], held: Mapping[str, tuple[Stamp, str]], were_held: Container[str]
) -> bytes:
    """The content of a file of columns.

    Args:
        settings: what made them.
        looks: of each content: its hash, the verdict, size and key of the picture, its date and depth.
        held: stamp and content of the file at every path.
        were_held: contents that were ever in a file; the others were rows of a data set.
    """
    row_of, dates, more = {look[0]: row for row, look in enumerate(looks)}, list[int](), dict[str, Any]()
    for row, (_, verdict, _, _, taken, depth) in enumerate(looks):
        dates.append(_seconds(taken))
        odd = {"note": verdict.note, "taken": taken if dates[-1] == _NO_DATE else ""}
        if verdict.note or odd["taken"] or depth is not None:
            more[str(row)] = odd if depth is None else {**odd, "depth": asdict(depth)}
    paths = sorted(held)
    stamps = np.array([astuple(held[path][0])[1:] for path in paths], np.int64).reshape(-1, len(_STAMPS))
    columns = {
        "settings": np.array(bytearray(settings), np.uint8),
        "contents": hash_column([look[0] for look in looks]),
        "keys": hash_column([look[3] or _NO_KEY for look in looks]),
        "statuses": np.array([_STATUSES.index(look[1].status) for look in looks], np.uint8),
        "of_files": np.array([look[0] in were_held for look in looks], np.uint8),
        "widths": narrow([look[2][0] for look in looks]),
        "heights": narrow([look[2][1] for look in looks]),
        "dates": np.array(dates, np.int64),
        "more": json_column(more),
        "paths": json_column(paths),
        "held": narrow([row_of[held[path][1]] for path in paths]),
        **{name: narrow(stamps[:, place]) for place, name in enumerate(_STAMPS)},
    }
    return save({**columns, "sum": np.frombuffer(_sum(columns), np.uint8)})


def require_note(note: Any) -> None:
    """Refuse with a `ValueError` what is no text on one line."""
    if not isinstance(note, str) or len(note) > LONGEST_NOTE or note != display_name(note):
        raise ValueError("a note is no text on one line")


def _seconds(taken: str) -> int:
    """A date without a zone as a number; others are written as they are."""
    try:
        date = np.datetime64(taken, "s") if len(taken) == 19 else None
    except ValueError:
        date = None
    return int(date.astype(np.int64)) if date is not None and str(date) == taken else int(_NO_DATE)


def _sum(tensors: Mapping[str, np.ndarray]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].data)
    return digest.digest()

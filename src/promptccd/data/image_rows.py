"""Images that are rows of a local data set or of a data set on the Hub."""

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as compute  # type: ignore[import-untyped]
from huggingface_hub import constants

from promptccd.data.labels import image_column_of
from promptccd.data.names import display_name
from promptccd.data.sources import is_below
from promptccd.errors import DataError
from promptccd.images.decode import DecodedImage, Decoding, Status, Verdict, decide, decode_image
from promptccd.images.files import first_bytes, opened_file, read_regular_file, within_limit
from promptccd.images.limits import ByteBudget, IntakeLimits, SkippedFileError
from promptccd.images.rendering import DEPTH_BYTES, may_be_deep

logger = logging.getLogger(__name__)

IDENTITY_BYTES = 4096  # first bytes of a file: they include the orientation in EXIF
ROWS_AT_ONCE = 256  # rows that are read from the table together


class ForeignFileError(SkippedFileError):
    """A row names a file that the data set may not read."""


class ImageRows:
    """The images of a table by row, as bytes.

    A row may name a file instead of holding an image. Such a file is read only if it is below `roots` after links are
    resolved: a published table could name any file of the machine that reads it.

    Args:
        table: the data set.
        roots: folders that may contain the files that rows name; by default the download folders.
        decoding: how they become pixels.
        name: of their place, for messages.
        left_out: why further files of a folder are no rows, by path.

    Attributes:
        table: the data set; of a part of them, its column of images alone.
        whole: the images that these are a part of, and copies are kept of together; by default themselves.
        rows: which of them these are, ``(N,)``.

    Raises:
        DataError: the column of the images is unclear.
    """

    def __init__(
        self,
        table: datasets.Dataset,
        roots: Sequence[str | os.PathLike[str]] | None = None,
        decoding: Decoding | None = None,
        name: str = "",
        left_out: Mapping[str, str] | None = None,
    ):
        self.table, self.name, self.left_out = table, name, left_out or {}
        self.decoding = decoding or Decoding()
        self._column = image_column_of(table)
        table = table.with_format(None).select_columns([self._column])
        self._table = table.cast_column(self._column, datasets.Image(decode=False))
        if roots is None:
            found = datasets.config
            roots = [found.HF_DATASETS_CACHE, found.DOWNLOADED_DATASETS_PATH, constants.HF_HUB_CACHE]
        self._roots = [os.path.realpath(root) for root in roots]
        self.whole, self.rows = self, np.arange(len(self._table))

    def __len__(self) -> int:
        return len(self._table)

    def __getstate__(self) -> dict[str, Any]:
        """The images alone: a loader process needs no further columns, and a format of the table may not travel."""
        return {**vars(self), "table": self._table}

    def select(self, rows: np.ndarray, name: str = "") -> "ImageRows":
        """The images of these rows, in this order."""
        return ImageRows(self._table.select(rows), self._roots, self.decoding, name or self.name)

    def part(self, rows: np.ndarray) -> "ImageRows":
        """The same as `select`, for images whose copies are kept with the other copies."""
        part = self.select(rows)
        part.whole, part.rows = self.whole, self.rows[rows]
        return part

    def content_keys(self) -> Iterator[bytes]:
        """A key per image that changes when its bytes change, found without decoding; empty for a missing file.

        For a row that contains its image, a hash of the bytes. For a row that names a file, size, time of the last
        change and first bytes: a data set may move, and a photograph that was rotated without a new time is noticed.
        """
        for first in range(0, len(self), ROWS_AT_ONCE):
            for row, image in enumerate(self._table[first : first + ROWS_AT_ONCE][self._column], first):
                if row not in self._files:
                    yield hashlib.blake2b((image or {}).get("bytes") or b"", digest_size=16).digest()
                    continue
                try:
                    with opened_file(self._own_file(self._files[row])) as (stream, size):
                        key = b"%d %d " % (size, os.fstat(stream.fileno()).st_mtime_ns)
                        yield key + hashlib.blake2b(stream.read(IDENTITY_BYTES)).digest()
                except SkippedFileError:
                    yield b""

    def with_one_rendering(self) -> "ImageRows":
        """The same images; images with more than 8 bits a value share a rule, which they decide if necessary."""
        found = decide(self.decoding, [*self._deep_rows()], self.read)
        if str(found.rendering) and found != self.decoding:
            logger.info("%s (--window sets another).", str(found.rendering).capitalize())
        return ImageRows(self._table, self._roots, found, self.name)

    def _deep_rows(self) -> Iterator[int]:
        """Rows that by their first bytes may have more than 8 bits a value."""
        starts = self._by_row(lambda content, _: compute.binary_slice(content, 0, DEPTH_BYTES))
        for row, start in enumerate(starts.to_pylist()):
            file = self._files.get(row)
            with contextlib.suppress(SkippedFileError):  # it is skipped with its reason when it is read
                head = first_bytes(self._own_file(file), DEPTH_BYTES) if file is not None else start or b""
                if may_be_deep(head):
                    yield row

    def read(self, row: int, budget: ByteBudget | None = None) -> bytes:
        """The bytes of a row's image; without a budget they are not counted, and the usual limit on one image applies.

        Raises:
            ForeignFileError: the row names a file outside of the data set.
            SkippedFileError: there is no image, it cannot be read, or it exceeds a limit.
            DataError: the images together exceed a limit.
        """
        limits = IntakeLimits.of_person(max_pixels=self.decoding.max_pixels)
        budget = budget or ByteBudget(limits, "The data set")
        image = self._table[int(row)][self._column] or {}
        if image.get("bytes") is not None:
            return within_limit(image["bytes"], budget)
        if image.get("path") is None:
            raise SkippedFileError("no image given")
        return read_regular_file(self._own_file(image["path"]), budget)

    def decode(self, row: int) -> DecodedImage:
        """A row's image as a model sees it, or why it cannot be used."""
        try:
            return self.decoding.fitted(decode_image(self.read(row), self.decoding))
        except SkippedFileError as skipped:
            return DecodedImage(None, Verdict(Status.SKIPPED, str(skipped)))

    def require_own_files(self) -> None:
        """Refuse a table with a row that names an address or a file outside `roots`; nothing is opened.

        Raises:
            DataError: naming the first such row and its file.
        """
        for row, path in self._files.items():
            try:
                self._own_file(path)
            except ForeignFileError as refused:
                raise DataError(
                    f"Row {row} of {self.name} names {display_name(path)!r}: {refused}. Nothing was read: remove the "
                    "row, or put the image into the folder of the data set (in Python, image_roots allows others)."
                ) from None

    def name_of(self, row: int) -> str:
        """The path of a row's file in the data set; empty for a row that contains its image."""
        if not (path := self._files.get(int(row))):
            return ""
        path = path if "://" in path else os.path.abspath(path)
        root = next((each for each in self._roots if is_below(path, each)), "")
        return display_name(PurePath(os.path.relpath(path, root)).as_posix() if root else path)

    @cached_property
    def _files(self) -> dict[int, str]:
        """The path that each row without bytes gives instead; found without touching an image."""
        paths = self._by_row(lambda content, path: compute.if_else(compute.is_null(content), path, None))
        rows = np.flatnonzero(paths.is_valid().to_numpy())
        return dict(zip(rows.tolist(), paths.take(rows).to_pylist(), strict=True))

    def _by_row(self, of_column: Callable[[Any, Any], Any]) -> Any:
        """A value of every row, from the bytes and the paths of the column."""
        column = self._table.data.column(self._column)
        values = of_column(*(compute.struct_field(column, name) for name in ("bytes", "path")))
        # Rows may have been selected or shuffled.
        return values if self._table._indices is None else values.take(self._table._indices.column(0))

    def _own_file(self, path: str) -> str:
        """Where a path leads, links resolved."""
        if "://" in path:
            raise ForeignFileError("an address, not an image")
        try:
            target = os.path.realpath(path)
        except ValueError:
            raise ForeignFileError("not a file name") from None
        if not any(is_below(target, root) for root in self._roots):
            raise ForeignFileError("a file outside of the data set")
        return target

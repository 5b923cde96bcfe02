"""Images that are rows of a data set, a person's own or one of the Hub."""

import os
import re
from collections.abc import Sequence

import datasets
from huggingface_hub import HfApi, constants

from promptccd.data.file_names import display_name
from promptccd.data.limits import ByteBudget, IntakeLimits, SkippedFileError
from promptccd.data.loading import image_column_of, load_images
from promptccd.data.sources import Entry, ImageSource, inside, read_regular_file, within_limit
from promptccd.errors import DataError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


class DatasetSource(ImageSource):
    """The rows of a data set's image column.

    A row may name a file instead of holding an image. Such a file is read only below `roots`: a published table
    could name any file of the machine that reads it.

    Args:
        dataset: the data set.
        name: what messages call it.
        image_column: the column; none means the only one that holds images.
        roots: folders that files named by rows may lie in.

    Raises:
        DataError: which column holds the images is unclear.
    """

    def __init__(
        self,
        dataset: datasets.Dataset,
        name: str,
        image_column: str | None = None,
        roots: Sequence[str | os.PathLike[str]] = (),
    ):
        column = image_column_of(dataset, image_column)
        self._rows = dataset.select_columns([column]).cast_column(column, datasets.Image(decode=False))
        self._column = column
        self._roots = tuple(os.path.realpath(root) for root in roots)
        self.name = name

    @classmethod
    def load(cls, dataset: str, split: str = "train", image_column: str | None = None) -> "DatasetSource":
        """A data set by the names that `load_images` knows.

        Raises:
            DataError: it cannot be loaded.
        """
        loaded = load_images(dataset, split)
        local = [dataset] if os.path.isdir(dataset) else []
        return cls(loaded, f"Data set {dataset!r}", image_column, [*local, *_download_folders()])

    @classmethod
    def from_hub(
        cls, name: str, limits: IntakeLimits, split: str = "train", image_column: str | None = None
    ) -> "DatasetSource":
        """A data set of the Hub and nothing else: for names that visitors type.

        Its size is asked for before anything is downloaded.

        Args:
            name: ``namespace/name``.
            limits: of which `max_total_bytes` bounds the download.
            split: name of the split.
            image_column: the column; none means the only one that holds images.

        Raises:
            DataError: it is no such name, there is no such data set, or it is too large.
        """
        if not _HUB_NAME.fullmatch(name) or ".." in name or os.path.exists(name):
            raise DataError(
                f"{display_name(name)[:120]!r} is no data set of the Hub: write namespace/name, no address and no path."
            )
        try:
            found = HfApi().dataset_info(name, files_metadata=True, timeout=20)
        except Exception as error:  # from a missing repository to a dead connection
            reason = display_name(str(error).strip().split("\n")[0])[:200]
            raise DataError(f"Cannot ask the Hub for the data set {name!r}: {reason}") from error
        size = sum(sibling.size or 0 for sibling in found.siblings or [])
        if size > limits.max_total_bytes:
            raise DataError(
                f"The data set {name!r} has {size} bytes; the limit is {limits.max_total_bytes}. Give a smaller one."
            )
        return cls(load_images(name, split), f"Data set {name!r}", image_column, _download_folders())

    def entries(self, limits: IntakeLimits) -> list[Entry]:
        """The rows, in order."""
        limits.require_files(len(self._rows), self.name)
        return [Entry(f"row {row}", row) for row in range(len(self._rows))]

    def read(self, entry: Entry, limits: IntakeLimits, budget: ByteBudget) -> bytes:
        """The bytes of a row's image."""
        image = self._rows[entry.key][self._column] or {}
        content, path = image.get("bytes"), image.get("path")
        if content is not None:
            return within_limit(content, limits, budget)
        if path is None:
            raise SkippedFileError("no image given")
        if "::" in path or "://" in path:
            raise SkippedFileError("an address, not an image")
        return read_regular_file(inside(path, self._roots, "a file outside of the data set"), limits, budget)


def _download_folders() -> list[str]:
    """Where data sets of the Hub are downloaded to."""
    return [
        str(datasets.config.HF_DATASETS_CACHE),
        str(datasets.config.DOWNLOADED_DATASETS_PATH),
        constants.HF_HUB_CACHE,
    ]

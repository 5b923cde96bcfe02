"""Sources of images besides folders and archives: several sources as one, and the rows of a data set."""

import os
from collections.abc import Sequence
from dataclasses import replace

import datasets

from promptccd.data.image_rows import ImageRows
from promptccd.data.labels import image_column_of
from promptccd.data.sources import Entry, ImageSource, Stamp
from promptccd.data.tables import image_roots, open_images
from promptccd.images.limits import ByteBudget, IntakeLimits


class CombinedSource(ImageSource):
    """Several sources, one after the other, such as uploaded images and archives; closing it closes them."""

    def __init__(self, sources: Sequence[ImageSource]):
        self._sources = sources
        self.name = ", ".join(source.name for source in sources[:3]) + (" ..." if len(sources) > 3 else "")

    def entries(self, limits: IntakeLimits) -> list[Entry]:
        """Entries of all sources; the limit holds for all together."""
        found: list[Entry] = []
        for source in self._sources:
            found += [replace(entry, key=(source, entry)) for entry in source.entries(limits)]
            limits.require_files(sum(not entry.reason for entry in found), self.name)
        return found

    def read(self, entry: Entry, budget: ByteBudget) -> bytes:
        """The bytes of an entry, from its source."""
        source, inner = entry.key
        return source.read(inner, budget)

    def stamp(self, entry: Entry) -> Stamp | None:
        """The stamp of an entry, from its source."""
        source, inner = entry.key
        return source.stamp(inner)

    def close(self) -> None:
        """Close all of them."""
        for source in self._sources:
            source.close()


class DatasetSource(ImageSource):
    """The rows of a data set's image column; `name` is for messages, `roots` is that of `ImageRows`.

    Raises:
        DataError: which column holds the images is unclear.
    """

    def __init__(self, dataset: datasets.Dataset, name: str, roots: Sequence[str | os.PathLike[str]] = ()):
        self._rows = ImageRows(dataset, roots=roots)
        self.name = name

    @classmethod
    def load(cls, dataset: str) -> "DatasetSource":
        """The training split of a data set, by a name that `open_images` takes.

        Raises:
            DataError: it cannot be loaded.
        """
        opened = open_images(dataset)
        table = opened.table.select_columns([image_column_of(opened.table, None)])
        return cls(table, f"Data set {dataset!r}", image_roots(dataset))

    def entries(self, limits: IntakeLimits) -> list[Entry]:
        """The rows, in order."""
        limits.require_files(len(self._rows), self.name)
        return [Entry(f"row {row}", row) for row in range(len(self._rows))]

    def read(self, entry: Entry, budget: ByteBudget) -> bytes:
        """The bytes of a row's image."""
        return self._rows.read(entry.key, budget)

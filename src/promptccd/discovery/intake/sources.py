"""Sources of images other than folders: files and archives together, and the rows of a data set."""

import os
from collections.abc import Sequence
from dataclasses import replace

from promptccd.data.image_rows import ImageRows
from promptccd.data.names import display_name
from promptccd.data.sources import Entry, ImageSource, Stamp
from promptccd.discovery.intake.archives import ArchiveSource, is_archive
from promptccd.images.files import read_regular_file
from promptccd.images.limits import ByteBudget, IntakeLimits


class FilesSource(ImageSource):
    """Single files and zip archives, as a browser uploads them: the files first, by their names without folders.

    Raises:
        DataError: an archive cannot be opened.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]):
        self._files = [os.fspath(path) for path in paths if not is_archive(path)]
        self._archives = [ArchiveSource(path) for path in paths if is_archive(path)]
        self.name = f"The list of {len(paths)} files"
        if len(paths) == 1:
            is_file = bool(self._files)
            self.name = (
                f"File {display_name(os.path.basename(paths[0]))!r}" if is_file else self._archives[0].name
            )

    def entries(self, limits: IntakeLimits) -> list[Entry]:
        """Files and members in the order they were given; the limit is for all together."""
        found = [Entry(display_name(os.path.basename(path)), path) for path in self._files]
        for archive in self._archives:
            found += [replace(entry, key=(archive, entry)) for entry in archive.entries(limits)]
            limits.require_files(sum(not entry.reason for entry in found), self.name)
        limits.require_files(sum(not entry.reason for entry in found), self.name)
        return found

    def read(self, entry: Entry, budget: ByteBudget) -> bytes:
        """The bytes of a member, or of a file, which must be no link."""
        if isinstance(entry.key, str):
            return read_regular_file(entry.key, budget)
        archive, member = entry.key
        content: bytes = archive.read(member, budget)
        return content

    def stamp(self, entry: Entry) -> Stamp | None:
        """The stamp of a file or of a member."""
        if isinstance(entry.key, str):
            return Stamp.of(os.path.abspath(entry.key))
        archive, member = entry.key
        found: Stamp = archive.stamp(member)
        return found

    def close(self) -> None:
        """Close the archives."""
        for archive in self._archives:
            archive.close()


class DatasetSource(ImageSource):
    """The rows of a data set."""

    def __init__(self, images: ImageRows):
        self._rows, self.name = images, f"Data set {images.name!r}"

    def entries(self, limits: IntakeLimits) -> list[Entry]:
        """The rows, in order."""
        limits.require_files(len(self._rows), self.name)
        return [Entry(f"row {row}", row) for row in range(len(self._rows))]

    def read(self, entry: Entry, budget: ByteBudget) -> bytes:
        """The bytes of a row's image."""
        return self._rows.read(entry.key, budget)

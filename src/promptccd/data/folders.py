"""Folders that people point at and files that they upload."""

import os
from collections.abc import Iterator, Sequence

from promptccd.data.file_names import display_name, is_system_folder, system_reason
from promptccd.data.limits import ByteBudget, IntakeLimits, SkippedFileError
from promptccd.data.sources import Entry, ImageSource, inside, read_regular_file
from promptccd.errors import DataError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")


class FolderSource(ImageSource):
    """All files below a folder. Links are followed to files inside it, never out and never to folders.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._root = os.path.realpath(os.path.expanduser(path))
        self.name = f"Folder {display_name(os.fspath(path))!r}"

    def entries(self, limits: IntakeLimits) -> list[Entry]:
        """Files by path, and folders that are not searched, with the reason."""
        found: list[Entry] = []
        for entry in self._walk():
            found.append(entry)
            if len(found) > limits.max_entries:
                limits.require_files(len(found), self.name)
        found.sort(key=lambda entry: os.fsencode(entry.key).split(b"/"))
        limits.require_files(sum(not entry.reason for entry in found), self.name)
        return found

    def read(self, entry: Entry, limits: IntakeLimits, budget: ByteBudget) -> bytes:
        """The bytes of a file; a link is resolved anew, for it may have been turned since."""
        path = os.path.join(self._root, entry.key)
        if os.path.islink(path):
            path = inside(path, (self._root,))
        return read_regular_file(path, limits, budget)

    def _walk(self) -> Iterator[Entry]:
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            try:
                with os.scandir(os.path.join(self._root, folder)) as items:
                    for item in items:
                        path = os.path.join(folder, item.name)
                        if item.is_dir(follow_symlinks=False) and not is_system_folder(item.name):
                            waiting.append(path)
                            if not item.name.lower().endswith(IMAGE_SUFFIXES):
                                continue  # an ordinary folder is no file; one that looks like a file is explained
                        yield Entry(display_name(path), path, self._reason(item, path))
            except OSError as error:
                if not folder:
                    raise DataError(f"{self.name} cannot be listed: {error.strerror}.") from error
                yield Entry(display_name(folder) + "/", folder, f"folder cannot be listed ({error.strerror})")

    def _reason(self, item: os.DirEntry[str], path: str) -> str:
        if item.is_symlink():
            try:
                target = inside(item.path, (self._root,))
            except SkippedFileError as skipped:
                return str(skipped)
            if os.path.isdir(target):
                return "link to a folder, not followed"
        elif item.is_dir(follow_symlinks=False):
            return "hidden folder, not searched" if is_system_folder(item.name) else "a folder, not a file"
        elif not item.is_file(follow_symlinks=False):
            return "not a regular file"
        return system_reason(path)


class UploadSource(ImageSource):
    """Single files, as a browser hands them over; only their last names are shown.

    Args:
        paths: the files.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]):
        self._paths = [os.fspath(path) for path in paths]
        self.name = f"The list of {len(self._paths)} files"

    def entries(self, limits: IntakeLimits) -> list[Entry]:
        """The files in the order they were given."""
        limits.require_files(len(self._paths), self.name)
        return [Entry(display_name(os.path.basename(path)), path) for path in self._paths]

    def read(self, entry: Entry, limits: IntakeLimits, budget: ByteBudget) -> bytes:
        """The bytes of a file, which must be no link."""
        return read_regular_file(entry.key, limits, budget)

"""Open one regular file of a person: through no link, without waiting for a pipe."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from promptccd import systems
from promptccd.images.limits import SkippedFileError


def first_bytes(path: str, count: int) -> bytes:
    """The first bytes of a file of a regular file.

    Raises:
        SkippedFileError: as `opened_file`.
    """
    with opened_file(path) as (stream, _):
        return stream.read(count)


@contextmanager
def opened_file(path: str | os.PathLike[str], *, follow: bool = False) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file and its size; through a link only if told to follow it.

    Raises:
        SkippedFileError: it is no regular file, or cannot be read.
    """
    try:
        path = os.path.realpath(path) if follow and path else path
        mode = os.lstat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
            raise SkippedFileError(
                "not a regular file"
            )  # to open a pipe or a device may do something already
        # Not through a link, and without waiting for the writer of a pipe; the checks are of the opened file.
        descriptor = systems.open_file(path, os.O_RDONLY)
        with open(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise SkippedFileError(
                    "a folder, not a file" if stat.S_ISDIR(status.st_mode) else "not a regular file"
                )
            yield stream, status.st_size
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise SkippedFileError(_why_unreadable(error)) from error


_UNREADABLE = {
    errno.ENOENT: "no such file",
    errno.EACCES: "no permission to read the file",
    errno.EPERM: "no permission to read the file",
    errno.ELOOP: "link, not followed",
    errno.EISDIR: "a folder, not a file",  # which Windows does not open
    errno.ENXIO: "not a regular file",  # a socket
}


def _why_unreadable(error: OSError | ValueError) -> str:
    number = getattr(error, "errno", None)
    named = getattr(error, "strerror", None) or "not a file name"
    return _UNREADABLE.get(number or 0, f"file cannot be opened ({named})")

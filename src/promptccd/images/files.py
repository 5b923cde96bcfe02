"""Read one regular file of a person: through no link, without waiting for a pipe, and no more than the limit."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from promptccd import systems
from promptccd.images.kinds import FIRST_BYTES, why_skipped
from promptccd.images.limits import SMALL, ByteBudget, IntakeLimits, SkippedFileError

_UNREADABLE = {
    errno.ENOENT: "no such file",
    errno.EACCES: "no permission to read the file",
    errno.EPERM: "no permission to read the file",
    errno.ELOOP: "link, not followed",
    errno.EISDIR: "a folder, not a file",  # which Windows does not open
    errno.ENXIO: "not a regular file",  # a socket
}


@contextmanager
def opened_file(path: str | os.PathLike[str], *, follow: bool = False) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file and its size; through a link only if told to follow it.

    Raises:
        SkippedFileError: it is no regular file, or cannot be read.
    """
    try:
        target = os.path.realpath(path) if follow and path else path
        mode = os.lstat(target).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
            raise SkippedFileError("not a regular file")  # to open a device may do something already
        # Not through a link, and without waiting for the writer of a pipe; the checks are of the opened file.
        descriptor = systems.open_file(target, os.O_RDONLY)
        with open(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                is_folder = stat.S_ISDIR(status.st_mode)
                raise SkippedFileError("a folder, not a file" if is_folder else "not a regular file")
            yield stream, status.st_size
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        number = getattr(error, "errno", None)
        if follow and number in (errno.ENOENT, errno.ELOOP) and os.path.islink(path):
            raise SkippedFileError("link to a file that does not exist") from error
        named = getattr(error, "strerror", None) or "not a file name"
        raise SkippedFileError(_UNREADABLE.get(number or 0, f"file cannot be opened ({named})")) from error


def first_bytes(path: str, count: int) -> bytes:
    """The first bytes of a regular file; errors as in `opened_file`."""
    with opened_file(path) as (stream, _):
        return stream.read(count)


def read_regular_file(path: str | os.PathLike[str], budget: ByteBudget, *, follow: bool = False) -> bytes:
    """The bytes of a file that is neither pipe nor device, and if it is large, begins like a picture.

    Raises:
        SkippedFileError: it is excluded, too large, no picture, or cannot be read.
    """
    with opened_file(path, follow=follow) as (stream, size):
        if size > SMALL and (reason := why_skipped(stream.read(FIRST_BYTES))):
            raise SkippedFileError(reason)  # a video of a gigabyte is not read for it
        if size > budget.limits.max_file_bytes:
            raise SkippedFileError(too_large(size, budget.limits))
        stream.seek(0)
        content = stream.read(size + 1)  # which makes room for that many bytes first
        if len(content) > size:
            raise SkippedFileError("grew while it was read")
    return within_limit(content, budget)


def within_limit(content: bytes, budget: ByteBudget) -> bytes:
    """The same bytes, counted.

    Raises:
        SkippedFileError: there are more than a file may have.
    """
    budget.spend(len(content))
    if len(content) > budget.limits.max_file_bytes:
        raise SkippedFileError(too_large(len(content), budget.limits))
    return content


def too_large(size: int, limits: IntakeLimits) -> str:
    """The reason for skipping a file that is too large."""
    return f"file of {size} bytes exceeds the limit of {limits.max_file_bytes}"

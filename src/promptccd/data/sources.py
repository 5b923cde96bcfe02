"""Sources of a person's images, and how the bytes of one file are read.

A source lists its entire content before anything is read, and then gives the bytes of one file at a time. It follows
no link that leads out, never waits for a pipe, and reads no more of a file than the limit.
"""

import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from promptccd.images.limits import ByteBudget, IntakeLimits, SkippedFileError


@dataclass(frozen=True)
class Entry:
    """An entry of a source.

    Attributes:
        name: its place in the source, as text that can be shown.
        key: key of the entry in the source.
        reason: why it is skipped unread; empty if it is to be read.
    """

    name: str
    key: Any
    reason: str = ""


@dataclass(frozen=True)
class Stamp:
    """Identity of a file without opening it: size, times and links.

    Attributes:
        path: its path on this machine; for a member of an archive, below the path of the archive.
        size: bytes.
        mtime_ns: when it, or its archive, was last written, as programs may set it.
        ctime_ns: when it was last touched, which no program sets.
        links: under how many names it is there.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int = 0
    links: int = 1

    @classmethod
    def of(cls, path: str) -> "Stamp | None":
        """The stamp of a regular file; `None` for anything else."""
        try:
            found = os.stat(path, follow_symlinks=False)
        except (OSError, ValueError):
            return None
        return cls.from_status(path, found) if stat.S_ISREG(found.st_mode) else None

    @classmethod
    def from_status(cls, path: str, found: os.stat_result) -> "Stamp":
        """The stamp of a file from the system's metadata."""
        return cls(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_nlink)

    def is_unchanged(self, before: "Stamp") -> bool:
        """Whether the content of the file is unchanged since `before`.

        A program that writes a caption may set the time back. It cannot set back when the file was touched; but that
        also changes when another name is linked to the file, which leaves it as it is.
        """
        same = (self.path, self.size, self.mtime_ns) == (before.path, before.size, before.mtime_ns)
        return same and (self.ctime_ns == before.ctime_ns or self.links != before.links)


class ImageSource(ABC):
    """Lists files and gives their bytes; messages call it by its `name`."""

    name: str
    shows_images = True  # not if its pictures only represent other items

    @abstractmethod
    def entries(self, limits: IntakeLimits) -> list[Entry]:
        """All entries, in an order that depends on the names alone.

        Raises:
            DataError: the source as a whole exceeds a limit, or cannot be read.
        """

    @abstractmethod
    def read(self, entry: Entry, budget: ByteBudget) -> bytes:
        """The bytes of an entry without a reason.

        Raises:
            SkippedFileError: this file cannot be read or exceeds a limit on one file.
            DataError: the source as a whole exceeds a limit.
        """

    def head(self, entry: Entry, count: int, limits: IntakeLimits) -> bytes:
        """The first bytes of an entry without a reason; errors as in `read`."""
        return self.read(entry, ByteBudget(limits, self.name))[:count]

    def stamp(self, entry: Entry) -> Stamp | None:
        """The stamp of an entry; `None` where only reading tells whether it is the same as before."""
        return None

    def close(self) -> None:  # noqa: B027 - most have nothing open
        """Close open files."""


OUTSIDE = "link to a place outside"
FOLLOWED = "with --image_roots PLACE, links into that place are followed"


def inside(path: str, roots: Sequence[str]) -> str:
    """The target of a path, if inside the folders.

    Raises:
        SkippedFileError: it leads out, to nothing, or back to itself.
    """
    try:
        target = os.path.realpath(path, strict=True)
    except OSError as error:
        loops = error.errno == errno.ELOOP
        raise SkippedFileError(
            "link that leads back to itself" if loops else "link to a file that does not exist"
        ) from None
    if not any(is_below(target + os.sep, root) for root in roots):  # or is a root itself
        raise SkippedFileError(OUTSIDE)
    return target


def is_below(path: str, root: str) -> bool:
    """Whether a path is in a folder or deeper; both with their links resolved."""
    path, root = os.path.normcase(path), os.path.normcase(root)  # Windows: C: is c:
    return path.startswith(root.rstrip(os.sep) + os.sep)

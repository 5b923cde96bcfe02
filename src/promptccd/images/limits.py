"""How much is taken in from people, and the two refusals: of one file, or of all of them.

Nothing here imports numpy, so that help need not wait for it.
"""

import sys
from dataclasses import dataclass

from promptccd.errors import DataError

MIB = 2**20
ANY = sys.maxsize
MAX_PIXELS = 300_000_000
BYTES_PER_PIXEL = 16  # that decoding may take: the file's own, as they are stored, and as RGB
FILE_BYTES_PER_PIXEL = 8  # of the largest file: 16-bit RGBA; some plug-ins read all of it at once
PAGES = ("first", "max", "mean")  # how the pages of a file become one picture
FITS = ("crop", "pad", "squeeze")  # how an image that is not square becomes one
BIT_DEPTHS = (8, 10, 12, 14, 16)  # that a picture's values may have


@dataclass(frozen=True)
class IntakeLimits:
    """Limits on one intake; the defaults are for a person's own files.

    Attributes:
        max_files: files to read; system files and folders do not count. A source with more is refused.
        max_file_bytes: a larger file is skipped.
        max_total_bytes: bytes of all files after unpacking, counted while they are read. A source with more is refused.
        max_pixels: width times height of an image, checked on its header. A larger image is skipped.
        max_ratio: unpacked over packed size. A member of an archive beyond it is skipped, an archive beyond it refused.
            Content smaller than `SMALL` passes in any case.
    """

    max_files: int = ANY
    max_file_bytes: int = FILE_BYTES_PER_PIXEL * MAX_PIXELS
    max_total_bytes: int = ANY
    max_pixels: int = MAX_PIXELS
    max_ratio: int = 200

    @classmethod
    def of_person(cls, *, max_files: int | None = None, max_pixels: int | None = None) -> "IntakeLimits":
        """Limits on a person's own files; `None` is the usual limit. Files are as large as such images may be."""
        pixels = max_pixels or MAX_PIXELS
        most_bytes = FILE_BYTES_PER_PIXEL * pixels
        return cls(max_files=max_files or ANY, max_pixels=pixels, max_file_bytes=most_bytes)

    @classmethod
    def for_visitors(cls) -> "IntakeLimits":
        """Limits for strangers on a shared machine."""
        return cls(
            max_files=200,
            max_file_bytes=20 * MIB,
            max_total_bytes=256 * MIB,
            max_pixels=50_000_000,
            max_ratio=100,
        )

    @property
    def max_entries(self) -> int:
        """Entries of any kind: macOS adds a shadow to every file it packs, and folders are entries too."""
        return 4 * min(self.max_files, _MOST_LISTED) + 1000

    def require_files(self, found: int, where: str) -> None:
        """Refuse a source with too many files; `where` is its name.

        Raises:
            DataError: there are more than `max_files`.
        """
        if found > self.max_files:
            raise DataError(
                f"{where} holds {found} files; the limit is {self.max_files}. Give fewer at a time, or one "
                "folder of it."
            )


_MOST_LISTED = 1_000_000  # files of an archive: its list is read in one piece and takes a gigabyte of memory
TOO_MANY_BAD = 0.5  # share of the images that a training may not read
SMALL = MIB  # bytes; a blank drawing packs a thousandfold and does no harm


class SkippedFileError(Exception):
    """A single file is skipped; the message is the reason, which may be passing, such as a lack of memory."""

    def __init__(self, reason: str, is_passing: bool = False):
        super().__init__(reason)
        self.is_passing = is_passing


@dataclass
class ByteBudget:
    """Counts the bytes that are read from a source, up to `max_total_bytes`; `where` is the source's name."""

    limits: IntakeLimits
    where: str
    spent: int = 0

    def spend(self, count: int) -> None:
        """Count bytes that were read.

        Raises:
            DataError: they exceed the budget.
        """
        self.spent += count
        if self.spent > self.limits.max_total_bytes:
            raise DataError(
                f"{self.where} contains more than the limit of {self.limits.max_total_bytes} bytes in all. Give "
                "fewer images at a time."
            )

"""Single files, and zip archives from strangers, whose members are read into memory one by one.

Nothing that an archive claims is believed, and nothing is ever written under a name from it. A fault of one member
skips that member; a fault of the whole (entries, bytes, overlaps) refuses the archive.
"""

import io
import os
import stat
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from promptccd import systems
from promptccd.data.names import EITHER, code_page_of, display_name, system_reason, unsafe_reason
from promptccd.data.sources import Entry, ImageSource, Stamp
from promptccd.errors import DataError
from promptccd.images.files import first_bytes, read_regular_file, too_large
from promptccd.images.kinds import FIRST_BYTES, why_skipped
from promptccd.images.limits import SMALL, ByteBudget, IntakeLimits, SkippedFileError

_LOCAL_HEADER_BYTES = 30
_MEAN_ENTRY_BYTES = 256  # of the directory: 46, a path, and additions of packers
_CHUNK = 2**18
_ENCRYPTED = 0x1
_UTF8 = 0x800
# Python's bzip2 and LZMA readers unpack a whole chunk at once, a thousandfold and without a bound.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def is_archive(path: str | os.PathLike[str]) -> bool:
    """Whether a regular file starts like a zip archive, whatever its name."""
    with suppress(SkippedFileError):
        return first_bytes(os.fspath(path), 4) in (b"PK\x03\x04", b"PK\x05\x06")
    return False


class ArchiveSource(ImageSource):
    """The members of a zip archive, which is a regular file.

    Raises:
        DataError: it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.name = f"Archive {display_name(os.path.basename(path))!r}"
        try:
            self._stream = _GuardedStream(systems.open_file(path, os.O_RDONLY), self.name)
        except OSError as error:
            raise DataError(f"{self.name} cannot be opened: {error.strerror}.") from error
        found = os.fstat(self._stream.fileno())
        self._stamp = Stamp.from_status(os.path.abspath(path), found)
        self._archive: zipfile.ZipFile | None = None

    def entries(self, limits: IntakeLimits) -> list[Entry]:
        """Members in the order of the archive, without its folders.

        Raises:
            DataError: it is no zip archive, has too many entries, or its members overlap.
        """
        archive = self._open(limits)
        members = archive.infolist()
        self._refuse_overlaps(members, archive.start_dir)
        found: list[Entry] = []
        names = [each.orig_filename.encode("cp437") for each in members if not each.flag_bits & _UTF8]
        encoding = code_page_of(names)
        for member in members:
            if member.is_dir() and not member.file_size:
                continue
            name = member.orig_filename
            if not member.flag_bits & _UTF8:  # zipfile then reads it as code page 437
                name = name.encode("cp437").decode(encoding)
            found.append(Entry(display_name(name), member, _why_not(member, name, limits)))
        limits.require_files(sum(not entry.reason for entry in found), self.name)
        return found

    def read(self, entry: Entry, budget: ByteBudget) -> bytes:
        """A member's content, unpacked and counted piece by piece; the checksum must be right.

        Raises:
            SkippedFileError: it unpacks to too much, or is damaged.
            DataError: all files together are too large.
        """
        member: zipfile.ZipInfo = entry.key
        limits = budget.limits
        most = min(limits.max_file_bytes, max(SMALL, limits.max_ratio * member.compress_size))
        pieces, size = [], 0
        try:
            with self._open(limits).open(member) as packed:
                while piece := packed.read(_CHUNK):
                    if not size and member.file_size > SMALL and (reason := why_skipped(piece[:FIRST_BYTES])):
                        raise SkippedFileError(reason)
                    size += len(piece)
                    budget.spend(len(piece))
                    if size > most:
                        raise SkippedFileError(
                            f"unpacks from {member.compress_size} to more than {most} bytes"
                        )
                    pieces.append(piece)
        except DataError:  # is a ValueError, too
            raise
        except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, zlib.error) as error:
            wrong_sum = " (wrong checksum)" if "CRC" in str(error) else ""
            raise SkippedFileError(f"damaged member of the archive{wrong_sum}") from None
        return b"".join(pieces)

    def stamp(self, entry: Entry) -> Stamp:
        """The stamp of a member: size and time of its archive, and its offset, checksum and name in there."""
        member: zipfile.ZipInfo = entry.key
        place = f"{self._stamp.size}-{member.header_offset}-{member.CRC:08x}"
        path = f"{self._stamp.path}/{place}/{entry.name}"
        return replace(self._stamp, path=path, size=member.file_size)

    def close(self) -> None:
        """Close the file."""
        if self._archive is not None:
            self._archive.close()
        self._stream.close()

    def _open(self, limits: IntakeLimits) -> Any:
        if self._archive is None:
            self._stream.most = limits.max_entries * _MEAN_ENTRY_BYTES
            try:
                self._archive = zipfile.ZipFile(self._stream)
            except DataError:
                raise
            except Exception as error:  # zipfile raises half a dozen kinds on damaged directories
                raise DataError(
                    f"{self.name} is damaged or no zip archive ({display_name(str(error))[:100]}). Pack the images "
                    "again."
                ) from error
            self._stream.most = None
        return self._archive

    def _refuse_overlaps(self, members: list[zipfile.ZipInfo], directory: int) -> None:
        """Refuse members that share bytes: they let a small file unpack to any size."""
        free = 0
        for member in sorted(members, key=lambda member: member.header_offset):
            header = _LOCAL_HEADER_BYTES + len(member.orig_filename)
            end = member.header_offset + header + member.compress_size
            if member.header_offset < free or end > directory:
                raise DataError(
                    f"{self.name} is refused: its members overlap, which no packer does. Pack the images again."
                )
            free = end


class _GuardedStream(io.FileIO):
    """A file that refuses to hand a directory of more than `most` bytes to zipfile.

    zipfile reads the directory in one piece and makes an object of every entry, before anybody can count them.
    """

    def __init__(self, descriptor: int, name: str):
        super().__init__(descriptor, "rb")
        self._called = name
        self.most: int | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as any file does."""
        if self.most is not None and size is not None and size > self.most:
            raise DataError(
                f"{self._called} has a directory of {size} bytes; the limit is {self.most}. Give fewer images at a "
                "time."
            )
        return super().read(size) or b""


def _why_not(member: zipfile.ZipInfo, name: str, limits: IntakeLimits) -> str:
    mode = member.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if unsafe := unsafe_reason(name):
        return unsafe
    if kind == stat.S_IFLNK:
        return "link, not followed"
    if kind not in (0, stat.S_IFREG):
        return "not a regular file"
    if system := system_reason(name, EITHER):
        return system
    if member.flag_bits & _ENCRYPTED:
        return "encrypted"
    if member.compress_type not in _METHODS:
        return f"packed by a method that is not read (number {member.compress_type})"
    if member.file_size > limits.max_file_bytes:
        return too_large(member.file_size, limits)
    return ""


class FilesSource(ImageSource):
    """Single files and zip archives, as a browser uploads them: the files first, by their names without folders.

    Raises:
        DataError: an archive cannot be opened.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]):
        self._files = [os.fspath(path) for path in paths if not is_archive(path)]
        self._archives = [ArchiveSource(path) for path in paths if is_archive(path)]
        names = [f"File {display_name(os.path.basename(path))!r}" for path in self._files]
        names += [archive.name for archive in self._archives]
        self.name = names[0] if len(names) == 1 else f"The list of {len(names)} files"

    def entries(self, limits: IntakeLimits) -> list[Entry]:
        """Files and members in the order they were given; the limit is for all together."""
        found = [Entry(display_name(os.path.basename(path)), path) for path in self._files]
        for archive in (None, *self._archives):
            members = [] if archive is None else archive.entries(limits)
            found += [replace(entry, key=(archive, entry)) for entry in members]
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

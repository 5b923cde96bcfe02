"""An exported folder: the new folder is made next to the old one, and then replaces it. Files of a person move along.

The record ``.promptccd-export`` lists the files that an export made, with size and checksum. Only these are removed, if
they are as recorded. A process may be killed at any moment: up to the swap the old folder is as it was; afterwards the
next export completes the move.
"""

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from promptccd import systems
from promptccd.data.names import display_name
from promptccd.discovery.exports.names import Names
from promptccd.discovery.project.store import plain_json
from promptccd.disk import (
    EXPORTED,
    parsed_json,
    read_file,
    refuse_link,
    remove_leftovers,
    sha256_of,
    write_file,
)
from promptccd.errors import DataError, DiskError, RunError
from promptccd.locks import FolderLock

FORMAT = 3  # of the record
DIGITS = 32  # of a SHA-256 in the record
WORK = ".exporting-"  # and the name of the folder: what an export needs while it runs, next to the folder
NEW, OLD = "new", "old"  # folders in there
_LARGEST_RECORD = 2**30  # bytes, for some million files
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
_SHOWN = 10  # names in a message
OnProgress = Callable[[], None]


class Item(NamedTuple):
    """A file of an export.

    Attributes:
        place: its path in the folder, with ``/`` between the parts.
        source_hash: everything that determines its bytes.
        make: writes it under a name that is free, and returns the suffix to add to its place, if any.
        label: the photograph, for people.
        is_bare: whether the place lacks the suffix, which only the bytes tell.
        is_hashed: whether `source_hash` is the beginning of the SHA-256 of its bytes.
    """

    place: str
    source_hash: str
    make: Callable[[Path], str | None]
    label: str
    is_bare: bool = False
    is_hashed: bool = False


def text_item(place: str, text: str, label: str) -> Item:
    """A file of text; equal texts are one file."""
    content = text.encode()

    def write(target: Path) -> None:
        target.write_bytes(content)

    return Item(place, hashlib.sha256(content).hexdigest()[:DIGITS], write, label, is_hashed=True)


@dataclass
class Export:
    """The result of an export.

    Attributes:
        place: the folder.
        photographs: how many are in it.
        written: files that were made now; the ``kept`` files were there, perhaps under another name.
        fewer: files that the export before had more.
        missing: label of each photograph that is not in it, and the reason.
        left: files that a person changed, or whose name the export needed: they stay in the folder, or at these
            places next to it.
        notes: what else a person should know, a sentence each.
    """

    place: Path
    photographs: int = 0
    written: int = 0
    kept: int = 0
    fewer: int = 0
    missing: list[tuple[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The result for people, a sentence each."""
        counts = {"written": self.written, "unchanged": self.kept, "fewer than before": self.fewer}
        files = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "none"
        photographs = f"{self.photographs} photograph{'s' * (self.photographs != 1)}"
        lines = [f"{self.place}: {photographs}; files: {files}."]
        reasons = dict[str, list[str]]()
        for label, why in self.missing:
            name = repr(display_name(label))
            reasons.setdefault(why.removeprefix(name).strip(" ."), []).append(name)
        lines += [f"Not in it, {len(each)}: {_some(each)}: {why}." for why, each in sorted(reasons.items())]
        if self.left:
            names = [repr(display_name(name)) for name in self.left]
            lines.append(f"Kept, because they were changed after an export, {len(names)}: {_some(names)}.")
        return lines + self.notes


class _Line(NamedTuple):
    """A file in the record."""

    size: int
    digest: str
    source_hash: str


class ExportFolder:
    """A folder while an export writes it; made by `opened`.

    Attributes:
        path: of the folder.
        export: the result so far.
    """

    def __init__(
        self, path: Path, originals: Mapping[str, str] | None, project: str, on_progress: OnProgress
    ):
        self.path, self.export, self._originals, self._project = path, Export(path), originals, project
        self._on_progress = on_progress
        work = path.with_name(f"{WORK}{path.name}")
        self._new, self._old = work / NEW, work / OLD
        if self._old.exists():  # a process was killed on the way
            self._swap()
        shutil.rmtree(self._new, ignore_errors=True)
        owner, self._before = _read(path / EXPORTED)
        if owner != project and (path / EXPORTED).exists():
            raise RunError(
                f"{path} was exported from another project, or before the project was moved: give another folder, or "
                "move it away."
            )
        self._lines, self._folders = dict[str, _Line](), set[str]()  # the new record, and folders in it
        self._spare = dict[str, list[str]]()  # places of files, last first, by what these were made of
        for place in sorted(self._before.keys() & set(_own(path) if path.exists() else ()), reverse=True):
            self._spare.setdefault(self._before[place].source_hash, []).append(place)
        self._new.mkdir()

    @classmethod
    @contextmanager
    def opened(
        cls,
        path: Path,
        originals: Mapping[str, str] | None = None,
        project: str = "",
        on_progress: OnProgress = lambda: None,
    ) -> Iterator["ExportFolder"]:
        """The folder, with no other process exporting into it.

        Args:
            path: of the folder.
            originals: if it contains photographs themselves, the paths of all of them, by the first `DIGITS` of their
                checksum, which is what their items are made of. A file whose original is gone is not removed.
            project: a name that distinguishes the exports of projects in a folder outside of them.
            on_progress: called for every file; its exceptions end the export.

        Raises:
            DiskError: something else made the folder, or it cannot be written.
            RunError: it is a link or of another project, or another export is writing it.
        """
        work = path.with_name(f"{WORK}{path.name}")
        for each in (path, work, work / NEW, work / OLD):
            refuse_link(each)
        if os.path.lexists(path) and not (path / EXPORTED).exists() and _is_used(path):
            raise DiskError(
                f"{path} is there and was made by something else, so nothing is exported into it: give another folder, "
                "or move it away."
            )
        with FolderLock(work):
            try:
                remove_leftovers(work)
                yield cls(path, originals, project, on_progress)
            except OSError as error:
                raise DiskError(
                    f"Could not write {error.filename or path}: {error.strerror}. The earlier export is unchanged: "
                    "free some space or make it writable, and repeat the command."
                ) from error
            finally:
                if not (work / OLD).exists():  # the lock stays: another process may be about to take it
                    shutil.rmtree(work / NEW, ignore_errors=True)

    def add(self, item: Item) -> str:
        """Make a file part of the folder.

        Returns:
            Its place, with its suffix; empty if it is missing.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        self._on_progress()
        target, place = self._new / item.place, item.place
        spare = self._spare.get(item.source_hash, [])
        try:
            if (above := os.path.dirname(place)) not in self._folders:
                target.parent.mkdir(parents=True, exist_ok=True)
                self._folders.add(above)
            while spare:
                here = [each for each in spare if each.startswith(place)]
                old = here[-1] if here else spare[-1]
                line, path = self._before[old], self.path / old
                if not _is_unchanged(path, line, is_read=not here):  # what stays where it is need not be read
                    spare.remove(old)
                    continue
                place += os.path.splitext(old)[1] * item.is_bare
                link_or_copy(path, self._new / place)
                spare.remove(old)  # now: if the new path is too long, this may be the last copy
                self._lines[place], self.export.kept = line, self.export.kept + 1
                return place
            if suffix := item.make(target):
                place += suffix
                systems.rename(target, self._new / place)
        except (DataError, OSError) as error:
            if isinstance(error, OSError) and not systems.is_too_long(error):
                raise
            reason = "its path would be too long: give a shorter one with --to"
            self.export.missing.append((item.label, reason if isinstance(error, OSError) else str(error)))
            return ""
        made = self._new / place
        digest = item.source_hash if item.is_hashed else sha256_of(made)[:DIGITS]
        self._lines[place] = _Line(made.stat().st_size, digest, item.source_hash)
        self.export.written += 1
        return place

    def finish(self, photographs: int = 0, notes: Sequence[str] = ()) -> Export:
        """Put the new folder in the place of the old one; returns the result, with these photographs and notes."""
        last = [each for places in self._spare.values() for each in places if self._is_last(each)]
        for place in last:
            target = self._new / place
            target.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(target):
                target = target.with_name(Names(os.listdir(target.parent)).add(target.name, ["last copy"]))
            link_or_copy(self.path / place, target)
            self._lines[target.relative_to(self._new).as_posix()] = self._before[place]
        if self._lines != self._before or self.export.written or not (self.path / EXPORTED).exists():
            header = {"format": FORMAT, **({"project": self._project} if self._project else {})}
            lines = [header, *([place, *line] for place, line in sorted(self._lines.items()))]
            write_file(self._new / EXPORTED, b"".join(plain_json(each) + b"\n" for each in lines))
            if hasattr(os, "sync"):
                os.sync()
            if self.path.exists():
                systems.rename(self.path, self._old)
            self._swap()
        self.export.photographs = photographs
        self.export.fewer = max(0, len(self._before) - len(self._lines))
        if last:
            kept = _some([repr(display_name(each)) for each in last])
            why = "they are in no group and their originals are gone"
            self.export.notes.append(f"Kept, because {why}, {len(last)}: {kept}.")
        self.export.notes += notes
        return self.export

    def _is_last(self, place: str) -> bool:
        """Whether a file is as exported, and neither has another name nor can be exported again."""
        path, line = self.path / place, self._before[place]
        return os.lstat(path).st_nlink < 2 and not self._may_go(line) and _is_unchanged(path, line)

    def _swap(self) -> None:
        """Put the new folder in its place, and remove the old one; what an export did not make moves along.

        The new folder is complete, last copies included. A file whose name it needs does not move along: it stays in
        the old folder, which is then kept next to the new one.
        """
        if self._new.exists():
            systems.rename(self._new, self.path)
        if not self._old.exists():
            return
        lines = _read(self._old / EXPORTED)[1]
        for place in _own(self._old):
            old, target, line = self._old / place, self.path / place, lines.get(place)
            if line is not None:
                # What has another name, in the new folder or among the photographs, need not be read.
                if os.lstat(old).st_nlink > 1 or _is_unchanged(old, line):
                    old.unlink()
                    continue
                self.export.left.append(place)
            with contextlib.suppress(OSError):  # it is there, or a file is where it would be
                target.parent.mkdir(parents=True)
            if target.parent.is_dir() and not os.path.lexists(target):
                systems.rename(old, target)
        if left := _own(self._old):
            marks = itertools.chain(["kept"], map("kept {}".format, itertools.count(2)))
            aside = self.path.with_name(Names(os.listdir(self.path.parent)).add(self.path.name, marks))
            systems.rename(self._old, aside)
            self.export.left = [each for each in self.export.left if each not in left]
            self.export.left += [f"{aside.name}/{place}" for place in left]
        systems.flush(self.path)
        shutil.rmtree(self._old, ignore_errors=True)

    def _may_go(self, line: _Line) -> bool:
        """Whether the picture of a file can be exported again."""
        path = "" if self._originals is None else self._originals.get(line.source_hash)
        if not path:  # `None` was forgotten; a row of a data set has no path
            return path is not None
        return any(each.is_file() for each in (Path(path), *Path(path).parents))  # or its archive


def _is_unchanged(path: Path, line: _Line, is_read: bool = True) -> bool:
    """Whether a file has the bytes that an export gave it, or at least as many."""
    found = os.lstat(path)
    is_like = stat.S_ISREG(found.st_mode) and line.size == found.st_size
    return is_like and (not is_read or sha256_of(path).startswith(line.digest))


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second place that takes no room, where the disk can, with its bytes, its date and its mode.

    A hard link is the file itself under a second name. Elsewhere, as on another disk, it is a copy. It is never a
    symbolic link, which ends with its target, and which many programs, zip archives and network drives do not follow.

    Args:
        source: an existing file.
        target: a place without a file.

    Raises:
        OSError: there is neither a link nor room for a copy.
    """
    try:
        systems.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)
        systems.copy_facts(source, target)


def _read(record: Path) -> tuple[str, dict[str, _Line]]:
    """The project and the lines of a record; both empty without a record.

    Raises:
        RunError: it is damaged, or was made by another version.
    """
    try:
        header, *lines = map(parsed_json, read_file(record, _LARGEST_RECORD).splitlines())
        if header["format"] != FORMAT:
            raise RunError(
                f"{record} was made by another version (format {header['format']!r}, here {FORMAT}): move "
                f"{record.parent} away, and export again."
            )
        found = {place: _Line(*line) for place, *line in lines}
        if any(list(map(type, line)) != [int, str, str] for line in found.values()):
            raise ValueError("a line of other types")
        return str(header.get("project", "")), found
    except FileNotFoundError:
        return "", {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(
            f"{record} is damaged, so your own files cannot be distinguished from exported files. Move {record.parent} "
            "away, and export again."
        ) from error


def _own(root: Path) -> list[str]:
    """Sorted paths of files and links in a folder, without the record and what systems leave."""
    found = list[str]()

    def fail(error: OSError) -> None:
        raise error  # else what cannot be listed would pass for an empty folder, and be removed

    for parent, folders, names in os.walk(root, onerror=fail):
        links = [name for name in folders if systems.is_link(Path(parent, name))]
        folders[:] = [name for name in folders if name not in links]
        inside = "" if parent == str(root) else f"{Path(parent).relative_to(root).as_posix()}/"
        found += [f"{inside}{name}" for name in (*names, *links)]
    # A group, or a folder of photographs, may be called like a folder that systems leave.
    left = {EXPORTED, *(each for each in found if systems.left_by_system(each.rpartition("/")[2]))}
    return sorted(each for each in found if each not in left)


def _is_used(path: Path) -> bool:
    """Whether something is in a folder that no system put there; also if it is no folder."""
    try:
        return any(not systems.left_by_system(f"{each.name}{'/' * each.is_dir()}") for each in path.iterdir())
    except OSError:
        return True


def _some(each: list[str]) -> str:
    return ", ".join(each[:_SHOWN]) + (f" and {len(each) - _SHOWN} more" if len(each) > _SHOWN else "")

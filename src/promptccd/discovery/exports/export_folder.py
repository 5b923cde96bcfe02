"""An exported folder: the new one is made next to the old one and takes its place. Files of a person move along.

The record ``.promptccd-export`` lists the files that an export made, with their size and checksum. Those that are as
recorded are linked into the new folder. A process may be killed at any moment: up to the swap the old folder is as it
was; afterwards the next export moves along the files of a person.
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
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from promptccd import systems
from promptccd.data.names import display_name
from promptccd.discovery.exports.names import with_mark
from promptccd.disk import (
    EXPORTED,
    parsed_json,
    plain_json,
    read_file,
    refuse_link,
    remove_leftovers,
    sha256_of,
    write_file,
)
from promptccd.errors import DataError, DiskError, RunError
from promptccd.locks import FolderLock

FORMAT = 2  # of the record
DIGITS = 32  # of a SHA-256 in the record
WORK = ".exporting-"  # and the name of the folder: what an export needs while it runs, next to the folder
NEW, OLD, GONE = "new", "old", "gone"  # folders in there
_LARGEST_RECORD = 2**30  # bytes, for some million files
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
_SHOWN = 10  # names in a message
OnProgress = Callable[[], None]  # called for every photograph; what it raises ends the export


class Item(NamedTuple):
    """A file of an export.

    Attributes:
        place: its path in the folder, with ``/`` between the parts.
        made_of: what its bytes follow from; the same means the same bytes.
        make: writes it under a name that is free, and returns the suffix to add to its place, if any.
        label: the photograph, for people.
        is_bare: whether the place lacks the suffix, which only the bytes tell.
    """

    place: str
    made_of: str
    make: Callable[[Path], str | None]
    label: str
    is_bare: bool = False


def text_item(place: str, text: str, label: str) -> Item:
    """A file of text; one of the same text is the same file."""
    content = text.encode()

    def write(target: Path) -> None:
        target.write_bytes(content)

    return Item(place, hashlib.sha256(content).hexdigest()[:DIGITS], write, label)


@dataclass
class Export:
    """The result of an export.

    Attributes:
        place: the folder.
        photographs: how many are in it.
        written: files that were made now; the ``kept`` ones were there, perhaps under another name.
        missing: label of each photograph that is not in it, and the reason.
        left: files that a person changed, or whose name the export needed: they stay, under these names.
        notes: what else a person should know, a sentence each.
    """

    place: Path
    photographs: int = 0
    written: int = 0
    kept: int = 0
    missing: list[tuple[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The result for people, a sentence each."""
        counts = {"written": self.written, "unchanged": self.kept}
        files = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "none"
        lines = [
            f"{self.place}: {self.photographs} photograph{'s' * (self.photographs != 1)}; files: {files}."
        ]
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
    made_of: str


class ExportFolder:
    """A folder while an export writes it; made by `opened`.

    Attributes:
        path: of the folder.
        export: the result so far.
    """

    def __init__(self, path: Path, originals: Mapping[str, str] | None, project: str):
        self.path, self.export, self._originals, self._project = path, Export(path), originals, project
        self._work = path.with_name(f"{WORK}{path.name}")
        self._new = self._work / NEW
        for name in (NEW, OLD, GONE):
            refuse_link(self._work / name)
        if (self._work / OLD).exists():  # a process was killed on the way
            self._complete()
        for name in (NEW, GONE):
            shutil.rmtree(self._work / name, ignore_errors=True)
        owner, self._old = _read(path / EXPORTED)
        if owner != project and (path / EXPORTED).exists():
            raise RunError(
                f"{path} was exported from another project, or before the project was moved: give another folder, or "
                "move it away."
            )
        self._files = dict(_files(path)) if path.exists() else {}
        self._lines = dict[str, _Line]()  # the new record
        self._used = set[str]()  # files of the old folder that are in the new one
        self._spare = dict[str, dict[str, None]]()  # the other ones, by what they were made of
        for place in sorted(self._old.keys() & self._files.keys()):
            self._spare.setdefault(self._old[place].made_of, {})[place] = None
        self._new.mkdir()

    @classmethod
    @contextmanager
    def opened(
        cls, path: Path, originals: Mapping[str, str] | None = None, project: str = ""
    ) -> Iterator["ExportFolder"]:
        """The folder, with no other process exporting into it.

        Args:
            path: of the folder.
            originals: if it contains photographs themselves, the paths of all of them, by the first `DIGITS` of their
                checksum, which is what their items are made of. A file whose original is gone is not removed.
            project: a name that distinguishes the exports of projects in a folder outside of them.

        Raises:
            DiskError: something else made the folder, or it cannot be written.
            RunError: it is a link or of another project, or another export is writing it.
        """
        work = path.with_name(f"{WORK}{path.name}")
        refuse_link(path)
        refuse_link(work)
        if os.path.lexists(path) and not (path / EXPORTED).exists() and _is_used(path):
            raise DiskError(
                f"{path} is there and was made by something else, so nothing is exported into it: give another folder, "
                "or move it away."
            )
        with FolderLock(work):
            try:
                remove_leftovers(work)
                yield cls(path, originals, project)
            except OSError as error:
                raise DiskError(
                    f"Could not write {error.filename or path}: {error.strerror}. What was exported before is as it "
                    "was: free some space or make it writable, and run the same command again."
                ) from error
            finally:
                if not (work / OLD).exists():
                    shutil.rmtree(work / NEW, ignore_errors=True)

    def add(self, item: Item) -> str:
        """Make a file part of the folder.

        Returns:
            Its place, with its suffix; empty if it is missing.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        if wrong := systems.too_long(self._new / item.place):  # a little longer than where it will be
            self.export.missing.append((item.label, f"it would have {wrong}: give a shorter path with --to"))
            return ""
        spare = self._spare.get(item.made_of, {})
        while spare:
            old = item.place if item.place in spare else next(iter(spare))
            del spare[old]
            is_here = old.startswith(item.place) and self._old[old].size == self._files[old].st_size
            if is_here or self._is_unchanged(self.path / old, self._old[old]):
                self.export.kept += 1
                return self._link(old, item.place + os.path.splitext(old)[1] * item.is_bare)
        return self._make(item)

    def finish(self, photographs: int = 0, notes: Sequence[str] = ()) -> Export:
        """Put the new folder in the place of the old one; returns the result, with these photographs and notes."""
        export, last, ours = self.export, list[str](), set(self._used)
        for place in sorted(self._old.keys() & self._files.keys() - self._used):
            if self._is_unchanged(self.path / place, self._old[place]):
                ours.add(place)
                if not self._may_go(place):
                    last.append(self._link(place, _free(place, "last copy", self._lines.__contains__)))
        if last:
            names = _some([repr(display_name(place)) for place in last])
            export.notes.append(
                f"Kept, because they are in no group and their originals are gone, {len(last)}: {names}."
            )
        export.photographs = photographs
        export.notes += notes
        if self._lines != self._old or export.written or not (self.path / EXPORTED).exists():
            self._write_record()
            if hasattr(os, "sync"):
                os.sync()
            if self.path.exists():
                systems.rename(self.path, self._work / OLD)
            self._complete({place: self._files[place] for place in ours})
        return export

    def _is_unchanged(self, path: Path, line: _Line) -> bool:
        """Whether a file has the bytes that an export gave it, or is a photograph itself (a hard link to it)."""
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            return False
        is_same = line.size == found.st_size and sha256_of(path).startswith(line.digest)
        return is_same or _node(found) in self._photographs

    @cached_property
    def _photographs(self) -> set[tuple[int, int]]:
        """Where the originals are on their disks."""
        found = set()
        for path in (self._originals or {}).values():
            with contextlib.suppress(OSError):
                found.add(_node(os.stat(path)))
        return found

    def _may_go(self, place: str) -> bool:
        """Whether a file can be removed: its picture has another name as well, or can be made again."""
        if self._originals is None or self._files[place].st_nlink > 1:
            return True
        path = self._originals.get(self._old[place].made_of)
        if not path:  # `None` was forgotten; a row of a data set has no path
            return path is not None
        return any(each.is_file() for each in (Path(path), *Path(path).parents))  # the file, or its archive

    def _link(self, old: str, place: str) -> str:
        """Give a file of the old folder a place in the new one, which is returned."""
        (self._new / place).parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(self.path / old, self._new / place)
        self._lines[place] = self._old[old]._replace(size=self._files[old].st_size)
        self._used.add(old)
        return place

    def _make(self, item: Item) -> str:
        """The place of a file that is made now; empty if it is missing."""
        target, place = self._new / item.place, item.place
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if suffix := item.make(target):
                place += suffix
                systems.rename(target, self._new / place)
        except DataError as error:
            self.export.missing.append((item.label, str(error)))
            return ""
        found = os.lstat(self._new / place)
        is_photograph = _node(found) in self._photographs  # then it need not be read
        digest = item.made_of if is_photograph else sha256_of(self._new / place)[:DIGITS]
        self._lines[place] = _Line(found.st_size, digest, item.made_of)
        self.export.written += 1
        return place

    def _write_record(self) -> None:
        header = {"format": FORMAT, **({"project": self._project} if self._project else {})}
        lines: list[object] = [header]
        for place, (size, digest, made_of) in sorted(self._lines.items()):
            lines.append([place, size, digest, *([made_of] if made_of != digest else [])])
        write_file(self._new / EXPORTED, b"".join(plain_json(each) + b"\n" for each in lines))

    def _complete(self, ours: Mapping[str, os.stat_result] = MappingProxyType({})) -> None:
        """Put the new folder in its place, and move what a person added or changed out of the old one.

        Args:
            ours: files of the old folder that need not be read, unless a person replaced one meanwhile.
        """
        old = self._work / OLD
        if self._new.exists():
            systems.rename(self._new, self.path)
        if old.exists():
            lines = _read(old / EXPORTED)[1]
            for place, found in sorted(_files(old)):
                is_ours = place == EXPORTED or (place in ours and _version(found) == _version(ours[place]))
                if is_ours or (place in lines and self._is_unchanged(old / place, lines[place])):
                    continue
                target = self._move(old, place)
                if target != place or place in lines:
                    self.export.left.append(target)
            systems.rename(old, self._work / GONE)
        systems.flush(self.path)
        shutil.rmtree(self._work / GONE, ignore_errors=True)

    def _move(self, old: Path, place: str) -> str:
        """Move a file of a person into the new folder; what has a name that the export needs gets a mark."""
        *folders, name = place.split("/")
        target = ""
        for each in folders:
            target = _free(f"{target}{each}", "yours", self._is_no_folder) + "/"
        target = _free(target + name, "yours", lambda found: os.path.lexists(self.path / found))
        (self.path / target).parent.mkdir(parents=True, exist_ok=True)
        systems.rename(old / place, self.path / target)
        return target

    def _is_no_folder(self, place: str) -> bool:
        path = self.path / place
        return os.path.lexists(path) and (systems.is_link(path) or not path.is_dir())


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
    """The project and the lines of a record; none of both if there is no record.

    Raises:
        RunError: it is damaged, or of another version.
    """
    try:
        header, *lines = map(parsed_json, read_file(record, _LARGEST_RECORD).splitlines())
        if header["format"] != FORMAT:
            raise ValueError("another format")
        found = {place: _Line(size, digest, *made_of or [digest]) for place, size, digest, *made_of in lines}
        if any(list(map(type, line)) != [int, str, str] for line in found.values()):
            raise ValueError("a line of other types")
        return str(header.get("project", "")), found
    except FileNotFoundError:
        return "", {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(
            f"{record} is damaged, so files of a person cannot be distinguished: move {record.parent} away, and export "
            "again."
        ) from error


def _files(root: Path, folder: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """All but folders, by their paths in the root; links are not followed."""
    for entry in os.scandir(root / folder):
        place = f"{folder}/{entry.name}".lstrip("/")
        if entry.is_dir(follow_symlinks=False) and not systems.is_link(entry):
            yield from _files(root, place)
        else:
            yield place, os.lstat(entry.path)  # `entry.stat` has no node on Windows


def _free(place: str, mark: str, is_taken: Callable[[str], bool]) -> str:
    """A place that is free, in the same folder: with a mark in its name, and a number, if need be."""
    folder, name = os.path.split(place)
    marks = itertools.chain([mark], (f"{mark} {number}" for number in itertools.count(2)))
    marked = (os.path.join(folder, with_mark(name, each)).replace(os.sep, "/") for each in marks)
    return next(each for each in itertools.chain([place], marked) if not is_taken(each))


def _is_used(path: Path) -> bool:
    """Whether something is in a folder that no system put there; also if it is no folder."""
    try:
        return any(not systems.left_by_system(f"{each.name}{'/' * each.is_dir()}") for each in path.iterdir())
    except OSError:
        return True


def _node(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _version(status: os.stat_result) -> tuple[int, ...]:
    return *_node(status), status.st_size, status.st_mtime_ns


def _some(each: list[str]) -> str:
    return ", ".join(each[:_SHOWN]) + (f" and {len(each) - _SHOWN} more" if len(each) > _SHOWN else "")

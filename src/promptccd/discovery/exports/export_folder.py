"""An exported folder: new files are made next to it and moved in. Files that a person added or changed stay.

The record ``.promptccd-export`` lists the files that an export made, with their size and checksum. A process may be
killed at any moment: up to the commit, the next export moves back what was moved; after it, the rest is moved in.
Renames never follow links, and work on every disk.
"""

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from promptccd import systems
from promptccd.data.names import display_name
from promptccd.discovery.exports.names import with_mark
from promptccd.disk import (
    EXPORTED,
    parsed_json,
    plain_json,
    read_file,
    refuse_links,
    remove_leftovers,
    sha256_of,
    write_file,
)
from promptccd.errors import DataError, DiskError, RunError
from promptccd.locks import FolderLock

FORMAT = 2  # of the record
DIGITS = 32  # of a SHA-256 in the record
WORK = ".exporting-"  # and the name of the folder: what an export needs while it runs, next to the folder
NEW, READY, GONE, SCRATCH, PLAN = "new", "ready", "gone", "scratch", "plan"  # in there
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
    """

    place: str
    made_of: str
    make: Callable[[Path], str | None]
    label: str


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
        written: files that were written now; ``moved`` ones got another name, ``removed`` ones are in no group any
            more, and ``kept`` ones are as they were.
        missing: label of each photograph that is not in it, and the reason.
        left: files that a person changed, or whose name the export needed: they stay, under these names.
        notes: what else a person should know, a sentence each.
    """

    place: Path
    photographs: int = 0
    written: int = 0
    moved: int = 0
    removed: int = 0
    kept: int = 0
    missing: list[tuple[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The result for people, a sentence each."""
        counts = {
            "written": self.written,
            "moved": self.moved,
            "removed": self.removed,
            "unchanged": self.kept,
        }
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
            lines.append(
                f"Left as they are, because they are not as an export made them, {len(names)}: {_some(names)}."
            )
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
        scratch: a path on the same disk that does not exist, for what the caller makes in between.
        export: the result so far.
    """

    def __init__(self, path: Path, originals: Mapping[str, str] | None, project: str):
        self.path, self.export, self._originals, self._project = path, Export(path), originals, project
        self._work = path.with_name(f"{WORK}{path.name}")
        refuse_links(self._work, (NEW, READY, GONE, SCRATCH, PLAN))
        self._recover()
        owner, self._old = _read(path / EXPORTED)
        if owner != project and (path / EXPORTED).exists():
            raise RunError(
                f"{path} was exported from another project, or before the project was moved: give another folder, or "
                "move it away."
            )
        self._files = dict(_files(path, ""))
        self._there = self._old.keys() & self._files.keys()  # places in the record that have a file
        self._lines = dict[str, _Line]()  # the new record
        self._used = dict[str, str]()  # new places of old files
        self.scratch, self._new = self._work / SCRATCH, self._work / NEW
        self._new.mkdir()

    @classmethod
    @contextmanager
    def opened(
        cls, path: Path, originals: Mapping[str, str] | None = None, project: str = ""
    ) -> Iterator["ExportFolder"]:
        """The folder, created if missing, with no other process exporting into it.

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
        refuse_links(path.parent, [path.name, work.name])
        is_export = (path / EXPORTED).exists() or (work / READY).exists()
        if os.path.lexists(path) and not is_export and _is_used(path):
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
                for name in (SCRATCH, *([] if (work / PLAN).exists() else [NEW])):
                    shutil.rmtree(work / name, ignore_errors=True)

    def made_of(self) -> dict[str, str]:
        """What the files that are there were made of, by place."""
        found = {place: self._old[place].made_of for place in self._there}
        return {place: made_of for place, made_of in found.items() if self._contains(place, made_of)}

    def put(self, items: Iterable[Item], on_progress: OnProgress = lambda: None) -> dict[str, str]:
        """Make these files part of the folder, with those that were put before.

        Args:
            items: each with a place of its own.
            on_progress: called for every one.

        Returns:
            Where each is, with its suffix, by the place of the item; without those that are missing.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        placed, absent, spare = dict[str, str](), list[Item](), dict[str, list[str]]()
        for item in items:
            if wrong := systems.too_long(self._new / item.place):  # a little longer than where it will be
                why = f"it would have {wrong}: give a shorter path with --to"
                self.export.missing.append((item.label, why))
            elif self._contains(item.place, item.made_of):
                on_progress()
                placed[item.place] = self._reuse(item.place, item.place)
                self.export.kept += 1
            else:
                absent.append(item)
        for place in sorted(self._there - self._used.keys(), reverse=True):
            spare.setdefault(self._old[place].made_of, []).append(place)
        for item in absent:
            on_progress()
            places = spare.get(item.made_of, [])
            while places and not self._is_unchanged(places[-1]):
                places.pop()
            if places:
                placed[item.place] = self._reuse(places.pop(), item.place)
                self.export.moved += 1
            elif place := self._make(item):
                placed[item.place] = place
                self.export.written += 1
        return placed

    def finish(self) -> Export:
        """Bring the folder up to date: what was put is in it, with what a person added or changed."""
        moves = [(old, f"{NEW}/{place}") for old, place in self._used.items() if old != place]
        last, export = list[str](), self.export
        for place in sorted(self._there - self._used.keys()):
            if not self._is_unchanged(place):
                if place not in self._lines:  # else it gets a mark, in `_place`
                    export.left.append(place)
            elif self._may_go(place):
                moves.append((place, f"{GONE}/{len(moves)}"))
                export.removed += place not in self._lines
            else:
                used = self._lines.keys() | self._files.keys()
                target = place if place not in self._lines else _free(place, "last copy", used.__contains__)
                last.append(repr(display_name(self._reuse(place, target))))
                moves += [(place, f"{NEW}/{target}")] * (place != target)
        if last:
            export.notes.append(
                f"In no group now, and left because their originals are gone, {len(last)}: {_some(last)}."
            )
        is_new = self._lines != self._old or not (self.path / EXPORTED).exists()
        if is_new or moves or export.written:  # a deleted file is written again, with the same record
            self._write_record()
            if export.written:
                _flush(self._new)
            write_file(self._work / PLAN, plain_json(moves))
            for place, target in moves:
                (self._work / target).parent.mkdir(parents=True, exist_ok=True)
                systems.rename(self.path / place, self._work / target)
            systems.rename(self._new, self._work / READY)
            self._complete()
        return export

    def _contains(self, place: str, made_of: str) -> bool:
        """Whether a place has a file that was made of this, and that has the size it had."""
        if place not in self._there or self._old[place].made_of != made_of:
            return False
        return self._old[place].size == self._files[place].st_size or self._is_unchanged(place)

    def _is_unchanged(self, place: str) -> bool:
        """Whether a file has the bytes that an export gave it, or is a photograph itself (a hard link to it)."""
        line, found = self._old[place], self._files[place]
        is_same = line.size == found.st_size and sha256_of(self.path / place).startswith(line.digest)
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

    def _reuse(self, old: str, place: str) -> str:
        """Give a file of the folder a place in the new record, which is returned."""
        self._lines[place] = self._old[old]._replace(size=self._files[old].st_size)
        self._used[old] = place
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
        return place

    def _write_record(self) -> None:
        header = {"format": FORMAT, **({"project": self._project} if self._project else {})}
        lines: list[object] = [header]
        for place, (size, digest, made_of) in sorted(self._lines.items()):
            lines.append([place, size, digest, *([made_of] if made_of != digest else [])])
        write_file(self._new / EXPORTED, b"".join(plain_json(each) + b"\n" for each in lines))

    def _recover(self) -> None:
        """Complete the export of a process that was killed, or move back what it moved."""
        self.path.mkdir(exist_ok=True)
        if (self._work / READY).exists():
            return self._complete()
        there = dict(_files(self._work, ""))
        for place, target in self._plan():
            if target in there:
                self._place(self._work / target, place)
        self._clear()

    def _plan(self) -> list[tuple[str, str]]:
        """Old places, and where in the folder of work their files go; none of them is outside."""
        try:
            found = [
                (Path(old), old, new)
                for old, new in parsed_json(read_file(self._work / PLAN, _LARGEST_RECORD))
            ]
        except (FileNotFoundError, ValueError, TypeError):
            return []
        return [(old, new) for path, old, new in found if not path.anchor and ".." not in path.parts]

    def _complete(self) -> None:
        """Move the files that are ready into the folder, and the record last."""
        ready, root = self._work / READY, self.path.resolve()
        for place, _ in self._plan():
            for parent in (self.path / each for each in _parents(place)):
                with contextlib.suppress(OSError):  # something is in it
                    if parent.resolve().is_relative_to(root):
                        parent.rmdir()
        for place, _ in sorted(_files(ready, "")):
            if place != EXPORTED:
                self._place(ready / place, place)
        if (ready / EXPORTED).exists():
            systems.rename(ready / EXPORTED, self.path / EXPORTED)
        systems.flush(self.path)
        self._clear()

    def _place(self, source: Path, place: str) -> None:
        """Move a file to its place; what has its name, or that of a folder above it, gets a mark."""
        for each in reversed([place, *_parents(place)]):
            path = self.path / each
            if each != place and path.is_dir() and not systems.is_link(path):
                continue
            if os.path.lexists(path):
                free = _free(each, "yours", lambda name: os.path.lexists(self.path / name))
                systems.rename(path, self.path / free)
                self.export.left.append(free)
            if each != place:
                path.mkdir()
        systems.rename(source, self.path / place)

    def _clear(self) -> None:
        (self._work / PLAN).unlink(missing_ok=True)  # first: nothing is moved back now
        for name in (NEW, READY, GONE, SCRATCH):
            shutil.rmtree(self._work / name, ignore_errors=True)


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


def _files(root: Path, folder: str) -> Iterator[tuple[str, os.stat_result]]:
    for entry in os.scandir(root / folder):
        place = f"{folder}/{entry.name}".lstrip("/")
        if entry.is_dir(follow_symlinks=False) and not systems.is_link(entry):
            yield from _files(root, place)
        elif stat.S_ISREG((found := os.lstat(entry.path)).st_mode):  # `entry.stat` has no node on Windows
            yield place, found


def _parents(place: str) -> list[str]:
    """The folders above a place, the inner ones first."""
    return [str(each) for each in PurePosixPath(place).parents][:-1]


def _free(place: str, mark: str, is_taken: Callable[[str], bool]) -> str:
    """A place in the same folder that is free, with a mark in its name and a number if need be."""
    folder, name = os.path.split(place)
    marks = itertools.chain([mark], (f"{mark} {number}" for number in itertools.count(2)))
    places = (os.path.join(folder, with_mark(name, each)).replace(os.sep, "/") for each in marks)
    return next(each for each in places if not is_taken(each))


def _flush(folder: Path) -> None:
    """Bring a folder with everything in it to the disk, at once where the system can."""
    if hasattr(os, "sync"):
        return os.sync()
    for place, _ in _files(folder, ""):
        systems.flush(folder / place)


def _is_used(path: Path) -> bool:
    """Whether something is in a folder that no system put there; also if it is no folder."""
    try:
        return any(not systems.left_by_system(f"{each.name}{'/' * each.is_dir()}") for each in path.iterdir())
    except OSError:
        return True


def _node(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _some(each: list[str]) -> str:
    return ", ".join(each[:_SHOWN]) + (f" and {len(each) - _SHOWN} more" if len(each) > _SHOWN else "")

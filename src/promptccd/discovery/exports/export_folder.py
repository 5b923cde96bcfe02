"""An exported folder: built next to the old one and put in its place. Files that a person added or changed stay.

The record ``.promptccd-export`` lists the files that an export made, with their size and checksum. The new folder is
filled with what the old one lacks; then the two are swapped by renames, and whatever else is in the old one is moved
into the new one. Renames never follow links, and work on every disk. A process may be killed at any moment: the next
export completes the swap or starts again.
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
from pathlib import Path
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
        lines = [
            f"{self.place}: {self.photographs} photograph{'s' * (self.photographs != 1)}; files: {self.written} "
            f"written, {self.moved} moved, {self.removed} removed, {self.kept} as they were."
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


class _Made:
    """What the record of a folder lists, and which of it is there.

    Args:
        root: the folder, which need not exist.
        originals: of `ExportFolder.opened`.

    Attributes:
        project: whose exports the folder contains.
        lines: the record, by place.
        files: status of each regular file, by place; folders behind links are not searched.
        there: places in the record that have a file.
    """

    def __init__(self, root: Path, originals: Mapping[str, str] | None):
        self.root, self._originals = root, originals
        self.project, self.lines = _read(root / EXPORTED)
        self.files = dict(_files(root, "")) if root.is_dir() else {}
        self.there = self.lines.keys() & self.files.keys()
        self._checked = dict[str, bool]()

    @cached_property
    def _photographs(self) -> set[tuple[int, int]]:
        """Where the originals are on their disks."""
        found = set()
        for path in (self._originals or {}).values():
            with contextlib.suppress(OSError):
                found.add(_node(os.stat(path)))
        return found

    def contains(self, place: str, made_of: str) -> bool:
        """Whether a place has a file that was made of this, and that has the size it had."""
        if place not in self.there or self.lines[place].made_of != made_of:
            return False
        return self.lines[place].size == self.files[place].st_size or self.is_unchanged(place)

    def is_unchanged(self, place: str) -> bool:
        """Whether a file has the bytes that an export gave it, or is a photograph itself (a hard link to it)."""
        if place not in self._checked:
            line, found = self.lines[place], self.files[place]
            is_same = line.size == found.st_size and sha256_of(self.root / place).startswith(line.digest)
            self._checked[place] = is_same or _node(found) in self._photographs
        return self._checked[place]

    def may_go(self, place: str) -> bool:
        """Whether a file can be removed: its picture has another name as well, or can be made again."""
        if self._originals is None or self.files[place].st_nlink > 1:
            return True
        path = self._originals.get(self.lines[place].made_of)
        if not path:  # `None` was forgotten; a row of a data set has no path
            return path is not None
        return any(each.is_file() for each in (Path(path), *Path(path).parents))  # the file, or its archive


class ExportFolder:
    """A folder while an export writes it; made by `opened`.

    Attributes:
        path: of the folder.
        scratch: a path on the same disk that does not exist, for what the caller makes in between.
        export: the result so far.
    """

    def __init__(self, path: Path, originals: Mapping[str, str] | None, project: str):
        self._originals, self._project = originals, project
        self.path, self.export = path, Export(path)
        work, names = _work_of(path), ("old", "new", "unfinished", "scratch")
        refuse_links(work, names)  # what is in the old folder is moved and deleted
        self._replaced, self._new, self._unfinished, self.scratch = (work / name for name in names)
        self._recover()
        self._old = _Made(path, originals)
        if self._old.project != project and (path / EXPORTED).exists():
            raise RunError(
                f"{path} was exported from another project, or before the project was moved: give another folder, or "
                "move it away."
            )
        self._made_before = _Made(self._unfinished, originals)
        self.path.mkdir(exist_ok=True)
        self._lines, self._used = dict[str, _Line](), set[str]()  # the new record; old places that go into it
        self._new.mkdir()
        self._folders = {""}  # those in the new folder

    @classmethod
    @contextmanager
    def opened(
        cls, path: Path, originals: Mapping[str, str] | None = None, project: str = ""
    ) -> Iterator["ExportFolder"]:
        """The folder, created if missing, with no other process exporting into it.

        Args:
            path: of the folder.
            originals: if it contains photographs themselves, the paths of all of them, by what is made of them. A file
                whose original is gone is not removed from the folder.
            project: a name that distinguishes the exports of projects in a folder outside of them.

        Raises:
            DiskError: something else made the folder, or it cannot be written.
            RunError: it is a link or of another project, or another export is writing it.
        """
        work = _work_of(path)
        refuse_links(path.parent, [path.name, work.name])
        if os.path.lexists(path) and not (path / EXPORTED).exists() and _is_used(path):
            raise DiskError(
                f"{path} is there and was made by something else, so nothing is exported into it: give another folder, "
                "or move it away."
            )
        with FolderLock(work):
            try:
                remove_leftovers(work)
                folder = cls(path, originals, project)
                try:
                    yield folder
                except BaseException:  # the next export uses what is made
                    with contextlib.suppress(OSError, DiskError):
                        folder._write_record()
                    raise
            except OSError as error:
                raise DiskError(
                    f"Could not write {error.filename or path}: {error.strerror}. What was exported before is as it "
                    "was: free some space or make it writable, and run the same command again."
                ) from error

    def made_of(self) -> dict[str, str]:
        """What the files that are there were made of, by place; with those of an export that was not finished."""
        found = dict[str, str]()
        for made in (self._made_before, self._old):
            lines = {place: made.lines[place].made_of for place in made.there}
            found |= {place: made_of for place, made_of in lines.items() if made.contains(place, made_of)}
        return found

    def put(self, items: Iterable[Item], on_progress: OnProgress = lambda: None) -> dict[str, str]:
        """Make these files part of the new folder, with those that were put before.

        Args:
            items: each with a place of its own.
            on_progress: called for every one.

        Returns:
            Where each is, with its suffix, by the place of the item; without those that are missing.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        placed, absent = dict[str, str](), list[Item]()
        for item in items:
            if wrong := systems.too_long(self._new / item.place):  # a little longer than where it will be
                self.export.missing.append(
                    (item.label, f"it would have {wrong}: give a shorter path with --to")
                )
            elif self._old.contains(item.place, item.made_of):
                on_progress()
                placed[item.place] = self._reuse(item.place, item.place)
                self.export.kept += 1
            else:
                absent.append(item)
        spare = dict[str, list[str]]()
        for place in sorted(self._old.there - self._used, reverse=True):
            spare.setdefault(self._old.lines[place].made_of, []).append(place)
        for item in absent:
            on_progress()
            places = spare.get(item.made_of, [])
            while places and not self._old.is_unchanged(places[-1]):
                places.pop()
            if places:
                placed[item.place] = self._reuse(places.pop(), item.place)
                self.export.moved += 1
            elif place := self._make(item):
                placed[item.place] = place
                self.export.written += 1
        return placed

    def finish(self) -> Export:
        """Put the new folder in the place of the old one, and move what a person added or changed into it."""
        last = list[str]()
        for place in sorted(self._old.there - self._used):
            if not self._old.is_unchanged(place):
                if place not in self._lines:  # else it gets a mark, in `_move_others`
                    self.export.left.append(place)
            elif self._old.may_go(place):
                self.export.removed += place not in self._lines
            else:
                taken = self._lines.keys() | self._old.files.keys()
                target = place if place not in self._lines else _free(place, "last copy", taken.__contains__)
                last.append(repr(display_name(self._reuse(place, target))))
        if last:
            self.export.notes.append(
                f"In no group now, and left because their originals are gone, {len(last)}: {_some(last)}."
            )
        export, is_new = self.export, not (self.path / EXPORTED).exists()
        if export.written or export.moved or export.removed or export.left or is_new:
            self._write_record()
            if export.written:
                _flush(self._new)
            systems.make_private(self._new, stat.S_IMODE(self.path.stat().st_mode))
            systems.rename(self.path, self._replaced)
            systems.rename(self._new, self.path)
            self._old.root = self._replaced
            self._complete(self._old)
            systems.flush(self.path.parent)
        for each in (self._new, self._unfinished, self.scratch):
            shutil.rmtree(each, ignore_errors=True)
        return export

    def _reuse(self, old: str, place: str) -> str:
        """Give a file of the old folder a place in the new one, which is returned."""
        self._lines[place] = self._old.lines[old]._replace(size=self._old.files[old].st_size)
        self._used.add(old)
        return place

    def _make(self, item: Item) -> str:
        """The place of a file that is made now; empty if it is missing."""
        target, place = self._new / item.place, item.place
        try:
            if (parent := os.path.dirname(place)) not in self._folders:
                target.parent.mkdir(parents=True, exist_ok=True)
                self._folders.add(parent)
            if self._made_before.contains(place, item.made_of) and self._made_before.is_unchanged(place):
                systems.rename(self._unfinished / place, target)
            elif suffix := item.make(target):
                place += suffix
                systems.rename(target, self._new / place)
        except DataError as error:
            self.export.missing.append((item.label, str(error)))
            return ""
        size, digest = os.lstat(self._new / place).st_size, sha256_of(self._new / place)[:DIGITS]
        self._lines[place] = _Line(size, digest, item.made_of)
        return place

    def _write_record(self) -> None:
        header = {"format": FORMAT, **({"project": self._project} if self._project else {})}
        lines: list[object] = [header]
        for place, (size, digest, made_of) in sorted(self._lines.items()):
            lines.append([place, size, digest, *([made_of] if made_of != digest else [])])
        write_file(self._new / EXPORTED, b"".join(plain_json(each) + b"\n" for each in lines))

    # The swap

    def _recover(self) -> None:
        """Complete the swap of a process that was killed, or undo it; keep what an unfinished export made."""
        if self._replaced.exists():
            if (self.path / EXPORTED).exists():
                self._complete(_Made(self._replaced, self._originals))
            else:
                with contextlib.suppress(FileNotFoundError):
                    self.path.rmdir()
                systems.rename(self._replaced, self.path)
        if (self._new / EXPORTED).exists():
            shutil.rmtree(self._unfinished, ignore_errors=True)
            systems.rename(self._new, self._unfinished)
        for each in (self._new, self.scratch):
            shutil.rmtree(each, ignore_errors=True)

    def _complete(self, old: _Made) -> None:
        """Move from the old folder what the new one lacks of its record, then what no export made; delete the rest."""
        lines = _read(self.path / EXPORTED)[1]
        lacking = {
            place: line.made_of for place, line in lines.items() if not os.path.lexists(self.path / place)
        }
        targets = {place: place for place, made_of in lacking.items() if old.contains(place, made_of)}
        wanted = dict[str, list[str]]()
        for place in lacking.keys() - targets.keys():
            wanted.setdefault(lacking[place], []).append(place)
        for place in old.there - targets.keys():
            if old.is_unchanged(place):
                places = wanted.get(old.lines[place].made_of)
                targets[place] = places.pop() if places else ""
        same = {place for place, target in targets.items() if place == target}
        # Other folders are moved whole: nothing in them changes.
        mixed = {
            parent.as_posix() for place in (old.lines | lines).keys() - same for parent in Path(place).parents
        }
        for place, target in targets.items():
            if not target:
                (old.root / place).unlink()
            elif place not in same or os.path.dirname(place) in mixed:
                self._move(place, target)
        self._move_others("", mixed)
        systems.flush(self.path)
        shutil.rmtree(self._replaced)

    def _move(self, place: str, target: str) -> None:
        (self.path / target).parent.mkdir(parents=True, exist_ok=True)
        systems.rename(self._replaced / place, self.path / target)

    def _move_others(self, folder: str, mixed: set[str]) -> None:
        """Move what is left in a folder of the old one, with a mark where its name is taken.

        Args:
            folder: its place.
            mixed: places of folders that are not moved whole.
        """
        for entry in list(os.scandir(self._replaced / folder)):
            place = f"{folder}/{entry.name}".lstrip("/")
            if _is_folder(entry) and place in mixed:
                self._move_others(place, mixed)
            elif place != EXPORTED and not os.path.lexists(self.path / place):
                self._move(place, place)
            elif place != EXPORTED:
                free = _free(place, "yours", self._is_taken)
                self._move(place, free)
                self.export.left.append(free)

    def _is_taken(self, place: str) -> bool:
        return any(os.path.lexists(each / place) for each in (self.path, self._replaced))


def link_or_copy(source: Path, target: Path, no_clones: set[int] | None = None) -> None:
    """Give a file a second place that takes no room, where the disk can, with its bytes, its date and its mode.

    A clone shares the blocks of the file until one of the two is changed. A hard link is the file itself under a
    second name. Elsewhere, as on another disk, it is a copy. It is never a symbolic link, which ends with its target,
    and which many programs, zip archives and network drives do not follow.

    Args:
        source: an existing file.
        target: a place without a file.
        no_clones: disks from which clones into this folder failed, where none is tried again; a new one is added.

    Raises:
        OSError: there is neither a link nor room for a copy.
    """
    no_clones, disk, cloned = set() if no_clones is None else no_clones, source.stat().st_dev, False
    if disk not in no_clones:
        with source.open("rb") as opened, target.open("xb") as made:
            cloned = systems.has_cloned(opened.fileno(), made.fileno())
    if not cloned:
        if disk not in no_clones:
            no_clones.add(disk)
            target.unlink()
        try:
            systems.link(source, target)
            return
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
        if _is_folder(entry):
            yield from _files(root, place)
        elif stat.S_ISREG((found := os.lstat(entry.path)).st_mode):  # `entry.stat` has no node on Windows
            yield place, found


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir(follow_symlinks=False) and not systems.is_link(entry)


def _free(place: str, mark: str, is_taken: Callable[[str], bool]) -> str:
    """A place in the same folder that is free, with a mark in its name and a number if need be."""
    folder, name = os.path.split(place)
    marks = itertools.chain([mark], (f"{mark} {number}" for number in itertools.count(2)))
    places = (os.path.join(folder, with_mark(name, each)).replace(os.sep, "/") for each in marks)
    return next(each for each in places if not is_taken(each))


def _flush(folder: Path) -> None:
    """Bring a folder with everything in it to the disk, at once where the system can."""
    if (sync := getattr(os, "sync", None)) is not None:
        sync()
        return
    for path in folder.rglob("*"):
        if path.is_file():
            systems.flush(path)


def _is_used(path: Path) -> bool:
    """Whether something is in a folder that no system put there; also if it is no folder."""
    try:
        return any(not systems.left_by_system(f"{each.name}{'/' * each.is_dir()}") for each in path.iterdir())
    except OSError:
        return True


def _work_of(path: Path) -> Path:
    return path.with_name(f"{WORK}{path.name}")


def _node(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _some(each: list[str]) -> str:
    return ", ".join(each[:_SHOWN]) + (f" and {len(each) - _SHOWN} more" if len(each) > _SHOWN else "")

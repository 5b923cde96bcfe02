"""A folder that an export writes again and again, beside what people put into it.

Its record, ``.promptccd-export``, has a line for every file that an export made, on the disk before the file has its
name. Only a file whose bytes are still those of its line is ever moved, replaced or removed; everything else in there
is somebody's, and stays. What was made of the same picture is not made again. A process may be killed at any moment:
the next export goes by the record, and ends with the same bytes.
"""

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from promptccd import systems
from promptccd.data.names import display_name
from promptccd.disk import (
    EXPORTED,
    TEMPORARY,
    append_to,
    make_folder,
    newer_format,
    parsed_json,
    plain_json,
    read_lines,
    refuse_links,
    remove_leftovers,
    sha256_of,
    temporary,
    write_file,
)
from promptccd.errors import DataError, DiskError, RunError
from promptccd.locks import LOCK, FolderLock

logger = logging.getLogger(__name__)

FORMAT = 2  # of the record
DIGITS = 32  # of a SHA-256 in the record, which is written anew after each change: as good as all of them
_LARGEST_RECORD = 2**30  # bytes, of some million files
_AT_ONCE = 64  # files that wait for their lines to be on the disk
_REFUSED_NAMES = (errno.EINVAL, errno.EILSEQ, errno.ENAMETOOLONG)
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
Tick = Callable[[], None]  # called for every photograph; what it raises ends the export


@dataclass(frozen=True)
class Item:
    """A file that an export holds.

    Attributes:
        place: its path in the folder, with ``/`` between the parts.
        made_of: what its bytes follow from; the same means the same bytes.
        make: writes it under a name that is free, and returns the suffix to add to its place, if any.
        called: the photograph, for people.
        source: the photograph that it is a link to or a copy of; empty if it is neither.
    """

    place: str
    made_of: str
    make: Callable[[Path], str | None]
    called: str
    source: str = ""


def text_item(place: str, text: str, called: str) -> Item:
    """A file of text; one of the same text is the same file."""
    content = text.encode()
    return Item(place, hashlib.sha256(content).hexdigest()[:DIGITS], partial(_write, content), called)


@dataclass(frozen=True)
class _Line:
    """What the record says of a file."""

    place: str
    digest: str
    size: int
    made_of: str


@dataclass
class Export:
    """What became of an export.

    Attributes:
        place: the folder.
        photographs: how many are in it.
        written: files that were written now; ``moved`` ones took another name, ``removed`` ones are in no group any
            more, and ``kept`` ones are as they were.
        missing: what the photographs that are not in it are called, and why, a pair each.
        left: files that an export made and somebody changed, or that have a name which it needs: they stay.
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
        """What is said of it, a line each."""
        files = (
            f"{self.written} written, {self.moved} moved, {self.removed} removed, {self.kept} as they were"
        )
        told = [
            f"{self.place}: {self.photographs} photograph{'s' * (self.photographs != 1)}; files: {files}."
        ]
        if self.missing:
            reasons = dict[str, list[str]]()
            for name, why in self.missing:
                shown = repr(display_name(name))
                reasons.setdefault(why.removeprefix(shown).strip(" ."), []).append(shown)
            told += [
                f"Not in it, {len(each)}: {_some(each)}: {why}." for why, each in sorted(reasons.items())
            ]
        if self.left:
            each = [repr(display_name(name)) for name in self.left]
            told.append(
                f"Left as they are, because they are not as an export made them, {len(each)}: {_some(each)}. Move them "
                "away and export again to get the exported ones."
            )
        return told + self.notes


def _some(each: list[str]) -> str:
    shown = 10
    return ", ".join(each[:shown]) + (f" and {len(each) - shown} more" if len(each) > shown else "")


class KeptFolder:
    """The folder while an export writes to it; made by `opened`.

    Args:
        path: of the folder.
        originals: if it holds photographs themselves, the paths of all that there are, by what is made of them. One
            that is not there any more is not removed from the folder.

    Attributes:
        path: of the folder.
        export: what became of it so far.
        project: whose exports it holds, as its record says.
    """

    def __init__(self, path: Path, originals: Mapping[str, str] | None = None):
        self._originals = originals
        self.path, self._record, self.export = path, path / EXPORTED, Export(path)
        self._folders, self.project = {""}, ""  # folders of ours, that were looked at
        self._own, self._wanted = self._read(), dict[str, Item]()

    @classmethod
    @contextmanager
    def opened(
        cls, path: Path, originals: Mapping[str, str] | None = None, project: str = ""
    ) -> Iterator["KeptFolder"]:
        """The folder, made if need be, with nobody else writing to it.

        Args:
            path: of the folder.
            originals: as the class takes them.
            project: a name that tells the exports of one project from those of others, where they lie elsewhere.

        Raises:
            DiskError: it was made by somebody else, or cannot be written to.
            RunError: a link stands under its name, or another export is writing.
        """
        refuse_links(path.parent, [path.name])
        if os.path.lexists(path) and not (path / EXPORTED).exists() and _holds_something(path):
            raise DiskError(
                f"{path} is there and was made by something else, so nothing is exported into it: give another folder, "
                "or move it away."
            )
        with FolderLock(make_folder(path)):
            try:
                refuse_links(path, [EXPORTED])
                if not (path / EXPORTED).exists():
                    write_file(path / EXPORTED, _header(project))
                remove_leftovers(path)
                folder = cls(path, originals)
                if folder.project != project:
                    raise RunError(
                        f"{path} was exported from another project, or before the project was moved: give another "
                        "folder, or move it away."
                    )
                yield folder
            except OSError as error:
                raise DiskError(
                    f"Could not write {error.filename or path}: {error.strerror}. What was exported before is as it "
                    "was: free some space or make it writable, and run the same command again."
                ) from error
            finally:
                remove_leftovers(path)

    def held(self) -> dict[str, str]:
        """What files that are there were made of, by place."""
        return {place: line.made_of for place, line in self._own.items() if self._size(place) == line.size}

    def put(self, items: Iterable[Item], tick: Tick = lambda: None) -> dict[str, str]:
        """Make the folder hold these files, besides those that were put before.

        Args:
            items: each with a place of its own.
            tick: called for every one.

        Returns:
            Where each is, with its suffix, by the place that it was meant for; without those that are missing.

        Raises:
            OSError: the disk is full or cannot be written to; what is there already is in the record.
        """
        wanted = {item.place: item for item in items}
        self._wanted |= wanted
        placed, absent = {place: place for place in wanted}, list[Item]()
        for place, item in wanted.items():
            line, size = self._own.get(place), self._size(place)
            if wrong := systems.too_long(self.path / place):
                self.export.missing.append(
                    (item.called, f"it would have {wrong}: give a shorter path with --to")
                )
                placed[place] = ""
            elif size is None and not self._is_taken(place):
                absent.append(item)
            elif line is None:
                self.export.left.append(place)
            elif (line.made_of, line.size) == (item.made_of, size):
                self.export.kept += 1
                tick()
            elif size is not None and item.source and os.path.samefile(item.source, self.path / place):
                # Somebody wrote into both, which are one.
                self._add([_Line(place, digest_of(self.path / place), size, item.made_of)])
                self.export.kept += 1
                tick()
            elif line.made_of != item.made_of and self._is_unchanged(line):
                absent.append(item)
            else:
                self.export.left.append(place)
        rest = self._move(absent, tick)
        placed |= {item.place: "" for item in rest} | self._make(rest, tick)
        return {meant: place for meant, place in placed.items() if place}

    def finish(self) -> Export:
        """Remove what an export made and nobody has put now, and write down what is there."""
        self._remove()
        there = sorted(place for place in self._own if self._size(place) is not None)
        content = _header(self.project) + b"".join(_text_of(self._own[place]) for place in there)
        if self._record.read_bytes() != content:
            write_file(self._record, content)
            self._end = len(content)
        return self.export

    # What is there

    def _read(self) -> dict[str, _Line]:
        own = dict[str, list[_Line]]()
        lines, self._end = read_lines(self._record, _LARGEST_RECORD)
        try:
            header = parsed_json(lines[0]) if lines else {}
            if (newer := newer_format(header.get("format"), FORMAT)) is not None:
                raise RunError(f"{self._record} {newer}")
            if header.get("format") != FORMAT:
                raise ValueError("not a record of this version")
            self.project = str(header.get("project", ""))
            for each in lines[1:]:
                place, size, digest, *made_of = parsed_json(each)
                line = _Line(place, digest, size, *made_of or [digest])
                if [type(value) for value in vars(line).values()] != [str, str, int, str]:
                    raise ValueError("a line of other kinds")
                if {"", ".", ".."}.isdisjoint(line.place.split("/")):
                    own.setdefault(line.place, []).append(line)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise RunError(
                f"{self._record} is damaged, so there is no telling which files there are a person's: move {self.path} "
                "away, and export again."
            ) from error
        return {place: self._there(said) for place, said in own.items()}

    def _there(self, said: list[_Line]) -> _Line:
        """Which line of a place is true of it: an export may have been killed before its last one was."""
        if len(said) == 1:
            return said[0]
        return next((line for line in reversed(said) if self._has_bytes_of(line)), said[-1])

    def _has_bytes_of(self, line: _Line) -> bool:
        return self._size(line.place) == line.size and digest_of(self.path / line.place) == line.digest

    def _size(self, place: str) -> int | None:
        """Bytes of a regular file that no link leads to; `None` if there is none."""
        if self._through_link(place):
            return None
        try:
            status = os.lstat(self.path / place)
        except OSError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def _is_taken(self, place: str) -> bool:
        """Whether something is there, or a folder of it cannot be one of ours."""
        return self._through_link(place) or os.path.lexists(self.path / place)

    def _through_link(self, place: str) -> bool:
        """Whether a folder on the way is a link or no folder."""
        folder = os.path.dirname(place)
        if folder in self._folders:
            return False
        if self._through_link(folder):
            return True
        try:
            is_folder = stat.S_ISDIR(os.lstat(self.path / folder).st_mode)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        if is_folder:
            self._folders.add(folder)
        return not is_folder

    def _is_unchanged(self, line: _Line) -> bool:
        """Whether a file is the one that an export made: by its bytes, or because it still is a person's own file."""
        path = self.path / line.place
        if self._size(line.place) is None:
            return False
        return self._has_bytes_of(line) or _node(os.lstat(path)) in self._nodes

    def _may_go(self, line: _Line) -> bool:
        """Whether a file is unchanged, and its picture lies under another name as well or can be made again."""
        path = self.path / line.place
        if not self._is_unchanged(line):
            return False
        if self._originals is None or os.lstat(path).st_nlink > 1:
            return True
        place = self._originals.get(line.made_of)
        if not place:  # one that was forgotten; or a row of a data set, which has no other place
            return place is not None
        archives = Path(place).parents
        return any(each.is_file() for each in (Path(place), *archives))

    @cached_property
    def _nodes(self) -> set[tuple[int, int]]:
        """Where the photographs lie on their disks: a hard link to one is one of them, whatever is written into it."""
        found = set()
        for path in (self._originals or {}).values():
            with contextlib.suppress(OSError):
                found.add(_node(os.stat(path)))
        return found

    # What is done

    def _move(self, absent: list[Item], tick: Tick) -> list[Item]:
        """Give files that are there under another name the new one; returns what has to be made."""
        spare = dict[str, list[str]]()
        for place, line in self._own.items():
            if place not in self._wanted or self._wanted[place].made_of != line.made_of:
                spare.setdefault(line.made_of, []).append(place)
        rest, moves = list[Item](), list[tuple[_Line, Item]]()
        for item in absent:
            places = spare.get(item.made_of, [])
            while places and not self._is_unchanged(self._own[places[0]]):
                places.pop(0)
            if places:
                moves.append((self._own[places.pop(0)], item))
            else:
                rest.append(item)
        free = [each for each in moves if not self._is_taken(each[1].place)]
        while free:  # one may wait for the name that another has
            lines = [_Line(item.place, line.digest, line.size, line.made_of) for line, item in free]
            self._add(lines)
            for line, item in free:
                tick()
                self._folder_of(item.place)
                systems.rename(self.path / line.place, self.path / item.place)
                self.export.moved += 1
            self._flush_folders({each.place for pair in free for each in pair})
            moved = {item.place for _, item in free}
            moves = [each for each in moves if each[1].place not in moved]
            free = [each for each in moves if not self._is_taken(each[1].place)]
        return rest + [item for _, item in moves]

    def _make(self, items: list[Item], tick: Tick) -> dict[str, str]:
        waiting, placed = list[tuple[Path, _Line, Item]](), dict[str, str]()
        for item in items:
            tick()
            staging = temporary(self.path / "export")
            try:
                place = item.place + (item.make(staging) or "")
                self._folder_of(place)
            except DataError as error:
                self.export.missing.append((item.called, str(error)))
                continue
            except OSError as error:
                self._give_up(staging, item, error)
                continue
            size = os.lstat(staging).st_size
            line = _Line(place, digest_of(staging), size, item.made_of)
            waiting.append((staging, line, item))
            if len(waiting) >= _AT_ONCE:
                placed |= self._place(waiting)
                waiting = []
        return placed | self._place(waiting)

    def _place(self, waiting: list[tuple[Path, _Line, Item]]) -> dict[str, str]:
        """Give files their names, once they and their lines are on the disk."""
        for staging, _, _ in waiting:
            if os.lstat(staging).st_nlink < 2:  # a second name of a file that has long been there
                systems.flush(staging)
        before = {line.place: self._own.get(line.place) for _, line, _ in waiting}
        placed = dict[str, str]()
        self._add([line for _, line, _ in waiting])
        for staging, line, item in waiting:
            there = before[line.place]
            if self._is_taken(line.place) and (there is None or not self._may_go(there)):
                staging.unlink()
                self.export.left.append(line.place)
                self._own.pop(line.place)
                self._add([] if there is None else [there])
            else:
                try:
                    systems.rename(staging, self.path / line.place)
                except OSError as error:
                    self._give_up(staging, item, error)
                    continue
                staging.unlink(missing_ok=True)  # where both were names of one file, renaming does nothing
                self.export.written += 1
            self._wanted[line.place] = item
            placed[item.place] = line.place
        self._flush_folders({line.place for _, line, _ in waiting})
        return placed

    def _give_up(self, staging: Path, item: Item, error: OSError) -> None:
        """Go on without a file whose name the disk refuses; any other error is raised."""
        with contextlib.suppress(OSError):
            staging.unlink()
        if error.errno not in _REFUSED_NAMES:
            raise error
        self.export.missing.append((item.called, f"this disk takes no such name: {error.strerror}"))

    def _remove(self) -> None:
        """Remove what is in the export no more, unless somebody changed it or it is the last of its kind."""
        last = list[str]()
        for place, line in list(self._own.items()):
            if place in self._wanted:
                continue
            if self._size(place) is not None:
                if not self._is_unchanged(line):
                    self.export.left.append(place)
                elif not self._may_go(line):
                    last.append(repr(display_name(place)))
                    continue
                else:
                    (self.path / place).unlink()
                    self.export.removed += 1
            del self._own[place]
            self._remove_empty(os.path.dirname(place))
        if last:
            self.export.notes.append(
                f"In no group now, and left because their originals are gone, {len(last)}: {_some(last)}."
            )

    def _remove_empty(self, folder: str) -> None:
        while folder and not self._through_link(f"{folder}/any"):
            try:
                (self.path / folder).rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                return
            self._folders.discard(folder)
            folder = os.path.dirname(folder)

    def _folder_of(self, place: str) -> None:
        folder = os.path.dirname(place)
        if folder not in self._folders:
            (self.path / folder).mkdir(parents=True, exist_ok=True)

    def _flush_folders(self, places: set[str]) -> None:
        for folder in {os.path.dirname(place) for place in places} | {""}:
            systems.flush(self.path / folder)

    # The record

    def _add(self, lines: list[_Line]) -> None:
        if not lines:
            return
        content = b"".join(map(_text_of, lines))
        append_to(self._record, self._end, content)
        self._end += len(content)
        self._own.update({line.place: line for line in lines})


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second place that takes no room, where the disk can, with its bytes, its date and its mode.

    A clone shares the blocks of the file until one of the two is changed. A hard link is the file itself under a
    second name. Elsewhere, as on another disk, it is a copy. It is never a symbolic link, which ends with its target,
    and which many programs, zip archives and network drives do not follow.

    Raises:
        OSError: there is neither a link nor room for a copy.
    """
    with source.open("rb") as opened, target.open("xb") as made:
        cloned = systems.has_cloned(opened.fileno(), made.fileno())
    if not cloned:
        target.unlink()
        try:
            systems.link(source, target)
            return
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        shutil.copyfile(source, target)
    systems.copy_facts(source, target)


def _write(content: bytes, target: Path) -> None:
    target.write_bytes(content)


def _holds_something(path: Path) -> bool:
    try:
        names = [f"{each.name}{'/' * each.is_dir()}" for each in path.iterdir()]
        return any(not (name.startswith((LOCK, TEMPORARY)) or systems.left_by_system(name)) for name in names)
    except OSError:
        return True  # no folder


def digest_of(file: Path) -> str:
    """What the record calls a file by its bytes."""
    return sha256_of(file)[:DIGITS]


def _node(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _header(project: str) -> bytes:
    return plain_json({"format": FORMAT, **({"project": project} if project else {})}) + b"\n"


def _text_of(line: _Line) -> bytes:
    made_of = [] if line.made_of == line.digest else [line.made_of]
    return plain_json([line.place, line.size, line.digest, *made_of]) + b"\n"

"""What a project remembers of files, so that unchanged ones are not opened again: contents, verdicts, keys of pictures.

``files.safetensors`` holds most of it as columns, ``files.jsonl`` a line for each thing that came since. Packs beside
them hold thumbnails, and the miniatures that find images of one moment.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from promptccd.columns import HASH
from promptccd.data.names import display_name
from promptccd.data.sources import Stamp
from promptccd.discovery.cache import ROWS, Packs
from promptccd.discovery.project.file_columns import (
    ELSEWHERE,
    LARGEST_COLUMNS,
    FileColumns,
    Look,
    fits_columns,
    has_columns,
    packed,
    read_columns,
)
from promptccd.discovery.project.folder import COLUMNS, FEATURES, FILES, MINIATURES, PICTURES, THUMBS
from promptccd.discovery.project.places import LARGEST_LIST, keys_in
from promptccd.disk import append_to, parsed_json, plain_json, read_lines, remove, write_file
from promptccd.errors import PromptCCDError
from promptccd.images.capture_dates import KEPT
from promptccd.images.decode import Status, Verdict
from promptccd.images.depth import Depth
from promptccd.images.identity import MINIATURE_SIDE, SeenImage, is_edited_file_of

logger = logging.getLogger(__name__)

FORMAT = 1  # of the list of files
LONGEST_LIST = 10_000  # lines, beyond which all is written as columns when reading ends
MOST_LINES = 1_000_000  # lines, beyond which that does not wait for the end
_LONGEST = 4096  # characters of a note


class SeenFiles:
    """Remembers files that were read before.

    A line holds the content hash of a path, the look at a new content, or the key that other settings gave to one.
    Later lines overrule earlier ones, and all of them the columns.

    Args:
        project: the folder.
        made_with: settings of the decoder; of a list made with others only the keys of pictures are used.

    Attributes:
        thumbs: thumbnails by content.
    """

    def __init__(self, project: Path, made_with: Mapping[str, int]):
        self._project = project
        self._path, self._whole = project / FILES, project / COLUMNS
        self.thumbs, self._miniatures = Packs(project, THUMBS), Packs(project, MINIATURES)
        self._settings = plain_json({"format": FORMAT, **made_with})
        self._contents: dict[str, tuple[Stamp, str]] = {}
        self._looks: dict[str, Look] = {}
        self._inherited: dict[str, str] = {}  # keys that other settings gave to contents
        self._fresh, self._fresh_thumbs = list[bytes](), dict[str, bytes]()
        self._fresh_miniatures, self._were_held = dict[str, bytes](), set[str]()
        self._before, self._lines = FileColumns(), 0
        lines, self._end = read_lines(self._path, LARGEST_LIST)
        try:
            before = read_columns(self._whole)
            if [each for each in (before.settings, *lines[:1]) if each not in (b"", self._settings)]:
                self._inherited = before.key_of | keys_in([*before.lines, *lines])
                raise ValueError("it is of another format or for another model")
            self._before = before
            for line in [*before.lines, *lines[1:]]:
                self._take(parsed_json(line))
            self._lines = len(lines)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning(
                "%s is not gone on with, and files are read again (%s).", self._path, str(error)[:100]
            )
            self._contents, self._looks, self._before, self._end = {}, {}, FileColumns(), 0
        self._is_new = not self._end and not self._before.settings  # what is on the disk is not gone on with

    def _take(self, values: dict[str, Any]) -> None:
        digest = values["sha256"]
        if not isinstance(digest, str) or not HASH.fullmatch(digest):
            raise ValueError("a hash is none")
        if "look" in values and values["look"] is None:
            self._inherited[digest] = _key(values["picture"])
            return
        if (look := values.get("look")) is not None:
            self._looks[digest] = _read_look(look, values.get("picture", ""), values.get("taken", ""))
        if digest not in self._looks and digest not in self._before.row_of:
            raise ValueError(f"nothing is said of {digest[:12]}")
        if "path" in values:
            stamp = Stamp(*(values[item.name] for item in fields(Stamp)))
            if [type(value) for value in astuple(stamp)] != [str, int, int, int, int]:
                raise ValueError("a file is described by other kinds of values")
            self._contents[stamp.path] = stamp, digest
            self._were_held.add(digest)

    def _held(self, path: str) -> tuple[Stamp, str] | None:
        return self._contents.get(path) or self._before.held(path)

    def content_of(self, stamp: Stamp) -> str:
        """The content hash of a file that was read and has not changed since; otherwise empty."""
        before, digest = self._held(stamp.path) or (None, "")
        return digest if before is not None and stamp.is_unchanged(before) else ""

    def held_by(self, path: str) -> str:
        """The content hash of the file that was read at a path, whatever it holds now; empty if there was none."""
        return (self._held(path) or (None, ""))[1]

    def look(self, digest: str) -> Look | None:
        """The look at a content, without thumbnail, miniature and view; `None` if the content is new."""
        return self._looks.get(digest) or self._before.look(digest)

    def key_of(self, digest: str, path: str, image: SeenImage) -> str:
        """What the picture of a content is known by: what it was known by before, also with other settings.

        Args:
            digest: hash of the content.
            path: of its file, which may have held the same picture otherwise; empty if there is no file.
            image: the look at the content.
        """
        if digest in self._inherited:
            return self._inherited[digest]
        content = self.held_by(path)
        _, before = self.look(content) or (None, None)
        if before is None or before.key == image.key or not (kept := self.miniatures([content])):
            return image.key
        was = before.size, kept[content]
        return before.key if is_edited_file_of(was, (image.size, image.miniature)) else image.key

    def add_look(self, digest: str, look: Look) -> None:
        """Keep the look at a content, unless there is one."""
        if self.look(digest) is None:
            self._keep(digest, look)

    def replace_looks(self, looks: Mapping[str, Look]) -> None:
        """Keep other looks at contents that were shown otherwise, and forget what was made of them before."""
        if not looks:
            return
        self.flush()
        keys = [image.key for _, image in looks.values() if image is not None]
        self.thumbs.discard(looks)
        self._miniatures.discard(looks)
        Packs(self._project, PICTURES).discard(looks)
        for space in (self._project / FEATURES).glob("*"):
            Packs(space.parent, space.name).discard(keys)
        for digest, look in looks.items():
            self._keep(digest, look)
        self.flush()

    @property
    def depths(self) -> list[Depth]:
        """The depths of all files with more than 8 bits a value that were ever seen."""
        return [
            image.depth for _, image in self._looks.values() if image is not None and image.depth is not None
        ]

    def _keep(self, digest: str, look: Look) -> None:
        verdict, image = look
        if image is not None:
            self._fresh_thumbs[digest] = image.thumbnail
            self._fresh_miniatures[digest] = image.miniature.tobytes()
            image = replace(image, thumbnail=b"", miniature=ELSEWHERE, view=None)
        self._looks[digest] = verdict, image
        self._append(_line_of(digest, self._looks[digest]))

    def add(self, stamp: Stamp, digest: str) -> None:
        """Keep the content hash of a file; the look at that content must be there."""
        if self._held(stamp.path) != (stamp, digest):
            self._contents[stamp.path] = stamp, digest
            self._were_held.add(digest)
            self._append(_line_of_file(stamp, digest))

    def take_over(self, other: "SeenFiles") -> dict[str, str]:
        """Keep what another list remembers of files that this one does not know.

        Returns:
            What a picture is known by here, by its key there.
        """
        looks, keys = {each: other.look(each) for each in (*other._before.row_of, *other._looks)}, {}
        fresh = [digest for digest in looks if self.look(digest) is None]
        self._fresh_thumbs |= other.thumbs.load(fresh)
        self._fresh_miniatures |= other._miniatures.load(fresh)
        for digest, there in looks.items():
            assert there is not None
            verdict, image = self.look(digest) or there
            if image is not None and there[1] is not None:
                keys[there[1].key] = key = self._inherited.get(digest, image.key)
                image = replace(image, key=key)
            if self.look(digest) is None:
                self._looks[digest] = verdict, image
                self._fresh.append(_line_of(digest, (verdict, image)))
        for path in (*other._before.paths, *other._contents):
            if not self.held_by(path) and (held := other._held(path)) is not None:
                self.add(*held)
        self.flush()
        return keys

    def forget(self, path: str) -> None:
        """Read a file again the next time, because it does not hold what it seemed to."""
        if (found := self._held(path)) is not None:
            self.add(replace(found[0], size=-1), found[1])
            self.flush()

    def _append(self, line: bytes) -> None:
        self._fresh.append(line)
        if len(self._fresh_thumbs) >= ROWS:
            self.flush()

    def flush(self, last: bool = False) -> None:
        """Write what was added; if the disk refuses it, only log it.

        Args:
            last: nothing will be added any more, so that a long list becomes columns.
        """
        if self._is_new and self._fresh:  # what is there is of other settings, or damaged
            remove(self._whole)
            remove(self._project / MINIATURES)
            self._fresh = [*self._unseen(), *self._fresh]
            self._is_new = False
        self.thumbs.add(self._fresh_thumbs)
        self._miniatures.add(self._fresh_miniatures)
        self._fresh_thumbs, self._fresh_miniatures = {}, {}
        fresh, self._fresh = self._fresh, []
        try:
            if fresh:
                lines = b"\n".join([self._settings] * (not self._end) + [*fresh, b""])
                append_to(self._path, self._end, lines)
                self._end, self._lines = self._end + len(lines), self._lines + len(fresh)
            if self._lines > (LONGEST_LIST if last else max(MOST_LINES, len(self._before.paths))):
                self._write_whole()
        except (OSError, PromptCCDError) as error:
            logger.warning("What was seen of files could not be kept, and they will be read again: %s", error)

    def _unseen(self) -> list[bytes]:
        """Lines of keys that other settings gave to contents which were not looked at again yet."""
        return [
            plain_json({"look": None, "picture": key, "sha256": digest})
            for digest, key in sorted(self._inherited.items())
            if self.look(digest) is None
        ]

    def _write_whole(self) -> None:
        """Write everything as columns; a kill before the lines are gone leaves some that say the same."""
        lines, images, held = self._unseen(), dict[str, SeenImage](), dict[str, tuple[Stamp, str]]()
        for digest in sorted(self._before.row_of.keys() | self._looks):
            look = self.look(digest)
            assert look is not None
            if has_columns(look) and look[1] is not None:
                images[digest] = look[1]
            else:
                lines.append(_line_of(digest, look))
        for path in sorted({*self._before.paths, *self._contents}):
            found = self._held(path)
            assert found is not None
            if found[1] in images and fits_columns(found[0]):
                held[path] = found
            else:
                lines.append(_line_of_file(*found))
        were_held = self._before.were_held | self._were_held
        once_held = were_held.difference(digest for _, digest in held.values())
        content = packed(self._settings, lines, images, held, once_held)
        if len(content) > LARGEST_COLUMNS:  # the lines are read as long as they last
            return
        write_file(self._whole, content)
        self._path.unlink(missing_ok=True)
        self._before, self._contents, self._looks = read_columns(self._whole), {}, {}
        for line in self._before.lines:
            self._take(parsed_json(line))
        self._end = self._lines = 0

    def miniatures(self, digests: Sequence[str]) -> dict[str, np.ndarray]:
        """Miniatures of contents, see `SeenImage`; lost ones are missing."""
        shape, found = (MINIATURE_SIDE, MINIATURE_SIDE), self._miniatures.load(digests)
        found |= {each: self._fresh_miniatures[each] for each in digests if each in self._fresh_miniatures}
        return {
            digest: np.frombuffer(row, np.uint8).reshape(shape)
            for digest, row in found.items()
            if len(row) == MINIATURE_SIDE**2
        }

    def add_miniatures(self, made: Mapping[str, np.ndarray]) -> None:
        """Keep miniatures that were made again."""
        self._miniatures.add({digest: miniature.tobytes() for digest, miniature in made.items()})


def _line_of(digest: str, look: Look) -> bytes:
    verdict, image = look
    values: dict[str, Any] = {"status": verdict.status.value, "note": verdict.note}
    known: dict[str, Any] = {"sha256": digest}
    if image is not None:
        values["image_size"], known["picture"] = list(image.size), image.key
        if image.depth is not None:
            values["depth"] = asdict(image.depth)
        if image.taken:
            known["taken"] = image.taken
    return plain_json({"look": values, **known})


def _line_of_file(stamp: Stamp, digest: str) -> bytes:
    return plain_json({**asdict(stamp), "sha256": digest})


def _read_look(values: Mapping[str, Any], key: Any, taken: Any) -> Look:
    """The look at a content, from values that a stranger may have written, or else a `ValueError`."""
    note = values["note"]
    if not isinstance(note, str) or len(note) > _LONGEST or note != display_name(note):
        raise ValueError("a note is no text on one line")
    verdict = Verdict(Status(values["status"]), note)
    if verdict.status is Status.SKIPPED:
        return verdict, None
    width, height = values["image_size"]
    if not all(type(each) is int and 0 < each < 2**31 for each in (width, height)):
        raise ValueError(f"an image is {width} x {height}")
    if not isinstance(taken, str) or (taken and not KEPT.fullmatch(taken)):
        raise ValueError("a date is none")
    depth = Depth(**values["depth"]) if "depth" in values else None
    return verdict, SeenImage((width, height), _key(key), ELSEWHERE, b"", taken=taken, depth=depth)


def _key(value: Any) -> str:
    if not isinstance(value, str) or not HASH.fullmatch(value):
        raise ValueError("a picture has no key")
    return value

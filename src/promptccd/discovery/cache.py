"""What a project keeps to save work, and makes again if it is lost: features, thumbnails, looks at files, pictures.

``files.jsonl`` remembers the content of every file by size and time, so that it need not be opened again, and which
picture a content shows. ``features`` are packs of rows by the key of a picture, ``thumbs`` and ``pictures`` by the hash
of a content: the same picture may be turned otherwise in there.
"""

import base64
import contextlib
import hashlib
import itertools
import json
import logging
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save
from torch import Tensor

from promptccd.data.capture_dates import KEPT
from promptccd.data.depths import Depth
from promptccd.data.duplicates import MINIATURE_SIDE, SeenImage
from promptccd.data.file_names import display_name
from promptccd.data.images import Status, Verdict
from promptccd.data.picture_keys import is_edited_file_of
from promptccd.data.sources import Stamp
from promptccd.discovery.project.folder import FEATURES, FILES, PICTURES, THUMBS
from promptccd.discovery.project.places import LARGEST_LIST, keys_in
from promptccd.errors import PromptCCDError
from promptccd.storage import (
    append_to,
    make_folder,
    make_inside,
    plain_json,
    read_file,
    read_lines,
    refuse_links,
    write_file,
)

logger = logging.getLogger(__name__)

ROWS = 512  # in a file, so that rewriting one costs no more than a few megabytes
LARGEST_PACK = 64 * 2**20  # bytes
_DIGEST_BYTES = 32
_MOMENTS, _FOLLOWERS = "moments", "followers"  # the folders beside those of the features' spaces
_PACK = re.compile(r"\d{6}\.safetensors")
_DIGEST = re.compile("[0-9a-f]{64}")


class Packs:
    """Bytes by a hash, in numbered files of `ROWS` each, of which only the last is ever rewritten.

    The same content in the same order gives the same files, however often writing was interrupted. A damaged file is
    deleted, with a warning.

    Args:
        folder: made when something is added.
        name: of the folder inside it that holds the files.
    """

    def __init__(self, folder: Path, name: str):
        self._parent, self.folder = folder, folder / name
        self._numbers: dict[str, int] | None = None
        self._last, self._rows_in_last, self._stamp = -1, 0, -1  # of the index
        self._open: dict[int, tuple[Any, dict[str, tuple[int, int]]]] = {}  # files that `row` reads from

    def load(self, digests: Iterable[str]) -> dict[str, bytes]:
        """The stored rows of these digests; a link in the way is a `RunError`."""
        return dict(self.each(digests))

    def each(self, digests: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """The items of `load`, file by file, for callers without room for all of them twice."""
        wanted, numbers = set(digests), self._index()
        for number in sorted({numbers[each] for each in wanted if each in numbers}):
            yield from self._rows(number, wanted).items()

    def row(self, digest: str) -> bytes | None:
        """One row, unchecked and without reading the rest of its file: for pictures, which nothing is computed from."""
        # A page that is open does not follow what a discovery adds: reading the index anew takes longer than a picture.
        number = (self._index() if self._numbers is None else self._numbers).get(digest)
        if number is None:
            return None
        try:
            if number not in self._open:
                file = safe_open(self._path(number), framework="numpy")
                places = _places(file.get_tensor("digests"), file.get_tensor("ends"))
                self._open[number] = file.get_slice("content"), places
            content, places = self._open[number]
            start, end = places[digest]
            return bytes(content[start:end].tobytes())
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            return self._drop(self._path(number), error).get(digest)

    def add(self, rows: Mapping[str, bytes], alone: bool = False) -> None:
        """Add the rows that are not stored yet; if the disk refuses them, only log it.

        Args:
            rows: by digest.
            alone: delete all others.
        """
        try:
            if alone:
                self.discard(self._index().keys() - rows.keys())
            numbers = self._index()
            fresh = {digest: row for digest, row in rows.items() if digest not in numbers}
            if not fresh:
                return
            last = self._last
            if 0 < self._rows_in_last < ROWS:
                fresh = self._rows(last) | fresh
            else:
                last += 1
            make_inside(make_folder(self._parent), self.folder.name)
            items = list(fresh.items())
            for number, start in enumerate(range(0, len(items), ROWS), start=last):
                part = dict(items[start : start + ROWS])
                write_file(self._path(number), _packed(part))
                numbers.update(dict.fromkeys(part, number))
                self._last, self._rows_in_last = number, len(part)
                self._open.pop(number, None)
            self._stamp = self._stamped()
        except (OSError, PromptCCDError) as error:
            logger.warning(
                "What goes into %s could not be kept, and will be made again: %s", self.folder, error
            )

    def discard(self, digests: Iterable[str]) -> None:
        """Delete rows that are no longer right; those that are not stored are none."""
        wanted, numbers = set(digests), self._index()
        for number in sorted({numbers[each] for each in wanted if each in numbers}):
            left = {digest: row for digest, row in self._rows(number).items() if digest not in wanted}
            if left:
                write_file(self._path(number), _packed(left))
            else:
                self._path(number).unlink(missing_ok=True)
        self._numbers, self._open = None, {}

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"

    def _index(self) -> dict[str, int]:
        """The number of the file that each digest is in; read again only if somebody else has written since."""
        stamp = self._stamped()
        if self._numbers is None or stamp != self._stamp:
            numbers = dict[str, int]()
            self._open, self._last, self._rows_in_last = {}, -1, 0
            for path in sorted(self.folder.glob("*.safetensors")):
                if _PACK.fullmatch(path.name) and (digests := self._digests(path)):
                    self._last, self._rows_in_last = int(path.stem), len(digests)
                    numbers.update(dict.fromkeys(digests, self._last))
            self._numbers, self._stamp = numbers, self._stamped()
        return self._numbers

    def _stamped(self) -> int:
        """When a file was last put in, or taken out."""
        return self.folder.stat().st_mtime_ns if self.folder.is_dir() else -1

    def _digests(self, path: Path) -> list[str]:
        refuse_links(path.parent, [path.name])
        if not path.is_file():  # a pipe would be waited for
            return []
        try:
            if path.stat().st_size > LARGEST_PACK:
                raise ValueError(f"more than {LARGEST_PACK} bytes")
            with safe_open(path, framework="numpy") as file:
                return _hexadecimal(file.get_tensor("digests"))
        except (SafetensorError, OSError, ValueError) as error:
            return list(self._drop(path, error))

    def _rows(self, number: int, wanted: Container[str] | None = None) -> dict[str, bytes]:
        """The rows of a file, or those that are wanted."""
        path = self._path(number)
        try:
            tensors = load(read_file(path, LARGEST_PACK))
            if tensors["sum"].tobytes() != _sum(tensors):
                raise ValueError("its checksum differs")
            content = tensors["content"].data
            return {
                digest: bytes(content[start:end])
                for digest, (start, end) in _places(tensors["digests"], tensors["ends"]).items()
                if wanted is None or digest in wanted
            }
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            return self._drop(path, error)

    def _drop(self, path: Path, error: Exception) -> dict[str, bytes]:
        logger.warning("%s in %s is damaged and made again (%s).", path.name, self.folder, error)
        self._numbers = None
        with contextlib.suppress(OSError):
            path.unlink()
        return {}


def _packed(rows: Mapping[str, bytes]) -> bytes:
    digests = np.frombuffer(bytes.fromhex("".join(rows)), dtype=np.uint8).reshape(-1, _DIGEST_BYTES)
    tensors: dict[str, np.ndarray] = {
        "digests": digests,
        "ends": np.cumsum([len(row) for row in rows.values()], dtype=np.int64),
        "content": np.frombuffer(b"".join(rows.values()), dtype=np.uint8),
    }
    return save({**tensors, "sum": np.frombuffer(_sum(tensors), dtype=np.uint8)})


def _sum(tensors: Mapping[str, np.ndarray]) -> bytes:
    digest = hashlib.sha256()
    for name in ("digests", "ends", "content"):
        digest.update(tensors[name].tobytes())
    return digest.digest()


def _places(digests: np.ndarray, ends: np.ndarray) -> dict[str, tuple[int, int]]:
    """Start and end of each row in the content, by digest."""
    return dict(zip(_hexadecimal(digests), itertools.pairwise([0, *ends.tolist()]), strict=True))


def _hexadecimal(digests: np.ndarray) -> list[str]:
    if digests.ndim != 2 or digests.shape[1] != _DIGEST_BYTES or digests.dtype != np.uint8:
        raise ValueError(f"digests are {digests.dtype} {digests.shape}")
    return [bytes(row).hex() for row in digests]


class FeatureCache:
    """Features on disk; lost or damaged ones are missing, and the caller computes them again.

    Args:
        folder: holds them; made when something is stored.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder, self._packs = Path(folder), dict[str, Packs]()

    def _of(self, space: str) -> Packs:
        return self._packs.setdefault(space, Packs(self.folder, space))

    def load(self, space: str, hashes: Iterable[str]) -> dict[str, Tensor]:
        """Features ``(D,)`` float32 by key of the picture, of those that have one stored.

        Args:
            space: name of what they were computed with, see `feature_space`.
            hashes: keys of the pictures.

        Raises:
            RunError: a link stands in the way.
        """
        return dict(self.each(space, hashes))

    def each(self, space: str, hashes: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """The items of `load`, one by one."""
        for digest, row in self._of(space).each(hashes):
            if row and len(row) % 4 == 0:
                yield digest, torch.frombuffer(bytearray(row), dtype=torch.float32)

    def store(self, space: str, hashes: Sequence[str], features: Tensor) -> None:
        """Store features ``(N, D)`` of pictures with these keys; if the disk refuses them, only log it."""
        rows = features.detach().float().cpu().contiguous().numpy()
        self._of(space).add({digest: row.tobytes() for digest, row in zip(hashes, rows, strict=True)})

    def moments(self, of: str, count: int) -> np.ndarray | None:
        """``(N,)`` moments as `find_moments` gave them; `None` if they are not stored.

        Args:
            of: SHA-256 of all that it was given.
            count: N.
        """
        moments = np.frombuffer(self._of(_MOMENTS).load([of]).get(of, b""), np.uint32)
        found = moments.astype(np.int64)
        fits = len(found) == count and bool((found <= np.arange(count)).all())
        return found if fits and bool((found[found] == found).all()) else None

    def store_moments(self, of: str, moments: np.ndarray) -> None:
        """Store moments in place of those that were stored before; if the disk refuses them, only log it."""
        self._of(_MOMENTS).add({of: moments.astype(np.uint32).tobytes()}, alone=True)

    def store_followers(self, firsts: Mapping[str, str]) -> None:
        """Remember, by picture, the first one of its moment, where it is another; if the disk refuses, only log it."""
        self._of(_FOLLOWERS).add({key: first.encode() for key, first in firsts.items()})

    def followers(self, keys: Iterable[str]) -> dict[str, str]:
        """The first picture of its moment, by key, of those of the pictures that were not that themselves."""
        return {key: first.decode() for key, first in self._of(_FOLLOWERS).each(keys)}


Look = tuple[Verdict, SeenImage | None]  # the result of decoding a file
FORMAT = 1  # of the list of files
_LONGEST = 4096  # characters of a note


class SeenFiles:
    """Remembers files that were read before, in ``files.jsonl``, and thumbnails of their pictures in ``thumbs``.

    A line holds the content hash of a path, or the look at a new content. Later lines overrule earlier ones.

    Args:
        project: the folder.
        made_with: settings of the decoder; of a list made with others only the keys of pictures are used.
    """

    def __init__(self, project: Path, made_with: Mapping[str, int]):
        self._project = project
        self._path, self._thumbs = project / FILES, Packs(project, THUMBS)
        self._header = plain_json({"format": FORMAT, **made_with}) + b"\n"
        self._contents: dict[str, tuple[Stamp, str]] = {}
        self._looks: dict[str, Look] = {}
        self._inherited: dict[str, str] = {}  # keys that other settings gave to contents
        self._fresh, self._fresh_thumbs = list[bytes](), dict[str, bytes]()
        lines, self._end = read_lines(self._path, LARGEST_LIST)
        try:
            if lines and lines[0] + b"\n" != self._header:
                self._inherited = keys_in(lines)
                raise ValueError("it is of another format or for another model")
            for line in lines[1:]:
                self._take(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            logger.warning(
                "%s is not gone on with, and files are read again (%s).", self._path, str(error)[:100]
            )
            self._contents, self._looks, self._end = {}, {}, 0

    def _take(self, values: dict[str, Any]) -> None:
        digest = values["sha256"]
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ValueError("a hash is none")
        if (look := values.get("look")) is not None:
            self._looks[digest] = _read_look(look, values.get("picture", ""), values.get("taken", ""))
        if digest not in self._looks:
            raise ValueError(f"nothing is said of {digest[:12]}")
        if "path" in values:
            stamp = Stamp(*(values[item.name] for item in fields(Stamp)))
            if [type(value) for value in astuple(stamp)] != [str, int, int, int, int]:
                raise ValueError("a file is described by other kinds of values")
            self._contents[stamp.path] = stamp, digest

    def content_of(self, stamp: Stamp) -> str:
        """The content hash of a file that was read and has not changed since; otherwise empty."""
        before, digest = self._contents.get(stamp.path, (None, ""))
        return digest if before is not None and stamp.is_unchanged(before) else ""

    def held_by(self, path: str) -> str:
        """The content hash of the file that was read at a path, whatever it holds now; empty if there was none."""
        return self._contents.get(path, (None, ""))[1]

    def look(self, digest: str) -> Look | None:
        """The look at a content, without thumbnail and view; `None` if the content is new."""
        return self._looks.get(digest)

    def key_of(self, digest: str, path: str, image: SeenImage) -> str:
        """What the picture of a content is known by: what it was known by before, also with other settings.

        Args:
            digest: hash of the content.
            path: of its file, which may have held the same picture otherwise; empty if there is no file.
            image: the look at the content.
        """
        if digest in self._inherited:
            return self._inherited[digest]
        _, before = self._looks.get(self.held_by(path), (None, None))
        if before is None or before.key == image.key:
            return image.key
        was, now = ((each.size, each.miniature) for each in (before, image))
        return before.key if is_edited_file_of(was, now) else image.key

    def add_look(self, digest: str, look: Look) -> None:
        """Keep the look at a content, unless there is one."""
        if digest not in self._looks:
            self._keep(digest, look)

    def replace_looks(self, looks: Mapping[str, Look]) -> None:
        """Keep other looks at contents that were shown otherwise, and forget what was made of them before."""
        if not looks:
            return
        self.flush()
        keys = [image.key for _, image in looks.values() if image is not None]
        self._thumbs.discard(looks)
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
        values: dict[str, Any] = {"status": verdict.status.value, "note": verdict.note}
        known: dict[str, Any] = {"sha256": digest}
        if image is not None:
            self._fresh_thumbs[digest] = image.thumbnail
            values |= {
                "image_size": list(image.size),
                "miniature": base64.b64encode(image.miniature.tobytes()).decode(),
            }
            if image.depth is not None:
                values["depth"] = asdict(image.depth)
            known["picture"] = image.key
            if image.taken:
                known["taken"] = image.taken
            image = replace(image, thumbnail=b"", view=None)
        self._looks[digest] = verdict, image
        self._append({"look": values, **known})

    def add(self, stamp: Stamp, digest: str) -> None:
        """Keep the content hash of a file; the look at that content must be there."""
        if self._contents.get(stamp.path) != (stamp, digest):
            self._contents[stamp.path] = stamp, digest
            self._append({**asdict(stamp), "sha256": digest})

    def forget(self, path: str) -> None:
        """Read a file again the next time, because it does not hold what it seemed to."""
        if path in self._contents:
            stamp, digest = self._contents[path]
            self.add(replace(stamp, size=-1), digest)
            self.flush()

    def _append(self, values: Mapping[str, Any]) -> None:
        self._fresh.append(plain_json(values) + b"\n")
        if len(self._fresh_thumbs) >= ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what was added; if the disk refuses it, only log it."""
        self._thumbs.add(self._fresh_thumbs)
        self._fresh_thumbs = {}
        lines = b"".join([self._header] * (not self._end) + self._fresh) if self._fresh else b""
        self._fresh = []
        try:
            if lines:
                append_to(self._path, self._end, lines)
                self._end += len(lines)
        except PromptCCDError as error:
            logger.warning("What was seen of files could not be kept, and they will be read again: %s", error)

    def thumbnails(self, digests: Sequence[str]) -> dict[str, bytes]:
        """Thumbnails of contents; lost ones are missing."""
        return self._thumbs.load(digests)

    def add_thumbnails(self, made: Mapping[str, bytes]) -> None:
        """Keep thumbnails that were made again."""
        self._thumbs.add(made)


def _read_look(values: Mapping[str, Any], key: Any, taken: Any) -> Look:
    """The look at a content, from values that a stranger may have written.

    Args:
        values: of the look.
        key: of the picture.
        taken: when it was taken.

    Raises:
        ValueError: they are not valid.
    """
    note = values["note"]
    if not isinstance(note, str) or len(note) > _LONGEST or note != display_name(note):
        raise ValueError("a note is no text on one line")
    verdict = Verdict(Status(values["status"]), note)
    if verdict.status is Status.SKIPPED:
        return verdict, None
    width, height = values["image_size"]
    pixels = base64.b64decode(values["miniature"], validate=True)
    if not all(type(each) is int and 0 < each < 2**31 for each in (width, height)):
        raise ValueError(f"an image is {width} x {height}")
    if not isinstance(key, str) or not _DIGEST.fullmatch(key):
        raise ValueError("a picture has no key")
    if not isinstance(taken, str) or (taken and not KEPT.fullmatch(taken)):
        raise ValueError("a date is none")
    miniature = np.frombuffer(pixels, dtype=np.uint8).reshape(MINIATURE_SIDE, MINIATURE_SIDE)
    depth = Depth.from_dict(values["depth"]) if "depth" in values else None
    return verdict, SeenImage((width, height), key, miniature, b"", taken=taken, depth=depth)

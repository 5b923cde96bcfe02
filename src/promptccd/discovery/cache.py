"""What a project keeps to save work, and makes again if it is lost: features, thumbnails, looks at files, pictures.

``features`` are packs of rows by the key of a picture, ``thumbs``, ``miniatures`` and ``pictures`` by the hash of a
content: the same picture may be turned otherwise in there. See also `promptccd.discovery.seen_files`.
"""

import contextlib
import itertools
import logging
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from promptccd.columns import hash_column, hashes_in, sealed, unsealed
from promptccd.disk import make_folder, make_inside, read_file, refuse_links, write_file
from promptccd.errors import PromptCCDError

logger = logging.getLogger(__name__)

ROWS = 512  # in a file, so that rewriting one costs no more than a few megabytes
LARGEST_PACK = 64 * 2**20  # bytes
_MOMENTS, _FOLLOWERS = "moments", "followers"  # the folders beside those of the features' spaces
_PACK, _COLUMNS = re.compile(r"\d{6}\.safetensors"), ("digests", "ends", "content")


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

    def __contains__(self, digest: str) -> bool:
        return digest in self._index()

    def row(self, digest: str) -> bytes | None:
        """One row, unchecked and without reading the rest of its file: for pictures, which nothing is computed from."""
        # A page that is open does not follow what a discovery adds: reading the index anew takes longer than a picture.
        number = (self._index() if self._numbers is None else self._numbers).get(digest)
        if number is None:
            return None
        try:
            opened = self._open.get(number)
            if opened is None:
                file = safe_open(self._path(number), framework="numpy")
                places = _places(file.get_tensor("digests"), file.get_tensor("ends"))
                opened = file.get_slice("content"), places
                if number != self._last:  # Windows lets nobody replace a file that is mapped
                    self._open[number] = opened
            content, places = opened
            if digest not in places:  # somebody took it away since the index was read
                self._numbers = None
                return None
            start, end = places[digest]
            return bytes(content[start:end].tobytes())
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
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
                return hashes_in(file.get_tensor("digests"))
        except (SafetensorError, OSError, ValueError) as error:
            return list(self._drop(path, error))

    def _rows(self, number: int, wanted: Container[str] | None = None) -> dict[str, bytes]:
        """The rows of a file, or those that are wanted."""
        path = self._path(number)
        try:
            tensors = unsealed(read_file(path, LARGEST_PACK), _COLUMNS)
            content = tensors["content"].data
            return {
                digest: bytes(content[start:end])
                for digest, (start, end) in _places(tensors["digests"], tensors["ends"]).items()
                if wanted is None or digest in wanted
            }
        except (OSError, ValueError, TypeError) as error:
            return self._drop(path, error)

    def _drop(self, path: Path, error: Exception) -> dict[str, bytes]:
        logger.warning("%s in %s is damaged and made again (%s).", path.name, self.folder, error)
        self._numbers = None
        with contextlib.suppress(OSError):
            path.unlink()
        return {}


def _packed(rows: Mapping[str, bytes]) -> bytes:
    ends = np.cumsum([len(row) for row in rows.values()], dtype=np.int64)
    content = np.frombuffer(b"".join(rows.values()), dtype=np.uint8)
    return sealed({"digests": hash_column([*rows]), "ends": ends, "content": content}, _COLUMNS)


def _places(digests: np.ndarray, ends: np.ndarray) -> dict[str, tuple[int, int]]:
    """Start and end of each row in the content, by digest."""
    return dict(zip(hashes_in(digests), itertools.pairwise([0, *ends.tolist()]), strict=True))


class FeatureCache:
    """Features on disk; lost or damaged ones are missing, and the caller computes them again.

    Args:
        folder: holds them; made when something is stored.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder, self._packs = Path(folder), dict[str, Packs]()

    def _of(self, space: str) -> Packs:
        return self._packs.setdefault(space, Packs(self.folder, space))

    def holds(self, space: str, key: str) -> bool:
        """Whether a feature of this picture is stored."""
        return key in self._of(space)

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

    def take_over(self, other: "FeatureCache", keys: Mapping[str, str]) -> None:
        """Store what another cache holds and this one does not.

        Args:
            other: the other.
            keys: of pictures here, by those there; others are left out.
        """
        for folder in other.folder.glob("*"):
            rows = other._of(folder.name).each(keys)
            self._of(folder.name).add({keys[key]: row for key, row in rows})

    def moments(self, of: str, count: int) -> np.ndarray | None:
        """``(N,)`` moments as `find_near_duplicates` gave them; `None` if they are not stored.

        Args:
            of: SHA-256 of all that it was given.
            count: N.
        """
        row = self._of(_MOMENTS).load([of]).get(of, b"")
        found = np.frombuffer(row[: len(row) // 4 * 4], np.uint32).astype(np.int64)
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
        return {key: first.decode(errors="replace") for key, first in self._of(_FOLLOWERS).each(keys)}

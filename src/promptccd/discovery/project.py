"""What `discover` keeps beside its results: one folder, ``.promptccd``, with one writer.

``project.json`` says what all was made with. ``registry.json``, ``registry.safetensors`` and ``journal.jsonl`` hold the
categories and every correction, ``before`` those from before the newest stage. ``features`` can be computed again, and
are where a file of them is lost or damaged.
"""

import contextlib
import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from promptccd.errors import PromptCCDError
from promptccd.registry import JOURNAL, PROTOTYPES, REGISTRY
from promptccd.storage import (
    make_folder,
    make_inside,
    read_file,
    refuse_links,
    remove_leftovers,
    write_file,
)

logger = logging.getLogger(__name__)

PROJECT = ".promptccd"
RECORD, BEFORE, FEATURES = "project.json", "before", "features"


def open_project(out: Path) -> Path:
    """The folder that everything is kept in, made if it is not there.

    Args:
        out: that of the results; must exist.

    Raises:
        RunError: a link stands under a name that will be written.
        DiskError: it cannot be made.
    """
    project = make_inside(out, PROJECT)
    refuse_links(project, [RECORD, BEFORE, FEATURES, REGISTRY, PROTOTYPES, JOURNAL])
    return project


def clear_leftovers(project: Path) -> None:
    """Delete what a killed writer left; only for who holds the lock."""
    for place in (project, project / BEFORE, *project.glob(f"{FEATURES}/*")):
        if not place.is_symlink():
            remove_leftovers(place)


ROWS = 512  # in a file, so that a new one costs no more than a few megabytes
LARGEST_PACK = 64 * 2**20  # bytes
_DIGEST_BYTES = 32
_PACK = re.compile(r"\d{6}\.safetensors")


class Packs:
    """Bytes by content hash, in numbered files of `ROWS` each, of which only the last is ever written again.

    The same content in the same order gives the same files, however often it was interrupted. A file that is damaged is
    deleted, and said to be.

    Args:
        folder: made when something is added.
        name: of the folder in it that the files are in.
    """

    def __init__(self, folder: Path, name: str):
        self._parent, self.folder = folder, folder / name
        self._numbers: dict[str, int] | None = None

    def load(self, digests: Iterable[str]) -> dict[str, bytes]:
        """What is there of what is asked for.

        Raises:
            RunError: a link stands in the way.
        """
        wanted, numbers = set(digests), self._index()
        found: dict[str, bytes] = {}
        for number in sorted({numbers[each] for each in wanted if each in numbers}):
            found |= {digest: row for digest, row in self._rows(number).items() if digest in wanted}
        return found

    def add(self, rows: Mapping[str, bytes]) -> None:
        """Add what is not there yet; a disk that refuses it is only logged."""
        try:
            numbers = self._index()
            fresh = {digest: row for digest, row in rows.items() if digest not in numbers}
            last = max(numbers.values(), default=-1)
            counted = sum(number == last for number in numbers.values())
            if 0 < counted < ROWS:
                fresh = self._rows(last) | fresh
            else:
                last += 1
            make_inside(make_folder(self._parent), self.folder.name)
            items = list(fresh.items())
            for number, start in enumerate(range(0, len(items), ROWS), start=last):
                part = dict(items[start : start + ROWS])
                write_file(self._path(number), _packed(part))
                numbers |= dict.fromkeys(part, number)
        except (OSError, PromptCCDError) as error:
            logger.warning("%s could not be kept, and will be made again: %s", self.folder.name, error)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"

    def _index(self) -> dict[str, int]:
        """The number of the file that each digest is in."""
        if self._numbers is None:
            self._numbers = {}
            for path in sorted(self.folder.glob("*.safetensors")):
                if _PACK.fullmatch(path.name):
                    self._numbers |= dict.fromkeys(self._digests(path), int(path.stem))
        return self._numbers

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

    def _rows(self, number: int) -> dict[str, bytes]:
        path = self._path(number)
        try:
            tensors = load(read_file(path, LARGEST_PACK))
            if bytes(tensors.pop("sha256")) != _checksum(tensors):
                raise ValueError("its checksum differs")
            ends, content = tensors["ends"].tolist(), tensors["content"].tobytes()
            pairs = zip([0, *ends], ends, strict=False)
            rows = [content[start:end] for start, end in pairs]
            return dict(zip(_hexadecimal(tensors["digests"]), rows, strict=True))
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            return self._drop(path, error)

    def _drop(self, path: Path, error: Exception) -> dict[str, bytes]:
        logger.warning("%s in %s is damaged and made again (%s).", path.name, self.folder, error)
        if self._numbers is not None:
            number = int(path.stem)
            self._numbers = {digest: each for digest, each in self._numbers.items() if each != number}
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
    return save({**tensors, "sha256": np.frombuffer(_checksum(tensors), dtype=np.uint8)})


def _checksum(tensors: Mapping[str, np.ndarray]) -> bytes:
    digest = hashlib.sha256()
    for name in ("digests", "ends", "content"):
        digest.update(np.ascontiguousarray(tensors[name]).data)
    return digest.digest()


def _hexadecimal(digests: np.ndarray) -> list[str]:
    if digests.ndim != 2 or digests.shape[1] != _DIGEST_BYTES or digests.dtype != np.uint8:
        raise ValueError(f"digests are {digests.dtype} {digests.shape}")
    return [bytes(row).hex() for row in digests]

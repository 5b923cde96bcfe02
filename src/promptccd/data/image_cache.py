"""Every image looked at once, and what its views are cut from kept, on disk for all who train on it.

An image is kept as it was decoded, or resized to where views are cut, whichever is smaller; not at all if both are much
larger than all its views (panoramas). Views of what is kept equal those of the image, byte for byte. Some hundred
images make a part, a folder that is there whole or not at all and is named after what its images are known by. So
processes share the work and the result without talking to each other: who wants a part makes it if nobody else does. A
flat file of pixels, because images differ in size: they are used where they lie, mapped into memory; Arrow would copy.
"""

import errno
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import datasets
import numpy as np
from PIL import Image, features
from PIL import __version__ as pillow_version
from torch.utils.data import DataLoader, Dataset

from promptccd import storage, system
from promptccd.data.duplicates import digest_of
from promptccd.data.image_rows import ImageRows
from promptccd.data.loaders import Progress, loader_options
from promptccd.data.stages import Stage
from promptccd.data.view_options import ViewOptions
from promptccd.data.views import ResizedImage, resized_size
from promptccd.errors import ConfigurationError, DiskError, PromptCCDError, RunError
from promptccd.images.decode import MAX_ASPECT, DecodedImage, Status, Verdict
from promptccd.images.heif import heif_plugin

logger = logging.getLogger(__name__)

FORMAT = 1  # of parts, and of the functions that make what they hold
PART = 512  # images
AT_ONCE = 16  # images of a loader process: a signal waits for as many, .1 s each where they are large
DECODED = (
    2  # times the pixels of all views: 16:9 of 500 pixels is too long to resize as a whole, and small enough
)
MEMORY_BYTES = 2**30  # kept of a stage, where nothing can be kept on disk # mutant: memory alone
SHARE = 0.5  # of the free space that the parts which are missing may take
# What a disk says where a computer that does not share our locks put the same part into its place, or took our half.
_ANOTHER_WRITES = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
WAIT_S = 0.05  # between looks at parts that other processes make # mutant: a moment either way
PIXELS, IMAGES = "pixels", "images.json"  # of a part


class Kept(NamedTuple):
    """What views of an image are cut from.

    Attributes:
        pixels: ``(H, W, 3)`` uint8.
        is_resized: whether they are those of the image resized, or as it was decoded.
    """

    pixels: np.ndarray
    is_resized: bool


class CheckedImage(NamedTuple):
    """What is known of an image after it was decoded once.

    Attributes:
        verdict: whether it can be used.
        digest: what its picture is known by; empty if it cannot be used.
        kept: what its views are cut from; `None` if that is much larger than them, or it cannot be used.
    """

    verdict: Verdict
    digest: bytes
    kept: Kept | None = None


class Decodes(Protocol):
    """Images by number: a stage, or rows of a table."""

    def __len__(self) -> int: ...

    def decode(self, row: int, /) -> DecodedImage:
        """The image of a number, or why it cannot be used."""
        ...


def kept_of(image: Image.Image, views: ViewOptions) -> Kept | None:
    """What is kept of a decoded image."""
    size = resized_size(image.size, views.resize_size)
    is_strip = max(image.size) > MAX_ASPECT * min(
        image.size
    )  # of which the fixed view takes the middle first
    if prod(size) < prod(image.size) and prod(size) <= views.budget and not is_strip:
        return Kept(ResizedImage.of(image, views.resize_size).pixels, True)
    return Kept(np.asarray(image), False) if prod(image.size) <= DECODED * views.budget else None


class _Checking(Dataset):
    """Every image decoded and checked; in loader processes, if there are any."""

    def __init__(self, images: Decodes, views: ViewOptions | None):
        self.images, self.views = images, views

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> CheckedImage:
        decoded = self.images.decode(row)
        if decoded.image is None:
            return CheckedImage(decoded.verdict, b"")
        kept = None if self.views is None else kept_of(decoded.image, self.views)
        return CheckedImage(decoded.verdict, digest_of(np.asarray(decoded.image)), kept)


class CheckedStage(Protocol):
    """The images of a stage, in order: whether each can be used, and what its picture is known by."""

    def __iter__(self) -> Iterator[tuple[Verdict, bytes]]: ...

    def kept(self, position: int) -> Kept | None:
        """What is kept of the image at a position; `None` to decode it again."""
        ...


class InMemory:
    """Looks at every image of a stage when it is iterated, and keeps what fits into memory."""

    def __init__(self, stage: Stage, views: ViewOptions | None, num_workers: int | None, progress: Progress):
        self._stage, self._views, self._workers, self._progress = stage, views, num_workers, progress
        self._kept: dict[int, Kept] = {}

    def __iter__(self) -> Iterator[tuple[Verdict, bytes]]:
        images = _Checking(self._stage, self._views)
        loader = DataLoader(images, AT_ONCE, collate_fn=list, **loader_options(self._workers))
        batches = self._progress(loader, len(loader), f"stage {self._stage.index}: reading images")
        room = MEMORY_BYTES
        for position, (verdict, digest, kept) in enumerate(chain.from_iterable(batches)):
            if kept is not None and kept.pixels.nbytes <= room:
                room -= kept.pixels.nbytes
                self._kept[position] = kept
            yield verdict, digest

    def kept(self, position: int) -> Kept | None:
        """What is kept of the image at a position."""
        return self._kept.get(position)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_progress": None}  # a loader process looks at nothing


@dataclass(frozen=True)
class _Part:
    """Images that lie beside each other on disk."""

    folder: Path
    rows: range

    def read(self, tell: bool = True) -> "_Images | None":
        """The images, if the part is there and whole; a damaged one is named, unless that was done."""
        try:
            if not self.folder.is_dir():
                return None
            linked = [f"{name} is a link" for name in storage.links_in(self.folder)]
            problems = linked or storage.problems_of(self.folder)
            if not problems:
                return _Images.read(self.folder)
        except (OSError, ValueError, TypeError, KeyError, PromptCCDError) as error:
            problems = [str(error)]
        if tell:
            logger.warning(
                "%s holds no images any more (%s): they are read again.", self.folder, "; ".join(problems)
            )
        return None

    def write(self, images: Sequence[CheckedImage]) -> None:
        """Write the images; raises a `DiskError` where they cannot be."""

        def fill(staging: Path) -> None:
            with (staging / PIXELS).open("wb") as stream:
                for each in images:
                    if each.kept is not None:
                        stream.write(each.kept.pixels.tobytes())
            records = [
                {
                    "status": verdict.status, "note": verdict.note, "digest": digest.hex(),
                    "size": None if kept is None else kept.pixels.shape[:2],
                    "resized": kept is not None and kept.is_resized,
                }
                for verdict, digest, kept in images
            ]  # fmt: skip
            storage.write_json(staging / IMAGES, records)

        storage.remove(self.folder)  # a damaged one
        storage.write_directory(self.folder, fill, needed=_bytes_of(images))


def _bytes_of(images: Iterable[CheckedImage]) -> int:
    return sum(0 if each.kept is None else each.kept.pixels.nbytes for each in images)


class _Images:
    """The images of a part, their pixels mapped into memory when the first of them is asked for."""

    def __init__(self, folder: Path, records: Sequence[Mapping[str, Any]]):
        self._file = folder / PIXELS
        # mutant 0 to 1, 0 to 1 #2: of what is not kept
        self._sizes = np.array([each["size"] or (0, 0) for each in records], dtype=np.int64).reshape(-1, 2)
        self._resized = np.array([each["resized"] for each in records], dtype=bool)
        self._starts = np.concatenate([[0], np.cumsum(3 * self._sizes.prod(1))])
        self.verdicts = [Verdict(Status(each["status"]), str(each["note"])) for each in records]
        self.digests = [bytes.fromhex(each["digest"]) for each in records]
        self._pixels: np.ndarray | None = None

    @classmethod
    def read(cls, folder: Path) -> "_Images":
        """Those in a folder; a `ValueError` if they are not as they were written."""
        found = cls(folder, json.loads((folder / IMAGES).read_bytes()))
        if found.num_bytes != (folder / PIXELS).stat().st_size:
            raise ValueError(f"{PIXELS} has another size than {IMAGES} says")
        return found

    @property
    def num_bytes(self) -> int:
        """Bytes of all pixels."""
        return int(self._starts[-1])

    def kept(self, place: int) -> Kept | None:
        """What is kept of an image; `None` also if the part was taken away since."""
        if not (size := self._sizes[place]).all():
            return None
        if self._pixels is None:
            try:
                self._pixels = np.asarray(np.memmap(self._file, np.uint8, "r"))
            except OSError:
                return None
        pixels = self._pixels[self._starts[place] : self._starts[place + 1]]
        return Kept(pixels.reshape(*size, 3), bool(self._resized[place]))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_pixels": None}  # a loader process maps the file anew


class OnDisk:
    """The images of a stage, of which all is kept on disk that is kept."""

    def __init__(self, stage: Stage, parts: "Sequence[_Images]"):
        self._stage, self._parts = stage, parts

    def __iter__(self) -> Iterator[tuple[Verdict, bytes]]:
        for position, row in enumerate(self._stage.images.rows.tolist()):
            part, place = self._parts[row // PART], row % PART
            if part.verdicts[place].status is Status.SKIPPED:  # which may have passed, like a lack of memory
                verdict, digest, _ = _Checking(self._stage, None)[position]
                yield verdict, digest
            else:
                yield part.verdicts[place], part.digests[place]

    def kept(self, position: int) -> Kept | None:
        """What is kept of the image at a position."""
        row = int(self._stage.images.rows[position])
        return self._parts[row // PART].kept(row % PART)


class ImageCache:
    """What views are cut from, for all images that a training will see.

    Args:
        views: that will be cut; `None` to keep nothing.
        folder: where it is kept; `None` to keep it in memory, as far as that goes.
    """

    def __init__(self, views: ViewOptions | None, folder: Path | None = None):
        self._views, self._folder = views, folder
        self._opened: dict[int, tuple[ImageRows, list[_Images]]] = {}  # by id of the table, which is held

    @classmethod
    def at(cls, place: str, views: ViewOptions) -> "ImageCache":
        """The cache at a place as recipes name it: ``auto``, ``off`` or a folder."""
        folder = Path(datasets.config.HF_DATASETS_CACHE) / "promptccd" if place == "auto" else Path(place)
        return cls(views, None if place == "off" else folder.expanduser())

    def of(self, stage: Stage, num_workers: int | None, progress: Progress) -> CheckedStage:
        """The images of a stage, each of which was looked at, or will be when the answer is iterated."""
        if self._folder is not None:
            try:
                return OnDisk(stage, self._opened_parts(stage.images.whole, num_workers, progress))
            except (DiskError, RunError, OSError) as error:
                logger.warning(
                    "%s Until then images are kept in memory where they fit, and otherwise decoded again for every "
                    "view: --image_cache names another folder.", error,
                )  # fmt: skip
                self._folder = None
        return InMemory(stage, self._views, num_workers, progress)

    def make(self, stages: Iterable[Stage], num_workers: int | None, progress: Progress) -> dict[str, Any]:
        """Look at the images of all stages now; returns where they are kept, how many and how large, as JSON types.

        Raises:
            ConfigurationError: nothing is to be kept on disk.
            DiskError: there is no room, or nothing can be written there.
            RunError: a link stands in the way.
        """
        if self._folder is None:
            raise ConfigurationError("image_cache is off, so nothing is kept: give a folder, or auto.")
        tables = {id(stage.images.whole): stage.images.whole for stage in stages}
        parts = [self._opened_parts(images, num_workers, progress) for images in tables.values()]
        return {
            "folder": str(self._folder),
            "images": sum(map(len, tables.values())),
            "bytes": sum(each.num_bytes for each in chain.from_iterable(parts)),
        }

    def _opened_parts(
        self, images: ImageRows, num_workers: int | None, progress: Progress
    ) -> "list[_Images]":
        """All images of a table, by part; what is missing on disk is made first, or waited for."""
        if id(images) in self._opened:
            return self._opened[id(images)][1]
        assert self._folder is not None and self._views is not None
        started, parts = time.monotonic(), self._parts_of(images)
        bar = progress(parts, len(parts), "images that are kept")
        found: dict[_Part, _Images | None] = {part: part.read() for part in bar}
        if missing := sum(len(part.rows) for part, there in found.items() if there is None):
            storage.make_folder(self._folder)
            logger.info(
                "%d images are read, and copies that views are cut from kept in %s.", missing, self._folder
            )
            _Making(self._folder, images, self._views, found).run(num_workers, progress)
        there = [each for each in found.values() if each is not None]
        size = storage.readable_size(sum(each.num_bytes for each in there))
        logger.info(
            "%d images are kept in %s (%s), %d of them new; that took %.0f s.",
            len(images), self._folder, size, missing, time.monotonic() - started,
        )  # fmt: skip
        self._opened[id(images)] = images, there
        return there

    def _parts_of(self, images: ImageRows) -> list[_Part]:
        assert self._folder is not None and self._views is not None
        made_as = (FORMAT, self._views.resize_size, self._views.budget, images.decoding, _decoders())
        known, parts = list(images.known_by()), []
        for first in range(0, len(known), PART):
            rows = range(first, min(first + PART, len(known)))
            # mutant without digest_size=, 16 to 17, 16 to 15: of any length
            digest = hashlib.blake2b(repr(made_as).encode(), digest_size=16)
            for row in rows:
                digest.update(b"%d " % len(known[row]) + known[row])
            parts.append(_Part(self._folder / digest.hexdigest(), rows))
        return parts


@cache
def _decoders() -> tuple[str, ...]:
    """What decodes and resizes, by version: another one may give other pixels."""
    named = ("jpg", "webp", "avif", "libtiff", "littlecms2")
    heif = heif_plugin() and sys.modules[heif_plugin().__module__.partition(".")[0]]
    return (
        pillow_version,
        *(str(features.version(each)) for each in named),
        str(getattr(heif, "__version__", heif)),
    )


class _Making:
    """Makes the parts that are missing, together with other processes that miss them too."""

    def __init__(
        self, folder: Path, images: ImageRows, views: ViewOptions, found: dict[_Part, _Images | None]
    ):
        self._folder, self._images, self._views, self._found = folder, images, views, found
        self._mine: list[tuple[_Part, int]] = []  # parts that this process makes, in order, and their locks
        self._lost: set[_Part] = (
            set()
        )  # that another computer wrote at the same time, and are looked for again

    @property
    def _missing(self) -> list[_Part]:
        return [part for part, there in self._found.items() if there is None]

    def run(self, num_workers: int | None, progress: Progress) -> None:
        """Come back when no part is missing."""
        total = sum(-(-len(part.rows) // AT_ONCE) for part in self._missing)
        loader = DataLoader(
            _Checking(self._images, self._views),
            batch_sampler=self._batches(),
            collate_fn=list,
            **loader_options(num_workers),
        )
        read: list[CheckedImage] = []
        try:
            for batch in progress(loader, total, f"reading images, {AT_ONCE} at a time"):
                read += batch
                while self._mine and len(read) >= (count := len(self._mine[0][0].rows)):
                    self._write(read[:count])
                    read = read[count:]
        finally:
            for _, lock in self._mine:
                os.close(lock)

    def _batches(self) -> Iterator[list[int]]:
        """Numbers of images that nobody else reads; empty batches while others do, so that a signal is noticed."""
        while missing := self._missing:
            taken = {part for part, _ in self._mine}
            for part in missing:
                if part in taken or (lock := self._lock(part)) is None:
                    continue
                if (there := part.read(tell=False)) is not None:  # since we looked
                    os.close(lock)
                    self._found[part] = there
                    continue
                self._mine.append((part, lock))
                for first in range(0, len(part.rows), AT_ONCE):
                    yield list(part.rows[first : first + AT_ONCE])
            if self._missing:
                time.sleep(WAIT_S)
                yield []

    def _lock(self, part: _Part) -> int | None:
        """A lock for a part, to close; `None` where another process holds it."""
        descriptor = storage.open_to_change(self._folder / f".lock-{part.folder.name[:2]}")
        try:
            if system.has_locked(descriptor):
                for killed in self._folder.glob(f"{storage.TEMPORARY}{part.folder.name}-*"):
                    storage.remove(killed)  # what a process wrote that does not hold the lock any more
                return descriptor
        except OSError:  # a disk without locks: each process makes what it misses
            return descriptor
        os.close(descriptor)
        return None

    def _write(self, images: Sequence[CheckedImage]) -> None:
        """Write the first part of ours, if there is room for all that are missing."""
        part, lock = self._mine[0]
        needed = round(_bytes_of(images) * len(self._missing) / SHARE)
        storage.require_space(self._folder, needed, "copies of images, which may take half of what is free")
        try:
            if (there := part.read(tell=False)) is None:
                part.write(images)
        except OSError as error:
            if error.errno not in _ANOTHER_WRITES or part in self._lost:
                raise
            self._lost.add(
                part
            )  # once: who knows nothing of our locks is at work there, and may be done by now
        self._found[part] = there or part.read(tell=False)
        del self._mine[0]
        os.close(lock)

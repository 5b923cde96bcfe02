"""Copies of images at the size that views are cut from, made once and mapped into memory by every process.

Every image, whatever its size, is decoded once: its verdict, a digest of its pixels and its pixels resized are stored,
and no epoch decodes or resizes an image. `PART` images are one Arrow file, named by a hash of its images and complete
once it exists. One process makes missing files while others wait.
"""

import hashlib
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from filelock import FileLock, Timeout
from PIL import __version__ as pillow_version
from PIL import features
from torch.utils.data import DataLoader, Dataset

from promptccd import disk
from promptccd.data.image_rows import ImageRows
from promptccd.data.loaders import Progress, loader_options
from promptccd.data.options import ViewOptions
from promptccd.data.stages import Stage
from promptccd.data.views import ResizedImage
from promptccd.errors import DiskError
from promptccd.images.decode import Status, Verdict
from promptccd.images.identity import digest_of
from promptccd.images.kinds import heif_plugin

logger = logging.getLogger(__name__)

COPY_FORMAT = 2  # of files, and of the functions that make their content
PART = 256  # images of a file
IMAGES_AT_ONCE = 16  # images between two looks at signals; large images take .1 s each
MEMORY_BYTES = 2**30  # copies of a stage where none are on disk
SHARE = 0.5  # of the free space that missing copies may take
_SCHEMA = pa.schema({
    "status": pa.string(), "note": pa.string(), "is_passing": pa.bool_(), "digest": pa.binary(),
    "width": pa.int32(), "pixels": pa.large_binary(),
})  # fmt: skip


class _Decoding(Dataset):
    """Every image as a row of `_SCHEMA`; decoded in loader processes, if there are any."""

    def __init__(self, images: Stage | ImageRows, views: ViewOptions | None):
        self.images, self.views = images, views

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> dict[str, Any]:
        decoded = self.images.decode(row)
        found: dict[str, Any] = {**vars(decoded.verdict), "digest": b"", "width": 0}
        if decoded.image is not None:
            found["digest"] = digest_of(np.asarray(decoded.image))
            if self.views is not None:
                copy = ResizedImage.of(decoded.image, self.views.resize_size)
                found |= {"width": copy.width, "pixels": copy.pixels.tobytes()}
        return found


def _decoded_parts(
    images: Stage | ImageRows,
    views: ViewOptions | None,
    parts: Sequence[Sequence[int]],
    num_workers: int | None,
    progress: Progress,
    label: str,
) -> Iterator[pa.RecordBatch]:
    """The images of every part, by their numbers."""
    batches = [
        list(rows[at : at + IMAGES_AT_ONCE]) for rows in parts for at in range(0, len(rows), IMAGES_AT_ONCE)
    ]
    decoding, options = _Decoding(images, views), loader_options(num_workers)
    loader = DataLoader(decoding, batch_sampler=batches, collate_fn=list, **options)
    decoded = chain.from_iterable(progress(loader, len(batches), label))
    for rows in parts:
        yield pa.RecordBatch.from_pylist([*islice(decoded, len(rows))], _SCHEMA)


def _in_parts(count: int) -> list[range]:
    return [range(first, min(first + PART, count)) for first in range(0, count, PART)]


class _CopyPart:
    """Up to `PART` decoded images, in memory or mapped from a file."""

    def __init__(self, batch: pa.RecordBatch, path: Path | None = None):
        self.batch, self.path = batch, path

    @classmethod
    def at(cls, path: Path) -> "_CopyPart | None":
        """The images of a file; `None` if there is none that is whole."""
        try:
            batch = pa.ipc.open_file(pa.py_buffer(np.memmap(path, np.uint8, "r"))).get_batch(0)
            return cls(batch, path) if batch.schema.equals(_SCHEMA) else None
        except (OSError, ValueError, pa.ArrowException):
            return None

    def __reduce__(self) -> Any:  # each process maps the file
        return (_CopyPart.at, (self.path,)) if self.path else (_CopyPart, (self.batch,))


class CheckedStage:
    """The images of a stage, in order, each decoded once."""

    def __init__(self, stage: Stage, parts: Sequence[_CopyPart], rows: np.ndarray):
        self._stage, self._parts, self._rows = stage, parts, rows

    def __iter__(self) -> Iterator[tuple[Verdict, bytes]]:
        """Verdict and digest of every image; the digest is empty if the image cannot be used."""
        for position, row in enumerate(self._rows.tolist()):
            part, place = divmod(row, PART)
            found = {name: self._parts[part].batch.column(name)[place].as_py() for name in _SCHEMA.names[:4]}
            if found["is_passing"]:  # such as a lack of memory, which may be over
                found = _Decoding(self._stage, None)[position]
            yield Verdict(Status(found["status"]), found["note"], found["is_passing"]), found["digest"]

    def copy_of(self, position: int) -> ResizedImage | None:
        """The copy of the image at a position, where it is mapped; `None` to decode the image again."""
        part, place = divmod(int(self._rows[position]), PART)
        batch = self._parts[part].batch
        _, ends, pixels = batch.column("pixels").buffers()  # a scalar of Arrow would be a copy
        first, end = np.frombuffer(ends, np.int64)[place : place + 2]
        own, width = np.frombuffer(pixels or b"", np.uint8)[first:end], batch.column("width")[place].as_py()
        return ResizedImage(own.reshape(-1, width, 3)) if len(own) else None


class ImageCache:
    """Copies of all images that a training will see.

    Args:
        views: views that will be cut; `None` to make no copies.
        folder: where copies are stored; `None` to keep up to `MEMORY_BYTES` of each stage in memory.
    """

    def __init__(self, views: ViewOptions | None, folder: Path | None = None):
        self._views, self._folder = views, folder
        self._opened: dict[ImageRows, list[_CopyPart]] = {}

    @classmethod
    def at(cls, place: str, views: ViewOptions) -> "ImageCache":
        """The cache at a place as recipes name it: ``auto``, ``off`` or a folder."""
        folder = Path(datasets.config.HF_DATASETS_CACHE) / "promptccd" if place == "auto" else Path(place)
        return cls(views, None if place == "off" else folder.expanduser())

    def of(self, stage: Stage, num_workers: int | None, progress: Progress) -> CheckedStage:
        """The images of a stage; those without a copy are decoded now."""
        if self._folder is not None:
            try:
                parts = self._on_disk(self._folder, stage.images.whole, num_workers, progress)
                return CheckedStage(stage, parts, stage.images.rows)
            except (DiskError, OSError) as error:
                logger.warning(
                    "%s Copies of images are kept in memory where they fit, and other images are decoded for every "
                    "view. --image_cache names another folder.", error,
                )  # fmt: skip
                self._folder = None
        label, parts, room = f"stage {stage.index}: reading images", [], MEMORY_BYTES
        for batch in _decoded_parts(stage, self._views, _in_parts(len(stage)), num_workers, progress, label):
            room -= batch.nbytes
            nothing = pa.nulls(len(batch), pa.large_binary())
            parts.append(_CopyPart(batch if room >= 0 else batch.set_column(5, "pixels", nothing)))
        return CheckedStage(stage, parts, np.arange(len(stage)))

    def _on_disk(
        self, folder: Path, images: ImageRows, num_workers: int | None, progress: Progress
    ) -> list[_CopyPart]:
        """All images of a table, by part; missing files are made first, or waited for."""
        if images not in self._opened:
            assert self._views is not None
            paths = _paths_of(folder, images, self._views)
            parts = [_CopyPart.at(path) for path in paths]
            if None in parts:
                disk.make_folder(folder)
                lock = FileLock(folder / ".lock")
                waiting = iter(partial(_taken, lock), True)  # between whose moments signals are noticed
                for _ in progress(waiting, 0, "waiting for copies of images that another process makes"):
                    pass
                try:
                    _make_missing(paths, images, self._views, num_workers, progress)
                finally:
                    lock.release()
                parts = [_CopyPart.at(path) for path in paths]
            self._opened[images] = [part for part in parts if part is not None]
        return self._opened[images]


def _paths_of(folder: Path, images: ImageRows, views: ViewOptions) -> list[Path]:
    """The file of every part, named by what its copies depend on."""
    made_as = repr((COPY_FORMAT, views.resize_size, images.decoding, _decoders())).encode()
    known, paths = list(images.content_keys()), []
    for rows in _in_parts(len(known)):
        digest = hashlib.blake2b(made_as, digest_size=16)
        for row in rows:
            digest.update(b"%d " % len(known[row]) + known[row])
        paths.append(folder / f"{digest.hexdigest()}.arrow")
    return paths


@cache
def _decoders() -> tuple[str, ...]:
    """Versions of the libraries that decode and resize: another version may give other pixels."""
    named = ("jpg", "webp", "avif", "libtiff", "littlecms2")
    heif = heif_plugin() and sys.modules[heif_plugin().__module__.partition(".")[0]]
    versions = (str(features.version(each)) for each in named)
    return (pillow_version, *versions, str(getattr(heif, "__version__", heif)))


def _taken(lock: FileLock) -> bool:
    """Whether this process has a lock, for which it waits a moment."""
    with suppress(Timeout):
        lock.acquire(timeout=0.5)
    return lock.is_locked


def _make_missing(
    paths: Sequence[Path], images: ImageRows, views: ViewOptions, num_workers: int | None, progress: Progress
) -> None:
    """Make the files that are missing, in order; after a kill, finished files stay."""
    parts = zip(paths, _in_parts(len(images)), strict=True)
    missing = {path: rows for path, rows in parts if _CopyPart.at(path) is None}
    started, count, size = time.monotonic(), sum(map(len, missing.values())), 0
    made = _decoded_parts(images, views, [*missing.values()], num_workers, progress, "reading images")
    for done, (path, batch) in enumerate(zip(missing, made, strict=True)):
        size += batch.nbytes
        needed = round(batch.nbytes * (len(missing) - done) / SHARE)
        disk.require_space(path.parent, needed, "copies of images, which may take half of what is free")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, _SCHEMA) as writer:
            writer.write_batch(batch)
        disk.write_file(path, sink.getvalue().to_pybytes())
    logger.info(
        "Copies of %d images are stored in %s (%s); that took %.0f s.",
        count, paths[0].parent, disk.readable_size(size), time.monotonic() - started,
    )  # fmt: skip

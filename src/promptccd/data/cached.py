"""Copies of images at the size that views are cut from, made once and mapped into memory by every process.

Every image, whatever its size, is decoded once: its verdict, a digest of its pixels and its pixels resized are stored,
and no epoch decodes or resizes an image. The images of a table are one Arrow file, named by a hash of them and complete
once it exists. One process makes it while others wait.
"""

import hashlib
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from filelock import FileLock, Timeout
from PIL import __version__ as pillow_version
from PIL import features
from torch.utils.data import DataLoader, Dataset

from promptccd import disk, systems
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

COPY_FORMAT = 3  # of files, and of the functions that make their content
IMAGES_AT_ONCE = 16  # images between two looks at signals; large images take .1 s each
MEMORY_BYTES = 2**30  # copies of a stage without copies on disk
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

    def batches(self, num_workers: int | None, progress: Progress, label: str) -> Iterator[pa.RecordBatch]:
        """All images in order, some at a time."""
        loader = DataLoader(self, IMAGES_AT_ONCE, collate_fn=list, **loader_options(num_workers))
        for rows in progress(loader, len(loader), label):
            yield pa.RecordBatch.from_pylist(rows, _SCHEMA)


def verdicts_of(stage: Stage, copies: datasets.Dataset) -> Iterator[tuple[Verdict, bytes]]:
    """Verdict and digest of every image of a stage; the digest is empty if the image cannot be used."""
    known = copies.select_columns(_SCHEMA.names[:4]).to_pandas()
    for position, found in enumerate(known.to_dict("records")):
        if found["is_passing"]:  # such as a lack of memory, which may be over
            found = _Decoding(stage, None)[position]
        yield Verdict(Status(found["status"]), found["note"], bool(found["is_passing"])), found["digest"]


class ImageCache:
    """Copies of all images that a training will see.

    Args:
        views: views that will be cut; `None` to make no copies.
        folder: where copies are stored; `None` to keep up to `MEMORY_BYTES` of each stage in memory.
    """

    def __init__(self, views: ViewOptions | None, folder: Path | None = None):
        self._views, self._folder = views, folder
        self._opened: dict[ImageRows, datasets.Dataset] = {}

    @classmethod
    def at(cls, place: str, views: ViewOptions) -> "ImageCache":
        """The cache at a place as recipes name it: ``auto``, ``off`` or a folder."""
        folder = Path(datasets.config.HF_DATASETS_CACHE) / "promptccd" if place == "auto" else Path(place)
        return cls(views, None if place in ("off", "none") else folder.expanduser())

    def of(self, stage: Stage, num_workers: int | None, progress: Progress) -> datasets.Dataset:
        """A row of `_SCHEMA` for every image of a stage; images without a copy are decoded now."""
        images = stage.images
        if self._folder is not None:
            try:
                if images.whole not in self._opened:
                    self._opened[images.whole] = self._stored(
                        self._folder, images.whole, num_workers, progress
                    )
                return self._opened[images.whole].select(images.rows)
            except (DiskError, OSError) as error:
                logger.warning(
                    "%s Copies of images are kept in memory where they fit, and other images are decoded for every "
                    "view. --image_cache names another folder.", error,
                )  # fmt: skip
                self._folder = None
        batches, room = list[pa.RecordBatch](), MEMORY_BYTES
        decoding, label = _Decoding(stage, self._views), f"stage {stage.index}: reading images"
        for batch in decoding.batches(num_workers, progress, label):
            room -= batch.nbytes
            nothing = pa.nulls(len(batch), pa.large_binary())
            batches.append(batch if room >= 0 else batch.set_column(5, "pixels", nothing))
        return datasets.Dataset(pa.Table.from_batches(batches, _SCHEMA))

    def _stored(
        self, folder: Path, images: ImageRows, num_workers: int | None, progress: Progress
    ) -> datasets.Dataset:
        """The copies of a whole table, mapped; a missing file is made first, or waited for."""
        assert self._views is not None
        digest = hashlib.blake2b(digest_size=16)  # of all that the copies depend on
        digest.update(repr((COPY_FORMAT, self._views.resize_size, images.decoding, _decoders())).encode())
        for key in images.content_keys():
            digest.update(b"%d " % len(key) + key)
        path = folder / f"{digest.hexdigest()}.arrow"
        if (found := _mapped(path)) is not None:
            return found
        disk.make_folder(folder)
        lock = FileLock(folder / ".lock")
        waiting = iter(partial(_taken, lock), True)  # between whose moments signals are noticed
        for _ in progress(waiting, 0, "waiting for copies of images that another process makes"):
            pass
        try:
            if (found := _mapped(path)) is None:
                _write(path, images, _Decoding(images, self._views), num_workers, progress)
                found = datasets.Dataset.from_file(str(path))
            return found
        finally:
            lock.release()


def _mapped(path: Path) -> datasets.Dataset | None:
    """The table in a file; `None` if there is none that is whole."""
    try:
        table = datasets.Dataset.from_file(str(path))
    except (OSError, ValueError, pa.ArrowException):
        return None
    return table if table.column_names == _SCHEMA.names else None


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


def _write(
    path: Path, images: ImageRows, decoding: _Decoding, num_workers: int | None, progress: Progress
) -> None:
    """Make the file of a table; after a kill or a full disk there is none."""
    started, size, left, staging = time.monotonic(), 0, len(images), disk.temporary(path)
    try:
        # Of a path, the writer would keep the file open, which Windows cannot rename then.
        with open(staging, "wb") as file, pa.ipc.new_stream(file, _SCHEMA) as writer:
            for batch in decoding.batches(num_workers, progress, "reading images"):
                needed = round(batch.nbytes * left / len(batch) / SHARE)
                disk.require_space(
                    path.parent, needed, "copies of images, which may use half of the free space"
                )
                writer.write_batch(batch)
                size, left = size + batch.nbytes, left - len(batch)
        systems.rename(staging, path)
    finally:
        staging.unlink(missing_ok=True)
    logger.info(
        "Copies of %d images are stored in %s (%s); that took %.0f s.",
        len(images), path.parent, disk.readable_size(size), time.monotonic() - started,
    )  # fmt: skip

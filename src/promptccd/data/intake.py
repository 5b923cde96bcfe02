"""From what a person points at to files with verdicts: every file is hashed, decoded once, and compared."""

import hashlib
import logging
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from promptccd.data.archives import ArchiveSource, is_archive
from promptccd.data.file_names import display_name
from promptccd.data.folders import IMAGE_SUFFIXES, FolderSource, UploadSource
from promptccd.data.image_rows import DatasetSource
from promptccd.data.images import Status, Verdict
from promptccd.data.intake_files import Intake, IntakeFile, IntakeReport, View
from promptccd.data.limits import ByteBudget, IntakeLimits, SkippedFileError
from promptccd.data.loading import BUILT_IN
from promptccd.data.seen_images import SeenImage, look_at
from promptccd.data.sources import CombinedSource, Entry, ImageSource
from promptccd.data.stage_images import Progress
from promptccd.errors import DataError

logger = logging.getLogger(__name__)

THUMBNAIL_BYTES = 64 * 2**20  # kept per intake; the others are made again when asked for
VIEW_BYTES = 256 * 2**20  # 1,780 views of 224 pixels
_WORKERS = 2  # no more than this many images are decoded at once

_DATASET_FILES = ("dataset_dict.json", "dataset_info.json")


def find_source(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> ImageSource:
    """The source that a name on the command line, or a list of uploaded files, stands for.

    Args:
        path: a folder of images, a zip archive, an image, a folder or name of a data set as
            `promptccd.data.loading.load_images` knows it, or a list of images and archives. Not for names that
            strangers type: `DatasetSource.from_hub` is.

    Raises:
        DataError: there is nothing of that name.
    """
    if not isinstance(path, str | os.PathLike):
        return _uploaded(path)
    name = os.fspath(path)
    if "://" in name:
        raise DataError(
            f"Addresses such as {display_name(name)[:80]!r} are not read: download the images, or name a data set of "
            "the Hub as namespace/name."
        )
    place = Path(name).expanduser()
    if place.is_dir():
        return DatasetSource.load(str(place)) if _is_dataset(place) else FolderSource(place)
    if place.exists():
        return _uploaded([place])
    if name in BUILT_IN or (
        isinstance(path, str) and name.count("/") == 1 and not name.startswith((".", "/", "~"))
    ):
        return DatasetSource.load(name)
    raise DataError(
        f"Nothing at {display_name(name)!r}: give a folder of images, a zip archive, or a data set of the Hub as "
        "namespace/name."
    )


def read_intake(
    source: ImageSource | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    limits: IntakeLimits | None = None,
    progress: Progress | None = None,
    view: View | None = None,
) -> Intake:
    """Read every file of a source once and say what became of it. No file stops it, whatever it holds.

    Args:
        source: a source, or what `find_source` makes one of.
        limits: none means those for a person's own files.
        progress: wraps an iterable, its length and a label in a progress bar; may raise to leave early.
        view: also make this view of every image and keep it while there is room, so that `Intake.view_of` need
            not decode again.

    Raises:
        DataError: the source as a whole cannot be read or exceeds a limit; the limit and the value are named.
    """
    limits = limits or IntakeLimits()
    opened = source if isinstance(source, ImageSource) else find_source(source)
    try:
        entries = opened.entries(limits)
        reader = _Reader(opened, limits, view)
        with ThreadPoolExecutor(_WORKERS) as pool:
            for entry in entries if progress is None else progress(entries, len(entries), "reading images"):
                reader.take(entry, pool)
        files = reader.finish()
    except BaseException:
        opened.close()
        raise
    intake = Intake(opened, limits, entries, files, reader.seen, view)
    report = intake.report()
    logger.info(
        "%s: %d files, %d images used, %d duplicates, %d skipped.",
        intake.name, report.found, report.used, report.duplicates, report.skipped,
    )  # fmt: skip
    return intake


class _Reader:
    """Reads one file after the other and lets others decode them, a few at a time.

    Args:
        source: gives the bytes.
        limits: what may be read.
        view: makes the views to keep.
    """

    def __init__(self, source: ImageSource, limits: IntakeLimits, view: View | None):
        self._source, self._limits, self._view = source, limits, view
        self._budget = ByteBudget(limits, source.name)
        self._files: list[IntakeFile] = []
        self._first: dict[str, int] = {}  # index of the first file by hash
        self._waiting: deque[tuple[int, Future[tuple[Verdict, SeenImage | None]]]] = deque()
        self._thumbnail_bytes, self._view_bytes = THUMBNAIL_BYTES, VIEW_BYTES
        self.seen: dict[int, SeenImage] = {}

    def take(self, entry: Entry, pool: ThreadPoolExecutor) -> None:
        """Read the next file and hand it to the pool, unless its bytes are known already."""
        index = len(self._files)
        try:
            if entry.reason:
                raise SkippedFileError(entry.reason)
            content = self._source.read(entry, self._limits, self._budget)
        except SkippedFileError as skipped:
            self._files.append(IntakeFile(index, entry.name, Verdict(Status.SKIPPED, str(skipped))))
            return
        digest = hashlib.sha256(content).hexdigest()
        first = self._first.setdefault(digest, index)
        note = Verdict(Status.NOTED if entry.note else Status.USED, entry.note)
        self._files.append(IntakeFile(index, entry.name, note, digest, len(content)))
        if first == index:
            future = pool.submit(look_at, content, self._limits.max_pixels, self._view)
            self._waiting.append((index, future))
            if len(self._waiting) > _WORKERS:
                self._settle()

    def finish(self) -> list[IntakeFile]:
        """All files, once everything is decoded; copies get what their originals got."""
        while self._waiting:
            self._settle()
        return [self._like_first(file) for file in self._files]

    def _settle(self) -> None:
        index, future = self._waiting.popleft()
        verdict, seen = future.result()
        size = None
        if seen is not None:
            self.seen[index], size = self._within_stores(seen), seen.size
        file = self._files[index]
        self._files[index] = replace(file, verdict=_joined(verdict, file.verdict), image_size=size)

    def _like_first(self, file: IntakeFile) -> IntakeFile:
        first = self._files[self._first.get(file.content_hash, file.index)]
        if first.index == file.index:
            return file
        is_image = first.verdict.status is not Status.SKIPPED
        return replace(
            file,
            verdict=_joined(first.verdict, file.verdict),
            image_size=first.image_size,
            duplicate_of=first.index if is_image else None,
        )

    def _within_stores(self, seen: SeenImage) -> SeenImage:
        """The same without what there is no more room for."""
        self._thumbnail_bytes -= len(seen.thumbnail)
        self._view_bytes -= 0 if seen.view is None else seen.view.nbytes
        return replace(
            seen,
            thumbnail=seen.thumbnail if self._thumbnail_bytes >= 0 else b"",
            view=seen.view if self._view_bytes >= 0 else None,
        )


def _joined(decoded: Verdict, listed: Verdict) -> Verdict:
    """The decoder's verdict and what the source noted."""
    if decoded.status is Status.SKIPPED or not listed.note:
        return decoded
    return Verdict(Status.NOTED, "; ".join(filter(None, [decoded.note, listed.note])))


def _is_dataset(folder: Path) -> bool:
    """Whether a folder is a data set rather than a folder of images: saved as one, or holding tables alone."""
    if any((folder / name).is_file() for name in _DATASET_FILES):
        return True
    names = [item.name.lower() for item in folder.iterdir()]
    has_tables = any(name.endswith(".parquet") for name in names) or any(folder.glob("data/*.parquet"))
    return has_tables and not any(name.endswith(IMAGE_SUFFIXES) for name in names)


def _uploaded(paths: Sequence[str | os.PathLike[str]]) -> ImageSource:
    sources: list[ImageSource] = [ArchiveSource(path) for path in paths if is_archive(path)]
    images = [path for path in paths if not is_archive(path)]
    if images or not sources:
        sources.insert(0, UploadSource(images))
    return sources[0] if len(sources) == 1 else CombinedSource(sources)


__all__ = ["Intake", "IntakeFile", "IntakeLimits", "IntakeReport", "find_source", "read_intake"]

"""Read a source into files with verdicts: every file is hashed, decoded once, and compared with all other files."""

import hashlib
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from promptccd.data.folders import FolderSource, masks_of
from promptccd.data.hub import is_hub_name
from promptccd.data.image_rows import ImageRows
from promptccd.data.loaders import Progress
from promptccd.data.names import IMAGE_SUFFIXES, display_name, leftovers
from promptccd.data.sources import FOLLOWED, OUTSIDE, Entry, ImageSource, Stamp
from promptccd.data.tables import BUILT_IN, open_images, saved_tables
from promptccd.data.views import EvaluationView
from promptccd.discovery.intake.archives import FilesSource
from promptccd.discovery.intake.seen import DecodedFile, SeenFiles
from promptccd.errors import DataError, nothing_at
from promptccd.images.camera import reason_of_raw, seconds_of
from promptccd.images.decode import Decoding, Status, Verdict, decide
from promptccd.images.identity import MINIATURE_SIDE, look_at, view_of
from promptccd.images.kinds import HEIF_SUFFIXES
from promptccd.images.limits import ByteBudget, IntakeLimits, SkippedFileError
from promptccd.images.rendering import CUT, DEPTH_BYTES, Rendering, may_be_deep

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class IntakeFile:
    """One file and what became of it.

    Attributes:
        index: position among all files found.
        name: its path in the source, as one line of visible text; not necessarily unique.
        verdict: used, used with a note, or skipped with a reason.
        content_hash: SHA-256 of its bytes, in hexadecimal; empty if they were not read.
        key: id of its pixels, see `promptccd.images.identity`; empty without an image.
        duplicate_of: index of an earlier file with equal pixels.
        taken: when it was taken, as ``2024-05-01T10:11:12``; empty if its camera does not say.
    """

    index: int
    name: str
    verdict: Verdict
    content_hash: str = ""
    key: str = ""
    duplicate_of: int | None = None
    taken: str = ""

    @property
    def is_used(self) -> bool:
        """Whether the image is grouped: it is neither skipped nor a duplicate."""
        return self.verdict.status is not Status.SKIPPED and self.duplicate_of is None


@dataclass(frozen=True)
class IntakeReport:
    """Counts of an intake: ``used + duplicates + skipped == found``.

    Attributes:
        found: files in the source, and folders that could not be searched.
        used: images that are grouped.
        duplicates: files that show the very picture of a used one.
        changed: files that were changed since they were read, and show the picture that they showed then.
        skipped: files that are left out.
        skipped_reasons: number of files by reason, most frequent first.
        notes: number of used images by note, most frequent first.
        rendering: how values of more than 8 bits are shown, a sentence; empty where no image has such.
    """

    found: int
    used: int
    duplicates: int
    changed: int
    skipped: int
    skipped_reasons: dict[str, int]
    notes: dict[str, int]
    rendering: str = ""


class Intake(AbstractContextManager["Intake"]):
    """Files of a source with their verdicts, see `read_intake`. `close`, or a ``with`` block, closes the source.

    Several threads may read at once.

    Attributes:
        source: of the files.
        name: of the source, for messages.
        files: every file found, in the order of the source.
        entries: of the source, by file.
        decoding: how its images are decoded.
        num_changed: files with other bytes than before that show the same picture.
        replaced: names of files that show another picture than before.
    """

    def __init__(
        self,
        source: ImageSource,
        limits: IntakeLimits,
        decoding: Decoding,
        seen: SeenFiles,
        view: EvaluationView | None,
        use: Callable[[IntakeFile, Tensor], None],
        has: Callable[[str], bool],
    ):
        self.source, self.name, self.decoding = source, source.name, decoding
        self._limits, self._seen = limits, seen
        self._view, self._use, self._has = view, use, has
        self._reading = threading.Lock()  # a source gives one file at a time
        self._budget = ByteBudget(limits, source.name)
        self.entries, self._first = list[Entry](), dict[str, int]()  # first file by picture
        self.files, self.replaced, self.num_changed = list[IntakeFile](), list[str](), 0

    @cached_property
    def used(self) -> list[IntakeFile]:
        """The grouped files, in the order of the source."""
        return [file for file in self.files if file.is_used]

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the source; names, verdicts and kept thumbnails stay."""
        self.source.close()

    @property
    def miniatures(self) -> np.ndarray:
        """Grey pictures ``(N, 32, 32)`` uint8 of the used images, see `SeenImage`."""
        found = self._seen.small("miniature", (file.content_hash for file in self.used))
        rows = bytearray().join(found[file.content_hash] for file in self.used)
        return np.frombuffer(rows, np.uint8).reshape(-1, MINIATURE_SIDE, MINIATURE_SIDE)

    @property
    def taken(self) -> np.ndarray:
        """When the used images were taken ``(N,)``, in seconds by the clock of the camera; NaN if nothing says so."""
        return np.array([seconds_of(file.taken) for file in self.used], dtype=float)

    def original(self, file: IntakeFile) -> IntakeFile:
        """The used file that a duplicate equals; any other file itself."""
        return file if file.duplicate_of is None else self.files[file.duplicate_of]

    def read_bytes(self, file: IntakeFile) -> bytes:
        """The bytes of a file, as they were when the intake was made; they may contain place and time of a photograph.

        Raises:
            DataError: the file was skipped, or has changed since.
        """
        if file.verdict.status is Status.SKIPPED:
            raise DataError(f"{file.name!r} was skipped: {file.verdict.note}.")
        try:
            with self._reading:
                content = self.source.read(self.entries[file.index], ByteBudget(self._limits, self.name))
        except SkippedFileError as skipped:
            raise DataError(f"{file.name!r} could be read before and cannot be now: {skipped}.") from skipped
        if hashlib.sha256(content).hexdigest() != file.content_hash:
            if (stamp := self.source.stamp(self.entries[file.index])) is not None:
                self._seen.forget(stamp.path)
            raise DataError(f"{file.name!r} was changed while it was in use. Give the command again.")
        return content

    def path_of(self, file: IntakeFile) -> str:
        """The path of a file on this machine; empty in an archive or a data set, and if it is gone."""
        stamp = self.source.stamp(self.entries[file.index])
        return stamp.path if stamp is not None and os.path.isfile(stamp.path) else ""

    def thumbnails(self, files: Sequence[IntakeFile]) -> dict[str, bytes]:
        """Small pictures by their keys, see `SeenImage`."""
        originals = [self.original(file) for file in files]
        found = self._seen.small("thumbnail", (file.content_hash for file in originals))
        return {file.key: found[file.content_hash] for file in originals}

    def report(self) -> IntakeReport:
        """Counts and reasons."""
        skipped = [file.verdict.note for file in self.files if file.verdict.status is Status.SKIPPED]
        notes = [file.verdict.note for file in self.used if file.verdict.note]
        beyond = [file.name for file in self.used if CUT in file.verdict.note]
        have = "file has" if len(beyond) == 1 else "files have"
        cut = f"{len(beyond)} {have} values beyond it, which are cut, such as {beyond[0]}" if beyond else ""
        return IntakeReport(
            found=len(self.files),
            used=len(self.used),
            duplicates=sum(file.duplicate_of is not None for file in self.files),
            changed=self.num_changed,
            skipped=len(skipped),
            skipped_reasons=dict(Counter(skipped).most_common()),
            notes=dict(Counter(each for note in notes for each in note.split("; ")).most_common()),
            rendering="; ".join(filter(None, [str(self.decoding.rendering), cut])),
        )

    def require_images(self) -> None:
        """Refuse an intake without a usable image with a `DataError` that names the most frequent reasons."""
        if not self.used:
            found = self.report().skipped_reasons.items()
            reasons = [f"{count} file{'s' * (count != 1)}: {reason}" for reason, count in found]
            remedy = f" Or: {FOLLOWED}." if any(OUTSIDE in each for each in reasons) else ""
            raise DataError(
                f"{self.name} holds no image that can be used. {'; '.join(reasons[:3]) or 'It is empty'}. Give JPEG, "
                f"PNG or WebP images.{remedy}"
            )

    def read(self, entries: Iterable[Entry], workers: int) -> None:
        """Read and judge files, so many at once: threads read and decode them, and they are judged in their order."""
        with ThreadPoolExecutor(workers) as pool:
            waiting = deque[tuple[Entry, Future[_ReadFile]]]()
            for entry in entries:
                waiting.append((entry, pool.submit(self._read, entry)))
                if len(waiting) > 2 * workers:
                    self._judge(*waiting.popleft())
            while waiting:
                self._judge(*waiting.popleft())

    def _read(self, entry: Entry) -> "_ReadFile":
        """In a thread: a file that is decoded, unless its content and its feature are known."""
        if entry.reason:
            raise SkippedFileError(entry.reason)
        with self._reading:
            stamp = self.source.stamp(entry)
            if stamp is not None and stamp.size <= self._limits.max_file_bytes:
                known = self._seen.known(stamp)
                if known is not None and not self._needs_view(known[1]):
                    self._budget.spend(stamp.size)
                    return *known, False, None
            content = self.source.read(entry, self._budget)
        digest = hashlib.sha256(content).hexdigest()
        decoded = self._seen.decoded(digest)
        if decoded is None:
            return digest, look_at(content, self.decoding, self._view), True, stamp
        verdict, image = decoded
        if image is not None and self._needs_view(decoded):
            image = replace(image, view=view_of(content, self.decoding, self._view))
        return digest, (verdict, image), False, stamp

    def _needs_view(self, decoded: DecodedFile) -> bool:
        _, image = decoded
        return self._view is not None and image is not None and not self._has(image.key)

    def _judge(self, entry: Entry, found: "Future[_ReadFile]") -> None:
        """Add the next file."""
        index = len(self.files)
        self.entries.append(entry)
        try:
            digest, (verdict, image), is_new, stamp = found.result()
        except SkippedFileError as skipped:
            self.files.append(IntakeFile(index, entry.name, Verdict(Status.SKIPPED, str(skipped))))
            return
        if verdict.status is Status.SKIPPED and (raw := reason_of_raw(entry.name)):
            verdict = replace(verdict, note=raw)
        key = "" if image is None else image.key
        if not verdict.is_passing and (is_new or stamp is not None):
            key, was = self._seen.add(digest, (verdict, image) if is_new else None, stamp)
            self.num_changed += was == key != ""
            self.replaced += [entry.name] * (was not in ("", key) and key != "")
        file = IntakeFile(index, entry.name, verdict, digest)
        if image is not None:
            first = self._first.setdefault(key, index)
            file = replace(file, key=key, duplicate_of=None if first == index else first, taken=image.taken)
            if first == index and image.view is not None:
                self._use(file, image.view)
        self.files.append(file)


class DatasetSource(ImageSource):
    """The rows of a data set."""

    def __init__(self, images: ImageRows):
        self._rows, self.name = images, f"Data set {images.name!r}"

    def entries(self, limits: IntakeLimits) -> list[Entry]:
        """The rows, in order."""
        limits.require_files(len(self._rows), self.name)
        return [Entry(f"row {row}", row) for row in range(len(self._rows))]

    def read(self, entry: Entry, budget: ByteBudget) -> bytes:
        """The bytes of a row's image."""
        return self._rows.read(entry.key, budget)


def find_source(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    roots: Sequence[str | os.PathLike[str]] = (),
) -> ImageSource:
    """The source that a name on the command line, or a list of uploaded files, stands for.

    Args:
        path: a folder of images, a zip archive, an image, a parquet file, a folder or name of a data set as
            `promptccd.data.tables.load_images` knows it, or a list of images and archives.
        roots: further folders that links in a folder of images may lead into.

    Raises:
        DataError: there is nothing of that name.
    """
    if not isinstance(path, str | os.PathLike):
        return FilesSource(path)
    name = os.fspath(path)
    if "://" in name:
        raise DataError(
            f"Addresses such as {display_name(name)[:80]!r} are not read: download the images, or name a data set of "
            "the Hub as namespace/name."
        )
    place = Path(os.path.expanduser(name))
    if place.is_dir() and not _is_dataset(place):
        return FolderSource(place, roots)
    if place.is_dir() or (place.suffix.lower() == ".parquet" and place.is_file()):
        return DatasetSource(open_images(str(place), labelled=False))
    if place.exists():
        return FilesSource([place])
    if name in BUILT_IN or (isinstance(path, str) and is_hub_name(name)):
        return DatasetSource(open_images(name, labelled=False))
    raise DataError(
        f"{nothing_at(name)} Give a folder of images, a zip archive, or a data set of the Hub as namespace/name."
    )


def read_intake(
    source: ImageSource | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    limits: IntakeLimits | None = None,
    rendering: Rendering | None = None,
    image_roots: Sequence[str | os.PathLike[str]] = (),
    progress: Progress | None = None,
    view: EvaluationView | None = None,
    workers: int = 2,
    use: Callable[[IntakeFile, Tensor], None] = lambda file, view: None,
    has: Callable[[str], bool] = lambda key: True,
    seen: SeenFiles | None = None,
    entries: Sequence[Entry] = (),
) -> Intake:
    """Read every file of a source once and judge it. No file stops the reading, whatever its content.

    Args:
        source: a source, or a path for `find_source`.
        limits: by default the limits for a person's own files.
        rendering: rule by which values and pages are shown; undecided values are from `seen`, or from the model
            of `view`, or decided by the files.
        image_roots: further folders that links in a folder of images may lead into.
        progress: wraps an iterable, its length and a label in a progress bar; may raise to leave early.
        view: the view that images are for: a JPEG is decoded no larger than it needs.
        workers: images that are decoded at once; the result is the same for any number.
        use: gets every new picture and its view, in the order of the files, while other files are decoded.
        has: whether a picture that `seen` knows, by its key, needs no view.
        seen: results of earlier reading: the files that it knows are neither opened nor decoded again, new files are
            added. By default nothing is known.
        entries: of the source, those of an earlier reading; by default all that it has now.

    Raises:
        DataError: the source as a whole cannot be read or exceeds a limit; the message names the limit and the value.
    """
    limits, seen = limits or IntakeLimits(), seen or SeenFiles()
    opened = source if isinstance(source, ImageSource) else find_source(source, image_roots)
    try:
        entries = entries or _entries_of(opened, limits)
        rendering = (rendering or Rendering()).over(seen.rendering)
        if view is not None:
            rendering = rendering.over(view.rendering)
        decoding = _decided(Decoding(limits.max_pixels, rendering), opened, entries, limits, seen)
        seen.use(decoding.rendering)
        intake = Intake(opened, limits, decoding, seen, view, use, has)
        shown = entries if progress is None else progress(entries, len(entries), "reading images")
        intake.read(shown, workers)
    except BaseException:
        opened.close()
        raise
    report = intake.report()
    logger.info(
        "%s: files found %d, images used %d, duplicates %d, skipped %d.",
        intake.name, report.found, report.used, report.duplicates, report.skipped,
    )  # fmt: skip
    if report.changed:
        logger.info(
            "%d files were changed, their pictures are the same: groups and corrections stay.", report.changed
        )
    if intake.replaced:
        logger.info(
            "%d files show other pictures than before, such as %r: they are new images. Corrections of the earlier "
            "pictures stay with the earlier pictures.", len(intake.replaced), intake.replaced[0],
        )  # fmt: skip
    return intake


_MOST_HEADS = 2_000  # files whose first bytes are read to find some of more than 8 bits
_PLAIN = (".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".avif", *HEIF_SUFFIXES)  # of pictures of 8 bits


def _decided(
    decoding: Decoding, source: ImageSource, entries: Sequence[Entry], limits: IntakeLimits, seen: SeenFiles
) -> Decoding:
    """The same with a rule for values; evenly spaced new files decide.

    Files that `seen` knows decided at an earlier reading.
    """

    def is_deep(entry: Entry) -> bool:
        try:
            return may_be_deep(source.head(entry, DEPTH_BYTES, limits))
        except SkippedFileError:
            return False

    def is_new(entry: Entry) -> bool:
        stamp = source.stamp(entry)
        return stamp is None or seen.known(stamp) is None

    may_decide = (each for each in entries if not each.reason and not each.name.lower().endswith(_PLAIN))
    listed = [each for each in may_decide if is_new(each)]
    deep = [entry for entry in listed[:: len(listed) // _MOST_HEADS + 1] if is_deep(entry)]
    return decide(decoding, deep, lambda entry: source.read(entry, ByteBudget(limits, source.name)))


# Hash of a file, result of decoding it, whether that is new, and the stamp, but for a file that was known by its own.
_ReadFile = tuple[str, DecodedFile, bool, Stamp | None]


def _entries_of(source: ImageSource, limits: IntakeLimits) -> list[Entry]:
    """All entries; entries are not read if they show a photograph of which another file is used.

    Raises:
        DataError: as `ImageSource.entries`.
    """
    entries = source.entries(limits)
    listed = [entry for entry in entries if not entry.reason]
    beside = leftovers(entry.name for entry in listed) | masks_of(source, listed, limits)
    return [replace(entry, reason=entry.reason or beside.get(entry.name, "")) for entry in entries]


def _is_dataset(folder: Path) -> bool:
    """Whether a folder is a saved data set, or contains tables and no images, except those of its card."""
    if saved_tables(folder):
        return True
    tables = [*folder.glob("*.parquet"), *folder.glob("data/*.parquet")]
    beside = {file.with_suffix("") for file in tables}  # folders of the images of img2dataset
    files = chain(folder.iterdir(), *(each.iterdir() for each in beside if each.is_dir()))
    return bool(tables) and not any(file.name.lower().endswith(IMAGE_SUFFIXES) for file in files)

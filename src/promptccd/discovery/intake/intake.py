"""Read a source into files with verdicts: every file is hashed, decoded once, and compared with the others."""

import hashlib
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptccd.data.camera_raw import reason_of_raw
from promptccd.data.capture_dates import seconds_of
from promptccd.data.depths import Depths
from promptccd.data.duplicates import MINIATURE_SIDE, SeenImage, look_at, view_of
from promptccd.data.file_names import display_name, is_of_windows
from promptccd.data.folders import IMAGE_SUFFIXES, FolderSource
from promptccd.data.image_rows import DatasetSource
from promptccd.data.images import Decoding, Status, Verdict
from promptccd.data.leftovers import leftovers
from promptccd.data.limits import ByteBudget, IntakeLimits, SkippedFileError
from promptccd.data.loading import BUILT_IN
from promptccd.data.sources import FOLLOWED, OUTSIDE, CombinedSource, Entry, ImageSource, Stamp
from promptccd.data.stage_images import Progress
from promptccd.data.table_files import is_saved
from promptccd.data.views import EvaluationView
from promptccd.discovery.cache import Look, SeenFiles
from promptccd.discovery.intake.archives import (
    ArchiveSource,
    UploadSource,
    is_archive,
)
from promptccd.errors import DataError, nothing_at
from promptccd.storage import Overflow


@dataclass(frozen=True)
class IntakeFile:
    """One file and what became of it.

    Attributes:
        index: position among all files found.
        name: its path in the source, as one line of visible text; not necessarily unique.
        verdict: used, used with a note, or skipped with a reason.
        content_hash: SHA-256 of its bytes, in hexadecimal; empty if they were not read.
        key: what its picture is known by, see `promptccd.data.picture_keys`; empty if it shows none.
        num_bytes: number of its bytes; 0 if they were not read.
        image_size: width and height in pixels, upright; `None` if it is skipped.
        duplicate_of: index of the first file with the same picture, if that is another one.
        taken: when it was taken, as ``2024-05-01T10:11:12``; empty if its camera does not say.
    """

    index: int
    name: str
    verdict: Verdict
    content_hash: str = ""
    key: str = ""
    num_bytes: int = 0
    image_size: tuple[int, int] | None = None
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
        noted: those of them with a note.
        duplicates: files that show the very picture of a used one.
        changed: files that were changed since they were read, and show the picture that they showed then.
        skipped: files that are left out.
        skipped_reasons: number of files by reason, most frequent first.
        notes: number of used images by note, most frequent first.
        depths: how values of more than 8 bits are shown, a sentence; empty where no image has such.
    """

    found: int
    used: int
    noted: int
    duplicates: int
    changed: int
    skipped: int
    skipped_reasons: dict[str, int]
    notes: dict[str, int]
    depths: str = ""


class Kept:
    """What remains of the decoded images, by index of the file.

    Thumbnails and views that memory has no room for go into `folder`; without one they are made again on demand. `seen`
    keeps thumbnails for good.
    """

    def __init__(self, folder: Path | None, seen: SeenFiles | None):
        self.seen = seen
        self.miniatures: dict[int, np.ndarray] = {}
        self.changed = 0  # files that show what they showed, see `IntakeReport`
        self.thumbnails, self.views = Overflow(THUMBNAIL_BYTES, folder), Overflow(VIEW_BYTES, folder)
        self._shape: tuple[int, ...] = ()

    def add(self, index: int, seen: SeenImage) -> None:
        """Keep the miniature, and thumbnail and view while there is room."""
        self.miniatures[index] = seen.miniature
        if self.seen is None:
            self.thumbnails.add(index, seen.thumbnail)
        if seen.view is not None:
            self._shape = tuple(seen.view.shape)
            self.views.add(index, seen.view.numpy().tobytes())

    def thumbnails_of(self, files: Sequence[IntakeFile]) -> dict[str, bytes]:
        """The thumbnails that were kept, by key of the picture."""
        if self.seen is not None:
            found = self.seen.thumbnails([file.content_hash for file in files])
            return {file.key: found[file.content_hash] for file in files if file.content_hash in found}
        kept = {file.key: self.thumbnails.get(file.index) for file in files}
        return {key: bytes(content) for key, content in kept.items() if content is not None}

    def view(self, index: int) -> Tensor | None:
        """The view of a file, if it was kept."""
        content = self.views.get(index)
        return None if content is None else torch.frombuffer(content, dtype=torch.uint8).view(self._shape)


class Intake:
    """Files of a source with their verdicts, see `read_intake`. `close`, or a ``with`` block, closes the source.

    Several threads may read at once.

    Attributes:
        name: of the source, for messages.
        files: every file found, in the order of the source.
        used: those that are grouped, in the same order.
        decoding: how its images are decoded.
    """

    def __init__(
        self,
        source: ImageSource,
        limits: IntakeLimits,
        entries: Sequence[Entry],
        files: Sequence[IntakeFile],
        kept: Kept,
        view: EvaluationView | None,
        decoding: Decoding,
    ):
        self.decoding = decoding
        self._source, self._limits, self._entries = source, limits, entries
        self._kept, self._view = kept, view  # the one that made the kept views
        self._reading = threading.Lock()  # a source gives one file at a time
        self.name = source.name
        self.files = tuple(files)
        self.used = tuple(file for file in files if file.is_used)

    def __enter__(self) -> "Intake":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the source; names, verdicts and kept thumbnails stay."""
        self._source.close()

    @property
    def miniatures(self) -> np.ndarray:
        """Grey pictures ``(N, 32, 32)`` uint8 of the used images, see `SeenImage`."""
        kept = [self._kept.miniatures[file.index] for file in self.used]
        return np.stack(kept) if kept else np.empty((0, MINIATURE_SIDE, MINIATURE_SIDE), np.uint8)

    @property
    def taken(self) -> np.ndarray:
        """When the used images were taken ``(N,)``, in seconds by the clock of the camera; NaN if nothing says so."""
        return np.array([seconds_of(file.taken) for file in self.used], dtype=float)

    def original(self, file: IntakeFile) -> IntakeFile:
        """The used file that a duplicate equals; any other file itself."""
        return file if file.duplicate_of is None else self.files[file.duplicate_of]

    def read_bytes(self, file: IntakeFile) -> bytes:
        """The bytes of a file, as they were when the intake was made; they may hold place and time of a photograph.

        Raises:
            DataError: the file was skipped, or has changed since.
        """
        if file.verdict.status is Status.SKIPPED:
            raise DataError(f"{file.name!r} was skipped: {file.verdict.note}.")
        try:
            with self._reading:
                content = self._source.read(self._entries[file.index], ByteBudget(self._limits, self.name))
        except SkippedFileError as skipped:
            raise DataError(f"{file.name!r} could be read before and cannot be now: {skipped}.") from skipped
        if hashlib.sha256(content).hexdigest() != file.content_hash:
            if (stamp := self._source.stamp(self._entries[file.index])) and self._kept.seen is not None:
                self._kept.seen.forget(stamp.path)
            raise DataError(f"{file.name!r} was changed while it was in use. Give the command again.")
        return content

    def path_of(self, file: IntakeFile) -> str:
        """The path of a file on this machine; empty for one in an archive or a data set, and where it is gone."""
        stamp = self._source.stamp(self._entries[file.index])
        return stamp.path if stamp is not None and os.path.isfile(stamp.path) else ""

    def view_of(self, file: IntakeFile, view: EvaluationView) -> Tensor:
        """The view of an image: the kept one if the intake was made with this very view, or else a new one."""
        made = self._kept.view(self.original(file).index) if view is self._view else None
        if made is None:
            made = view_of(self.read_bytes(file), self.decoding, view)
        if made is None:
            raise _undecodable(file)
        return made

    def thumbnails(self, files: Sequence[IntakeFile]) -> dict[str, bytes]:
        """Small pictures by their keys, see `SeenImage`; those that were lost are made again."""
        originals = [self.original(file) for file in files]
        kept, made = self._kept.thumbnails_of(originals), dict[str, bytes]()
        for file in originals:
            if file.key not in kept:
                _, seen = look_at(self.read_bytes(file), self.decoding, self._view)
                if seen is None:
                    raise _undecodable(file)
                kept[file.key] = made[file.content_hash] = seen.thumbnail
        if self._kept.seen is not None:
            self._kept.seen.add_thumbnails(made)
        return kept

    def report(self) -> IntakeReport:
        """Counts and reasons."""
        skipped = [file.verdict.note for file in self.files if file.verdict.status is Status.SKIPPED]
        notes = [file.verdict.note for file in self.used if file.verdict.note]
        return IntakeReport(
            found=len(self.files),
            used=len(self.used),
            noted=len(notes),
            duplicates=sum(file.duplicate_of is not None for file in self.files),
            changed=self._kept.changed,
            skipped=len(skipped),
            skipped_reasons=dict(Counter(skipped).most_common()),
            notes=dict(Counter(notes).most_common()),
            depths=str(self.decoding.depths),
        )

    def require_images(self) -> None:
        """Refuse an intake without a usable image with a `DataError` that names the most frequent reasons."""
        if not self.used:
            reasons = [f"{reason} ({count})" for reason, count in self.report().skipped_reasons.items()]
            remedy = f" Or: {FOLLOWED}." if any(OUTSIDE in each for each in reasons) else ""
            raise DataError(
                f"{self.name} holds no image that can be used: {'; '.join(reasons[:3]) or 'it is empty'}. Give JPEG, "
                f"PNG or WebP images.{remedy}"
            )


def _undecodable(file: IntakeFile) -> DataError:
    return DataError(f"{file.name!r} could be decoded before and cannot be now.")


logger = logging.getLogger(__name__)

THUMBNAIL_BYTES = 64 * 2**20  # kept in memory per intake; the others go to disk, or are made again
VIEW_BYTES = 256 * 2**20  # the same for views; 1,780 of 224 pixels
WAITING_BYTES = 256 * 2**20  # of files that are read and not yet decoded, besides the last one
TRIED = 100  # files, whose time predicts that of the others


def find_source(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    roots: Sequence[str | os.PathLike[str]] = (),
) -> ImageSource:
    """The source that a name on the command line, or a list of uploaded files, stands for.

    Args:
        path: a folder of images, a zip archive, an image, a folder or name of a data set as
            `promptccd.data.loading.load_images` knows it, or a list of images and archives.
        roots: further folders that links in a folder of images may lead into.

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
    place = Path(os.path.expanduser(name))
    if place.is_dir():
        return DatasetSource.load(str(place)) if _is_dataset(place) else FolderSource(place, roots)
    if place.exists():
        return _uploaded([place])
    if name in BUILT_IN or (
        isinstance(path, str)
        and name.count("/") == 1
        and not name.startswith((".", "/", "~"))
        and not is_of_windows(name)
    ):
        return DatasetSource.load(name)
    raise DataError(
        f"{nothing_at(name)} Give a folder of images, a zip archive, or a data set of the Hub as namespace/name."
    )


def read_intake(
    source: ImageSource | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    limits: IntakeLimits | None = None,
    bit_depth: int | None = None,
    image_roots: Sequence[str | os.PathLike[str]] = (),
    progress: Progress | None = None,
    view: EvaluationView | None = None,
    workers: int = 2,
    overflow: Path | None = None,
    seen: SeenFiles | None = None,
    announce: Callable[[int, float], None] | None = None,
) -> Intake:
    """Read every file of a source once and judge it. No file stops the reading, whatever it holds.

    Args:
        source: a source, or a path for `find_source`.
        limits: by default those for a person's own files.
        bit_depth: of files with more than 8 bits a value; by default what each says, or else the smallest of
            `promptccd.data.depths.BIT_DEPTHS` that holds the values of all of them, those that `seen` knows included.
        image_roots: further folders that links in a folder of images may lead into.
        progress: wraps an iterable, its length and a label in a progress bar; may raise to leave early.
        view: also make this view of every image and keep it while there is room, so that `Intake.view_of` need
            not decode again.
        workers: images that are decoded at once; the result is the same for any number.
        overflow: folder for thumbnails and views that memory has no room for, in files that vanish with the intake.
        seen: remembers files; those it knows are neither opened nor decoded again, the others are added.
        announce: called with the number of files to read and the seconds that each of the first `TRIED` took.

    Raises:
        DataError: the source as a whole cannot be read or exceeds a limit; the limit and the value are named.
    """
    limits = limits or IntakeLimits()
    opened = source if isinstance(source, ImageSource) else find_source(source, image_roots)
    try:
        entries = _without_leftovers(opened.entries(limits))
        reader = _Reader(opened, limits, Depths(fixed=bit_depth), view, workers, Kept(overflow, seen))
        stamped = [(entry, reader.stamp(entry)) for entry in entries]
        unread = sum(not entry.reason and not reader.remembers(stamp) for entry, stamp in stamped)
        started = time.monotonic()
        with ThreadPoolExecutor(workers) as pool:
            for entry, stamp in (
                stamped if progress is None else progress(stamped, len(stamped), "reading images")
            ):
                if reader.take(entry, stamp, pool) and reader.num_read == TRIED and announce is not None:
                    announce(unread, (time.monotonic() - started) / TRIED)
            files = reader.finish(pool)
    except BaseException:
        opened.close()
        raise
    intake = Intake(opened, limits, entries, files, reader.kept, view, reader.decoding)
    report = intake.report()
    logger.info(
        "%s: files found %d, images used %d, duplicates %d, skipped %d.",
        intake.name, report.found, report.used, report.duplicates, report.skipped,
    )  # fmt: skip
    if report.changed:
        logger.info(
            "%d files were changed, their pictures are the same: groups and corrections stay.",
            report.changed,
        )
    return intake


class _Reader:
    """Reads one file after the other, while `workers` threads hash and decode them; the results go into `kept`."""

    def __init__(
        self,
        source: ImageSource,
        limits: IntakeLimits,
        depths: Depths,
        view: EvaluationView | None,
        workers: int,
        kept: Kept,
    ):
        seen = [] if kept.seen is None else kept.seen.depths
        self.decoding = limits.decoding(Depths.holding(seen, depths.fixed))
        self._entries: list[Entry] = []
        self._source, self._limits, self._view, self.kept = source, limits, view, kept
        self._budget = ByteBudget(limits, source.name)
        self._files: list[IntakeFile] = []
        self._first: dict[str, int] = {}  # index of the first file by picture
        self._waiting: deque[tuple[int, Stamp | None, Future[str]]] = deque()
        self._most_waiting, self._waiting_bytes = 2 * workers, 0
        self._looks: dict[str, Future[Look]] = {}
        self._claiming = threading.Lock()
        self.num_read = 0

    def stamp(self, entry: Entry) -> Stamp | None:
        """The stamp of an entry to be read, if read files are remembered."""
        return None if entry.reason or self.kept.seen is None else self._source.stamp(entry)

    def remembers(self, stamp: Stamp | None) -> str:
        """The hash of a file that was read before and is within the limits; empty for others."""
        if stamp is None or self.kept.seen is None or stamp.size > self._limits.max_file_bytes:
            return ""
        return self.kept.seen.content_of(stamp)

    def take(self, entry: Entry, stamp: Stamp | None, pool: ThreadPoolExecutor) -> bool:
        """Take the next file and hand it to the pool unless it is remembered; return whether it was read."""
        index, known = len(self._files), self.remembers(stamp)
        self._entries.append(entry)
        try:
            if entry.reason:
                raise SkippedFileError(entry.reason)
            if stamp is not None and known:
                self._budget.spend(stamp.size)
                size, hashed = stamp.size, Future[str]()
                hashed.set_result(known)
            else:
                content = self._source.read(entry, self._budget)
                size, hashed = len(content), pool.submit(self._look, content)
        except SkippedFileError as skipped:
            self._files.append(IntakeFile(index, entry.name, Verdict(Status.SKIPPED, str(skipped))))
            return False
        note = Verdict(Status.NOTED if entry.note else Status.USED, entry.note)
        self._files.append(IntakeFile(index, entry.name, note, num_bytes=size))
        self._waiting.append((index, stamp, hashed))
        self._waiting_bytes += size
        self.num_read += not known
        while len(self._waiting) > self._most_waiting or self._waiting_bytes > WAITING_BYTES:
            self._settle()
        return not known

    def finish(self, pool: ThreadPoolExecutor) -> list[IntakeFile]:
        """All files, once everything is decoded, and all by one rule."""
        while self._waiting:
            self._settle()
        self._show_by_one_rule(pool)
        if self.kept.seen is not None:
            self.kept.seen.flush()
        return self._files

    def _show_by_one_rule(self, pool: ThreadPoolExecutor) -> None:
        """Decode those files again that were decoded before the depth of all was known."""
        firsts = {file.content_hash: file.index for file in reversed(self._files) if file.key}
        looks = {digest: self._looked(digest) for digest in firsts}
        found = [image.depth for _, image in looks.values() if image is not None]
        before = [] if self.kept.seen is None else self.kept.seen.depths
        depths = Depths.holding([*before, *found], self.decoding.depths.fixed)
        self.decoding = self._limits.decoding(depths)
        stale = [
            digest
            for digest, (_, image) in looks.items()
            if image is not None and not depths.suits(image.depth)
        ]
        shown: dict[str, Look] = {}
        for start in range(0, len(stale), self._most_waiting):
            contents = {
                each: self._again(each, firsts[each]) for each in stale[start : start + self._most_waiting]
            }
            there = {digest: content for digest, content in contents.items() if content is not None}
            made = pool.map(partial(look_at, decoding=self.decoding, view=self._view), there.values())
            for digest, (verdict, image) in zip(there, made, strict=True):
                _, before_it = looks[digest]
                if image is not None and before_it is not None:
                    image = replace(image, key=before_it.key)
                    if self._first[image.key] == firsts[digest]:
                        self.kept.add(firsts[digest], image)
                    shown[digest] = verdict, image
        if self.kept.seen is not None:
            self.kept.seen.replace_looks(shown)
        for index, file in enumerate(self._files):
            if file.content_hash in shown:
                verdict = shown[file.content_hash][0]
                note = self._entries[index].note
                self._files[index] = replace(file, verdict=_joined(verdict, Verdict(Status.USED, note)))

    def _again(self, digest: str, index: int) -> bytes | None:
        """The bytes of a file that was read before; `None` if it is not there or has changed, which is said later."""
        try:
            content = self._source.read(self._entries[index], ByteBudget(self._limits, self._source.name))
        except SkippedFileError:
            return None
        return content if hashlib.sha256(content).hexdigest() == digest else None

    def _look(self, content: bytes) -> str:
        """In a worker: the hash of a file; it also decodes each content once."""
        digest = hashlib.sha256(content).hexdigest()
        with self._claiming:
            if digest in self._looks:
                return digest
            look = self._looks[digest] = Future()
        try:
            known = None if self.kept.seen is None else self.kept.seen.look(digest)
            look.set_result(known or look_at(content, self.decoding, self._view))
        except BaseException as error:
            # mutant not caught: whoever waits for the worker gets it too, unless two files of one content race
            look.set_exception(error)
        return digest

    def _settle(self) -> None:
        index, stamp, future = self._waiting.popleft()
        digest, seen = future.result(), self.kept.seen
        file = replace(self._files[index], content_hash=digest)
        self._waiting_bytes -= file.num_bytes
        verdict, image = self._looked(digest)
        if verdict.status is Status.SKIPPED and (raw := reason_of_raw(file.name)):
            verdict = replace(verdict, note=raw)
        file = replace(file, verdict=_joined(verdict, file.verdict))
        if image is not None:
            path = "" if stamp is None else stamp.path
            if seen is not None and seen.look(digest) is None:
                image = replace(image, key=seen.key_of(digest, path, image))
            first = self._first.setdefault(image.key, index)
            if first == index:
                self.kept.add(index, image)
            file = replace(
                file,
                key=image.key,
                image_size=image.size,
                duplicate_of=None if first == index else first,
                taken=image.taken,
            )
        # A copy of the file needs neither of them.
        light = verdict, image and replace(image, thumbnail=b"", view=None)
        self._looks[digest] = Future()
        self._looks[digest].set_result(light)
        if seen is not None and not verdict.is_passing:
            if stamp is not None:
                self.kept.changed += self._is_retouched(seen, stamp.path, digest, file.key)
            seen.add_look(digest, (verdict, image))
            if stamp is not None:
                seen.add(stamp, digest)
        self._files[index] = file

    @staticmethod
    def _is_retouched(seen: SeenFiles, path: str, digest: str, key: str) -> bool:
        """Whether a file holds other bytes than before that show the same picture."""
        before = seen.held_by(path)
        if before in ("", digest):
            return False
        _, image = seen.look(before) or (None, None)
        return image is not None and image.key == key

    def _looked(self, digest: str) -> Look:
        """What decoding a content left, now or before."""
        if (future := self._looks.get(digest)) is not None:
            return future.result()
        known = None if self.kept.seen is None else self.kept.seen.look(digest)
        assert known is not None, "a remembered file has a remembered content"
        return known


def _without_leftovers(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, of which those are not read that show a photograph of which another file is used."""
    beside = leftovers(entry.name for entry in entries if not entry.reason)
    return [replace(entry, reason=entry.reason or beside.get(entry.name, "")) for entry in entries]


def _joined(decoded: Verdict, listed: Verdict) -> Verdict:
    """The decoder's verdict with the source's note."""
    if decoded.status is Status.SKIPPED or not listed.note:
        return decoded
    return Verdict(Status.NOTED, "; ".join(filter(None, [decoded.note, listed.note])))


def _is_dataset(folder: Path) -> bool:
    """Whether a folder is a saved data set, or holds tables and no images."""
    if is_saved(folder):
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

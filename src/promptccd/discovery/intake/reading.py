"""Read a source into files with verdicts: every file is hashed, decoded once, and compared with the others."""

import hashlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from promptccd.data.folders import IMAGE_SUFFIXES, FolderSource
from promptccd.data.loaders import Progress
from promptccd.data.names import display_name, is_of_windows, leftovers
from promptccd.data.sources import Entry, ImageSource, Stamp
from promptccd.data.tables import BUILT_IN, is_saved
from promptccd.data.views import EvaluationView
from promptccd.discovery.intake.intake import Intake, IntakeFile
from promptccd.discovery.intake.seen import DecodedFile, SeenFiles
from promptccd.discovery.intake.sources import DatasetSource, FilesSource
from promptccd.errors import DataError, nothing_at
from promptccd.images.decode import Decoding, Status, Verdict
from promptccd.images.depth import Depths
from promptccd.images.identity import look_at
from promptccd.images.limits import ByteBudget, IntakeLimits, SkippedFileError
from promptccd.images.raw import reason_of_raw

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

WAITING_BYTES = 256 * 2**20  # of files that are read and not yet decoded, besides the last one
TRIED = 100  # files, whose time predicts that of the others


def find_source(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    roots: Sequence[str | os.PathLike[str]] = (),
) -> ImageSource:
    """The source that a name on the command line, or a list of uploaded files, stands for.

    Args:
        path: a folder of images, a zip archive, an image, a folder or name of a data set as
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
    if place.is_dir():
        return DatasetSource.load(str(place)) if _is_dataset(place) else FolderSource(place, roots)
    if place.exists():
        return FilesSource([place])
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
    use: Callable[[IntakeFile, "Tensor"], None] | None = None,
    seen: SeenFiles | None = None,
    entries: Sequence[Entry] | None = None,
    announce: Callable[[int, float], None] | None = None,
) -> Intake:
    """Read every file of a source once and judge it. No file stops the reading, whatever it holds.

    Args:
        source: a source, or a path for `find_source`.
        limits: by default those for a person's own files.
        bit_depth: of files with more than 8 bits a value; by default what each says, or else the smallest of
            `promptccd.images.limits.BIT_DEPTHS` that holds the values of all of them, those that `seen` knows included.
        image_roots: further folders that links in a folder of images may lead into.
        progress: wraps an iterable, its length and a label in a progress bar; may raise to leave early.
        view: the view that images are for: a JPEG is decoded no larger than it needs.
        workers: images that are decoded at once; the result is the same for any number.
        use: gets every new picture and its view, in the order of the files, while others are decoded; `Intake.view_of`
            makes the others: of files that `seen` knows, and of more than 8 bits, whose depth is known at the end.
        seen: results of earlier reading: the files that it knows are neither opened nor decoded again, the others are
            added. By default nothing is known.
        entries: those to read; by default all of the source.
        announce: called with the number of files to read and the seconds that each of the first `TRIED` took.

    Raises:
        DataError: the source as a whole cannot be read or exceeds a limit; the limit and the value are named.
    """
    limits, seen = limits or IntakeLimits(), seen or SeenFiles.temporary()
    opened = source if isinstance(source, ImageSource) else find_source(source, image_roots)
    try:
        entries = entries_of(opened, limits) if entries is None else entries
        reader = _Reader(opened, limits, Depths(fixed=bit_depth), view, workers, seen, use)
        listed = [reader.listed(entry) for entry in entries]
        unread = sum(not entry.reason and not known for entry, _, known in listed)
        started = time.monotonic()
        with ThreadPoolExecutor(workers) as pool:
            for entry, stamp, known in (
                listed if progress is None else progress(listed, len(listed), "reading images")
            ):
                if (
                    reader.add(entry, stamp, known, pool)
                    and reader.num_read == TRIED
                    and announce is not None
                ):
                    announce(unread, (time.monotonic() - started) / TRIED)
            files = reader.finish(pool)
    except BaseException:
        opened.close()
        raise
    intake = Intake(opened, limits, entries, files, seen, view, reader.decoding, reader.num_changed)
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
    """Reads one file after the other, while `workers` threads hash and decode them.

    Attributes:
        decoding: how images are decoded.
        num_read: files that were not known.
        num_changed: files with other bytes than before that show the same picture.
    """

    def __init__(
        self,
        source: ImageSource,
        limits: IntakeLimits,
        depths: Depths,
        view: EvaluationView | None,
        workers: int,
        seen: SeenFiles,
        use: Callable[[IntakeFile, "Tensor"], None] | None,
    ):
        self.decoding = Decoding(limits.max_pixels, Depths.holding(seen.depths, depths.fixed))
        self._entries, self._files = list[Entry](), list[IntakeFile]()
        self._source, self._limits, self._view, self._seen, self._use = source, limits, view, seen, use
        self._budget = ByteBudget(limits, source.name)
        self._first: dict[str, int] = {}  # index of the first file by picture
        self._waiting: deque[tuple[int, Stamp | None, Future[str]]] = deque()
        self._most_waiting, self._waiting_bytes = 2 * workers, 0
        self._decoded: dict[str, Future[DecodedFile]] = {}
        self._claiming = threading.Lock()
        self.num_read = self.num_changed = 0

    def listed(self, entry: Entry) -> tuple[Entry, Stamp | None, str]:
        """An entry, its stamp, and the hash of its content if that is known."""
        stamp = None if entry.reason else self._source.stamp(entry)
        if stamp is None or stamp.size > self._limits.max_file_bytes:
            return entry, stamp, ""
        return entry, stamp, self._seen.content_of(stamp)

    def add(self, entry: Entry, stamp: Stamp | None, known: str, pool: ThreadPoolExecutor) -> bool:
        """Give the next file to the pool unless its content is known; return whether it was read."""
        index = len(self._files)
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
                size, hashed = len(content), pool.submit(self._decode, content)
        except SkippedFileError as skipped:
            self._files.append(IntakeFile(index, entry.name, Verdict(Status.SKIPPED, str(skipped))))
            return False
        note = Verdict(Status.NOTED if entry.note else Status.USED, entry.note)
        self._files.append(IntakeFile(index, entry.name, note, num_bytes=size))
        self._waiting.append((index, None if known else stamp, hashed))
        self._waiting_bytes += size
        self.num_read += not known
        while len(self._waiting) > self._most_waiting or self._waiting_bytes > WAITING_BYTES:
            self._finish_first()
        return not known

    def finish(self, pool: ThreadPoolExecutor) -> list[IntakeFile]:
        """All files, once everything is decoded, and all by one rule."""
        while self._waiting:
            self._finish_first()
        self._seen.flush()
        self._show_by_one_rule(pool)
        return self._files

    def _show_by_one_rule(self, pool: ThreadPoolExecutor) -> None:
        """Decode those files again that were decoded before the depth of all was known."""
        firsts = {file.content_hash: file.index for file in reversed(self._files) if file.key}
        decoded = {digest: self._result(digest) for digest in firsts}
        found = [image.depth for _, image in decoded.values() if image is not None]
        depths = Depths.holding([*self._seen.depths, *found], self.decoding.depths.fixed)
        self.decoding = Decoding(self._limits.max_pixels, depths)
        stale = [
            digest
            for digest, (_, image) in decoded.items()
            if image is not None and not depths.suits(image.depth)
        ]
        shown: dict[str, DecodedFile] = {}
        for start in range(0, len(stale), self._most_waiting):
            contents = {
                each: self._again(each, firsts[each]) for each in stale[start : start + self._most_waiting]
            }
            there = {digest: content for digest, content in contents.items() if content is not None}
            made = pool.map(partial(look_at, decoding=self.decoding, view=self._view), there.values())
            for digest, (verdict, image) in zip(there, made, strict=True):
                _, before = decoded[digest]
                if image is not None and before is not None:
                    shown[digest] = verdict, replace(image, key=before.key)
        if shown:
            self._seen.replace_decoded(shown)
        for index, file in enumerate(self._files):
            if file.content_hash in shown:
                verdict = shown[file.content_hash][0]
                note = self._entries[index].note
                self._files[index] = replace(file, verdict=_joined(verdict, Verdict(Status.USED, note)))

    def _again(self, digest: str, index: int) -> bytes | None:
        """The bytes of a file that was read before; `None` if it is not there or has changed."""
        try:
            content = self._source.read(self._entries[index], ByteBudget(self._limits, self._source.name))
        except SkippedFileError:
            return None
        return content if hashlib.sha256(content).hexdigest() == digest else None

    def _decode(self, content: bytes) -> str:
        """In a worker: the hash of a file; it also decodes each content once."""
        digest = hashlib.sha256(content).hexdigest()
        with self._claiming:
            if digest in self._decoded:
                return digest
            decoded = self._decoded[digest] = Future()
        try:
            known = self._seen.decoded(digest)
            decoded.set_result(known or look_at(content, self.decoding, self._view))
        except BaseException as error:
            decoded.set_exception(error)
        return digest

    def _finish_first(self) -> None:
        """Complete the first file that waits."""
        index, stamp, future = self._waiting.popleft()
        digest, seen = future.result(), self._seen
        file = replace(self._files[index], content_hash=digest)
        self._waiting_bytes -= file.num_bytes
        verdict, image = self._result(digest)
        if verdict.status is Status.SKIPPED and (raw := reason_of_raw(file.name)):
            verdict = replace(verdict, note=raw)
        file = replace(file, verdict=_joined(verdict, file.verdict))
        is_new = seen.decoded(digest) is None
        if image is not None:
            if is_new:
                image = replace(image, key=seen.key_of(digest, "" if stamp is None else stamp.path, image))
            first = self._first.setdefault(image.key, index)
            file = replace(
                file,
                key=image.key,
                image_size=image.size,
                duplicate_of=None if first == index else first,
                taken=image.taken,
            )
            if self._use is not None and first == index and image.view is not None and image.depth is None:
                self._use(file, image.view)
        # A copy of the file needs no pictures.
        light = verdict, image and replace(image, thumbnail=b"", miniature=image.miniature[:0], view=None)
        self._decoded[digest] = Future()
        self._decoded[digest].set_result(light)
        if not verdict.is_passing:
            if is_new:
                seen.add_decoded(digest, (verdict, image))
            if stamp is not None:
                before = seen.hash_at(stamp.path)
                self.num_changed += before not in ("", digest) and seen.known_key(before) == file.key != ""
                seen.add_file(stamp, digest)
        self._files[index] = file

    def _result(self, digest: str) -> DecodedFile:
        """What decoding a content left, now or before."""
        if (future := self._decoded.get(digest)) is not None:
            return future.result()
        known = self._seen.decoded(digest)
        assert known is not None, "a known file has a known content"
        return known


def entries_of(source: ImageSource, limits: IntakeLimits) -> list[Entry]:
    """All entries, of which those are not read that show a photograph of which another file is used.

    Raises:
        DataError: as `ImageSource.entries`.
    """
    entries = source.entries(limits)
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

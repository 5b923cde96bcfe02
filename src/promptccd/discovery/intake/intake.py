"""Files of a source with their verdicts, and what is kept of those that are images."""

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from promptccd.data.sources import FOLLOWED, OUTSIDE, Entry, ImageSource
from promptccd.data.views import EvaluationView
from promptccd.discovery.intake.seen import SeenFiles
from promptccd.errors import DataError
from promptccd.images.capture_dates import seconds_of
from promptccd.images.decode import Decoding, Status, Verdict
from promptccd.images.identity import MINIATURE_SIDE, SeenImage, look_at, view_of
from promptccd.images.limits import ByteBudget, IntakeLimits, SkippedFileError


@dataclass(frozen=True)
class IntakeFile:
    """One file and what became of it.

    Attributes:
        index: position among all files found.
        name: its path in the source, as one line of visible text; not necessarily unique.
        verdict: used, used with a note, or skipped with a reason.
        content_hash: SHA-256 of its bytes, in hexadecimal; empty if they were not read.
        key: what its picture is known by, see `promptccd.images.identity`; empty if it shows none.
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
        seen: SeenFiles,
        view: EvaluationView | None,
        decoding: Decoding,
        num_changed: int,
    ):
        self.decoding, self._num_changed = decoding, num_changed
        self._source, self._limits, self._entries = source, limits, entries
        self._seen, self._view = seen, view
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
        found = self._seen.miniatures(file.content_hash for file in self.used)
        again = self._again(file for file in self.used if file.content_hash not in found)
        found |= {digest: image.miniature for digest, image in again.items()}
        rows = [found[file.content_hash] for file in self.used]
        return np.stack(rows) if rows else np.empty((0, MINIATURE_SIDE, MINIATURE_SIDE), np.uint8)

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
            if (stamp := self._source.stamp(self._entries[file.index])) is not None:
                self._seen.forget(stamp.path)
            raise DataError(f"{file.name!r} was changed while it was in use. Give the command again.")
        return content

    def path_of(self, file: IntakeFile) -> str:
        """The path of a file on this machine; empty for one in an archive or a data set, and where it is gone."""
        stamp = self._source.stamp(self._entries[file.index])
        return stamp.path if stamp is not None and os.path.isfile(stamp.path) else ""

    def view_of(self, file: IntakeFile, view: EvaluationView) -> Tensor:
        """The view ``(3, S, S)`` of an image, made anew."""
        made = view_of(self.read_bytes(file), self.decoding, view)
        if made is None:
            raise _undecodable(file)
        return made

    def thumbnails(self, files: Sequence[IntakeFile]) -> dict[str, bytes]:
        """Small pictures by their keys, see `SeenImage`; those that were lost are made again."""
        originals = [self.original(file) for file in files]
        found = self._seen.thumbnails(file.content_hash for file in originals)
        again = self._again(file for file in originals if file.content_hash not in found)
        found |= {digest: image.thumbnail for digest, image in again.items()}
        return {file.key: found[file.content_hash] for file in originals}

    def _again(self, files: Iterable[IntakeFile]) -> dict[str, SeenImage]:
        """Small pictures that were lost, by content."""
        made = dict[str, SeenImage]()
        for file in files:
            _, image = look_at(self.read_bytes(file), self.decoding, self._view)
            if image is None:
                raise _undecodable(file)
            made[file.content_hash] = image
        self._seen.add_small(made)
        return made

    def report(self) -> IntakeReport:
        """Counts and reasons."""
        skipped = [file.verdict.note for file in self.files if file.verdict.status is Status.SKIPPED]
        notes = [file.verdict.note for file in self.used if file.verdict.note]
        return IntakeReport(
            found=len(self.files),
            used=len(self.used),
            noted=len(notes),
            duplicates=sum(file.duplicate_of is not None for file in self.files),
            changed=self._num_changed,
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

"""What became of the files that people bring; the images among them can be opened again.

What is kept of an image is small: its pixels are decoded again when they are asked for.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image
from torch import Tensor

from promptccd.data.duplicates import near_duplicates
from promptccd.data.images import Status, Verdict, decode_image
from promptccd.data.limits import ByteBudget, IntakeLimits, SkippedFileError
from promptccd.data.seen_images import SeenImage, thumbnail_of
from promptccd.data.sources import Entry, ImageSource
from promptccd.errors import DataError

View = Callable[[Image.Image], Tensor]


@dataclass(frozen=True)
class IntakeFile:
    """One file and what became of it.

    Attributes:
        index: position among all files found.
        name: where it is in the source, as one line of visible text; not necessarily unique.
        verdict: used, used with a note, or skipped with a reason.
        content_hash: SHA-256 of its bytes, in hexadecimal; empty if they were not read.
        num_bytes: how many there are; 0 if they were not read.
        image_size: width and height in pixels, upright; `None` if it is skipped.
        duplicate_of: index of the first file with the same bytes, if that is another one and an image.
    """

    index: int
    name: str
    verdict: Verdict
    content_hash: str = ""
    num_bytes: int = 0
    image_size: tuple[int, int] | None = None
    duplicate_of: int | None = None

    @property
    def is_used(self) -> bool:
        """Whether it is an image that is grouped by itself: neither skipped nor a duplicate."""
        return self.verdict.status is not Status.SKIPPED and self.duplicate_of is None


@dataclass(frozen=True)
class IntakeReport:
    """Counts of an intake: ``used + duplicates + skipped == found``.

    Attributes:
        found: files in the source, folders that could not be searched included.
        used: images that are grouped.
        noted: how many of those are used with a note.
        duplicates: files that equal a used one byte by byte.
        skipped: files that are left out.
        near_duplicates: how many of the used nearly equal an earlier one.
        skipped_reasons: number of files by reason, most frequent first.
        notes: number of used images by note, most frequent first.
    """

    found: int
    used: int
    noted: int
    duplicates: int
    skipped: int
    near_duplicates: int
    skipped_reasons: dict[str, int]
    notes: dict[str, int]


class Intake:
    """Files of a source with their verdicts. Close it, or use it in a ``with``, to let go of the source.

    Args:
        source: where the files are.
        limits: what holds for reading them again.
        entries: how the source finds each file.
        files: what became of each.
        seen: what decoding left behind, by index of used files.
        view: what made the views among it.

    Attributes:
        name: what messages call the source.
        files: every file found, in the order of the source.
        used: those that are grouped, in the same order.
        near_duplicates: index of a used file -> index of the first used one that it nearly equals. Both are grouped.
    """

    def __init__(
        self,
        source: ImageSource,
        limits: IntakeLimits,
        entries: Sequence[Entry],
        files: Sequence[IntakeFile],
        seen: dict[int, SeenImage],
        view: View | None = None,
    ):
        self._source, self._limits, self._entries = source, limits, entries
        self._seen, self._view = seen, view
        self.name = source.name
        self.files = tuple(files)
        self.used = tuple(file for file in files if file.is_used)
        near = near_duplicates([seen[file.index].fingerprint for file in self.used])
        self.near_duplicates = {
            self.used[late].index: self.used[early].index for late, early in sorted(near.items())
        }

    def __len__(self) -> int:
        return len(self.files)

    def __enter__(self) -> "Intake":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the source; names, verdicts and kept thumbnails stay."""
        self._source.close()

    @property
    def bytes_in_memory(self) -> int:
        """What is kept of the images: thumbnails and views."""
        views = (each.view for each in self._seen.values() if each.view is not None)
        return sum(len(each.thumbnail) for each in self._seen.values()) + sum(view.nbytes for view in views)

    def drop_views(self) -> None:
        """Let go of the views; one that is asked for again is decoded again."""
        self._seen = {index: replace(each, view=None) for index, each in self._seen.items()}

    def original(self, file: IntakeFile) -> IntakeFile:
        """The used file that a duplicate equals; any other file itself."""
        return file if file.duplicate_of is None else self.files[file.duplicate_of]

    def read_bytes(self, file: IntakeFile) -> bytes:
        """The bytes of a file that is not skipped, as they were when the intake was made.

        They may hold the place and time of a photograph; `open` gives an image without.

        Raises:
            DataError: the file was skipped, or has changed since.
        """
        if file.verdict.status is Status.SKIPPED:
            raise DataError(f"{file.name!r} was skipped: {file.verdict.note}.")
        try:
            content = self._source.read(
                self._entries[file.index], self._limits, ByteBudget(self._limits, self.name)
            )
        except SkippedFileError as skipped:
            raise DataError(f"{file.name!r} could be read before and cannot be now: {skipped}.") from skipped
        if hashlib.sha256(content).hexdigest() != file.content_hash:
            raise DataError(f"{file.name!r} was changed while it was in use. Start again.")
        return content

    def open(self, file: IntakeFile) -> Image.Image:
        """The upright 8-bit RGB image of a file, without metadata.

        Raises:
            DataError: as `read_bytes`.
        """
        image = decode_image(self.read_bytes(file), max_pixels=self._limits.max_pixels).image
        if image is None:
            raise DataError(f"{file.name!r} could be decoded before and cannot be now.")
        return image

    def view_of(self, file: IntakeFile, view: View) -> Tensor:
        """The view of an image: from the store if the intake was made with this very view, made anew otherwise.

        Raises:
            DataError: as `read_bytes`.
        """
        seen = self._seen.get(self.original(file).index)
        kept = seen.view if seen is not None and view is self._view else None
        return view(self.open(file)) if kept is None else kept

    def thumbnail(self, file: IntakeFile) -> bytes:
        """A JPEG (PNG if it is small) of at most `THUMBNAIL_SIDE` pixels a side, without metadata.

        Raises:
            DataError: as `read_bytes`.
        """
        seen = self._seen.get(self.original(file).index)
        return seen.thumbnail if seen is not None and seen.thumbnail else thumbnail_of(self.open(file))

    def report(self) -> IntakeReport:
        """Counts and reasons."""
        skipped = [file.verdict.note for file in self.files if file.verdict.status is Status.SKIPPED]
        notes = [file.verdict.note for file in self.used if file.verdict.note]
        return IntakeReport(
            found=len(self.files),
            used=len(self.used),
            noted=len(notes),
            duplicates=sum(file.duplicate_of is not None for file in self.files),
            skipped=len(skipped),
            near_duplicates=len(self.near_duplicates),
            skipped_reasons=dict(Counter(skipped).most_common()),
            notes=dict(Counter(notes).most_common()),
        )

    def require_images(self) -> None:
        """Refuse an intake that nothing can be done with.

        Raises:
            DataError: no file is used; the most frequent reasons are named.
        """
        if not self.used:
            reasons = [f"{reason} ({count})" for reason, count in self.report().skipped_reasons.items()]
            raise DataError(
                f"{self.name} holds no image that can be used: {'; '.join(reasons[:3]) or 'it is empty'}. Give JPEG, "
                "PNG or WebP images."
            )

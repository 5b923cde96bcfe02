"""The readable images of a stage.

Every image is looked at before a stage begins, now or when its copy was made. An image that cannot be read is left out
of the stage and listed with its reason, so that no later step can meet it. Copies of the same picture are listed, and
never trained on under two labels.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from PIL import Image
from torch import Tensor

from promptccd.data.cached import CheckedStage, ImageCache
from promptccd.data.loaders import Progress
from promptccd.data.stages import LabelledStage, Stage
from promptccd.data.views import EvaluationView, ResizedImage
from promptccd.errors import DataError
from promptccd.images.decode import Status, Verdict
from promptccd.images.limits import TOO_MANY_BAD

logger = logging.getLogger(__name__)

Conflicting = Literal["refuse", "drop"]


@dataclass(frozen=True)
class Original:
    """The first image with a picture: its sample id, the index of its stage, and what it is called."""

    sample: int
    stage: int
    name: str = ""


@dataclass(frozen=True)
class ImageReport:
    """What became of the images of a stage.

    Attributes:
        stage: index of the stage.
        num_images: images the split gives the stage.
        noted: note by sample id of the images that are used with one.
        skipped: reason by sample id of the images that are left out.
        copies: the first image with the same picture, by sample id of every later one.
        conflicting: sample id of an image with the same picture and another label, by sample id of every image that
            is left out for it.
        names: what the images that are listed are called, by sample id.
        once: whether the later copies of a picture are left out.
    """

    stage: int
    num_images: int
    noted: dict[int, str]
    skipped: dict[int, str]
    copies: dict[int, Original] = field(default_factory=dict)
    conflicting: dict[int, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    once: bool = False

    @property
    def num_used(self) -> int:
        """Images that take part in the stage."""
        copies = len(self.copies) if self.once else 0
        return self.num_images - len(self.skipped) - len(self.conflicting) - copies

    def to_dict(self) -> dict[str, Any]:
        """As JSON types; images by what they are called."""
        names = self.names
        return {
            "stage": self.stage,
            "images": self.num_images,
            "used": self.num_used,
            "noted": {names[key]: note for key, note in self.noted.items()},
            "skipped": {names[key]: note for key, note in self.skipped.items()},
            "copies": {
                names[key]: {"image": first.name, "stage": first.stage} for key, first in self.copies.items()
            },
            "conflicting": {names[key]: names[other] for key, other in self.conflicting.items()},
        }


class StageImages:
    """Readable images of one stage by position.

    Args:
        stage: the stage.
        positions: positions in the stage that can be read, ascending.
        checked: what is kept of its images; `None` to decode on every access.
        report: what became of every image.
        digests: by which equal pictures are known, by entry of `positions`.
    """

    def __init__(
        self,
        stage: Stage,
        positions: np.ndarray,
        checked: CheckedStage | None,
        report: ImageReport,
        digests: Sequence[bytes] = (),
    ):
        self.stage = stage
        self.positions = positions
        self.report, self.digests = report, digests
        self._checked = checked

    @classmethod
    def read(
        cls,
        stage: Stage,
        num_workers: int | None,
        progress: Progress,
        cache: ImageCache | None = None,
        *,
        seen: dict[bytes, Original] | None = None,
        conflicting: Conflicting | None = None,
    ) -> "StageImages":
        """Look at every image of a stage, unless a cache knows it.

        Args:
            stage: the stage.
            num_workers: loader processes.
            progress: wraps an iterable, its length and a label in a progress bar.
            cache: where what views are cut from is kept; by default nowhere.
            seen: the first image with each picture of earlier stages, by digest; this stage adds its own.
            conflicting: ``"refuse"`` the stage if a picture has two labels, or ``"drop"`` all copies of that picture;
                `None` keeps them, as for test images.

        Raises:
            DataError: more than half of the images cannot be read, or the labels contradict each other.
        """
        cache = cache or ImageCache(None)
        checked = cache.of(stage, num_workers, progress)
        read = _Reading(stage, {} if seen is None else seen)
        for verdict, digest in checked:
            read.add(verdict, digest)
        if conflicting is not None and isinstance(stage, LabelledStage):
            read.leave_out_conflicts(stage, conflicting)
        _log_and_judge(read.report, stage.place)
        return cls(stage, np.asarray(read.used, dtype=np.int64), checked, read.report, read.digests)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Image.Image:
        """The decoded RGB image at an index among the readable ones."""
        image = self.stage.decode(int(self.positions[index])).image
        if image is None:
            raise DataError(f"{self.name_of(index)!r} was readable before and is not now: was it changed?")
        return image

    def for_view(self, index: int, shorter_side: int | None) -> Image.Image | ResizedImage:
        """The copy of an image, or the decoded image if there is no copy with that shorter side."""
        copy = None if self._checked is None else self._checked.copy_of(int(self.positions[index]))
        if copy is not None and min(copy.width, copy.height) == shorter_side:
            return copy
        return self[index]

    def seen_in(self, view: EvaluationView, index: int) -> Tensor:
        """The fixed view of an image."""
        return view(self.for_view(index, view.shorter_side))

    def name_of(self, index: int) -> str:
        """What the image at an index among the readable ones is called."""
        return self.stage.name_of(int(self.positions[index]))

    @property
    def sample_ids(self) -> np.ndarray:
        """Row number in the source data set of every readable image, ``(N,)``."""
        return self.stage.sample_ids[self.positions]


class _Reading:
    """The report, positions and digests of a stage while its images are read in order."""

    def __init__(self, stage: Stage, seen: dict[bytes, Original]):
        self._stage, self._samples = stage, iter(enumerate(stage.sample_ids.tolist()))
        self._seen = seen
        self.report = ImageReport(stage.index, len(stage), {}, {}, once=stage.once)
        self.used: list[int] = []
        self.digests: list[bytes] = []

    def add(self, verdict: Verdict, digest: bytes) -> None:
        """Add the next image."""
        position, sample = next(self._samples)
        if verdict.status is Status.SKIPPED:
            self.report.skipped[sample] = verdict.note
            self.report.names[sample] = self._stage.name_of(position)
            return
        name = self._stage.name_of(position)
        original = self._seen.setdefault(digest, Original(sample, self.report.stage, name))
        if original.sample != sample:  # the same image may be in several stages
            self.report.copies[sample] = original
            self.report.names[sample] = name
            if self._stage.once:
                return
        self.used.append(position)
        self.digests.append(digest)
        if verdict.status is Status.NOTED:
            self.report.noted[sample] = verdict.note
            self.report.names[sample] = name

    def leave_out_conflicts(self, stage: LabelledStage, how: Conflicting) -> None:
        """Leave out every copy of a picture with two labels, or refuse the stage for it."""
        labels = stage.labels[self.used].tolist()
        found = conflicts(self.digests, labels)
        samples = stage.sample_ids[self.used].tolist()
        called = {index: stage.name_of(self.used[index]) for index in {*found, *found.values()}}
        if found and how == "refuse":
            raise DataError(_contradiction(found, called, [stage.category_names[label] for label in labels]))
        self.report.names.update({samples[index]: name for index, name in called.items()})
        self.report.conflicting.update({samples[one]: samples[other] for one, other in found.items()})
        self.used = [position for index, position in enumerate(self.used) if index not in found]
        self.digests = [digest for index, digest in enumerate(self.digests) if index not in found]
        if bare := set(labels) - set(stage.labels[self.used].tolist()):
            raise DataError(
                f"All images of {stage.category_names[min(bare)]!r} also have another label, so none can be trained "
                "on: mend the labels."
            )


def conflicts(digests: Sequence[bytes], labels: Sequence[int]) -> Mapping[int, int]:
    """Positions of pictures with several labels -> the first position of the same picture with another label.

    Digests and labels (category ids) are one per image, N.
    """
    positions = defaultdict(list)
    for position, digest in enumerate(digests):
        positions[digest].append(position)
    found = {}
    for same in positions.values():
        for position in same if len({labels[each] for each in same}) > 1 else ():
            found[position] = next(each for each in same if labels[each] != labels[position])
    return dict(sorted(found.items()))


def _contradiction(found: Mapping[int, int], called: Mapping[int, str], names: list[str]) -> str:
    one, other = next(iter(found.items()))
    return (
        f"{called[one]!r} is labelled {names[one]!r} and {called[other]!r}, the very same picture, "
        f"{names[other]!r}; {len(found)} images of stage 0 contradict another in this way. Nothing was trained: "
        "mend the labels, or leave all of them out with --conflicting_labels drop."
    )


def _log_and_judge(report: ImageReport, place: str) -> None:
    """Log everything unusual, and refuse a stage of which more than half cannot be read; a stream has a place."""
    if report.noted:
        logger.info("Stage %d: %d images used with a note.", report.stage, len(report.noted))
    if report.skipped:
        sample, reason = next(iter(report.skipped.items()))
        logger.warning(
            "Stage %d: %d of %d images cannot be read and are left out, %r for one: %s.",
            report.stage, len(report.skipped), report.num_images, report.names[sample], reason,
        )  # fmt: skip
    if report.copies:
        sample, first = next(iter(report.copies.items()))
        earlier = sum(original.stage < report.stage for original in report.copies.values())
        logger.warning(
            "Stage %d: %d images are the very picture of another, %d of them of one in an earlier stage%s: %r is %r, "
            "for one; images.json lists all.",
            report.stage, len(report.copies), earlier, ", and count once, where they came first" * report.once,
            report.names[sample], first.name,
        )  # fmt: skip
    if report.conflicting:
        sample, other = next(iter(report.conflicting.items()))
        logger.warning(
            "Stage %d: %d images have another label elsewhere and are left out, %r, which is %r, for one.",
            report.stage, len(report.conflicting), report.names[sample], report.names[other],
        )  # fmt: skip
    if len(report.skipped) > TOO_MANY_BAD * report.num_images:
        reasons = sorted(set(report.skipped.values()))[:3]
        raise DataError(
            f"{len(report.skipped)} of {report.num_images} images of stage {report.stage} cannot be read "
            f"({'; '.join(reasons)}): "
            + (
                f"mend {place}, or leave it out."
                if place
                else "mend the data set, or point --dataset at another."
            )
        )
    if not report.num_used:
        raise DataError(
            f"All {report.num_images} images of stage {report.stage} ({place}) are in an earlier one: give the whole "
            "command again without that stream."
        )

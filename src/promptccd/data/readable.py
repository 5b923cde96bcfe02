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

import datasets
import numpy as np
from PIL import Image
from torch import Tensor

from promptccd.data.cached import ImageCache, verdicts_of
from promptccd.data.loaders import Progress
from promptccd.data.stages import LabelledStage, Stage
from promptccd.data.views import EvaluationView, ResizedImage
from promptccd.errors import DataError
from promptccd.images.decode import Status
from promptccd.images.limits import TOO_MANY_BAD

logger = logging.getLogger(__name__)

Conflicting = Literal["refuse", "drop"]


@dataclass(frozen=True)
class Original:
    """The first image with a picture: its sample id, the index of its stage, and its name."""

    sample: int
    stage: int
    name: str = ""


@dataclass
class ImageReport:
    """The verdicts on the images of a stage, by name; as ``images.json`` of a run contains them.

    Attributes:
        stage: index of the stage.
        images: how many the split gives the stage.
        used: how many take part in the stage.
        noted: notes of used images.
        skipped: reason of every image that is left out.
        copies: name and stage of the first image with equal pixels, of every later image.
        conflicting: an image with the same picture and another label, of every image that is left out for it.
    """

    stage: int
    images: int
    used: int = 0
    noted: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    copies: dict[str, dict[str, Any]] = field(default_factory=dict)
    conflicting: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class StageImages:
    """Readable images of one stage by position.

    Attributes:
        stage: the stage.
        positions: positions in the stage that can be read, ascending.
        copies: a row for every image of the stage, with the pixels that views are cut from or none.
        report: what became of every image.
        digests: by which equal pictures are known, by entry of `positions`.
    """

    stage: Stage
    positions: np.ndarray
    copies: datasets.Dataset
    report: ImageReport
    digests: Sequence[bytes] = ()

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
        copies = (cache or ImageCache(None)).of(stage, num_workers, progress)
        seen = {} if seen is None else seen
        report, used = ImageReport(stage.index, len(stage)), dict[int, bytes]()  # digest by position
        for position, (verdict, digest) in enumerate(verdicts_of(stage, copies)):
            name, sample = stage.name_of(position), int(stage.sample_ids[position])
            if verdict.status is Status.SKIPPED:
                again = f" (row {sample})" * (name in report.skipped)  # a list may name a file twice
                report.skipped[name + again] = verdict.note
                continue
            original = seen.setdefault(digest, Original(sample, stage.index, name))
            if original.sample != sample:  # the same image may be in several stages
                report.copies[name] = {"image": original.name, "stage": original.stage}
                if stage.place:
                    continue
            used[position] = digest
            if verdict.status is Status.NOTED:
                report.noted[name] = verdict.note
        if conflicting is not None and isinstance(stage, LabelledStage):
            for position, other in _conflicts_of(stage, used, conflicting).items():
                report.conflicting[stage.name_of(position)] = stage.name_of(other)
                del used[position]
        report.used = len(used)
        _log_and_judge(report, stage.place)
        return cls(stage, np.array([*used], dtype=np.int64), copies, report, [*used.values()])

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Image.Image:
        """The decoded RGB image at an index among the readable images."""
        image = self.stage.decode(int(self.positions[index])).image
        if image is None:
            raise DataError(
                f"{self.name_of(index)!r} could be read before and cannot be read now. Restore the file, and repeat "
                "the command."
            )
        return image

    def for_view(self, index: int, shorter_side: int | None) -> Image.Image | ResizedImage:
        """The copy of an image, or the decoded image if there is no copy with that shorter side."""
        found = self.copies[int(self.positions[index])]
        if not found["pixels"]:
            return self[index]
        copy = ResizedImage(np.frombuffer(found["pixels"], np.uint8).reshape(-1, found["width"], 3))
        return copy if min(copy.width, copy.height) == shorter_side else self[index]

    def seen_in(self, view: EvaluationView, index: int) -> Tensor:
        """The fixed view of an image."""
        return view(self.for_view(index, view.shorter_side))

    def name_of(self, index: int) -> str:
        """What the image at an index among the readable images."""
        return self.stage.name_of(int(self.positions[index]))

    @property
    def sample_ids(self) -> np.ndarray:
        """Row number in the source data set of every readable image, ``(N,)``."""
        return self.stage.sample_ids[self.positions]


def _conflicts_of(stage: LabelledStage, used: Mapping[int, bytes], how: Conflicting) -> dict[int, int]:
    """The `conflicts` of a stage by position, of images with these digests; or refuse the stage for them."""
    positions, names = [*used], stage.category_names
    labels = stage.labels[positions].tolist()
    by_index = conflicts([*used.values()], labels)
    found = {positions[one]: positions[other] for one, other in by_index.items()}
    if found and how == "refuse":
        one, other = ((stage.name_of(each), names[stage.labels[each]]) for each in next(iter(found.items())))
        raise DataError(
            f"{one[0]!r} is labelled {one[1]!r}, but the same picture {other[0]!r} is labelled {other[1]!r}. "
            f"{len(found)} images of stage 0 have such a contradiction. Mend the labels, or give --conflicting_labels "
            "drop to leave these images out."
        )
    if bare := set(labels) - {label for index, label in enumerate(labels) if index not in by_index}:
        raise DataError(
            f"All images of {names[min(bare)]!r} also have another label, so no image is left: correct the labels."
        )
    return found


def conflicts(digests: Sequence[bytes], labels: Sequence[int]) -> dict[int, int]:
    """Positions of pictures with several labels -> the first position of the same picture with another label.

    Digests and labels (category ids) are one per image, N.
    """
    first = defaultdict[bytes, dict[int, int]](dict)  # position by label, of every picture
    for position, (digest, label) in enumerate(zip(digests, labels, strict=True)):
        first[digest].setdefault(label, position)
    found = {}
    for position, (digest, label) in enumerate(zip(digests, labels, strict=True)):
        for another, other in first[digest].items():
            if another != label:
                found[position] = other
                break
    return found


def _log_and_judge(report: ImageReport, place: str) -> None:
    """Log everything unusual, and refuse a stage of which more than half cannot be read; a stream has a place."""
    if report.noted:
        logger.info("Stage %d: %d images used with a note.", report.stage, len(report.noted))
    if report.skipped:
        logger.warning(
            "Stage %d: %d of %d images cannot be read and are left out, %r for one: %s.",
            report.stage, len(report.skipped), report.images, *next(iter(report.skipped.items())),
        )  # fmt: skip
    if report.copies:
        name, first = next(iter(report.copies.items()))
        logger.warning(
            "Stage %d: %d images are the very picture of another, %d of them of one in an earlier stage%s: %r "
            "is %r, for example; images.json lists all.",
            report.stage, len(report.copies), sum(each["stage"] < report.stage for each in report.copies.values()),
            ", and count once, where they came first" * bool(place), name, first["image"],
        )  # fmt: skip
    if report.conflicting:
        logger.warning(
            "Stage %d: %d images have another label elsewhere and are left out, %r, which is %r, for one.",
            report.stage, len(report.conflicting), *next(iter(report.conflicting.items())),
        )  # fmt: skip
    if len(report.skipped) > TOO_MANY_BAD * report.images:
        remedy = "mend the data set, or point --dataset at another."
        raise DataError(
            f"{len(report.skipped)} of {report.images} images of stage {report.stage} cannot be read "
            f"({'; '.join(sorted(set(report.skipped.values()))[:3])}): "
            f"{f'mend {place}, or leave it out.' if place else remedy}"
        )
    if not report.used:
        raise DataError(
            f"All {report.images} images of stage {report.stage} ({place}) are in an earlier stage: "
            "repeat the command without that stream."
        )

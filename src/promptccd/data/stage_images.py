"""The readable images of a stage, decoded once where memory allows.

Every image is read before a stage begins. An image that cannot be read is left out of the stage and listed with its
reason, so that no later step can meet it; images that fit into the cache are never decoded again. Copies of the same
picture are listed, and never trained on under two labels.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from promptccd import system
from promptccd.data.duplicates import Original, conflicts, digest_of
from promptccd.data.images import Status, Verdict
from promptccd.data.limits import TOO_MANY_BAD
from promptccd.data.stages import LabelledStage, Stage
from promptccd.errors import DataError
from promptccd.processes import end_with_parent

logger = logging.getLogger(__name__)

CACHE_BYTES = 2**30  # decoded pixels kept per stage; 30,450 images of CIFAR-100 take a tenth of it

Conflicting = Literal["refuse", "drop"]
Progress = Callable[[Iterable[Any], int, str], Iterator[Any]]


MOST_USUAL = 8  # loader processes; more of them wait for the disk
IN_FLIGHT = 3  # batches of a loader process in shared memory: two made ahead, and the one that it makes
LOADER_WAITS_S = 300.0  # for a batch; a process that died without a word would be waited for without end


def usual_workers() -> int:
    """Loader processes unless told: beside a GPU its share of the cores, up to `MOST_USUAL`."""
    if not torch.cuda.is_available():
        return 0
    # Of this training on this machine, as launchers say it.
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(MOST_USUAL, system.available_cores() // processes)


def workers_for(wanted: int | None, batch_bytes: int = 0) -> int:
    """Loader processes: as many as wanted, but no more than cores, nor than shared memory has room for.

    The results are the same bytes for any number.

    Args:
        wanted: number of processes; `None` means `usual_workers`.
        batch_bytes: of a batch of tensors, which go through shared memory; containers have 64 MB of it.
    """
    wanted = usual_workers() if wanted is None else wanted
    workers, free = min(wanted, system.available_cores()), system.free_shared_memory()
    if not batch_bytes or not workers or free is None:
        return workers
    fitting = free // (IN_FLIGHT * batch_bytes)
    if fitting < workers:
        _say_how_many(fitting, workers, round(IN_FLIGHT * batch_bytes / 1e6))
    return min(workers, fitting)


@cache  # once, however many loaders start
def _say_how_many(fitting: int, workers: int, megabytes: int) -> None:
    logger.warning(
        "Shared memory (%s) is short, and a loader process needs %d MB of it: images are loaded by %s. More of it "
        "(docker run --shm-size 2g) or a smaller --batch_size allows %d.",
        system.SHARED_MEMORY, megabytes, f"{fitting} of them" if fitting else "this process itself", workers,
    )  # fmt: skip


def loader_options(wanted: int | None, batch_bytes: int = 0) -> dict[str, Any]:
    """What a `DataLoader` is told about its processes; arguments are those of `workers_for`."""
    if not (workers := workers_for(wanted, batch_bytes)):
        return {}
    return {"num_workers": workers, "timeout": LOADER_WAITS_S, "worker_init_fn": end_with_parent}


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
        cache: decoded pixels ``(H, W, 3)`` uint8 by entry of `positions`; `None` to decode on every access.
        report: what became of every image.
        digests: by which equal pictures are known, by entry of `positions`.
    """

    def __init__(
        self,
        stage: Stage,
        positions: np.ndarray,
        cache: list[np.ndarray] | None,
        report: ImageReport,
        digests: Sequence[bytes] = (),
    ):
        self.stage = stage
        self.positions = positions
        self.report, self.digests = report, digests
        self._cache = cache

    @classmethod
    def read(
        cls,
        stage: Stage,
        num_workers: int | None,
        progress: Progress,
        *,
        seen: dict[bytes, Original] | None = None,
        conflicting: Conflicting | None = None,
    ) -> "StageImages":
        """Read every image of a stage once.

        Args:
            stage: the stage.
            num_workers: loader processes.
            progress: wraps an iterable, its length and a label in a progress bar.
            seen: the first image with each picture of earlier stages, by digest; this stage adds its own.
            conflicting: ``"refuse"`` the stage if a picture has two labels, or ``"drop"`` all copies of that picture;
                `None` keeps them, as for test images.

        Raises:
            DataError: more than half of the images cannot be read, or the labels contradict each other.
        """
        loader = DataLoader(_Decoded(stage), batch_size=64, collate_fn=list, **loader_options(num_workers))
        read = _Reading(stage, {} if seen is None else seen)
        for records in progress(loader, len(loader), f"stage {stage.index}: reading images"):
            for record in records:
                read.add(*record)
        if conflicting is not None and isinstance(stage, LabelledStage):
            read.leave_out_conflicts(stage, conflicting)
        _log_and_judge(read.report, stage.place)
        return cls(stage, np.asarray(read.used, dtype=np.int64), read.cache, read.report, read.digests)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Image.Image:
        """The decoded RGB image at an index among the readable ones."""
        if self._cache is not None:
            return Image.fromarray(self._cache[index])
        image = self.stage.decode(int(self.positions[index])).image
        if image is None:
            raise DataError(
                f"{self.name_of(index)!r} could be read before and cannot be now: was it changed?"
            )
        return image

    def name_of(self, index: int) -> str:
        """What the image at an index among the readable ones is called."""
        return self.stage.name_of(int(self.positions[index]))

    @property
    def sample_ids(self) -> np.ndarray:
        """Row number in the source data set of every readable image, ``(N,)``."""
        return self.stage.sample_ids[self.positions]


class _Reading:
    """The report, positions, digests and cache of a stage while its images are read in order."""

    def __init__(self, stage: Stage, seen: dict[bytes, Original]):
        self._stage, self._samples = stage, iter(enumerate(stage.sample_ids.tolist()))
        self._room, self._seen = CACHE_BYTES, seen
        self.report = ImageReport(stage.index, len(stage), {}, {}, once=stage.once)
        self.used: list[int] = []
        self.digests: list[bytes] = []
        self.cache: list[np.ndarray] | None = []

    def add(self, pixels: np.ndarray | None, verdict: Verdict, digest: bytes) -> None:
        """Add the next image."""
        position, sample = next(self._samples)
        if pixels is None:
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
        self._room -= pixels.nbytes
        if self.cache is not None:
            self.cache.append(pixels)
            self.cache = self.cache if self._room >= 0 else None

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
        if self.cache is not None:
            self.cache = [pixels for index, pixels in enumerate(self.cache) if index not in found]
        if bare := set(labels) - set(stage.labels[self.used].tolist()):
            raise DataError(
                f"All images of {stage.category_names[min(bare)]!r} also have another label, so none can be trained "
                "on: mend the labels."
            )


def _contradiction(found: Mapping[int, int], called: Mapping[int, str], names: list[str]) -> str:
    one, other = next(iter(found.items()))
    return (
        f"{called[one]!r} is labelled {names[one]!r} and {called[other]!r}, the very same picture, "
        f"{names[other]!r}; {len(found)} images of stage 0 contradict another in this way. Nothing was trained: "
        "mend the labels, or leave all of them out with --conflicting_labels drop."
    )


class _Decoded(Dataset):
    """Pixels (or `None`), verdict and digest of every image of a stage."""

    def __init__(self, stage: Stage):
        self.stage = stage

    def __len__(self) -> int:
        return len(self.stage)

    def __getitem__(self, position: int) -> tuple[np.ndarray | None, Verdict, bytes]:
        decoded = self.stage.decode(position)
        if decoded.image is None:
            return None, decoded.verdict, b""
        pixels = np.asarray(decoded.image)
        return pixels, decoded.verdict, digest_of(pixels)


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

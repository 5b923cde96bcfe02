"""The readable images of a stage, decoded once where memory allows.

Every image is read before a stage begins. What cannot be read is left out of the stage and listed with its
reason, so that no later step can meet it; what fits into the cache is never decoded again.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from promptccd.data.images import Status, Verdict, decode_image
from promptccd.data.stages import Stage
from promptccd.errors import DataError

logger = logging.getLogger(__name__)

CACHE_BYTES = 2**30  # decoded pixels kept per stage: 30,450 images of CIFAR-100 take a tenth of it
TOO_MANY_BAD = 0.5

Progress = Callable[[Iterable[Any], int, str], Iterator[Any]]


@dataclass(frozen=True)
class ImageReport:
    """What became of the images of a stage.

    Attributes:
        stage: index of the stage.
        num_images: images the split gives the stage.
        noted: sample id and reason of images used with a note.
        skipped: sample id and reason of images left out.
    """

    stage: int
    num_images: int
    noted: dict[int, str]
    skipped: dict[int, str]

    @property
    def num_used(self) -> int:
        """Images that take part in the stage."""
        return self.num_images - len(self.skipped)

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "stage": self.stage,
            "images": self.num_images,
            "used": self.num_used,
            "noted": {str(key): note for key, note in self.noted.items()},
            "skipped": {str(key): note for key, note in self.skipped.items()},
        }


class StageImages:
    """Readable images of one stage by position.

    Args:
        stage: the stage.
        positions: positions in the stage that can be read, ascending.
        cache: decoded pixels ``(H, W, 3)`` uint8 by entry of `positions`; `None` to decode on every access.
        report: what became of every image.
    """

    def __init__(
        self, stage: Stage, positions: np.ndarray, cache: list[np.ndarray] | None, report: ImageReport
    ):
        self.stage = stage
        self.positions = positions
        self.report = report
        self._cache = cache

    @classmethod
    def read(
        cls, stage: Stage, num_workers: int, progress: Progress, cache_bytes: int = CACHE_BYTES
    ) -> "StageImages":
        """Read every image of a stage once.

        Args:
            stage: the stage.
            num_workers: loader processes.
            progress: wraps an iterable, its length and a label in a progress bar.
            cache_bytes: keep decoded pixels if all of them fit into this.

        Raises:
            DataError: more than half of the images cannot be read.
        """
        loader = DataLoader(_Decoded(stage), batch_size=64, num_workers=num_workers, collate_fn=list)
        cache: list[np.ndarray] | None = []
        used, noted, skipped, size, position = [], {}, {}, 0, 0
        for records in progress(loader, len(loader), f"stage {stage.index}: reading images"):
            for pixels, verdict in records:
                sample = int(stage.sample_ids[position])
                if pixels is None:
                    skipped[sample] = verdict.note
                else:
                    used.append(position)
                    size += pixels.nbytes
                    if cache is not None:
                        cache.append(pixels)
                        cache = cache if size <= cache_bytes else None
                    if verdict.status is Status.NOTED:
                        noted[sample] = verdict.note
                position += 1
        report = ImageReport(stage.index, len(stage), noted, skipped)
        _announce(report)
        return cls(stage, np.asarray(used, dtype=np.int64), cache, report)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Image.Image:
        """The decoded RGB image at an index among the readable ones."""
        if self._cache is not None:
            return Image.fromarray(self._cache[index])
        image = decode_image(self.stage.source(int(self.positions[index]))).image
        if image is None:
            raise DataError(
                f"Image {self.sample_ids[index]} could be read before and cannot be now: was it changed?"
            )
        return image

    @property
    def sample_ids(self) -> np.ndarray:
        """Row number in the source data set of every readable image, ``(N,)``."""
        return self.stage.sample_ids[self.positions]


class _Decoded(Dataset):
    """Pixels (or nothing) and verdict of every image of a stage."""

    def __init__(self, stage: Stage):
        self.stage = stage

    def __len__(self) -> int:
        return len(self.stage)

    def __getitem__(self, position: int) -> tuple[np.ndarray | None, Verdict]:
        decoded = decode_image(self.stage.source(position))
        return (None if decoded.image is None else np.asarray(decoded.image)), decoded.verdict


def _announce(report: ImageReport) -> None:
    if report.noted:
        logger.info("Stage %d: %d images used with a note.", report.stage, len(report.noted))
    if report.skipped:
        sample, reason = next(iter(report.skipped.items()))
        logger.warning(
            "Stage %d: %d of %d images cannot be read and are left out, image %d for one: %s.",
            report.stage, len(report.skipped), report.num_images, sample, reason,
        )  # fmt: skip
    if len(report.skipped) > TOO_MANY_BAD * report.num_images:
        reasons = sorted(set(report.skipped.values()))[:3]
        raise DataError(
            f"{len(report.skipped)} of {report.num_images} images of stage {report.stage} cannot be read "
            f"({'; '.join(reasons)}): mend the data set, or point --dataset at another."
        )

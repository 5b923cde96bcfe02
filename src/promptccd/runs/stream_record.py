"""What can be said of a stage that nobody has labels of: how many images went where, and how many are not sure."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from promptccd.clustering import CountEstimate
from promptccd.runs.run_directory import RunDirectory

FOUND = "found"  # by stage, in the manifest


@dataclass(frozen=True)
class StreamRecord:
    """A stream as it was grouped; nothing of it is an accuracy.

    Attributes:
        stage: index of its stage.
        images: number of images that were grouped.
        labelled: how many went into categories that stage 0 labelled.
        earlier: how many into categories that were found, or named, before this stage.
        new: how many into categories that this stage opened.
        not_sure: how many are more likely of no category than of the one they are in.
        num_categories: categories after the stage.
        num_new: categories that this stage opened.
        estimate: how many categories there may be, in words; empty where the number was given.
    """

    stage: int
    images: int
    labelled: int
    earlier: int
    new: int
    not_sure: int
    num_categories: int
    num_new: int
    estimate: str

    @classmethod
    def of(
        cls,
        stage: int,
        category_ids: np.ndarray,
        before: Sequence[np.ndarray],
        num_known: int,
        num_categories: int,
        strange: np.ndarray,
        count: CountEstimate | None,
    ) -> "StreamRecord":
        """From the ids ``(N,)`` of a stage, those of earlier ones, and which images are strange, ``(N,)``."""
        labelled = category_ids < num_known
        earlier = ~labelled & np.isin(category_ids, np.concatenate(before))
        new = ~labelled & ~earlier
        return cls(
            stage, len(category_ids), int(labelled.sum()), int(earlier.sum()), int(new.sum()), int(strange.sum()),
            num_categories, len(np.unique(category_ids[new])),
            str(count) if count is not None and count.is_estimate else "",
        )  # fmt: skip

    def __str__(self) -> str:
        number = f" (estimated: {self.estimate})" if self.estimate else ""
        return (
            f"{self.images} images without labels: {self.labelled} in labelled categories, {self.earlier} in those "
            f"found before, {self.new} in {self.num_new} new ones; {self.not_sure} not sure; categories so far: "
            f"{self.num_categories}{number}"
        )


def record_stream(run: RunDirectory, record: StreamRecord) -> None:
    """Write a record down."""
    run.update_manifest({FOUND: {f"stage{record.stage}": dataclasses.asdict(record)}})


def stream_records(run: RunDirectory) -> list[StreamRecord]:
    """The records of all streams that were grouped, in order; none of a run whose labels were hidden."""
    found = run.manifest.get(FOUND, {}).values()
    return sorted((StreamRecord(**each) for each in found), key=lambda each: each.stage)

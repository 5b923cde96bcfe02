"""Unseen images to evaluate a run on: its data set's test split, or what the run left out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from datasets import Dataset

from promptccd.data.stage_images import StageImages
from promptccd.data.stages import Stage, StageStream
from promptccd.errors import DataError
from promptccd.evaluation.protocols import ScoredImages
from promptccd.runs.train_run import stage_stream
from promptccd.training.arguments import DataArguments

COMPARED_IMAGES = 16
# For a split of the data set, if one was asked for, and a rule, if it is another than the run's: its stages.
CutTest = Callable[[str | None, str | None], StageStream]
Read = Callable[[Stage], StageImages]


@dataclass(frozen=True)
class UnseenImages:
    """Where the unseen images of a run come from.

    Attributes:
        data: the run's data.
        cut: cuts the unseen images into stages.
        stages: the run's stages.
        trained_on: images of its finished stages; as many test stages are read.
        read: reads the images of a stage.
    """

    data: DataArguments
    cut: CutTest
    stages: StageStream
    trained_on: Sequence[StageImages]
    read: Read

    def in_stages(self, test_split: str | None) -> ScoredImages:
        """Test images cut by the rule, the seed and the class blocks of the run (paper, inductive evaluation).

        Args:
            test_split: split of the data set; by default the benchmark's, else the images the run left out.

        Raises:
            DataError: there are no such images, they are those of the training, or of other categories.
        """
        test = self.cut(test_split, None)
        if test.categories != self.stages.categories:
            lacking = sorted(set(self.stages.categories) - set(test.categories))
            raise DataError(
                f"The test images are of other categories than the run's: they lack {lacking[:3]} ({len(lacking)}). "
                "Give --test_split a split with the same categories."
            )
        images = [self.read(stage) for stage in test[: len(self.trained_on)]]
        _require_unseen(images, self.trained_on, self.data, test_split)
        labels = [test.evaluation_labels(each.stage)[each.positions] for each in images]
        return ScoredImages(images, labels)

    def whole(self, test_split: str | None) -> ScoredImages:
        """All test images as one entry, their labels in the ids of the run.

        Args:
            test_split: as for `in_stages`.

        Raises:
            DataError: as for `in_stages`.
        """
        test = self.cut(test_split, "whole")
        id_of = {name: index for index, name in enumerate(self.stages.categories)}
        strangers = [name for name in test.categories if name not in id_of]
        if strangers:
            raise DataError(
                f"The test images are of categories that the run does not have: {strangers[:3]} ({len(strangers)}). "
                "Give --test_split a split with the same categories."
            )
        images = self.read(test[0])
        _require_unseen([images], self.trained_on, self.data, test_split)
        ids = np.asarray([id_of[name] for name in test.categories])
        return ScoredImages([images], [ids[test.evaluation_labels(images.stage)[images.positions]]])


def cut_given(
    stages: StageStream, test_images: Dataset | None, test_split: str | None, rule: str | None
) -> StageStream:
    """Unseen images beside stages that a caller has, cut likewise.

    Raises:
        DataError: there are none.
    """
    changes = {} if rule is None else {"split_rule": rule}
    if (origin := stages.origin) is not None:
        other: dict[str, Any] = {**changes, "held_out": 0.0, "images_per_class": None}
        if test_split is not None and isinstance(origin.dataset, str):
            return origin.again(split=test_split, **other)
        if test_split is None and test_images is not None:
            return origin.again(test_images, **other)
        if test_split is None and origin.options["held_out"] > 0:
            return origin.again(held_out_only=True, **changes)
    raise DataError(
        f"No test images are known of the stages given from Python, of split {test_split!r}: give "
        "CategoryDiscoveryTrainer an eval_dataset, or cut the stages with held_out=0.2."
    )


def cut_named(data: DataArguments, seed: int, test_split: str | None, rule: str | None) -> StageStream:
    """Unseen images of a data set that a recipe names, cut as it says.

    Raises:
        DataError: there are none.
    """
    facts = data.resolved
    name = test_split or facts.test_split
    if name is None and facts.held_out > 0:
        return stage_stream(data, seed, split_rule=rule, held_out_only=True)
    if name is None:
        raise DataError(
            f"No test images are known of {facts.dataset!r}: give --test_split, a split of it that no stage was cut "
            "from; or train with --held_out 0.2, and what is left out is evaluated."
        )
    if name == facts.split:
        raise DataError(
            f"The run was trained on split {name!r}: give --test_split another split of {facts.dataset!r}."
        )
    try:
        return stage_stream(
            replace(data, split=name, held_out=0.0, images_per_class=None), seed, split_rule=rule
        )
    except DataError as error:
        raise DataError(
            f"No test images from split {name!r} of {facts.dataset!r}: {error} For evaluation the option is "
            "--test_split; without such a split, train with --held_out 0.2."
        ) from error


def _require_unseen(
    test: Sequence[StageImages],
    trained_on: Sequence[StageImages],
    data: DataArguments,
    test_split: str | None,
) -> None:
    """Refuse the training images as test images: a folder without splits gives them under any name."""
    trained = {int(sample): (each, row) for each in trained_on for row, sample in enumerate(each.sample_ids)}
    pairs = [
        (each[row], trained[int(sample)])
        for each in test
        for row, sample in list(enumerate(each.sample_ids))[:COMPARED_IMAGES]
        if int(sample) in trained
    ]
    same = [one.tobytes() == images[row].tobytes() for one, (images, row) in pairs]
    if same and all(same):
        facts = data.resolved
        raise DataError(
            f"Split {test_split or facts.test_split!r} of {facts.dataset!r} holds the images the run was trained on: "
            "the data has no splits. Give data that has, or train with --held_out 0.2."
        )

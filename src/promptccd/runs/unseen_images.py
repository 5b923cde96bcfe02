"""Unseen images to evaluate a run on: what the run left out, or its data set's test split."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from datasets import Dataset

from promptccd.data.splits import BlocksError
from promptccd.data.stage_images import StageImages
from promptccd.data.stages import StageStream
from promptccd.errors import DataError
from promptccd.runs.train_run import stage_stream
from promptccd.training.options import DataArguments

logger = logging.getLogger(__name__)

MOST_COPIES = 0.2  # of the unseen images; benchmarks have a handful


def cut_given(
    stages: StageStream, test_images: Dataset | None, test_split: str | None, rule: str | None
) -> StageStream:
    """Unseen images cut like stages that a caller has, by the same rule or another; a `DataError` without any."""
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
    """Unseen images of a recipe's data set, cut as it says or by another rule; a `DataError` without any."""
    facts = data.resolved
    if test_split is None and facts.held_out > 0:  # a local copy of a benchmark may lack its test split
        return stage_stream(data, seed, split_rule=rule, held_out_only=True)
    name = test_split or facts.test_split
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
    except BlocksError as error:
        raise DataError(
            f"Split {name!r} of {facts.dataset!r} does not have the run's categories: {error.fact}. Give --test_split "
            "a split with images of every category; or train with --held_out 0.2."
        ) from error
    except DataError as error:
        raise DataError(
            f"No test images from split {name!r} of {facts.dataset!r}: {error} For evaluation the option is "
            "--test_split; without such a split, train with --held_out 0.2."
        ) from error


def ids_in_run(test: StageStream, stages: StageStream) -> np.ndarray:
    """The run's id of every category of unseen images, ``(C,)``.

    Args:
        test: the unseen images: one stage of all of them, or stages of the run's own categories.
        stages: the run's stages.

    Raises:
        DataError: the images are of a category that the run does not have or, cut into stages, lack one.
    """
    ids = {name: index for index, name in enumerate(stages.categories)}
    foreign = [name for name in test.categories if name not in ids]
    if test.split.rule == "whole" and foreign:
        raise DataError(
            f"The test images are of categories that the run does not have: {foreign[:3]} ({len(foreign)}). "
            "Give --test_split a split with the same categories."
        )
    if test.split.rule != "whole" and test.categories != stages.categories:
        lacking = sorted(set(stages.categories) - set(test.categories))
        raise DataError(
            f"The test images are of other categories than the run's: they lack {lacking[:3]} ({len(lacking)}). "
            "Give --test_split a split with the same categories."
        )
    return np.asarray([ids[name] for name in test.categories])


def require_unseen(
    test: Sequence[StageImages],
    trained_on: Sequence[StageImages],
    data: DataArguments,
    test_split: str | None,
) -> None:
    """Count test images whose very picture the run was trained on, whatever their files are called.

    Raises:
        DataError: they are more than `MOST_COPIES` of all, as of a folder without splits.
    """
    trained = {digest: (each, index) for each in trained_on for index, digest in enumerate(each.digests)}
    copies = [
        (each.name_of(index), trained[digest])
        for each in test
        for index, digest in enumerate(each.digests)
        if digest in trained
    ]
    if not copies:
        return
    facts, count = data.resolved, sum(map(len, test))
    name, (images, index) = copies[0]
    held_out = test_split is None and facts.held_out > 0
    tested = "left out" if held_out else f"of split {test_split or facts.test_split!r}"
    said = (
        f"{len(copies)} of {count} images {tested} of {facts.dataset!r} are the "
        f"very pictures that the run was trained on, {name!r} is {images.name_of(index)!r} for one"
    )
    if len(copies) > MOST_COPIES * count:
        others = "Give images that are, or train with --held_out 0.2."
        advice = "Take the copies out of the data, and train again." if held_out else others
        raise DataError(f"{said}: figures of them are none of unseen images. {advice}")
    logger.warning("%s: the figures count them.", said)

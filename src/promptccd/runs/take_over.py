"""Stages that were trained elsewhere, made part of a run here."""

from collections.abc import Sequence

import numpy as np

from promptccd.data.stages import StageStream
from promptccd.errors import SplitMismatchError
from promptccd.evaluation import StageScore, clustering_accuracy
from promptccd.runs.run_directory import RunDirectory
from promptccd.runs.stage_checkpoint import load_configuration


def take_over(run: RunDirectory, stages: StageStream, finished: Sequence[int]) -> None:
    """Score finished stages that have no row yet: their images were assigned where they were trained.

    Args:
        run: the run they lie in.
        stages: the data as it is here.
        finished: stages whose checkpoints are whole.

    Raises:
        SplitMismatchError: a stage holds images that are not of that stage here.
    """
    scored = {row.stage for row in run.results.stages} if run.results else set()
    for index in finished:
        given, own = run.assignments(index), stages[index].sample_ids
        if not np.isin(given["sample_ids"], own).all():
            raise SplitMismatchError(
                f"{run.stage(index)} was trained on other images than stage {index} holds here: use the data set, "
                "class_blocks, cuts and seed it was made with, or start a new output_dir."
            )
        if index == 0 or index in scored:
            continue
        true_ids = stages.evaluation_labels(stages[index])[np.searchsorted(own, given["sample_ids"])]
        accuracy = clustering_accuracy(true_ids, given["category_ids"], range(stages.num_known))
        config = load_configuration(run.stage(index))
        estimate = config.count_estimate
        limits = None if estimate is None else (estimate["low"], estimate["high"])
        run.record(StageScore(index, *accuracy, len(config.category_ids), len(true_ids), limits))

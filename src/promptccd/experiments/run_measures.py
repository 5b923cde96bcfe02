"""What a finished run says of itself, made from its records and the true categories; no model is loaded."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from promptccd.errors import MismatchError, RunError
from promptccd.evaluation import ContinualScore, StageScore, clustering_accuracy
from promptccd.experiments.measures import KnownAndNovel, StageCost, block_accuracies, stage_costs
from promptccd.runs import RunEvaluation
from promptccd.runs.history import read_history
from promptccd.runs.stage_checkpoint import load_configuration
from promptccd.training.history import EpochRecord
from promptccd.training.recipe import Recipe

TOLERANCE = 1e-3  # percentage points; results.json is rounded to four places


@dataclass(frozen=True)
class StageMeasures:
    """What happened at one unlabelled stage.

    Attributes:
        stage: its index.
        score: its row of the table.
        true_ids: true category of every image, ``(N,)``.
        found_ids: id of the group every image was put into, ``(N,)``.
        num_true: categories that exist so far.
        names: of all groups known after the stage, by id.
        known_and_novel: which kinds of images were right.
        blocks: images and accuracy of the categories that each stage introduced, up to this one.
    """

    stage: int
    score: StageScore
    true_ids: np.ndarray
    found_ids: np.ndarray
    num_true: int
    names: Mapping[int, str]
    known_and_novel: KnownAndNovel
    blocks: Sequence[tuple[int, float]]


@dataclass(frozen=True)
class RunMeasures:
    """A run's numbers.

    Attributes:
        name: of its folder.
        recipe: it was made with.
        fingerprint: of its split.
        versions: of the packages it was made with.
        class_blocks: categories that each stage introduced.
        categories: names of the true categories; position is category id.
        stages: measures of its finished unlabelled stages.
        costs: time and memory per stage, as far as recorded.
        history: its epochs; empty where not recorded.
        routing: part routing accuracy; `None` for models without parts, or where it was not asked for.
    """

    name: str
    recipe: Recipe
    fingerprint: str
    versions: Mapping[str, str]
    class_blocks: Sequence[int]
    categories: Sequence[str]
    stages: Sequence[StageMeasures]
    costs: Sequence[StageCost]
    history: Sequence[EpochRecord]
    routing: ContinualScore | None

    @property
    def score(self) -> ContinualScore:
        """The table, as ``results.json`` holds it."""
        return ContinualScore("cacc", [stage.score for stage in self.stages])

    @property
    def num_known(self) -> int:
        """Number of initially labelled categories."""
        return self.class_blocks[0]


def measure_run(evaluation: RunEvaluation, *, routing: bool = True) -> RunMeasures:
    """Measure a run from the ids it assigned.

    Args:
        evaluation: the run beside its data.
        routing: whether part routing is computed, which loads the models of the variants that have parts.

    Raises:
        RunError: images that were assigned to a category cannot be read any more.
        MismatchError: ``results.json`` says something else than the assignments give.
    """
    run, stages = evaluation.run, evaluation.stages
    manifest = run.manifest
    measured = [measure_stage(evaluation, index) for index in range(1, evaluation.num_stages)]
    recorded = {row.stage: row for row in run.results.stages} if run.results else {}
    for stage in measured:
        _require_agreement(stage.score, recorded.get(stage.stage), str(run.path))
    return RunMeasures(
        name=run.path.resolve().name,
        recipe=evaluation.recipe,
        fingerprint=manifest["split_fingerprint"],
        versions=manifest["versions"],
        class_blocks=stages.split.class_blocks,
        categories=stages.categories,
        stages=measured,
        costs=stage_costs(manifest),
        history=read_history(run.path),
        routing=evaluation.part_routing() if routing else None,
    )


def measure_stage(evaluation: RunEvaluation, index: int) -> StageMeasures:
    """Measure one unlabelled stage; see `measure_run`."""
    images, num_known = evaluation.images[index], evaluation.stages.num_known
    found = found_ids(evaluation, index)
    true_ids = evaluation.true_ids(images)
    config = load_configuration(evaluation.run.stage(index))
    estimate = config.count_estimate
    score = StageScore(
        index,
        *clustering_accuracy(true_ids, found, range(num_known)),
        num_categories=len(config.category_ids),
        num_images=len(true_ids),
        count_range=None if estimate is None else (estimate["low"], estimate["high"]),
    )
    blocks = block_accuracies(true_ids, found, evaluation.stages.split.class_blocks[: index + 1])
    return StageMeasures(
        index, score, true_ids, found, images.stage.num_categories, config.names_by_id,
        KnownAndNovel.count(true_ids, found, num_known), blocks,
    )  # fmt: skip


def found_ids(evaluation: RunEvaluation, index: int) -> np.ndarray:
    """Category id that a stage assigned to each of its readable images, ``(N,)``.

    Raises:
        RunError: the readable images are not those that were assigned.
    """
    given = evaluation.run.assignments(index)
    if list(given["sample_ids"]) != evaluation.images[index].sample_ids.tolist():
        raise RunError(
            f"{evaluation.run.stage(index)} assigned {len(given['sample_ids'])} images, of which "
            f"{len(evaluation.images[index])} can be read now or are others: put the images back, or give --dataset."
        )
    return np.asarray(given["category_ids"], dtype=np.int64)


def _require_agreement(own: StageScore, recorded: StageScore | None, run: str) -> None:
    if recorded is None:  # scored nowhere yet
        return
    for part in ("all", "old", "new"):
        one, other = getattr(own, part), getattr(recorded, part)
        if math.isnan(one) != math.isnan(other) or abs(one - other) > TOLERANCE:
            raise MismatchError(
                f"results.json of {run} says {part} {other} at stage {own.stage}, its assignments give {one:.4f}: one "
                "of them was changed. Run promptccd verify on it."
            )

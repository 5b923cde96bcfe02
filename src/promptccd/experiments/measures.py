"""What a run got right and wrong, what it cost, and how that spreads over seeds."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from promptccd.errors import MismatchError, RunError
from promptccd.evaluation import ContinualScore, StageScore
from promptccd.evaluation.accuracy import PARTS, matched_categories
from promptccd.runs import RunEvaluation
from promptccd.runs.stage_checkpoint import categories_at, load_configuration, row_of
from promptccd.training.history import EpochRecord, read_history
from promptccd.training.objectives import method_named
from promptccd.training.recipe import Recipe

# What a group that an image was put into is to its category.
KINDS = {
    "known_right": "known, right",
    "known_as_other_known": "known, in another known group",
    "known_as_novel": "known, in a novel group",
    "novel_right": "novel, right",
    "novel_as_other_novel": "novel, in another novel group",
    "novel_as_known": "novel, in a known group",
}


def known_and_novel(true_ids: np.ndarray, found_ids: np.ndarray, num_known: int) -> dict[str, int]:
    """Numbers of images of a stage by `KINDS`; together they are all of them.

    An image counts as what its group is matched to, as in the accuracy: right known ones over all known ones is
    Old, right novel ones over all novel ones is New. A group that is matched to nothing is known or novel by its id.

    Args:
        true_ids: true category of every image, ``(N,)``.
        found_ids: id of the group every image was put into, ``(N,)``.
        num_known: number of initially labelled categories; ids below it are known.
    """
    matched = matched_categories(true_ids, found_ids)
    category = np.asarray([matched.get(int(found), -1) for found in found_ids])
    as_known = np.where(category >= 0, category, found_ids) < num_known
    known, right = true_ids < num_known, category == true_ids
    masks = (
        known & right, known & ~right & as_known, known & ~as_known,
        ~known & right, ~known & ~right & ~as_known, ~known & as_known,
    )  # fmt: skip
    return {kind: int(mask.sum()) for kind, mask in zip(KINDS, masks, strict=True)}


@dataclass(frozen=True)
class CategorySize:
    """A category beside the group that is matched to it.

    Attributes:
        category: true category id; `None` for a group that is matched to nothing.
        found: id of the group; `None` for a category that no group is matched to.
        true_images: images of the category at the stage.
        found_images: images in the group.
    """

    category: int | None
    found: int | None
    true_images: int
    found_images: int


def category_sizes(true_ids: np.ndarray, found_ids: np.ndarray) -> list[CategorySize]:
    """Every category of a stage by id, then groups that are matched to none; images add up on either side."""
    matched = {category: found for found, category in matched_categories(true_ids, found_ids).items()}
    true_counts = _counts(true_ids)
    found_counts = _counts(found_ids)
    sizes = [
        CategorySize(category, found, images, found_counts[found] if found is not None else 0)
        for category, images in true_counts.items()
        for found in [matched.get(category)]
    ]
    left_over = sorted(found_counts.keys() - set(matched.values()))
    return [*sizes, *(CategorySize(None, found, 0, found_counts[found]) for found in left_over)]


def confusion(true_ids: np.ndarray, found_ids: np.ndarray) -> tuple[list[int], list[int], np.ndarray]:
    """True categories, groups in the order of what they are matched to, and images of every pair of them.

    What is right stands on the diagonal; groups matched to nothing and categories without a group come last.
    """
    sizes = sorted(category_sizes(true_ids, found_ids), key=lambda size: size.found is None)
    rows = [size.category for size in sizes if size.category is not None]
    columns = [size.found for size in sizes if size.found is not None]
    row_of = {category: place for place, category in enumerate(rows)}
    column_of = {found: place for place, found in enumerate(columns)}
    counts = np.zeros((len(rows), len(columns)), dtype=np.int64)
    np.add.at(
        counts, ([row_of[int(item)] for item in true_ids], [column_of[int(item)] for item in found_ids]), 1
    )
    return rows, columns, counts


def block_accuracies(
    true_ids: np.ndarray, found_ids: np.ndarray, class_blocks: Sequence[int]
) -> list[tuple[int, float]]:
    """Images and accuracy in percent for the categories that each stage introduced; NaN where there is no image.

    Block 0 are the labelled categories, so its accuracy is Old; weighted by images, the accuracies give All.

    Args:
        true_ids: true category of every image of a stage, ``(N,)``.
        found_ids: id of the group every image was put into, ``(N,)``.
        class_blocks: number of categories that every stage introduced.
    """
    matched = matched_categories(true_ids, found_ids)
    right = np.asarray([matched.get(int(found), -1) for found in found_ids]) == true_ids
    ends = np.cumsum(class_blocks)
    rows = []
    for end, size in zip(ends, class_blocks, strict=True):
        inside = (true_ids >= end - size) & (true_ids < end)
        rows.append((int(inside.sum()), 100 * float(right[inside].mean()) if inside.any() else float("nan")))
    return rows


def forgetting(accuracies: Sequence[float]) -> float:
    """How far the last accuracy lies below the best one before it, in percentage points; NaN for less than two.

    Negative where the last one is the best.
    """
    given = [value for value in accuracies if not np.isnan(value)]
    return max(given[:-1]) - given[-1] if len(given) > 1 else float("nan")


def _counts(ids: np.ndarray) -> dict[int, int]:
    return {int(item): int(size) for item, size in zip(*np.unique(ids, return_counts=True), strict=True)}


ABSENT = "\N{EN DASH}"  # what tables show where there is no number


@dataclass(frozen=True)
class Spread:
    """Values of several runs in two numbers.

    Attributes:
        mean: their mean; NaN where there is none.
        std: their standard deviation (n - 1); `None` for less than two values.
        count: how many there are.
    """

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread":
        """The spread of the values that exist: `None` and NaN are passed over."""
        given = [float(value) for value in values if value is not None and not math.isnan(value)]
        if not given:
            return cls(math.nan, None, 0)
        return cls(statistics.mean(given), statistics.stdev(given) if len(given) > 1 else None, len(given))

    def __str__(self) -> str:
        """As tables print it: one decimal, ``±`` only where there is a deviation."""
        if math.isnan(self.mean):
            return ABSENT
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


def spreads_of(scores: Sequence[ContinualScore], place: int | None) -> list[Spread]:
    """All, Old and New of several runs at one of their rows, `None` for the average."""
    return [
        Spread.of(
            score.average[part] if place is None else getattr(score.stages[place], part) for score in scores
        )
        for part in PARTS
    ]


def count_range(rows: Iterable[StageScore]) -> tuple[int, int] | None:
    """The widest range of estimated numbers of categories of a stage; `None` where none was estimated.

    Clusters that ended empty got no category, so that what was found may lie below the estimate: it counts too.
    """
    ranges = [
        (min(row.count_range[0], row.num_categories), row.count_range[1]) for row in rows if row.count_range
    ]
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None


def count_text(rows: Sequence[StageScore]) -> str:
    """Mean number of categories that runs found at a stage, with that range; a dash where there is no run."""
    if not rows:
        return ABSENT
    mean = f"{statistics.mean(row.num_categories for row in rows):.1f}".removesuffix(".0")
    limits = count_range(rows)
    return mean if limits is None else f"{mean} ({limits[0]} to {limits[1]})"


def signed(value: float) -> str:
    """A difference with its sign, one decimal; a dash where there is none."""
    rounded = round(value, 1) + 0.0  # the sum turns -0.0 into 0.0
    return ABSENT if math.isnan(value) else f"{rounded:+.1f}".replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class StageCost:
    """What a stage cost.

    Attributes:
        stage: index of the stage.
        seconds: from reading its images to its checkpoint, which is saved then.
        process_bytes: most memory of the process until the end of the stage; `None` where not recorded.
        accelerator_bytes: most memory of the GPU during the stage; `None` without one, or where not recorded.
    """

    stage: int
    seconds: float
    process_bytes: int | None = None
    accelerator_bytes: int | None = None


def stage_costs(manifest: Mapping[str, Any]) -> list[StageCost]:
    """The costs that a run's manifest records, by stage; stages trained elsewhere have none."""
    memory = manifest.get("peak_memory", {})
    costs = []
    for name, seconds in manifest.get("seconds", {}).items():
        peak = memory.get(name, {})
        stage = int(name.removeprefix("stage"))
        costs.append(StageCost(stage, seconds, peak.get("process"), peak.get("accelerator")))
    return sorted(costs, key=lambda cost: cost.stage)


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
        names: of all groups by id, of those that people retired since too, and of no category.
        known_and_novel: see the function of that name.
        blocks: images and accuracy of the categories that each stage introduced, up to this one.
    """

    stage: int
    score: StageScore
    true_ids: np.ndarray
    found_ids: np.ndarray
    num_true: int
    names: Mapping[int, str]
    known_and_novel: Mapping[str, int]
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
        instruments: what prompts did, by stage and by name of `promptccd.training.instruments.TITLES`.
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
    instruments: Mapping[int, Mapping[str, float]]
    routing: ContinualScore | None

    @property
    def score(self) -> ContinualScore:
        """The table, as ``results.json`` holds it."""
        return ContinualScore("cacc", [stage.score for stage in self.stages])

    @property
    def num_known(self) -> int:
        """Number of initially labelled categories."""
        return self.class_blocks[0]


@dataclass(frozen=True)
class Answers:
    """Scores of runs that differ in their seed, by who answered.

    Attributes:
        grouped: of semi-supervised k-means.
        own: of the method's own classifier; empty unless every run has one.
        as_published: those of the two that the paper's figures are taken to be of.
    """

    grouped: Sequence[ContinualScore]
    own: Sequence[ContinualScore]
    as_published: Sequence[ContinualScore]

    @classmethod
    def of(cls, runs: Sequence[RunMeasures]) -> "Answers":
        """Of runs of one method."""
        grouped = [run.score for run in runs]
        own = [native for score in grouped if (native := score.native) is not None]
        own = own if len(own) == len(runs) else []
        compares = own and method_named(runs[0].recipe.model.variant).answers_natively
        return cls(grouped, own, own if compares else grouped)


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
        instruments={
            int(name.removeprefix("stage")): values
            for name, values in sorted(manifest.get("instruments", {}).items())
        },
        routing=evaluation.part_routing() if routing else None,
    )


def measure_stage(evaluation: RunEvaluation, index: int) -> StageMeasures:
    """Measure one unlabelled stage as it was grouped; see `measure_run`.

    People may have corrected its categories since: names are those of now, merged and dissolved ones included.

    Raises:
        RunError: the readable images are not those that were assigned.
    """
    images, num_known = evaluation.images[index], evaluation.stages.num_known
    path, given = evaluation.run.stage(index), evaluation.run.assignments(index)
    if list(given["sample_ids"]) != images.sample_ids.tolist():
        raise RunError(
            f"{path} assigned {len(given['sample_ids'])} images, of which {len(images)} can be read now or are "
            "others: put the images back, or give --dataset."
        )
    found, true_ids = np.asarray(given["category_ids"], dtype=np.int64), evaluation.true_ids(images)
    config = load_configuration(path)
    num_categories, names = categories_at(path, config)
    score = row_of(
        index, config, true_ids, found, num_known,
        num_categories=num_categories, class_ids=given.get("class_ids"),
    )  # fmt: skip
    blocks = block_accuracies(true_ids, found, evaluation.stages.split.class_blocks[: index + 1])
    return StageMeasures(
        index, score, true_ids, found, images.stage.num_categories, names,
        known_and_novel(true_ids, found, num_known), blocks,
    )  # fmt: skip


def _require_agreement(own: StageScore, recorded: StageScore | None, run: str) -> None:
    if recorded is None:  # scored nowhere yet
        return
    for part in PARTS:
        one, other = getattr(own, part), getattr(recorded, part)
        if math.isnan(one) != math.isnan(other) or abs(one - other) > TOLERANCE:
            raise MismatchError(
                f"results.json of {run} says {part} {other} at stage {own.stage}, its assignments give {one:.4f}: one "
                "of them was changed. Run promptccd verify on it."
            )

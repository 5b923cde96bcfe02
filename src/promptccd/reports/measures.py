"""What a run got right and wrong, what it cost, and how much seeds differ."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats.contingency import crosstab

from promptccd.errors import MismatchError, RunError
from promptccd.evaluation import ContinualScore, StageScore
from promptccd.evaluation.accuracy import matched_categories
from promptccd.evaluation.protocol_terms import PARTS
from promptccd.methods import method_named
from promptccd.runs import RunEvaluation
from promptccd.runs.stage import categories_at, load_configuration, row_of
from promptccd.training.history import EpochRecord, read_history
from promptccd.training.recipe import Recipe

# An image is of a known or a novel category, and so is its group.
KINDS = {
    "known_right": "known, right",
    "known_as_other_known": "known, in another known group",
    "known_as_novel": "known, in a novel group",
    "novel_right": "novel, right",
    "novel_as_other_novel": "novel, in another novel group",
    "novel_as_known": "novel, in a known group",
}


def known_and_novel(true_ids: np.ndarray, found_ids: np.ndarray, num_known: int) -> dict[str, int]:
    """Numbers of images of a stage by `KINDS`; true and found ids are ``(N,)``, known ones below `num_known`.

    A group is the category that it is matched to, as in the accuracy: the share of right images among the known ones
    is Old, among the novel ones New. A group that is matched to nothing is known or novel by its id.
    """
    category = _category_of_group(true_ids, found_ids)
    as_known = np.where(category >= 0, category, found_ids) < num_known
    known, right = true_ids < num_known, category == true_ids
    masks = (
        known & right, known & ~right & as_known, known & ~as_known,
        ~known & right, ~known & ~right & ~as_known, ~known & as_known,
    )  # fmt: skip
    return {kind: int(mask.sum()) for kind, mask in zip(KINDS, masks, strict=True)}


def _category_of_group(true_ids: np.ndarray, found_ids: np.ndarray) -> np.ndarray:
    """The category that the group of every image is matched to, -1 where it is matched to nothing."""
    matched = matched_categories(true_ids, found_ids)
    return np.asarray([matched.get(int(found), -1) for found in found_ids])


@dataclass(frozen=True)
class CategorySize:
    """A category beside the group that is matched to it; `None` where one of the two has no match."""

    category: int | None
    found: int | None
    true_images: int
    found_images: int


def category_sizes(true_ids: np.ndarray, found_ids: np.ndarray) -> list[CategorySize]:
    """Every category of a stage by id, then the groups that are matched to none; each image counts on both sides."""
    matched = {category: found for found, category in matched_categories(true_ids, found_ids).items()}
    true_counts, found_counts = Counter(true_ids.tolist()), Counter(found_ids.tolist())
    sizes = []
    for category, images in sorted(true_counts.items()):
        found = matched.get(category)
        sizes.append(CategorySize(category, found, images, 0 if found is None else found_counts[found]))
    left_over = sorted(found_counts.keys() - set(matched.values()))
    return [*sizes, *(CategorySize(None, found, 0, found_counts[found]) for found in left_over)]


def confusion(true_ids: np.ndarray, found_ids: np.ndarray) -> tuple[list[int], list[int], np.ndarray]:
    """True categories, groups in the same order, and the number of images of every pair of them.

    Right images are on the diagonal; categories and groups without a match come last.
    """
    sizes = sorted(category_sizes(true_ids, found_ids), key=lambda size: size.found is None)
    rows = [size.category for size in sizes if size.category is not None]
    columns = [size.found for size in sizes if size.found is not None]
    return rows, columns, crosstab(true_ids, found_ids, levels=(rows, columns)).count


def block_accuracies(
    true_ids: np.ndarray, found_ids: np.ndarray, class_blocks: Sequence[int]
) -> list[tuple[int, float]]:
    """Images and accuracy in percent for the categories that each stage introduced; NaN where there is no image.

    Block 0 are the labelled categories, so its accuracy is Old; weighted by images, the accuracies give All.
    """
    right = _category_of_group(true_ids, found_ids) == true_ids
    rows = []
    for end, size in zip(np.cumsum(class_blocks), class_blocks, strict=True):
        inside = (true_ids >= end - size) & (true_ids < end)
        rows.append((int(inside.sum()), 100 * float(right[inside].mean()) if inside.any() else math.nan))
    return rows


def forgetting(accuracies: Sequence[float]) -> float:
    """How far the last accuracy lies below the best one before it, in percentage points; below 0 where it is the best.

    NaN for less than two accuracies that exist.
    """
    given = [value for value in accuracies if not math.isnan(value)]
    return max(given[:-1]) - given[-1] if len(given) > 1 else math.nan


ABSENT = "\N{EN DASH}"  # what tables show where there is no number


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation (n - 1) and number of values of several runs.

    The mean of no value is NaN; the deviation of less than two is `None`.
    """

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread":
        """The spread of the values that are neither `None` nor NaN."""
        given = [float(value) for value in values if value is not None and not math.isnan(value)]
        if not given:
            return cls(math.nan, None, 0)
        return cls(statistics.mean(given), statistics.stdev(given) if len(given) > 1 else None, len(given))

    def __str__(self) -> str:
        """As tables print it: one decimal, ``±`` only where there is a deviation."""
        if math.isnan(self.mean):
            return ABSENT
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


def average_spreads(scores: Iterable[ContinualScore]) -> dict[str, Spread]:
    """All, Old and New of several runs, averages over stages."""
    averages = [score.average for score in scores]
    return {part: Spread.of(average[part] for average in averages) for part in PARTS}


def stage_spreads(rows: Sequence[StageScore]) -> dict[str, Spread]:
    """All, Old and New of several runs at one stage."""
    return {part: Spread.of(getattr(row, part) for row in rows) for part in PARTS}


def count_range(rows: Iterable[StageScore]) -> tuple[int, int] | None:
    """The widest range of estimated numbers of categories of a stage; `None` where none was estimated.

    Empty clusters are no categories, so a stage may have fewer than its estimate: the range then begins there.
    """
    ranges = [
        (min(row.count_range[0], row.num_categories), row.count_range[1]) for row in rows if row.count_range
    ]
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None


def count_text(rows: Sequence[StageScore]) -> str:
    """Mean number of categories of several runs at a stage, with `count_range`; a dash where there is no run."""
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
    """Time and memory of a stage.

    Attributes:
        stage: index of the stage.
        seconds: from reading its images to saving its checkpoint.
        process_bytes: most memory of the process until the end of the stage; `None` where not recorded.
        accelerator_bytes: most memory of the GPU during the stage; `None` without one, or where not recorded.
    """

    stage: int
    seconds: float
    process_bytes: int | None = None
    accelerator_bytes: int | None = None


def stage_costs(manifest: Mapping[str, Any]) -> list[StageCost]:
    """The costs in a run's manifest, by stage; stages that were trained elsewhere have none."""
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
    """Groups and accuracies of one unlabelled stage."""

    stage: int
    score: StageScore
    true_ids: np.ndarray  # (N,)
    found_ids: np.ndarray  # (N,), groups of the images
    num_true: int  # true categories up to this stage
    names: Mapping[
        int, str
    ]  # of all groups by id, also of those that people retired later, and of "no category"
    known_and_novel: Mapping[str, int]
    blocks: Sequence[tuple[int, float]]  # `block_accuracies` of the stages up to this one


@dataclass(frozen=True)
class RunMeasures:
    """All numbers of a run; costs and history are as far as recorded."""

    name: str  # of its folder
    recipe: Recipe
    fingerprint: str  # of its split
    versions: Mapping[str, str]  # of packages
    class_blocks: Sequence[int]  # number of categories that each stage introduced
    categories: Sequence[str]  # names of the true categories; position is category id
    stages: Sequence[StageMeasures]  # finished unlabelled ones; none of streams that nobody has labels of
    costs: Sequence[StageCost]
    history: Sequence[EpochRecord]
    instruments: Mapping[int, Mapping[str, float]]  # of prompts, by stage and name of `instruments.TITLES`
    routing: ContinualScore | None  # `None` for models without parts, or where it was not asked for

    @property
    def score(self) -> ContinualScore:
        """The table, as ``results.json`` holds it."""
        return ContinualScore("cacc", [stage.score for stage in self.stages])


@dataclass(frozen=True)
class SummaryRow:
    """All, Old and New of runs that differ in their seed at one stage, or on average."""

    stage: int | None  # `None` for the average
    scores: Sequence[StageScore]  # of the runs; empty for the average
    grouped: Mapping[str, Spread]  # by semi-supervised k-means
    own: Mapping[str, Spread]  # by the method's own answer; empty unless every run has one
    compared: Mapping[str, Spread]  # the one of these two that stands beside the paper's figures


def summary_rows(runs: Sequence[RunMeasures]) -> list[SummaryRow]:
    """A row per stage of runs of one method, and one for their average."""
    grouped = [run.score for run in runs]
    own = [native for score in grouped if (native := score.native) is not None]
    own = own if len(own) == len(runs) else []
    natively = own and method_named(runs[0].recipe.model.variant).answers_natively

    def row(
        stage: int | None,
        scores: Sequence[StageScore],
        kmeans: Mapping[str, Spread],
        native: Mapping[str, Spread],
    ) -> SummaryRow:
        return SummaryRow(stage, scores, kmeans, native if own else {}, native if natively else kmeans)

    rows = []
    for place, stage in enumerate(runs[0].stages):
        scores, own_scores = ([score.stages[place] for score in many] for many in (grouped, own))
        rows.append(row(stage.stage, scores, stage_spreads(scores), stage_spreads(own_scores)))
    return [*rows, row(None, [], average_spreads(grouped), average_spreads(own))]


def measure_run(evaluation: RunEvaluation, *, routing: bool = True) -> RunMeasures:
    """Measure a run from the ids it assigned.

    Args:
        evaluation: the run beside its data.
        routing: also compute part routing, which loads the models of variants with parts.

    Raises:
        RunError: the images that can be read are not those that were assigned.
        MismatchError: ``results.json`` has other accuracies than the assignments give.
    """
    run, stages = evaluation.run, evaluation.stages
    manifest = run.manifest
    scored = range(1, evaluation.num_stages if stages.is_scored else 1)
    measured = [_measure_stage(evaluation, index) for index in scored]
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


def _measure_stage(evaluation: RunEvaluation, index: int) -> StageMeasures:
    """Measure an unlabelled stage as it was grouped; only names are those that people gave its categories since."""
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

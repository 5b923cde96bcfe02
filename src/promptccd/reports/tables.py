"""Every number of a run report, once: a pandas table per section. Page, CSV and JSON are formats of these tables."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from promptccd.discovery.project.observe import NO_CATEGORY
from promptccd.discovery.project.registry import load_registry
from promptccd.errors import RunError
from promptccd.evaluation.accuracy import matched_categories
from promptccd.evaluation.tables import over_runs, score_table
from promptccd.reports.cards import COLUMNS
from promptccd.runs import RunEvaluation, stream_rows
from promptccd.training.progress import read_history

ReportTables = dict[str, pd.DataFrame]
_MEMORY = {"process_mb": "process", "gpu_mb": "accelerator"}  # columns, by the name in a manifest


class ReportedRun:
    """A run as reports read it, from the run with its data.

    Attributes:
        class_blocks: number of categories that each stage introduced.
        categories: names of the true categories; position is category id.
        images: a row per image of the unlabelled stages: ``stage``, ``true`` and ``found`` ids, the name of its
            ``category`` and ``group``, and ``matched``, the category that its group is matched to; missing ids are -1.
        score: rows of the finished unlabelled stages in ``results.json``; empty for streams without labels.
        num_true: true categories up to each of these stages.
        history: the epochs, as far as recorded.

    Raises:
        RunError: the readable images differ from the assigned images, or ``results.json`` lacks a stage.
    """

    def __init__(self, evaluation: RunEvaluation):
        run, stages = evaluation.run, evaluation.stages
        self.name, self.recipe, self.manifest = run.path.resolve().name, evaluation.recipe, run.manifest
        self.class_blocks, self.categories = stages.split.class_blocks, stages.categories
        unlabelled = range(1, evaluation.num_stages)
        self.images = pd.concat([_read_images(evaluation, index) for index in unlabelled], ignore_index=True)
        self.score = run.results_up_to(evaluation.num_stages - 1)
        if stages.is_scored and [row.stage for row in self.score.stages] != [*unlabelled]:
            raise RunError(
                f"results.json of {run.path} lacks rows of finished stages: run the training command again, which adds "
                "them."
            )
        self.num_true = [evaluation.images[row.stage].stage.num_categories for row in self.score.stages]
        self.history = read_history(run.path)


def _read_images(evaluation: RunEvaluation, index: int) -> pd.DataFrame:
    """The images of an unlabelled stage; groups have the names that people gave them since."""
    images, path = evaluation.images[index], evaluation.run.stage(index)
    assigned = evaluation.run.assignments(index)
    if list(assigned["sample_ids"]) != images.sample_ids.tolist():
        raise RunError(
            f"{path} assigned {len(assigned['sample_ids'])} images, but {len(images)} can be read now, or the images "
            "changed. Put the images back, or give --dataset."
        )
    true_ids = evaluation.true_ids(images) if evaluation.stages.is_scored else np.full(len(images), -1)
    names = {each.id: each.name for each in load_registry(path).categories.values()}
    found_ids = np.asarray(assigned["category_ids"], dtype=np.int64)
    return image_table(
        index, true_ids, found_ids, evaluation.stages.categories, {**names, NO_CATEGORY: "no category"}
    )


def image_table(
    stage: int,
    true_ids: np.ndarray,
    found_ids: np.ndarray,
    categories: Sequence[str],
    names: Mapping[int, str],
) -> pd.DataFrame:
    """The images of a stage, see `ReportedRun`; ids are ``(N,)``."""
    table = pd.DataFrame({"stage": stage, "true": true_ids, "found": found_ids})
    table["category"] = table["true"].map(dict(enumerate(categories)))
    table["group"] = table["found"].map(names)
    table["matched"] = table["found"].map(matched_categories(true_ids, found_ids)).fillna(-1).astype(int)
    return table


def report_tables(runs: Sequence[ReportedRun], cards: Sequence[Mapping[str, Any]]) -> ReportTables:
    """The tables of a report by section, accuracies in percent. Cards are of the first run."""
    near = [
        {"category": card["category"], "known": known, "similarity": round(similarity, 4)}
        for card in cards
        for known, similarity in card["near"]
    ]
    shown = pd.DataFrame(cards, columns=list(COLUMNS))
    shown["sample_ids"] = [" ".join(map(str, ids)) for ids in shown["sample_ids"]]
    scored: ReportTables = {}
    if runs[0].score.stages:
        scored = {"scores": _of(runs, run_scores), "summary": summary(runs)}
        scored |= {name: _of(runs, table) for name, table in _SCORED.items()}
    return {
        **scored,
        **{name: _of(runs, table) for name, table in _UNSCORED.items()},
        "discovered": _of(runs[:1], lambda run: shown),
        "nearest_known": _of(runs[:1], lambda run: pd.DataFrame(near)),
    }


def stream_tables(evaluation: RunEvaluation) -> ReportTables:
    """A row per stream without labels, and accuracies in percent on labelled images that training left out."""
    held_out = evaluation.held_out_accuracy()
    return {
        "streams": pd.DataFrame(stream_rows(evaluation.run)).drop(columns="summary"),
        "held_out": pd.DataFrame({"stage": held_out.keys(), "percent": held_out.values()}).round(4),
    }


def _of(runs: Iterable[ReportedRun], make: Callable[[ReportedRun], pd.DataFrame]) -> pd.DataFrame:
    """The tables of all runs below each other, each with the name of its run."""
    tables = [table.assign(run=run.name) for run in runs if len(table := make(run))]
    together = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["run"])
    return together[["run", *together.columns.drop("run")]]


def run_scores(run: ReportedRun) -> pd.DataFrame:
    """The `score_table` of a run with its seed and the true numbers of categories."""
    table = score_table(run.score)
    table.insert(1, "true_categories", pd.array([*run.num_true, pd.NA], dtype="Int64"))
    return table.assign(seed=run.recipe.training.seed)


def summary(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """Means over runs of one method per stage and of their average.

    Native predictions are left out unless every run has some.
    """
    table = over_runs(_of(runs, run_scores), ["stage"])
    if all(run.score.native is not None for run in runs):
        return table
    return table[[name for name in table if not name.startswith("native_")]]


def confusion(run: ReportedRun) -> pd.DataFrame:
    """Numbers of images by category and group; groups are in the order of the categories that they are matched to."""
    pairs = run.images.groupby(["stage", "true", "matched", "found", "category", "group"]).size()
    table = pairs.rename("images").reset_index()
    is_last = table["matched"] < 0  # a group that is matched to no category
    return table.assign(last=is_last).sort_values(
        ["stage", "true", "last", "matched", "found"], ignore_index=True
    )


def blocks(run: ReportedRun) -> pd.DataFrame:
    """Images and accuracy in percent per stage for the categories that each stage introduced; NaN without an image.

    Block 0 are the labelled categories, so that its accuracy is Old; weighted by images, the accuracies give All.
    """
    images = run.images
    block = np.searchsorted(np.cumsum(run.class_blocks), images["true"], side="right")
    right = (images["matched"] == images["true"]).groupby([images["stage"], pd.Series(block, name="block")])
    found = pd.DataFrame({"images": right.size(), "accuracy": 100 * right.mean()})
    pairs = [(stage, block) for stage in images["stage"].unique() for block in range(stage + 1)]
    table = found.reindex(pd.MultiIndex.from_tuples(pairs, names=["stage", "block"]))
    return table.fillna({"images": 0}).astype({"images": int}).reset_index()


def forgetting(run: ReportedRun) -> pd.DataFrame:
    """Accuracy on the categories that each stage introduced: at first, at last, and how much was forgotten."""
    courses = blocks(run).groupby("block")["accuracy"]
    return courses.agg(
        first=lambda each: each.iloc[0], last=lambda each: each.iloc[-1], forgotten=forgotten
    ).reset_index()


def forgotten(accuracies: Iterable[float]) -> float:
    """Distance of the last accuracy to the best one before it, in points; below 0 where the last is the best.

    NaN for less than two accuracies that exist.
    """
    given = [value for value in accuracies if not math.isnan(value)]
    return max(given[:-1]) - given[-1] if len(given) > 1 else math.nan


def history(run: ReportedRun) -> pd.DataFrame:
    """A row per epoch, with the loss and its parts as columns."""
    rows = []
    for record in run.history:
        values = asdict(record)
        losses = values.pop("losses")
        rows.append(values | {name if name == "loss" else f"loss_{name}": losses[name] for name in losses})
    return pd.DataFrame(rows)


def stage_costs(manifest: Mapping[str, Any]) -> pd.DataFrame:
    """Time and memory of the stages that a run trained itself.

    ``seconds`` are from reading the images of a stage to saving its checkpoint. ``process_mb`` is the peak memory of
    the process until the end of the stage, ``gpu_mb`` that of the GPU during the stage; missing without a GPU, or where
    not recorded.
    """
    seconds, peaks = manifest.get("seconds", {}), manifest.get("peak_memory", {})
    rows = [
        {"stage": int(stage.removeprefix("stage")), "seconds": each}
        | {name: peaks.get(stage, {}).get(key) for name, key in _MEMORY.items()}
        for stage, each in seconds.items()
    ]
    table = pd.DataFrame(rows, columns=["stage", "seconds", *_MEMORY])
    table[[*_MEMORY]] = table[[*_MEMORY]].astype(float) / 1e6
    return table.sort_values("stage", ignore_index=True)


def prompts(run: ReportedRun) -> pd.DataFrame:
    """Figures of prompts by stage and name of `promptccd.training.features.TITLES`; no rows without prompts."""
    recorded = sorted(run.manifest.get("instruments", {}).items())
    return pd.DataFrame(
        [{"stage": int(stage.removeprefix("stage")), **values} for stage, values in recorded if values]
    )


_SCORED: Mapping[str, Callable[[ReportedRun], pd.DataFrame]] = {
    "confusion": lambda run: confusion(run)[["stage", "category", "group", "images"]],
    "blocks": blocks,
    "forgetting": forgetting,
}
_UNSCORED: Mapping[str, Callable[[ReportedRun], pd.DataFrame]] = {
    "history": history,
    "costs": lambda run: stage_costs(run.manifest),
    "prompts": prompts,
}

"""Charts and text of a run report, from the tables of `promptccd.reports.tables`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from promptccd.evaluation import ContinualScore
from promptccd.evaluation.protocol_terms import PARTS
from promptccd.evaluation.tables import (
    ABSENT,
    AVERAGE,
    Grid,
    average_grid,
    over_runs,
    text_grid,
    texts,
)
from promptccd.methods import LOSSES, method_named
from promptccd.reports.charts import NUM_STYLES, Chart, line_chart
from promptccd.reports.compare import stage_charts, stage_table
from promptccd.reports.tables import ReportedRun, ReportTables, confusion, history
from promptccd.runs import RunEvaluation, stream_rows
from promptccd.training.instruments import TITLES, defects

MOST_DRAWN = 60  # of a figure that can still be read
STREAM_COLUMNS = {
    "images": "images",
    "labelled": "in labelled",
    "earlier": "in found before",
    "new": "in new",
    "not_sure": "not sure",
    "num_categories": "categories",
    "num_new": "of them new",
}  # headings of a table of `stream_rows`, by name


def shared_sections(run: ReportedRun, tables: ReportTables) -> dict[str, object]:
    """Sections of the page of runs with and without labels."""
    return {
        "history": history_charts(run),
        "costs": _means(tables["costs"]),
        "prompts": _prompt_grid(tables),
        "warnings": _warnings(run),
    }


def _warnings(run: ReportedRun) -> list[str]:
    """Defects of the prompts, each with the first stage that has it."""
    found = dict[str, str]()
    for stage, values in sorted(run.manifest.get("instruments", {}).items()):
        for kind, text in defects(values, run.recipe.training.mixed_precision).items():
            found.setdefault(kind, f"{stage.replace('stage', 'Stage ')}: {text}")
    return list(found.values())


def compared_sections(scores: Mapping[str, Sequence[ContinualScore]]) -> dict[str, object]:
    """The section that compares a method with its frozen start, if the start was scored."""
    if len(scores) == 1:
        return {"compared": ([], []), "compared_charts": []}
    stages = stage_table(scores)
    charts = stage_charts(stages, stages["variant"].unique())
    return {"compared": average_grid(scores), "compared_charts": charts[1:]}  # Old and New


def scored_sections(runs: Sequence[ReportedRun], tables: ReportTables) -> dict[str, object]:
    """Sections of the page of scored runs; figures without ``±`` are of the first run."""
    run, summary = runs[0], tables["summary"]
    last = run.score.stages[-1]
    return {
        "averages": {part: texts(summary, part)[-1] for part in PARTS},
        "found": f"{last.num_categories} of {run.num_true[-1]}",
        "scores": text_grid(summary.drop(columns=["runs", "true_categories", "true_categories_std"])),
        "confusion": [(stage, confusion_map(own)) for stage, own in confusion(run).groupby("stage")],
        "block_map": block_map(tables["blocks"]),
        "blocks": text_grid(over_runs(tables["forgetting"], ["block"])),
        "count_chart": _count_chart(summary[summary["stage"] != AVERAGE]),
        "counting": run.recipe.training.counting,
        "routing": _means(tables["part_routing"]),
    }


def _means(table: pd.DataFrame) -> Grid:
    """A table per stage, its means over runs as text."""
    return text_grid(over_runs(table, ["stage"])) if len(table) else ([], [])


def stream_sections(evaluation: RunEvaluation, tables: ReportTables) -> dict[str, object]:
    """Sections of the page of a run on streams without labels."""
    return {
        "found": stream_grid(stream_rows(evaluation.run)),
        "held_out": text_grid(tables["held_out"]),
        "routing": ([], []),
    }


def stream_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """The table of streams without labels."""
    table = pd.DataFrame(rows)[["stage", *STREAM_COLUMNS]]
    return text_grid(table.rename(columns=STREAM_COLUMNS))


def confusion_map(pairs: pd.DataFrame) -> pd.DataFrame | None:
    """Percent of the images of every true category in every group; `None` for more than `MOST_DRAWN` of either."""
    pairs = pairs.sort_values(["last", "matched", "found"])
    counts = pairs.pivot_table("images", "true", "found", fill_value=0)[pairs["found"].unique()]
    if max(counts.shape) > MOST_DRAWN:
        return None
    names = pairs.groupby("true")["category"].first()
    return 100 * counts.div(counts.sum(axis=1), axis=0).rename(index=names)


def block_map(blocks: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy over runs of the categories that each stage introduced, after every stage that has them."""
    means = blocks.pivot_table("accuracy", "block", "stage", dropna=False)
    return means.rename(index="stage {}".format, columns="stage {}".format)


def _count_chart(counts: pd.DataFrame) -> Chart:
    """True numbers of categories per stage, and the found numbers as the mean over runs."""
    found = ["stage", "num_categories", "num_categories_std"]
    return line_chart(
        "True and found numbers of categories after every stage",
        {
            "true": counts[["stage", "true_categories"]].to_numpy(float).tolist(),
            "found": counts[found].to_numpy(float, na_value=np.nan).tolist(),
        },
        x_label="stage",
        y_label="categories",
        whole=True,
    )


def history_charts(run: ReportedRun) -> list[Chart]:
    """Losses and learning rate over epochs, a line per stage; no chart where they were not recorded.

    If there are more than `NUM_STYLES` stages, that many are shown, the first and the last among them.
    """
    table = history(run)
    if table.empty:
        return []
    stages = np.sort(table["stage"].unique())
    shown = stages[np.linspace(0, len(stages) - 1, min(len(stages), NUM_STYLES)).round().astype(int)]
    of_all = f", {len(shown)} of {len(stages)} stages" if len(shown) < len(stages) else ""
    table = table[table["stage"].isin(shown)].assign(epoch=table["epoch"] + 1)
    titles = {**LOSSES, **method_named(run.recipe.model.variant).losses}
    charts = []
    for name in [*(each for each in table if each.startswith("loss")), "learning_rate"]:
        stages = table.dropna(subset=name).groupby("stage")
        series = {f"stage {stage}": each[["epoch", name]].to_numpy().tolist() for stage, each in stages}
        bare = name.removeprefix("loss_")
        label = titles.get(bare, bare.replace("_", " "))
        text = f"{label} over the epochs of every stage{of_all}"
        charts.append(line_chart(text, series, x_label="epoch", y_label=label + of_all))
    return charts


def _prompt_grid(tables: ReportTables) -> Grid:
    """Figures of the prompts at every stage, the mean over runs; no rows for a method without prompts."""
    if not len(tables["prompts"]):
        return [], []
    means = tables["prompts"].drop(columns="run").groupby("stage").mean()
    rows = [
        [title, *(ABSENT if pd.isna(value) else f"{value:.3g}" for value in means[name])]
        for name, title in TITLES.items()
        if name in means
    ]
    return ["", *(f"stage {stage}" for stage in means.index)], rows

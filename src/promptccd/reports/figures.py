"""Charts and text of a run report, from the tables of `promptccd.reports.tables`."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from promptccd.evaluation.paper import PublishedTable
from promptccd.evaluation.protocol_terms import PARTS
from promptccd.evaluation.tables import (
    ABSENT,
    AVERAGE,
    Grid,
    count_texts,
    grid_of,
    over_runs,
    score_grid,
    stage_names,
    texts,
    title_of,
)
from promptccd.methods import LOSSES, method_named
from promptccd.reports.charts import NUM_STYLES, Chart, HeatMap, bar_chart, heat_map, line_chart, shortened
from promptccd.reports.compare import signed
from promptccd.reports.tables import (
    OUTCOMES,
    ReportedRun,
    ReportTables,
    category_sizes,
    history,
    known_and_novel,
    matched_order,
)
from promptccd.runs import RunEvaluation, StreamRecord, stream_records
from promptccd.training.instruments import TITLES

MOST_DRAWN = 60  # of a figure that can still be read
VERDICTS = {"consistent": "✓ yes", "impossible": "✗ no", "undecided": "? cannot tell"}


def summary_grid(summary: pd.DataFrame, published: PublishedTable | None) -> Grid:
    """Scores per stage and on average, next to the published ones."""
    compared = [name for name in summary if "published" in name or name.endswith("_difference")]
    own = summary.drop(columns=["runs", "true_categories", "true_categories_std", *compared])
    header, rows = score_grid(own)
    if published is None:
        return header, rows
    for row, cells in zip(summary.to_dict("records"), rows, strict=True):
        verdict = VERDICTS.get(row.get("published_outcome", ""))
        cells += [
            f"{row[f'{part}_published']:.1f} ({signed(row[f'{part}_difference'])})" if verdict else ABSENT
            for part in PARTS
        ]
        cells.append(verdict or ABSENT)
    return [*header, "paper: All", "paper: Old", "paper: New", "paper fits the split"], rows


def outcome_grid(run: ReportedRun) -> Grid:
    """Numbers of images of every stage by `OUTCOMES`."""
    rows = known_and_novel(run).to_numpy().tolist()
    return ["", *OUTCOMES.values()], [[f"stage {stage}", *map(str, counts)] for stage, *counts in rows]


def confusion_map(run: ReportedRun, stage: int) -> HeatMap | None:
    """Images by true category and group; `None` for more than `MOST_DRAWN` of either."""
    rows, columns = matched_order(run, stage)
    if max(len(rows), len(columns)) > MOST_DRAWN:
        return None
    images = run.images[run.images["stage"] == stage]
    shares = pd.crosstab(images["true"], images["found"], normalize="index").loc[rows, columns]
    return heat_map(
        f"Images of stage {stage} by true category and by group",
        (100 * shares).to_numpy().tolist(),
        [run.categories[item] for item in rows],
        list(map(str, columns)),
        x_label="group, by number",
        y_label="true category",
        limits=(0, 100),
        show_values=len(columns) <= 15,
        blank_zeros=True,
    )


def size_chart(run: ReportedRun, stage: int) -> Chart | None:
    """True and found sizes of the categories, side by side; `None` for more than `MOST_DRAWN`."""
    sizes = category_sizes(run)
    sizes = sizes[sizes["stage"] == stage]
    if len(sizes) > MOST_DRAWN:
        return None
    names = [
        f"group {group:.0f}" if pd.isna(category) else shortened(category, 12)
        for category, group in zip(sizes["category"], sizes["found"], strict=True)
    ]
    return bar_chart(
        f"True and found sizes of the categories at stage {stage}",
        names,
        {
            "true": sizes["true_images"].astype(float).tolist(),
            "found": sizes["found_images"].astype(float).tolist(),
        },
        x_label="category",
        y_label="images",
    )


def size_grid(run: ReportedRun, stage: int) -> Grid:
    """True and found sizes of the categories as text."""
    table = category_sizes(run)
    table = table[table["stage"] == stage].fillna({"category": "(no category)", "group": "(no group)"})
    columns = ["category", "group", "true_images", "found_images"]
    return (
        ["category", "group matched to it", "true images", "found images"],
        table[columns].astype(str).to_numpy().tolist(),
    )


def block_map(tables: ReportTables) -> HeatMap:
    """Mean accuracy over runs of the categories that each stage introduced, after every stage that has them."""
    means = tables["blocks"].pivot_table("accuracy", "block", "stage", dropna=False)
    return heat_map(
        "Accuracy on the categories of every stage after every stage",
        means.to_numpy().tolist(),
        list(map(_block_name, means.index)),
        [f"stage {stage}" for stage in means.columns],
        x_label="after",
        y_label="categories of",
        limits=(0, 100),
        places=1,
    )


def block_grid(tables: ReportTables) -> Grid:
    """Accuracy on the categories that each stage introduced: at first, at last, and how much was forgotten."""
    table = over_runs(tables["forgetting"], ["block"])
    return grid_of(
        {
            "categories of": map(_block_name, table["block"]),
            "at first, percent": texts(table, "first"),
            "at last, percent": texts(table, "last"),
            "last against best before": map(signed, -table["forgotten"]),
        }
    )


def count_chart(summary: pd.DataFrame) -> Chart:
    """True numbers of categories per stage, and the found ones as the mean over runs."""
    stages = summary[summary["stage"] != AVERAGE].astype(float, errors="ignore")
    found = ["stage", "num_categories", "num_categories_std"]
    return line_chart(
        "True and found numbers of categories after every stage",
        {
            "true": stages[["stage", "true_categories"]].to_numpy(float).tolist(),
            "found": stages[found].to_numpy(float, na_value=np.nan).tolist(),
        },
        x_label="stage",
        y_label="categories",
        whole=True,
    )


def count_grid(summary: pd.DataFrame) -> Grid:
    """True and found numbers of categories as text, with the range of an estimate."""
    stages = summary[summary["stage"] != AVERAGE]
    true = stages["true_categories"].map("{:.0f}".format)
    return grid_of({"": stage_names(stages), "true": true, "found": count_texts(stages)})


def history_charts(run: ReportedRun) -> list[Chart]:
    """Losses and learning rate over epochs, a line per stage; no chart where they were not recorded.

    Of more stages than `NUM_STYLES`, so many are shown, the first and the last among them.
    """
    table = history(run)
    if table.empty:
        return []
    stages = np.sort(table["stage"].unique())
    shown = stages[np.linspace(0, len(stages) - 1, min(len(stages), NUM_STYLES)).round().astype(int)]
    of_all = f", {len(shown)} of {len(stages)} stages" if len(shown) < len(stages) else ""
    table = table[table["stage"].isin(shown)]
    titles = {**LOSSES, **method_named(run.recipe.model.variant).losses}
    charts = []
    for name in [*(each for each in table if each.startswith("loss")), "learning_rate"]:
        series = {
            f"stage {stage}": list(zip(each["epoch"] + 1, each[name], strict=True))
            for stage, each in table.dropna(subset=name).groupby("stage")
        }
        bare = name.removeprefix("loss_")
        label = titles.get(bare, bare.replace("_", " "))
        text = f"{label} over the epochs of every stage{of_all}"
        charts.append(line_chart(text, series, x_label="epoch", y_label=label + of_all))
    return charts


def cost_grid(tables: ReportTables) -> Grid:
    """Time and memory per stage, the mean over runs."""
    header = ["", "seconds", "of which per epoch", "peak of the process, MB", "peak of the GPU, MB"]
    costs, epochs = tables["costs"], tables["history"]
    if not len(costs):
        return header, []
    memory = [costs[name].astype(float) / 1e6 for name in ("process_bytes", "accelerator_bytes")]
    table = over_runs(costs.assign(process=memory[0], gpu=memory[1]), ["stage"]).sort_values("stage")
    means = epochs.groupby("stage")["seconds"].mean() if len(epochs) else {}
    per_epoch = [f"{means[stage]:.2f}" if stage in means else ABSENT for stage in table["stage"]]
    columns = [
        stage_names(table),
        texts(table, "seconds"),
        per_epoch,
        texts(table, "process"),
        texts(table, "gpu"),
    ]
    return grid_of(dict(zip(header, columns, strict=True)))


def prompt_grid(tables: ReportTables) -> Grid:
    """Figures of the prompts at every stage, the mean over runs; no rows for a method without prompts."""
    if not len(tables["prompts"]):
        return [""], []
    means = tables["prompts"].drop(columns="run").groupby("stage").mean()
    rows = [
        [title, *(ABSENT if pd.isna(value) else f"{value:.3g}" for value in means[name])]
        for name, title in TITLES.items()
        if name in means
    ]
    return ["", *(f"stage {stage}" for stage in means.index)], rows


def routing_grid(tables: ReportTables) -> Grid:
    """Accuracy of the part router per stage and on average; no rows for models without parts."""
    if not len(tables["part_routing"]):
        return [], []
    table = over_runs(tables["part_routing"], ["stage"])
    return grid_of({"": stage_names(table), **{title_of(part): texts(table, part) for part in PARTS}})


def shared_sections(run: ReportedRun, tables: ReportTables) -> dict[str, object]:
    """Sections of the page of runs with and without labels."""
    return {"history": history_charts(run), "costs": cost_grid(tables), "prompts": prompt_grid(tables)}


def scored_sections(
    runs: Sequence[ReportedRun], tables: ReportTables, published: PublishedTable | None
) -> dict[str, object]:
    """Sections of the page of scored runs; figures without ``±`` are of the first one."""
    run, summary = runs[0], tables["summary"]
    last = run.score.stages[-1]
    return {
        "averages": {part: texts(summary, part)[-1] for part in PARTS},
        "found": f"{last.num_categories} of {run.num_true[-1]}",
        "scores": summary_grid(summary, published),
        "known_and_novel": outcome_grid(run),
        "stages": [
            (row.stage, confusion_map(run, row.stage), size_chart(run, row.stage), size_grid(run, row.stage))
            for row in run.score.stages
        ],
        "block_map": block_map(tables),
        "blocks": block_grid(tables),
        "count_chart": count_chart(summary),
        "counts": count_grid(summary),
        "counting": run.recipe.training.counting,
        "routing": routing_grid(tables),
    }


STREAM_COLUMNS = {
    "images": "images",
    "labelled": "in labelled",
    "earlier": "in found before",
    "new": "in new",
    "not_sure": "not sure",
    "num_categories": "categories",
    "num_new": "of them new",
}  # headings of a table of `StreamRecord`, by field


def stream_grid(records: Sequence[StreamRecord]) -> Grid:
    """The table of streams without labels."""
    rows = [
        [f"stage {each.stage}", *(str(getattr(each, name)) for name in STREAM_COLUMNS)] for each in records
    ]
    return ["", *STREAM_COLUMNS.values()], rows


def stream_sections(evaluation: RunEvaluation, tables: ReportTables) -> dict[str, object]:
    """Sections of the page of a run on streams without labels."""
    held_out = tables["held_out"]
    return {
        "found": stream_grid(stream_records(evaluation.run)),
        "held_out": grid_of({"": stage_names(held_out), "percent": texts(held_out, "percent")}),
        "routing": ([], []),
    }


def _block_name(block: int) -> str:
    return f"stage {block}" + (" (labels)" if block == 0 else "")

"""Variants side by side, from their scores alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from promptccd.evaluation import ContinualScore
from promptccd.evaluation.protocol_terms import PARTS
from promptccd.evaluation.tables import (
    ABSENT,
    AVERAGE,
    Grid,
    count_texts,
    grid_of,
    over_runs,
    spread_text,
    texts,
    title_of,
    variant_averages,
    variant_table,
)
from promptccd.reports.charts import Chart, HeatMap, heat_map, line_chart
from promptccd.reports.page import render_page, write_report_files

VariantScores = Mapping[str, Sequence[ContinualScore]]
Costs = Mapping[str, Sequence[pd.DataFrame]]


def write_comparison(
    groups: VariantScores,
    out: str | Path,
    *,
    title: str,
    facts: Mapping[str, str] | None = None,
    grid: pd.DataFrame | None = None,
    costs: Costs | None = None,
) -> Path:
    """Write a page that compares variants, with its numbers as CSV and JSON.

    Args:
        groups: scores of the runs of every variant; differences are to the first variant.
        out: folder for the page, ``index.html``, whose path is returned, ``report.csv`` and ``report.json``.
        title: heading of the page.
        facts: what was run, in words by name.
        grid: the average All in percent over two settings; columns are ``config``, the two settings and ``all``, which
            is NaN where a cell failed or was not run.
        costs: of the stages of every run, by variant, see `promptccd.reports.tables.stage_costs`.

    Raises:
        DiskError: the folder cannot be written.
    """
    averages, stages, costs = variant_averages(groups), stage_table(groups), costs or {}
    names = {name: name.replace("num_", "").replace("count_", "categories_") for name in stages}
    cost_tables = [each.assign(variant=name) for name, runs in costs.items() for each in runs if len(each)]
    cost_names = ["variant", "stage", "seconds", "process_bytes", "accelerator_bytes"]
    sections = {
        "averages": averages,
        "stages": stages.rename(columns=names),
        "costs": over_runs(pd.concat(cost_tables), cost_names[:2])[cost_names]
        if cost_tables
        else pd.DataFrame(),
        "grid": pd.DataFrame() if grid is None else grid,
    }
    page = render_page(
        "comparison.html.jinja",
        title=title,
        facts=facts or {},
        first=next(iter(groups)),
        averages=_average_grid(averages),
        stages=_stage_grid(stages),
        counts=_count_grid(stages),
        charts=stage_charts(stages, averages["variant"]),
        costs=_cost_grid(costs),
        grid=[] if grid is None else list(grid.columns[1:3]),
        panels=[] if grid is None else heat_maps(grid),
    )
    sections = {name: each.round(4) for name, each in sections.items()}
    return write_report_files(out, page, title, facts or {}, sections)


def heat_maps(grid: pd.DataFrame) -> list[tuple[str, HeatMap]]:
    """A heat map of the `grid` of `write_comparison` for every variant, all with one scale."""
    _, row, column, *_ = grid.columns
    limits = (grid["all"].min(), grid["all"].max())
    found = []
    for name, cells in grid.groupby("config", sort=False):
        panel = cells.set_index([row, column])["all"].unstack(sort=False)
        label = f"{name}: All, average over stages, percent, over {row} and {column}"
        rows, columns = list(map(str, panel.index)), list(map(str, panel.columns))
        values = panel.to_numpy().tolist()
        found.append(
            (
                name,
                heat_map(label, values, rows, columns, x_label=column, y_label=row, limits=limits, places=1),
            )
        )
    return found


def stage_table(groups: VariantScores) -> pd.DataFrame:
    """Mean and standard deviation over the runs of every variant at every stage."""
    table = variant_table(groups)
    return over_runs(table[table["stage"] != AVERAGE].drop(columns="num_images"), ["variant", "stage"])


def stage_charts(stages: pd.DataFrame, variants: Iterable[str]) -> list[Chart]:
    """All, Old and New over stages, a line per variant; a variant without rows keeps its place in the legend."""
    charts = []
    for part in PARTS:
        label, columns = title_of(part), ["stage", part, f"{part}_std"]
        series = {
            name: stages.loc[stages["variant"] == name, columns].to_numpy().tolist() for name in variants
        }
        text = f"{label} after every stage, a line per variant"
        charts.append(
            line_chart(text, series, x_label="stage", y_label=f"{label}, percent", y_least=0, y_most=100)
        )
    return charts


def signed(value: float) -> str:
    """A difference with its sign, one decimal; a dash for a missing one."""
    rounded = round(value, 1) + 0.0  # the sum turns -0.0 into 0.0
    return ABSENT if math.isnan(value) else f"{rounded:+.1f}".replace("-", "\N{MINUS SIGN}")


def _average_grid(averages: pd.DataFrame) -> Grid:
    differences = {
        f"{title_of(part)}, difference": [ABSENT, *map(signed, averages[f"{part}_difference"][1:])]
        for part in PARTS
    }
    own = {title_of(part): texts(averages, part) for part in PARTS}
    return grid_of({"": averages["variant"], "runs": averages["runs"].map(str), **own, **differences})


def _stage_grid(stages: pd.DataFrame) -> Grid:
    names = [name for name in stages if f"{name}_std" in stages and name != "num_categories"]
    columns = {title_of(name): texts(stages, name) for name in names}
    return grid_of({"": stages["variant"], "stage": stages["stage"].map(str), **columns})


def _count_grid(stages: pd.DataFrame) -> Grid:
    """Numbers of categories: a row per variant, a column per stage."""
    cells = stages.assign(text=count_texts(stages)).pivot(index="variant", columns="stage", values="text")
    cells = cells.loc[stages["variant"].unique()].fillna(ABSENT)
    return ["", *(f"stage {number}" for number in cells)], cells.reset_index().to_numpy().tolist()


def _cost_grid(costs: Costs) -> Grid:
    """Per variant the means over runs: seconds of stage 0, of each later stage and of all; peak memory in MB."""
    rows = []
    for name, runs in costs.items():
        stages = pd.concat(table.assign(run=run) for run, table in enumerate(runs))
        whole = stages.groupby("run")
        peaks = whole[["process_bytes", "accelerator_bytes"]].max().mean() / 1e6
        is_first = stages["stage"] == 0
        seconds = [stages["seconds"][is_first], stages["seconds"][~is_first], whole["seconds"].sum()]
        memory = [ABSENT if pd.isna(peak) else f"{peak:.0f}" for peak in peaks]
        rows.append([name, *map(spread_text, seconds), *memory])
    return ["", "stage 0, s", "later stages, s each", "whole run, s", "process, MB", "GPU, MB"], rows

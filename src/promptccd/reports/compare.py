"""Variants side by side, from their scores alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
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


@dataclass(frozen=True)
class GridFigure:
    """A value over two settings, a panel per variant.

    Attributes:
        title: heading of the figure.
        row_label: the setting that changes from row to row.
        rows: its values, from the top.
        column_label: the setting that changes from column to column.
        columns: its values.
        panels: a value per row and column, by variant; `None` or NaN where a cell failed or was not run.
        unit: of the values, in words.
    """

    title: str
    row_label: str
    rows: Sequence[str]
    column_label: str
    columns: Sequence[str]
    panels: Mapping[str, Sequence[Sequence[float | None]]]
    unit: str = "All, average over stages, percent"

    @property
    def table(self) -> pd.DataFrame:
        """A row per cell."""
        rows = [f"{self.row_label} = {row}" for row in self.rows]
        columns = [f"{self.column_label} = {column}" for column in self.columns]
        cells = product(self.panels, rows, columns)
        table = pd.DataFrame(cells, columns=["variant", "row_setting", "column_setting"])
        values = np.asarray(list(self.panels.values()), dtype=float)  # `None` becomes NaN
        return table.assign(value=values.ravel(), unit=self.unit)

    @property
    def heat_maps(self) -> list[tuple[str, HeatMap]]:
        """A heat map per variant, all with one scale."""
        values = np.asarray(list(self.panels.values()), dtype=float)  # `None` becomes NaN
        given = values[np.isfinite(values)].tolist()
        limits = (min(given, default=0.0), max(given, default=1.0))
        return [
            (
                name,
                heat_map(
                    f"{name}: {self.unit}, over {self.row_label} and {self.column_label}",
                    panel, self.rows, self.columns,
                    x_label=self.column_label, y_label=self.row_label, limits=limits, places=1,
                ),
            )
            for name, panel in self.panels.items()
        ]  # fmt: skip


def write_comparison(
    groups: VariantScores,
    out: str | Path,
    *,
    title: str,
    facts: Mapping[str, str] | None = None,
    grid: GridFigure | None = None,
    costs: Costs | None = None,
) -> Path:
    """Write a page that compares variants, with its numbers as CSV and JSON.

    Args:
        groups: scores of the runs of every variant; differences are to the first variant.
        out: folder for the page, ``index.html``, whose path is returned, ``report.csv`` and ``report.json``.
        title: heading of the page.
        facts: what was run, in words by name.
        grid: a value over two settings, where two were varied.
        costs: of the stages of every run, by variant, see `promptccd.reports.tables.stage_costs`.

    Raises:
        DiskError: the folder cannot be written.
    """
    averages, stages, costs = variant_averages(groups), stage_table(groups), costs or {}
    names = {name: name.replace("num_", "").replace("count_", "categories_") for name in stages}
    sections = {
        "averages": averages,
        "stages": stages.rename(columns=names),
        "costs": cost_table(costs),
        "grid": grid.table if grid else pd.DataFrame(),
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
        grid=grid,
        panels=grid.heat_maps if grid else [],
    )
    return write_report_files(
        out, page, title, facts or {}, {name: each.round(4) for name, each in sections.items()}
    )


def stage_table(groups: VariantScores) -> pd.DataFrame:
    """Mean and standard deviation over the runs of every variant at every stage."""
    table = variant_table(groups)
    return over_runs(table[table["stage"] != AVERAGE].drop(columns="num_images"), ["variant", "stage"])


def cost_table(costs: Costs) -> pd.DataFrame:
    """Means over runs of seconds and memory, per variant and stage."""
    tables = [table.assign(variant=name) for name, runs in costs.items() for table in runs if len(table)]
    if not tables:
        return pd.DataFrame()
    means = over_runs(pd.concat(tables), ["variant", "stage"])
    return means[["variant", "stage", "seconds", "process_bytes", "accelerator_bytes"]]


def stage_charts(stages: pd.DataFrame, variants: Iterable[str]) -> list[Chart]:
    """All, Old and New over stages, a line per variant; a variant without rows keeps its place in the legend."""
    charts = []
    for part in PARTS:
        label, series = title_of(part), {}
        for name in variants:
            rows = stages[stages["variant"] == name]
            series[name] = list(zip(rows["stage"], rows[part], rows[f"{part}_std"], strict=True))
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
        f"{title_of(part)}, difference": list(map(signed, averages[f"{part}_difference"])) for part in PARTS
    }
    for column in differences.values():
        column[0] = ABSENT
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
        stages = pd.concat(runs)
        first = spread_text(stages.loc[stages["stage"] == 0, "seconds"])
        later = spread_text(stages.loc[stages["stage"] > 0, "seconds"])
        total = spread_text(each["seconds"].sum() for each in runs if len(each))
        peaks = pd.DataFrame(
            [each[["process_bytes", "accelerator_bytes"]].max() for each in runs if len(each)]
        )
        memory = [ABSENT if pd.isna(peak) else f"{peak / 1e6:.0f}" for peak in peaks.mean()]
        rows.append([name, first, later, total, *memory])
    return ["", "stage 0, s", "later stages, s each", "whole run, s", "process, MB", "GPU, MB"], rows

"""Variants side by side, from their scores alone."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from promptccd.evaluation import ContinualScore
from promptccd.evaluation.protocol_terms import PARTS
from promptccd.evaluation.tables import (
    AVERAGE,
    over_runs,
    text_grid,
    title_of,
    variant_averages,
    variant_table,
)
from promptccd.reports.charts import Chart, line_chart
from promptccd.reports.page import render_page, write_report_files

VariantScores = Mapping[str, Sequence[ContinualScore]]
Costs = Mapping[str, Sequence[pd.DataFrame]]
COSTS = ["variant", "stage", "seconds", "process_mb", "gpu_mb"]


def write_comparison(
    groups: VariantScores,
    out: str | Path,
    *,
    title: str,
    facts: Mapping[str, str] | None = None,
    costs: Costs | None = None,
) -> Path:
    """Write a page that compares variants, with its numbers as CSV and JSON.

    Args:
        groups: scores of the runs of every variant; differences are to the first variant.
        out: folder for the page, ``index.html``, whose path is returned, ``report.csv`` and ``report.json``.
        title: heading of the page.
        facts: description of the runs by name.
        costs: of the stages of every run, by variant, see `promptccd.reports.tables.stage_costs`.

    Raises:
        DiskError: the folder cannot be written.
    """
    averages, stages = variant_averages(groups), stage_table(groups)
    tables = [each.assign(variant=name) for name, runs in (costs or {}).items() for each in runs if len(each)]
    sections = {
        "averages": averages,
        "stages": stages,
        "costs": over_runs(pd.concat(tables), ["variant", "stage"])[COSTS] if tables else pd.DataFrame(),
    }
    page = render_page(
        "comparison.html.jinja",
        title=title,
        facts=facts or {},
        first=next(iter(groups)),
        averages=text_grid(averages),
        stages=text_grid(stages),
        charts=stage_charts(stages, averages["variant"]),
        costs=text_grid(sections["costs"]),
    )
    sections = {name: each.round(4) for name, each in sections.items()}
    return write_report_files(out, page, title, facts or {}, sections)


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

"""Variants side by side, from their scores alone, and what the paper prints for a recipe."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.splits import PAPER_CUTS
from promptccd.evaluation import AuditedRow, ContinualScore, StageScore, published_rows
from promptccd.evaluation.protocol_terms import PARTS
from promptccd.evaluation.audit import audited_by_stage
from promptccd.evaluation.protocol_terms import OWN_ANSWER
from promptccd.evaluation.published import SHARED_COUNTS
from promptccd.reports.charts import Chart, HeatMap, heat_map, line_chart
from promptccd.reports.measures import (
    ABSENT,
    Spread,
    StageCost,
    average_spreads,
    count_range,
    count_text,
    signed,
    stage_spreads,
)
from promptccd.reports.pages import Record, render_page, write_report_files
from promptccd.training.recipe import Recipe

Scores = Mapping[str, Sequence[ContinualScore]]
Costs = Mapping[str, Sequence[Sequence[StageCost]]]


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


def write_comparison(
    groups: Scores,
    out: str | Path,
    *,
    title: str,
    facts: Mapping[str, str] | None = None,
    grid: GridFigure | None = None,
    costs: Costs | None = None,
) -> Path:
    """Write a page that compares variants, with its numbers as CSV and JSON beside it.

    Args:
        groups: scores of the runs of every variant; differences are to the first variant.
        out: folder for the page, ``index.html``, whose path is returned, ``report.csv`` and ``report.json``.
        title: heading of the page.
        facts: what was run, in words by name.
        grid: a value over two settings, where two were varied.
        costs: of the stages of every run, by variant.

    Raises:
        DiskError: the folder cannot be written.
        ValueError: no variant, or one without a run.
    """
    if not groups or not all(groups.values()):
        raise ValueError("Expected at least one variant and at least one run of each to compare.")
    groups, facts, costs = with_own_answers(groups), facts or {}, costs or {}
    sections = {
        "averages": average_records(groups),
        "stages": stage_records(groups),
        "costs": _cost_records(costs),
        "grid": _grid_records(grid),
    }
    page = render_page(
        "comparison.html.jinja",
        title=title,
        facts=facts,
        first=next(iter(groups)),
        averages=_average_rows(groups),
        stages=_stage_rows(groups),
        counts=_count_rows(groups),
        charts=stage_charts(groups),
        costs=_cost_rows(costs),
        grid=grid,
        panels=_grid_panels(grid),
    )
    return write_report_files(out, page, title, facts, sections)


def with_own_answers(groups: Scores) -> dict[str, Sequence[ContinualScore]]:
    """The same rows, each followed by one of the method's own answer, where it has one.

    Where the paper's figures are of another matching (MetaGCD's v1), a row of these comes between, and the own answer
    is scored by that matching alone.
    """
    rows: dict[str, Sequence[ContinualScore]] = {}
    for name, scores in groups.items():
        rows[name], which = scores, ""
        if any(score.as_published is not score for score in scores):
            which = ", v1"
            rows[f"{name}{which}"] = [score.as_published for score in scores]
        if natives := [native for score in scores if (native := score.native) is not None]:
            rows[f"{name}, {OWN_ANSWER}{which}"] = natives
    return rows


def average_records(groups: Scores) -> list[Record]:
    """Mean, deviation and difference to the first variant of the averages over stages, in percent."""
    first = average_spreads(next(iter(groups.values())))
    records = []
    for name, scores in groups.items():
        record: Record = {"variant": name, "runs": len(scores)}
        for part, spread in average_spreads(scores).items():
            record |= {part: rounded(spread.mean), f"{part}_std": rounded(spread.std)}
            record[f"{part}_difference"] = rounded(spread.mean - first[part].mean)
        records.append(record)
    return records


def stage_records(groups: Scores) -> list[Record]:
    """Mean and deviation per variant and stage, in percent, with the numbers of categories."""
    records = []
    for name, scores in groups.items():
        for stage, rows in _by_stage(scores).items():
            record: Record = {"variant": name, "stage": stage, "runs": len(rows)}
            for part, spread in stage_spreads(rows).items():
                record |= {part: rounded(spread.mean), f"{part}_std": rounded(spread.std)}
            record["categories"] = rounded(Spread.of(row.num_categories for row in rows).mean)
            record["categories_low"], record["categories_high"] = count_range(rows) or (None, None)
            records.append(record)
    return records


def _cost_records(costs: Costs) -> list[Record]:
    """Means over runs of seconds and memory, per variant and stage."""
    records = []
    for name, runs in costs.items():
        for stage in sorted({cost.stage for run in runs for cost in run}):
            of_stage = [cost for run in runs for cost in run if cost.stage == stage]
            record: Record = {"variant": name, "stage": stage}
            for what in ("seconds", "process_bytes", "accelerator_bytes"):
                record[what] = rounded(Spread.of(getattr(cost, what) for cost in of_stage).mean)
            records.append(record)
    return records


def _by_stage(scores: Sequence[ContinualScore]) -> dict[int, list[StageScore]]:
    rows: dict[int, list[StageScore]] = {}
    for score in scores:
        for row in score.stages:
            rows.setdefault(row.stage, []).append(row)
    return dict(sorted(rows.items()))


def _average_rows(groups: Scores) -> list[list[str]]:
    averages = {name: average_spreads(scores) for name, scores in groups.items()}
    first, rows = next(iter(averages.values())), []
    for name, own in averages.items():
        apart = [ABSENT if own is first else signed(own[part].mean - first[part].mean) for part in PARTS]
        rows.append([name, str(len(groups[name])), *map(str, own.values()), *apart])
    return rows


def _stage_rows(groups: Scores) -> list[list[str]]:
    return [
        [name, str(stage), *map(str, stage_spreads(rows).values())]
        for name, scores in groups.items()
        for stage, rows in _by_stage(scores).items()
    ]


def _count_rows(groups: Scores) -> list[list[str]]:
    """A header, and a row per variant: `count_text` of every stage."""
    numbers = sorted({stage for scores in groups.values() for stage in _by_stage(scores)})
    rows = [["", *(f"stage {stage}" for stage in numbers)]]
    for name, scores in groups.items():
        stages = _by_stage(scores)
        rows.append([name, *(count_text(stages.get(stage, [])) for stage in numbers)])
    return rows


def stage_charts(groups: Scores) -> list[Chart]:
    """All, Old and New over stages, a line per variant."""
    spreads = {
        name: {stage: stage_spreads(rows) for stage, rows in _by_stage(scores).items()}
        for name, scores in groups.items()
    }
    charts = []
    for part in PARTS:
        label = part.capitalize()
        series = {
            name: [(stage, own[part].mean, own[part].std) for stage, own in by_stage.items()]
            for name, by_stage in spreads.items()
        }
        said = f"{label} after every stage, a line per variant"
        charts.append(
            line_chart(said, series, x_label="stage", y_label=f"{label}, percent", y_least=0, y_most=100)
        )
    return charts


def _cost_rows(costs: Costs) -> list[list[str]]:
    """Per variant: seconds of stage 0, of later stages on average, of all; most memory."""
    rows = []
    for name, runs in costs.items():
        first = Spread.of(cost.seconds for run in runs for cost in run if cost.stage == 0)
        later = Spread.of(cost.seconds for run in runs for cost in run if cost.stage > 0)
        total = Spread.of(sum(cost.seconds for cost in run) for run in runs if run)
        memory = [_most_memory(runs, what) for what in ("process_bytes", "accelerator_bytes")]
        rows.append([name, str(first), str(later), str(total), *memory])
    return rows


def _most_memory(runs: Sequence[Sequence[StageCost]], what: str) -> str:
    """The mean over runs of the most memory of their stages, in MB."""
    recorded = [[getattr(cost, what) for cost in run if getattr(cost, what) is not None] for run in runs]
    mean = Spread.of(max(values) for values in recorded if values).mean
    return ABSENT if math.isnan(mean) else f"{mean / 1e6:.0f}"


def _grid_panels(grid: GridFigure | None) -> list[tuple[str, HeatMap]]:
    """Heat maps with one scale."""
    if grid is None:
        return []
    values = np.asarray(list(grid.panels.values()), dtype=float)  # `None` becomes NaN
    given = values[np.isfinite(values)].tolist()
    limits = (min(given, default=0.0), max(given, default=1.0))
    return [
        (
            name,
            heat_map(
                f"{name}: {grid.unit}, over {grid.row_label} and {grid.column_label}",
                panel, grid.rows, grid.columns,
                x_label=grid.column_label, y_label=grid.row_label, limits=limits, places=1,
            ),
        )
        for name, panel in grid.panels.items()
    ]  # fmt: skip


def _grid_records(grid: GridFigure | None) -> list[Record]:
    if grid is None:
        return []
    return [
        {
            "variant": name,
            "row_setting": f"{grid.row_label} = {row}",
            "column_setting": f"{grid.column_label} = {column}",
            "value": rounded(value),
            "unit": grid.unit,
        }
        for name, panel in grid.panels.items()
        for row, line in zip(grid.rows, panel, strict=True)
        for column, value in zip(grid.columns, line, strict=True)
    ]


def rounded(value: float | None) -> float | None:
    """A number of a record, with four places; `None` for NaN."""
    return None if value is None or math.isnan(value) else round(value, 4)


# The protocol under which the paper reports a way of counting categories.
_PROTOCOLS = {"known": "transductive_cacc", "split_merge": "unknown_c_gpc", "kmeans": "unknown_c_kmeans"}
BACKBONES = {"facebook/dinov2-base": "dinov2", "facebook/dino-vitb16": "dino"}
_USUAL_BACKBONE = "dinov2"


@dataclass(frozen=True)
class _Setting:
    """Protocol and setting under which the paper prints figures of a split, and how they differ from cACC."""

    protocol: str
    setting: str = ""
    note: str | None = None


# Splits other than the benchmarks' own, all with known numbers of categories: data set, class blocks, split rule, cuts.
_SETTINGS: Mapping[tuple[Any, ...], _Setting] = {
    ("cifar100", (40, 20, 20, 20), "mixed", PAPER_CUTS): _Setting("class_split", "class_split=4:2:2:2"),
    ("cifar100", (40, 30, 20, 10), "mixed", PAPER_CUTS): _Setting("class_split", "class_split=4:3:2:1"),
    ("cifar100", (10, 20, 30, 40), "mixed", PAPER_CUTS): _Setting("class_split", "class_split=1:2:3:4"),
    ("cifar100", (80, 5, 5, 5, 5), "sessions", PAPER_CUTS): _Setting(
        "metagcd",
        note="the paper's are v1 on test images, as promptccd evaluate --protocol metagcd scores them",
    ),
    ("cub", (160, 40), "mixed", ((0.8, 1.0), (1.0,))): _Setting("pa_cgcd"),
}


@dataclass(frozen=True)
class PublishedTable:
    """Printed rows of one method on one data set, with their audit."""

    rows: Mapping[int | None, AuditedRow]  # by stage; `None` is the average
    source: str  # where the paper prints them
    differences: Sequence[str]  # from the published setting, a phrase each; empty where figures compare


def published_table(recipe: Recipe, num_scored: int) -> PublishedTable | None:
    """What the paper prints for the method, data set and split of a recipe; `None` where it prints nothing.

    Args:
        recipe: of the run.
        num_scored: number of unlabelled stages that the run has finished.
    """
    benchmark, method = recipe.data.benchmark, recipe.published_name
    own = BACKBONES.get(recipe.model.backbone or "")
    setting = _setting_of(recipe)
    if benchmark is None or setting is None:
        return None
    for backbone in dict.fromkeys([own or _USUAL_BACKBONE, *BACKBONES.values()]):
        rows = published_rows(benchmark, method, setting.protocol, backbone, setting.setting)
        if rows:
            source = f"{method} on {benchmark} with {backbone}, seed 1, table {rows[0].table}"
            notes = [setting.note] if setting.note else []
            notes += differences(recipe, num_scored, backbone)
            return PublishedTable(audited_by_stage(rows), source, notes)
    return None


def _setting_of(recipe: Recipe) -> _Setting | None:
    """Where the paper prints figures of the recipe's split; `None` where it has none."""
    data, counting = recipe.data, recipe.training.counting
    facts, own = BENCHMARKS.get(data.benchmark or ""), data.resolved
    cuts = PAPER_CUTS if data.resolved_cuts is None else tuple(map(tuple, data.resolved_cuts))
    split = (own.class_blocks, own.split_rule, cuts)
    if facts and split == (facts.class_blocks, facts.split_rule, PAPER_CUTS):
        given = tuple(recipe.training.given_counts or ())
        shared = [name for name, counts in SHARED_COUNTS.items() if counts.get(data.benchmark or "") == given]
        found = [_PROTOCOLS[counting]] if counting in _PROTOCOLS else shared
        return _Setting(found[0]) if found else None
    return _SETTINGS.get((data.benchmark, *split)) if counting == "known" else None


def differences(recipe: Recipe, num_scored: int, backbone: str) -> list[str]:
    """How a run that has scored some stages differs from the paper's setting with a backbone, a phrase each."""
    facts, own = BENCHMARKS[recipe.data.benchmark or ""], recipe.data.resolved
    num_stages = len(own.class_blocks) - 1
    found = []
    if BACKBONES.get(recipe.model.backbone or "") != backbone:
        name = next(name for name, short in BACKBONES.items() if short == backbone)
        found.append(f"the backbone is not {name}")
    if replace(own, class_blocks=facts.class_blocks, split_rule=facts.split_rule) != facts:
        found.append("the data or its part is not the paper's")
    if num_scored != num_stages:
        found.append(f"{num_scored} of {num_stages} stages are scored")
    return found

"""What a sweep ends in: its table on the terminal, and the same as Markdown, CSV and JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from promptccd.cli.tables import comparison_table
from promptccd.evaluation import ContinualScore
from promptccd.reports import GridFigure, csv_text, stage_costs, write_comparison
from promptccd.reports.comparison import average_records
from promptccd.reports.spread import Spread
from promptccd.runs import RunDirectory, SweepResult, grid_keys
from promptccd.storage import make_inside, write_file

PARTS = ("all", "old", "new")


def sweep_text(result: SweepResult) -> str:
    """The comparison, and what is missing from it."""
    lines = [comparison_table(_counted(result))] if result.groups else []
    lines += [f"missing: {name}: {why.splitlines()[-1]}" for name, why in result.failures.items()]
    return "\n".join(lines)


def sweep_record(result: SweepResult, settings: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """All of it as JSON types: rows per stage and cell, averages, failures, and the grid of two fields."""
    keys = grid_keys(settings)
    return {
        "unit": "percent",
        "averages": average_records(result.groups) if result.groups else [],
        "cells": [
            {
                "cell": cell.name,
                "variant": cell.variant,
                "config": cell.config,
                "settings": dict(cell.settings),
                "seed": cell.seed,
                **(result.scores[cell.name].to_dict() if cell.name in result.scores else {}),
            }
            for cell in result.cells
        ],
        "baselines": {
            name: [score.to_dict() for score in scores] for name, scores in result.baselines.items()
        },
        "failures": dict(result.failures),
        "grid": None if keys is None else _grid(result, keys, settings),
    }


def write_tables(result: SweepResult, record: Mapping[str, Any], out: Path) -> None:
    """Write ``table.md``, ``table.csv`` and ``results.json``."""
    rows = [
        f"| {name} | {' | '.join(map(str, _spreads(scores)))} |" for name, scores in _counted(result).items()
    ]
    missing = [f"\nMissing: {name}" for name in result.failures]
    write_file(
        out / "table.md", "\n".join(["| | All | Old | New |", "|---|---|---|---|", *rows, *missing]) + "\n"
    )
    header = ["variant", "runs", *(f"{part}{what}" for part in PARTS for what in ("", "_std"))]
    write_file(out / "table.csv", csv_text(header, record["averages"]))
    write_file(out / "results.json", json.dumps(record, indent=1) + "\n")


def write_page(result: SweepResult, record: Mapping[str, Any], out: Path) -> None:
    """Write the comparison as a page, into ``report`` of the sweep's folder."""
    if not result.groups:
        return
    costs: dict[str, list[Any]] = {}
    for cell in result.cells:
        if cell.name in result.scores:
            costs.setdefault(cell.variant, []).append(stage_costs(RunDirectory(cell.path).manifest))
    facts = {
        "recipes": ", ".join(dict.fromkeys(cell.config for cell in result.cells)),
        "seeds": ", ".join(dict.fromkeys(str(cell.seed) for cell in result.cells)),
        **({"missing": ", ".join(result.failures)} if result.failures else {}),
    }
    grid = record["grid"]
    figure = grid and GridFigure(
        title=f"{grid['row_key']} and {grid['column_key']}",
        row_label=grid["row_key"],
        rows=[str(value) for value in grid["rows"]],
        column_label=grid["column_key"],
        columns=[str(value) for value in grid["columns"]],
        panels={config: means["all"] for config, means in grid["means"].items()},
    )
    write_comparison(
        result.groups,
        make_inside(out, "report"),
        title=f"Sweep {out.name}",
        facts=facts,
        grid=figure,
        costs=costs,
    )


def _counted(result: SweepResult) -> dict[str, list[ContinualScore]]:
    """The groups, their names telling where seeds are missing."""
    wanted: dict[str, int] = {}
    for cell in result.cells:
        wanted[cell.variant] = wanted.get(cell.variant, 0) + 1
    return {
        name
        if len(scores) == wanted.get(name, len(scores))
        else f"{name} ({len(scores)} of {wanted[name]})": scores
        for name, scores in result.groups.items()
    }


def _spreads(scores: Sequence[ContinualScore]) -> list[Spread]:
    return [Spread.of(score.average[part] for score in scores) for part in PARTS]


def _grid(
    result: SweepResult, keys: tuple[str, str], settings: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """Mean All/Old/New over seeds per recipe, rows by the first field and columns by the second."""
    grids: dict[str, Any] = {}
    for config in dict.fromkeys(cell.config for cell in result.cells):
        grids[config] = {part: [] for part in PARTS}
        for row in settings[keys[0]]:
            scores = [
                [
                    result.scores[cell.name]
                    for cell in result.cells
                    if cell.config == config
                    and (cell.settings[keys[0]], cell.settings[keys[1]]) == (row, column)
                    and cell.name in result.scores
                ]
                for column in settings[keys[1]]
            ]
            for position, part in enumerate(PARTS):
                spreads = [_spreads(each)[position] for each in scores]
                grids[config][part].append([round(each.mean, 4) if each.count else None for each in spreads])
    return {
        "row_key": keys[0],
        "rows": list(settings[keys[0]]),
        "column_key": keys[1],
        "columns": list(settings[keys[1]]),
        "means": grids,
    }

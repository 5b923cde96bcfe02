"""``promptccd sweep``: of recipes, or of a table of the paper."""

import argparse
import json
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptccd import evaluation, reports, runs
from promptccd.cli.options import MOST_SEED, MOST_WORKERS, PLUGIN, Parser, declare, show, whole_number
from promptccd.cli.recipe_options import add_recipe_options, given_fields, option_value
from promptccd.cli.tables import comparison_table, table
from promptccd.disk import make_inside, write_file
from promptccd.errors import ConfigurationError, IncompleteSweepError, did_you_mean
from promptccd.evaluation.protocol_terms import PARTS
from promptccd.reports.table_parts import paper_tables
from promptccd.training.recipe import known_fields, recipe_folder

if TYPE_CHECKING:
    from promptccd.evaluation import ContinualScore
    from promptccd.evaluation.tables import Grid
    from promptccd.reports import ProtocolScoring, SweepCell, SweepResult
    from promptccd.reports.engines import Engine
    from promptccd.reports.paper_tables import TablePlan


logger = logging.getLogger(__name__)


def sweep_text(result: "SweepResult") -> str:
    """The comparison, and what is missing from it."""
    compared = [comparison_table(_counted(result))] if result.groups else []
    return "\n".join([*compared, *_missing(result)])


def _missing(result: "SweepResult") -> list[str]:
    missing = [f"missing: {name}: {why.splitlines()[-1]}" for name, why in result.failures.items()]
    return missing + [f"not finished: {name}: {state}" for name, state in result.unfinished.items()]


def sweep_record(result: "SweepResult", settings: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """All of it as JSON types: rows per stage and cell, averages, failures, and the grid of two fields."""
    keys = reports.grid_keys(settings)
    return {
        "unit": "percent",
        "averages": reports.records(evaluation.variant_averages(result.groups).round(4))
        if result.groups
        else [],
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
        "unfinished": dict(result.unfinished),
        "grid": None if keys is None else _grid(result, keys, settings),
    }


def write_tables(result: "SweepResult", record: Mapping[str, Any], out: Path) -> None:
    """Write ``table.md``, ``table.csv`` and ``results.json``."""
    (_, *parts), rows = evaluation.average_grid(_counted(result)) if result.groups else (["", *PARTS], [])
    missing = [f"\nMissing: {name}" for name in result.failures]
    missing += [f"\nNot finished: {name}: {state}" for name, state in result.unfinished.items()]
    write_file(out / "table.md", "\n".join([evaluation.markdown((["", *parts], rows)), *missing]) + "\n")
    header = ["variant", "runs", *(f"{part}{what}" for part in PARTS for what in ("", "_std"))]
    write_file(out / "table.csv", reports.csv_text(header, record["averages"]))
    write_file(out / "results.json", json.dumps(record, indent=1) + "\n")


def write_page(result: "SweepResult", record: Mapping[str, Any], out: Path) -> None:
    """Write the comparison as a page, into ``report`` of the sweep's folder."""
    if not result.groups:
        return
    costs: dict[str, list[Any]] = {}
    for cell in result.cells:
        if cell.name in result.scores:
            costs.setdefault(cell.variant, []).append(
                reports.stage_costs(runs.RunDirectory(cell.path).manifest)
            )
    facts = {
        "recipes": ", ".join(dict.fromkeys(cell.config for cell in result.cells)),
        "seeds": ", ".join(dict.fromkeys(str(cell.seed) for cell in result.cells)),
        **({"missing": ", ".join(result.failures)} if result.failures else {}),
        **({"not finished": ", ".join(result.unfinished)} if result.unfinished else {}),
    }
    grid = record["grid"]
    figure = grid and reports.GridFigure(
        title=f"{grid['row_key']} and {grid['column_key']}",
        row_label=grid["row_key"],
        rows=[str(value) for value in grid["rows"]],
        column_label=grid["column_key"],
        columns=[str(value) for value in grid["columns"]],
        panels={config: means["all"] for config, means in grid["means"].items()},
    )
    reports.write_comparison(
        result.groups,
        make_inside(out, "report"),
        title=f"Sweep {out.absolute().name}",
        facts=facts,
        grid=figure,
        costs=costs,
    )


def _counted(result: "SweepResult") -> "dict[str, list[ContinualScore]]":
    """The groups; names say where seeds are missing."""
    wanted = Counter(cell.variant for cell in result.cells)  # baselines are no cells
    return {
        f"{name} ({len(scores)} of {wanted[name]})" if len(scores) < wanted[name] else name: scores
        for name, scores in result.groups.items()
    }


def _grid(
    result: "SweepResult", keys: tuple[str, str], settings: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """Mean All/Old/New over seeds per recipe, rows by the first field and columns by the second."""

    def mean(part: str, *place: Any) -> float | None:
        cells = [cell for cell in result.cells if (cell.config, *map(cell.settings.get, keys)) == place]
        scores = [result.scores[cell.name] for cell in cells if cell.name in result.scores]
        given = [value for score in scores if not math.isnan(value := score.average[part])]
        return round(sum(given) / len(given), 4) if given else None

    rows, columns = (list(settings[key]) for key in keys)
    means = {
        config: {
            part: [[mean(part, config, row, column) for column in columns] for row in rows] for part in PARTS
        }
        for config in dict.fromkeys(cell.config for cell in result.cells)
    }
    return {"row_key": keys[0], "rows": rows, "column_key": keys[1], "columns": columns, "means": means}


def _declare_sweep(sweep: Parser) -> None:
    sweep.add_argument(
        "images",
        metavar="IMAGES",
        nargs="?",
        help="your images, as for `promptccd train`, instead of --config; --class_blocks sets the labelled categories "
        "(default: half of them)",
    )
    sweep.add_argument("--method", metavar="NAME", nargs="+", help="methods for IMAGES (default: promptccd)")
    sweep.add_argument(
        "--config",
        metavar="RECIPE",
        nargs="+",
        action="extend",
        help="recipes, by name or as YAML files; with --table the folder of its recipes (default: the bundled ones)",
    )
    sweep.add_argument(
        "--seeds",
        type=whole_number(0, MOST_SEED),
        nargs="+",
        action="extend",
        required=True,
        help="seeds of every combination",
    )
    sweep.add_argument(
        "--set",
        metavar="KEY=V1,V2",
        nargs="+",
        action="extend",
        default=[],
        help="values of a field to combine with all others, named in the folders of the runs; lists in brackets",
    )
    sweep.add_argument(
        "--baselines", action="store_true", help="scores of raw pixels and the frozen backbone too"
    )
    sweep.add_argument(
        "--out", help="folder of the runs and their table (default: runs/sweep, or runs/<table>-<backbone>)"
    )
    sweep.add_argument(
        "--jobs",
        type=whole_number(1, MOST_WORKERS),
        help="cells to train at once (default: 1; all with another engine)",
    )
    sweep.add_argument(
        "--engine",
        choices=["local", "slurm", "ray"],
        default="local",
        help="processes of this machine, jobs of Slurm, or the Ray cluster of RAY_ADDRESS (default: local)",
    )
    sweep.add_argument(
        "--slurm",
        metavar="KEY=VALUE",
        nargs="+",
        default=[],
        help="options of sbatch: partition=gpu gres=gpu:1",
    )
    sweep.add_argument(
        "--cell-gpus", type=float, metavar="G", help="GPUs of a Ray cluster for each cell; two cells share .5"
    )
    declare(sweep, PLUGIN)
    instead = sweep.add_mutually_exclusive_group()
    instead.add_argument("--dry-run", action="store_true", help="list of the cells and their devices alone")
    instead.add_argument(
        "--commands", action="store_true", help="a command for each unfinished cell alone, to be run anywhere"
    )
    instead.add_argument("--collect", action="store_true", help="tables of what is finished alone")
    _add_table_options(sweep)
    add_recipe_options(sweep, without=("training.output_dir", "training.seed", "training.resume_from"))
    sweep.set_defaults(run=sweep_command, needs=("promptccd.trainer", "promptccd.reports.paper_tables"))


def _add_table_options(sweep: Parser) -> None:
    group = sweep.add_argument_group("tables", "a table of the paper instead of recipes, laid out like it")
    group.add_argument(
        "--table",
        choices=list(paper_tables()),
        help="its methods, data sets, protocol and settings; --backbone dino or dinov2 chooses its half, dino=PLACE "
        "says where the weights lie. What cannot be had is left out with a line, and its printed row stays",
    )
    group.add_argument(
        "--methods", metavar="NAME", nargs="+", help="some of its methods, as the paper calls them"
    )
    group.add_argument(
        "--datasets",
        metavar="NAME[=PLACE]",
        nargs="+",
        help="some of its data sets, and where they lie if not on the Hub: cifar100=FOLDER",
    )
    group.add_argument(
        "--small",
        action="store_true",
        help="try it in minutes: 20 categories in its proportions, 100 images of each at 32 pixels, a small backbone "
        "that is trained here, and the rates and lengths that methods have on digits",
    )


def sweep_command(options: argparse.Namespace) -> None:
    """``promptccd sweep``."""
    settings = parse_settings(options.set)
    _require_fitting(options)
    if options.table:
        return _table_command(options, settings)
    out = options.out or "runs/sweep"
    sources: list[Any] = options.config or [
        reports.OwnImages(options.images, method) for method in options.method or [None]
    ]
    cells = reports.plan_cells(sources, options.seeds, settings, out, given_fields(options))
    if (result := _swept(options, cells, out)) is None:
        return
    record = sweep_record(result, settings)
    with reports.locked_tables(Path(out)):
        write_tables(result, record, Path(out))
        write_page(result, record, Path(out))
    show(options, record, lambda: sweep_text(result))
    _require_whole(result)


def _swept(
    options: argparse.Namespace,
    cells: "Sequence[SweepCell]",
    out: str | Path,
    scorings: "Sequence[ProtocolScoring]" = (),
    notes: Sequence[str] = (),
) -> "SweepResult | None":
    """What there is of a sweep once it was run, or collected; `None` where only a list or lines were asked for."""
    from promptccd.trainer import train_recipe

    if options.dry_run:
        _list_cells(options, cells, notes)
        return None
    if options.commands:
        _print_commands(options, cells, out)
        return None
    if options.collect:
        return reports.collect_sweep(cells, baselines=options.baselines)
    return reports.run_sweep(
        cells, out, jobs=_jobs(options, cells), baselines=options.baselines, scorings=scorings, train=train_recipe,
        engine=_engine(options, out), plugins=options.plugin,
    )  # fmt: skip


def _jobs(options: argparse.Namespace, cells: "Sequence[SweepCell]") -> int:
    return options.jobs or (1 if options.engine == "local" else max(1, len(cells)))


def _engine(options: argparse.Namespace, out: str | Path) -> "Engine | None":
    """The engine of `--engine`; `None` for processes of this machine."""
    if options.engine == "slurm":
        given = dict(each.partition("=")[::2] for each in options.slurm)
        return reports.SlurmEngine(out, given, given.pop("cluster", "slurm"))
    if options.engine == "ray":
        return reports.RayEngine(options.cell_gpus or 0.0)
    return None


def _require_fitting(options: argparse.Namespace) -> None:
    """Refuse options that belong to the other kind of sweep, or to another engine."""
    for name, engine, given in (
        ("--slurm", "slurm", options.slurm),
        ("--cell-gpus", "ray", options.cell_gpus),
    ):
        if given and options.engine != engine:
            raise ConfigurationError(
                f"{name} belongs to --engine {engine}, and the engine is {options.engine}."
            )
    if odd := [each for each in options.slurm if not all(each.partition("="))]:
        raise ConfigurationError(f"Expected --slurm KEY=VALUE, got {odd[0]!r}.")
    if options.table is None:
        if options.methods or options.datasets or options.small:
            raise ConfigurationError(
                "--methods, --datasets and --small belong to --table, which is not given."
            )
        if bool(options.config) == bool(options.images):
            raise ConfigurationError(
                "Expected one of a folder of your images, --config with recipes, and --table with a table of the paper."
            )
    elif options.baselines or options.images or len(options.config or ()) > 1:
        raise ConfigurationError(
            "--table has no images of yours, one folder of recipes as --config, and no --baselines."
        )
    if options.method and not options.images:
        raise ConfigurationError(
            f"--method {' '.join(options.method)} is for images of your own: give a folder."
        )


def _list_cells(options: argparse.Namespace, cells: "Sequence[SweepCell]", notes: Sequence[str] = ()) -> None:
    gpus = reports.visible_devices()[: _jobs(options, cells)]
    device = f"GPU {' or '.join(gpus)}" if gpus else "CPU"
    found = reports.states_of(cells)
    states = [
        {
            "cell": cell.name,
            "state": found[cell.name],
            "device": "" if found[cell.name] == "finished" else device,
            "settings": cell.settings,
        }
        for cell in cells
    ]
    rows = [[row["cell"], row["state"], row["device"]] for row in states]
    header = ["cell", "state", "device"]
    show(options, states, lambda: "\n".join([table(header, rows), f"{len(cells)} cells", *notes]))


def _print_commands(options: argparse.Namespace, cells: "Sequence[SweepCell]", out: str | Path) -> None:
    lines = reports.cell_commands(cells, out, options.plugin)
    logger.info("%d of %d cells have a line.", len(lines), len(cells))
    if lines or options.json:
        show(options, lines, lambda: "\n".join(lines))


def _require_whole(result: "SweepResult") -> None:
    if result.failures:
        raise IncompleteSweepError(
            f"{len(result.failures)} of {len(result.cells)} cells failed: {', '.join(result.failures)}. Their folders "
            "hold train.log; the same command tries them again."
        )


def _table_command(options: argparse.Namespace, settings: Mapping[str, Sequence[Any]]) -> None:
    """Run what is available of a table of the paper, and lay it out like the paper."""
    plan = _table_plan(options, settings)
    entries, out = plan.entries(options.table), plan.out
    cells = list({cell.name: cell for entry in entries for cell in entry.cells}.values())
    protocols = dict.fromkeys(entry.part.protocol for entry in entries)
    scorings = [reports.ProtocolScoring(name) for name in protocols if name != "cacc"]
    if (result := _swept(options, cells, out, scorings, reports.remarks(entries, []))) is None:
        return
    records = reports.table_records(entries, settings)
    tables, notes = reports.layout(records), reports.remarks(entries, records) + _missing(result)
    facts = {"table": options.table, "backbone": plan.backbone, "seeds": ", ".join(map(str, options.seeds))}
    record = {**facts, "unit": "percent", "rows": records, "remarks": notes}
    title = f"Table {options.table} of the paper{', a small trial' if options.small else ''}"
    shown = {**facts, "backbone": f"{plan.backbone} (of the paper's rows)"}
    with reports.locked_tables(out):
        write_file(out / "results.json", json.dumps(record, indent=1) + "\n")
        write_file(out / "table.md", "\n\n".join([*map(_markdown, tables, tables.values()), *notes]) + "\n")
        write_file(out / "table.csv", reports.csv_text(list(records[0]), records))
        reports.write_table_page(entries, records, make_inside(out, "report"), title, shown, settings)
    texts = [f"{title}\n{table(*grid)}" for title, grid in tables.items()]
    show(options, record, lambda: "\n\n".join([*texts, "\n".join(notes)]).rstrip())
    _require_whole(result)


def _markdown(title: str, grid: "Grid") -> str:
    return f"**{title}**\n\n{evaluation.markdown(grid)}"


def _table_plan(options: argparse.Namespace, settings: Mapping[str, Sequence[Any]]) -> "TablePlan":
    overrides, weights = given_fields(options), None
    hub_ids = {short: hub_id for hub_id, short in evaluation.BACKBONES.items()}
    name, _, place = (overrides.get("model", {}).get("backbone") or "").partition("=")
    if name in hub_ids:
        del overrides["model"]["backbone"]
        weights = place or hub_ids[name]
    backbone = name if weights else paper_tables()[options.table][0].backbone
    return reports.TablePlan(
        recipes=Path(options.config[0]) if options.config else recipe_folder(),
        seeds=options.seeds,
        out=Path(options.out or f"runs/{options.table}-{backbone}{'-small' if options.small else ''}"),
        backbone=backbone,
        weights=weights,
        methods=options.methods or (),
        places={each.partition("=")[0]: each.partition("=")[2] or None for each in options.datasets or ()},
        small=options.small,
        look=not options.dry_run,
        settings=settings,
        overrides=overrides,
    )


def parse_settings(texts: Sequence[str]) -> dict[str, list[Any]]:
    """``key=v1,v2`` of ``--set`` as values by ``section.field``."""
    settings: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals:
            raise ConfigurationError(f"Expected --set KEY=V1,V2, got {text!r}.")
        name, hint = _field(key)
        if name in settings:
            raise ConfigurationError(f"--set gives {name} twice: put all its values into one, {key}=V1,V2.")
        settings[name] = [option_value(word, hint) for word in split_values(values)]
    return settings


def split_values(text: str) -> list[str]:
    """The values between commas; commas inside brackets and braces belong to a value."""
    values, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def _field(key: str) -> tuple[str, Any]:
    """Full name and type of a field, by that name or, as on the command line, by its own."""
    types = known_fields()
    named = [name for name in types if key in (name, name.partition(".")[2])]
    if not named:
        hint = did_you_mean(key, [*types, *(name.partition(".")[2] for name in types)])
        raise ConfigurationError(
            f"Unknown key of --set {key!r}.{hint} `promptccd train --help-all` lists the fields."
        )
    return named[0], types[named[0]]

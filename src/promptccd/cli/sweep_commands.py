"""``promptccd sweep``: of recipes, or of a table of the paper."""

import argparse
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptccd import evaluation, reports
from promptccd.cli.options import (
    MOST_SEED,
    MOST_WORKERS,
    PLUGIN,
    Arguments,
    Parser,
    advanced,
    command,
    declare,
    require_there,
    show,
    whole_number,
)
from promptccd.cli.recipe_options import add_recipe_options, given_fields
from promptccd.cli.tables import table
from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.options import read_value, read_yaml
from promptccd.disk import make_inside, readable_size, write_file
from promptccd.errors import ConfigurationError, IncompleteSweepError, did_you_mean
from promptccd.reports.table_parts import paper_tables
from promptccd.training.recipe import known_fields, shipped

if TYPE_CHECKING:
    from promptccd.evaluation import ContinualScore
    from promptccd.reports import SweepCell, SweepResult
    from promptccd.reports.costs import Cost
    from promptccd.reports.engines import Engine
    from promptccd.reports.paper_tables import TablePlan
    from promptccd.reports.sweep import ProtocolScoring
    from promptccd.training.recipe import Recipe


logger = logging.getLogger(__name__)


def write_page(result: "SweepResult", out: Path) -> None:
    """Write the comparison as a page, into ``report`` of the sweep's folder."""
    costs = [
        reports.tables.stage_costs(cell.run.manifest).assign(variant=cell.variant)
        for cell in result.finished
        if cell.name in result.scores
    ]
    facts = {
        "recipes": ", ".join(dict.fromkeys(cell.config for cell in result.cells)),
        "seeds": ", ".join(dict.fromkeys(str(cell.recipe.training.seed) for cell in result.cells)),
        "missing": ", ".join(result.failures),
        "not finished": ", ".join(result.unfinished),
    }
    reports.write_comparison(
        result.groups,
        make_inside(out, "report"),
        title=f"Sweep {out.absolute().name}",
        facts={name: text for name, text in facts.items() if text},
        costs=costs,
    )


def _missing(result: "SweepResult") -> list[str]:
    missing = [f"missing: {name}: {why.splitlines()[-1]}" for name, why in result.failures.items()]
    return missing + [f"not finished: {name}: {state}" for name, state in result.unfinished.items()]


def _counted(result: "SweepResult") -> "dict[str, list[ContinualScore]]":
    """The groups; names say where seeds are missing."""
    wanted = Counter(cell.variant for cell in result.cells)  # baselines are no cells
    return {
        f"{name} ({len(scores)} of {wanted[name]})" if len(scores) < wanted[name] else name: scores
        for name, scores in result.groups.items()
    }


_SWEEP: Arguments = {
    "images": dict(metavar="IMAGES", nargs="?",
        help="your images, as for `promptccd train`, instead of --config; --class_blocks sets the labelled categories "
        "(default: half of them)"),
    "--method": dict(metavar="NAME", nargs="+", help="methods for IMAGES (default: promptccd)"),
    "--config": dict(metavar="RECIPE", nargs="+", action="extend",
        help="recipes, by name or as YAML files; with --table the folder of its recipes (default: the bundled ones)"),
    "--seeds": dict(type=whole_number(0, MOST_SEED), nargs="+", action="extend", required=True,
        help="seeds of every combination"),
    "--set": dict(metavar="KEY=V1,V2", nargs="+", action="extend", default=[],
        help="values of a field to combine with all other fields, named in the runs' folders; lists in brackets"),
    "--baselines": dict(action="store_true", help="scores of raw pixels and the frozen backbone too"),
    "--out": dict(help="folder of the runs and their table (default: runs/sweep, or runs/<table>-<backbone>)"),
    "--jobs": dict(type=whole_number(1, MOST_WORKERS),
        help="cells to train at once (default: 1; all with another engine)"),
    "--engine": dict(choices=["local", "slurm", "ray"], default="local",
        help="processes of this machine, jobs of Slurm, or the Ray cluster of RAY_ADDRESS (default: local)"),
}  # fmt: skip
_ENGINES: Arguments = {
    "--slurm": dict(metavar="KEY=VALUE", nargs="+", default=[], help="options of sbatch: partition=gpu gres=gpu:1"),
    "--cell-gpus": dict(type=float, metavar="G", help="GPUs of a Ray cluster for each cell; two cells share .5"),
}  # fmt: skip
_INSTEAD: Arguments = {  # of which one may be given
    "--dry-run": dict(action="store_true",
        help="list of the cells with their devices, hours and bytes alone"),
    "--commands": dict(action="store_true", help="a command for each unfinished cell alone, to be run anywhere"),
    "--collect": dict(action="store_true", help="tables of finished runs only"),
}  # fmt: skip
_TABLE: Arguments = {
    "--table": dict(choices=list(paper_tables()),
        help="its methods, data sets, protocol and settings; --backbone dino or dinov2 chooses its half, dino=PLACE "
        "says where the weights lie. Unavailable parts are left out with a line, and their printed row stays"),
    "--methods": dict(metavar="NAME", nargs="+",
        help="some of its methods, named as in the paper (default: methods with figures in the paper)"),
    "--datasets": dict(metavar="NAME[=PLACE]", nargs="+",
        help="some of its data sets, and where they lie if not on the Hub: cifar100=FOLDER"),
    "--small": dict(action="store_true",
        help="its data sets that have small recipes, in minutes on a CPU: cifar100 and caltech101"),
}  # fmt: skip


def _declare_groups(sweep: Parser) -> None:
    advanced(_ENGINES, PLUGIN)(sweep)
    declare(sweep.add_mutually_exclusive_group(), _INSTEAD)
    table_group = "a table of the paper instead of recipes, laid out like it"
    declare(sweep.add_argument_group("tables", table_group), _TABLE)
    add_recipe_options(sweep, shows_common=False)


def _require_fitting(options: argparse.Namespace) -> None:
    """Refuse, with a `ConfigurationError`, options of the other kind of sweep, or of another engine."""
    images, configs = options.images, options.config or ()
    for is_wrong, message in (
        (options.slurm and options.engine != "slurm", "--slurm belongs to --engine slurm."),
        (options.cell_gpus and options.engine != "ray", "--cell-gpus belongs to --engine ray."),
        (not all(all(each.partition("=")) for each in options.slurm), "Expected --slurm KEY=VALUE."),
        (
            (options.methods or options.datasets or options.small) and not options.table,
            "--methods, --datasets and --small belong to --table.",
        ),
        (
            not options.table and bool(configs) == bool(images),
            "Expected a folder of your images, --config with recipes, or --table with a table of the paper.",
        ),
        (
            options.table and (options.baselines or images or len(configs) > 1),
            "--table has no images of yours, one folder of recipes as --config, and no --baselines.",
        ),
        (options.method and not images, "--method is for images of your own: give a folder."),
    ):
        if is_wrong:
            raise ConfigurationError(message)
    if images:
        require_there(
            images, "Give a folder of images with a sub-folder per category, or a table of path,label."
        )


@command(
    ("promptccd.trainer", "promptccd.reports.paper_tables"), _SWEEP, _declare_groups,
    check=_require_fitting,
)  # fmt: skip
def sweep_command(options: argparse.Namespace) -> None:
    """``promptccd sweep``."""
    settings = parse_settings(options.set)
    if options.table:
        return _table_command(options, settings)
    out = Path(options.out or "runs/sweep")
    images = [reports.OwnImages(options.images, method) for method in options.method or [None]]
    cells = reports.plan_cells(options.config or images, options.seeds, settings, out, given_fields(options))
    if (result := _swept(options, cells, out)) is None:
        return
    missing, groups = _missing(result), _counted(result)
    tables, averages = evaluation.tables, list[dict[str, Any]]()
    markdown = [tables.markdown(tables.average_grid(groups))] if groups else []
    if groups:
        averages = reports.page.records(tables.variant_averages(groups).round(4))
    with reports.sweep.locked_tables(out):
        write_file(out / "table.md", "\n\n".join([*markdown, *missing]) + "\n")
        if groups:
            write_page(result, out)
    record = {
        "unit": "percent",
        "averages": averages,
        "failures": dict(result.failures),
        "unfinished": dict(result.unfinished),
    }
    compared = [table(*tables.average_grid(groups))] if groups else []
    show(options, record, lambda: "\n".join([*compared, *missing]))
    logger.info("Written: %s%s", out / "table.md", f", {out / 'report' / 'index.html'}" if groups else "")
    _require_whole(result)


def _swept(
    options: argparse.Namespace,
    cells: "Sequence[SweepCell]",
    out: Path,
    scorings: "Sequence[ProtocolScoring]" = (),
    notes: Sequence[str] = (),
) -> "SweepResult | None":
    """The results of a sweep that was run or collected; `None` for a list or lines."""
    from promptccd.trainer import train_recipe

    jobs = options.jobs or (1 if options.engine == "local" else len(cells))
    if options.dry_run:
        _list_cells(options, cells, jobs, notes)
        return None
    if options.commands:
        lines = reports.cell_commands(cells, out, options.plugin)
        logger.info("%d of %d cells have a line.", len(lines), len(cells))
        if lines or options.json:
            show(options, lines, lambda: "\n".join(lines))
        return None
    if options.collect:
        return reports.collect_sweep(cells, baselines=options.baselines)
    engine: Engine | None = None
    if options.engine == "slurm":
        given = dict(each.partition("=")[::2] for each in options.slurm)
        engine = reports.SlurmEngine(out, given, given.pop("cluster", "slurm"))
    elif options.engine == "ray":
        engine = reports.RayEngine(options.cell_gpus or 0.0)
    return reports.run_sweep(
        cells, out, jobs=jobs, baselines=options.baselines, scorings=scorings, train=train_recipe,
        engine=engine, plugins=options.plugin,
    )  # fmt: skip


def _list_cells(
    options: argparse.Namespace, cells: "Sequence[SweepCell]", jobs: int, notes: Sequence[str]
) -> None:
    gpus = reports.engines.visible_devices()[:jobs]
    device, states = f"GPU {' or '.join(gpus)}" if gpus else "CPU", reports.states_of(cells)
    recipes = {cell.name: cell.recipe for cell in cells if states[cell.name] != "finished"}
    costs = dict(zip(recipes, reports.costs.costs_of(recipes.values()), strict=True))
    rows: list[dict[str, Any]] = [
        {
            "cell": cell.name,
            "state": states[cell.name],
            "device": device if cell.name in costs else "",
            "hours": costs[cell.name].hours if cell.name in costs else None,
            "bytes_to_keep": costs[cell.name].kept if cell.name in costs else None,
            "settings": cell.settings,
        }
        for cell in cells
    ]
    header = ["cell", "state", "device", "hours"]
    shown = [
        [*map(row.get, header[:3]), "" if row["hours"] is None else _rounded(row["hours"])] for row in rows
    ]
    lines = [f"{len(cells)} cells", *_cost_lines(list(costs.values())), *_hub_lines(recipes.values()), *notes]
    show(options, rows, lambda: "\n".join([table(header, shown), *lines]))


def _rounded(hours: float) -> str:
    """Two digits, as 0.043 or 49,000."""
    return f"{float(f'{hours:.2g}'):,.10g}"


def _cost_lines(costs: "Sequence[Cost]") -> list[str]:
    """What the cells cost together, as far as it is known without fetching data."""
    known = [(cost.hours, cost.kept) for cost in costs if cost.hours is not None and cost.kept is not None]
    lines = []
    if known:
        hours, kept = (sum(values) for values in zip(*known, strict=True))
        lines.append(
            f"About {_rounded(hours)} hours of training steps on this device, {readable_size(int(kept))} of stages."
        )
    if len(known) < len(costs):
        unknown = len(costs) - len(known)
        lines.append(
            f"The hours of {unknown} of {len(costs)} cells are unknown: data or backbone are not on this machine, "
            "or a training step does not fit into its memory."
        )
    return lines


def _hub_lines(recipes: "Collection[Recipe]") -> list[str]:
    """The sizes of what is on the Hub, and the pages of gated data sets."""
    sizes = reports.costs.sizes_on_hub(recipes)
    listed = [f"{name} {'?' if size is None else readable_size(size)}" for name, size in sizes.items()]
    gated = sorted({each.dataset for each in BENCHMARKS.values() if each.gated} & sizes.keys())
    pages = [f"https://huggingface.co/datasets/{name}" for name in gated]
    return [f"To fetch, unless this machine has them: {', '.join(listed)}."] * bool(listed) + [
        f"Gated data set: accept the terms at {page} first." for page in pages
    ]


def _require_whole(result: "SweepResult") -> None:
    if result.failures:
        raise IncompleteSweepError(
            f"{len(result.failures)} of {len(result.cells)} cells failed: {', '.join(result.failures)}. Their folders "
            "contain train.log; repeat the command to retry."
        )


def _table_command(options: argparse.Namespace, settings: Mapping[str, Sequence[Any]]) -> None:
    """Run the available part of a table of the paper, and lay it out like the paper."""
    plan = _table_plan(options, settings)
    entries, out = plan.entries(options.table), plan.out
    cells = list({cell.name: cell for entry in entries for cell in entry.cells}.values())
    protocols = dict.fromkeys(entry.part.protocol for entry in entries)
    scorings = [reports.sweep.ProtocolScoring(name) for name in protocols if name != "cacc"]
    paper = reports.paper_tables
    if (result := _swept(options, cells, out, scorings, paper.remarks(entries))) is None:
        return
    rows = paper.table_rows(entries, settings)
    tables, notes = paper.layout(rows), paper.remarks(entries, set(rows["mark"])) + _missing(result)
    facts = {"table": options.table, "backbone": plan.backbone, "seeds": ", ".join(map(str, options.seeds))}
    record = {**facts, "unit": "percent", "rows": reports.page.records(rows), "remarks": notes}
    texts = [f"**{title}**\n\n{evaluation.tables.markdown(grid)}" for title, grid in tables.items()]
    title = f"Table {options.table} of the paper{', a small trial' if options.small else ''}"
    shown = {**facts, "backbone": f"{plan.backbone} (of the paper's rows)"}
    with reports.sweep.locked_tables(out):
        write_file(out / "table.md", "\n\n".join([*texts, *notes]) + "\n")
        page = reports.page.render_page(
            "paper_table.html.jinja", title=title, facts=shown, tables=tables, remarks=notes
        )
        reports.page.write_report_files(make_inside(out, "report"), page, title, shown, {"table": rows})
    texts = [f"{title}\n{table(*grid)}" for title, grid in tables.items()]
    show(options, record, lambda: "\n\n".join([*texts, "\n".join(notes)]).rstrip())
    logger.info("Written: %s, %s", out / "table.md", out / "report" / "index.html")
    _require_whole(result)


def _table_plan(options: argparse.Namespace, settings: Mapping[str, Sequence[Any]]) -> "TablePlan":
    overrides, weights = given_fields(options), None
    name, _, place = (overrides.get("model", {}).get("backbone") or "").partition("=")
    if name in (known := reports.paper_tables.BACKBONES):
        del overrides["model"]["backbone"]
        weights = place or known[name]
    backbone = name if weights else paper_tables()[options.table][0].backbone
    return reports.paper_tables.TablePlan(
        recipes=Path(options.config[0]) if options.config else shipped(),
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
    """``key=v1,v2`` of ``--set`` as values by ``section.field``; a key is that or, as an option, ``field``."""
    settings, types = dict[str, list[Any]](), known_fields()
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals:
            raise ConfigurationError(f"Expected --set KEY=V1,V2, got {text!r}.")
        named = [name for name in types if key in (name, name.partition(".")[2])]
        if not named:
            hint = did_you_mean(key, [*types, *(name.partition(".")[2] for name in types)])
            raise ConfigurationError(
                f"Unknown key of --set {key!r}.{hint} `promptccd train --help-all` lists the fields."
            )
        if (name := named[0]) in settings:
            raise ConfigurationError(f"--set gives {name} twice: put all its values into one, {key}=V1,V2.")
        try:
            found = read_yaml(f"[{values}]")
        except ValueError as error:
            raise ConfigurationError(f"Expected --set {key}=V1,V2, got {values!r}: {error}") from error
        settings[name] = [read_value(name, each, types[name]) for each in found]
    return settings

"""``promptccd sweep``."""

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from promptccd.cli.command import command, show
from promptccd.cli.parsing import MOST_SEED, MOST_WORKERS, whole_number
from promptccd.cli.recipe_options import add_recipe_options, given_fields, option_value
from promptccd.cli.sweep_tables import sweep_record, sweep_text, write_page, write_tables
from promptccd.cli.tables import table
from promptccd.cli.training_commands import train_recipe
from promptccd.errors import ConfigurationError, IncompleteSweepError
from promptccd.runs import SweepCell, plan_cells, run_sweep
from promptccd.training.arguments import section_types
from promptccd.training.recipe_values import field_types, require_known


def add_commands(commands: Any) -> None:
    """Declare it."""
    sweep = command(
        commands,
        "sweep",
        sweep_command,
        "train recipes x values x seeds and compare them; one that was begun goes on",
    )
    sweep.add_argument(
        "--config",
        metavar="RECIPE",
        nargs="+",
        action="extend",
        required=True,
        help="YAML files, see hub_configs/",
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
        action="append",
        nargs="+",
        default=[],
        help="values of a field to combine with all others, named in the folders of the runs; lists in brackets. "
        "What all cells have in common is set by the options below",
    )
    sweep.add_argument(
        "--baselines", action="store_true", help="also score raw pixels and the frozen backbone"
    )
    sweep.add_argument("--out", default="runs/sweep", help="folder of the runs and their table (runs/sweep)")
    sweep.add_argument(
        "--jobs", type=whole_number(1, MOST_WORKERS), default=1, help="cells to train at once (1)"
    )
    sweep.add_argument("--dry-run", action="store_true", help="list the cells and train nothing")
    add_recipe_options(sweep)


def sweep_command(options: argparse.Namespace) -> None:
    """``promptccd sweep``."""
    settings = parse_settings([text for many in options.set for text in many])
    cells = plan_cells(options.config, options.seeds, settings, options.out, given_fields(options))
    if options.dry_run:
        states = [{"cell": cell.name, "state": _state(cell), "settings": cell.settings} for cell in cells]
        rows = [[row["cell"], row["state"]] for row in states]
        show(options, states, lambda: f"{table(['cell', 'state'], rows)}\n{len(cells)} cells")
        return
    result = run_sweep(cells, options.out, jobs=options.jobs, baselines=options.baselines, train=train_recipe)
    record = sweep_record(result, settings)
    write_tables(result, record, Path(options.out))
    write_page(result, record, Path(options.out))
    show(options, record, lambda: sweep_text(result))
    if result.failures:
        raise IncompleteSweepError(
            f"{len(result.failures)} of {len(cells)} cells failed: {', '.join(result.failures)}. Their folders hold "
            "train.log; the same command tries them again."
        )


def parse_settings(texts: Sequence[str]) -> dict[str, list[Any]]:
    """``key=v1,v2`` of ``--set`` as values by ``section.field``.

    Raises:
        ConfigurationError: no ``=``, a key that is no field, or one that is given twice.
    """
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
    types = {section: field_types(kind) for section, kind in section_types().items()}
    section, dot, name = key.partition(".")
    if dot:
        require_known("section of --set", {section: None}, types)
        require_known(f"field of section {section!r}", {name: None}, types[section])
        return key, types[section][name]
    for section, fields in types.items():
        if key in fields:
            return f"{section}.{key}", fields[key]
    close = difflib.get_close_matches(key, [name for fields in types.values() for name in fields], n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ConfigurationError(
        f"Unknown key of --set {key!r}.{hint} `promptccd train --help` lists the fields."
    )


def _state(cell: SweepCell) -> str:
    cell.require_same_recipe()
    return "finished" if cell.finished() else "begun" if cell.resumed_recipe else "new"

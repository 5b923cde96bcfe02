"""What all commands have in common: how one is declared, and how it shows its result."""

import argparse
import json
import math
from collections.abc import Callable
from typing import Any


def command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], text: str
) -> argparse.ArgumentParser:
    """Declare a command with the options that every command has."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run, parser=parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def add_model_limit(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that load a model from anywhere."""
    parser.add_argument(
        "--max_model_bytes",
        metavar="N",
        type=int,
        help="the most that the model's weights may take in memory; twice the largest DINO's unless given",
    )


def show(options: argparse.Namespace, value: Any, text: Callable[[], str]) -> None:
    """Print a result as JSON or, without ``--json``, as text."""
    print(to_json(value) if options.json else text())


def to_json(value: Any) -> str:
    """JSON for any reader and any terminal: ASCII, and null for numbers that JSON does not have."""
    return json.dumps(_with_nulls(value), indent=1, allow_nan=False)


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_nulls(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_nulls(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""What all commands have in common: how one is declared, and how it shows its result."""

import argparse
import json
from collections.abc import Callable
from typing import Any


def command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], text: str
) -> argparse.ArgumentParser:
    """Declare a command with the options that every command has."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def show(options: argparse.Namespace, value: Any, text: Callable[[], str]) -> None:
    """Print a result as JSON or, without ``--json``, as text."""
    print(json.dumps(value, indent=1) if options.json else text())

"""The command ``promptccd``."""

import argparse
import logging
import sys
import traceback
from collections.abc import Sequence

from transformers.utils import logging as transformers_logging

from promptccd.cli import (
    discovery_commands,
    evaluation_commands,
    model_commands,
    sweep_commands,
    training_commands,
)
from promptccd.cli.ends import end_of, ended_by_signals, let_go_of_stdout, make_printable, say
from promptccd.cli.parsing import Parser

COMMANDS = (
    training_commands,
    sweep_commands,
    evaluation_commands,
    model_commands,
    discovery_commands,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, 0 when all went well and else one of `promptccd.errors`.

    Results go to stdout, words about them to stderr. With ``--json`` stdout holds one JSON document or, where the
    command fails before it has a result, nothing.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    make_printable(sys.stdout, sys.stderr)
    try:
        with ended_by_signals():
            _run(words)
    except (Exception, KeyboardInterrupt) as error:
        end = end_of(error)
        if end is None:
            raise
        let_go_of_stdout()
        if "--debug" in words:
            traceback.print_exception(error)
        say(end.line)
        return end.exit_code
    return 0


def _run(words: Sequence[str]) -> None:
    try:
        options = build_parser().parse_args(words)
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
        _quieten_libraries()
        options.run(options)
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()  # a reader that went away is noticed here, and not when the interpreter leaves


def build_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = Parser(prog="promptccd", description="Continual category discovery with prompt pools.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for group in COMMANDS:
        group.add_commands(commands)
    return parser


def _quieten_libraries() -> None:
    for name in ("transformers", "datasets", "huggingface_hub", "httpx", "httpx2", "fsspec"):
        logging.getLogger(name).setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()


if __name__ == "__main__":
    sys.exit(main())

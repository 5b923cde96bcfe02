"""The command ``promptccd``: it finds the typed command, imports its modules, and runs it."""

from __future__ import annotations

import argparse
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from promptccd import __version__, processes
from promptccd.cli.exit_codes import (
    advised,
    close_stdout,
    exit_for,
    make_printable,
    signals_end_command,
    to_stderr,
)
from promptccd.cli.logs import log_to_stderr

if TYPE_CHECKING:
    from promptccd.cli.options import Command, Parser

# Module, description and example of every command, by group of the help. Only the module of the typed command is
# imported, and its slow imports follow after its words were read: help does not load torch.
COMMANDS = {
    "Sort photographs": {
        "open": ("page", "Group your photographs and correct the groups in the browser.", "photos/"),
        "discover": ("discovery", "Group your images into known categories and new ones.",
            "photographs photos/ --out groups/"),
        "categories": ("category", "Correct categories: rename, merge, split, move images, undo.",
            'groups/ rename 3 "night heron"'),
        "export": ("discovery", "Export groups as folders, as keywords, or as a data set.", "groups/ folders"),
    },
    "Train": {
        "train": ("training", "Train all stages on your images or by a recipe, or resume a run.",
            "labelled/ --unlabelled week01/ week02/ --output_dir runs/birds"),
        "recipes": ("training", "List the bundled recipes.", "cifar100"),
        "split": ("training", "Show the stages of images or a recipe, without training.",
            "labelled/ --class_blocks 10 5 5"),
        "parameters": ("training", "Count the parameters that a model learns.", "--config promptccd-cub"),
    },
    "Use a model": {
        "predict": ("model", "Assign images to the categories of a stage.", "runs/birds/stage3 photos/"),
        "explain": ("model", "Show the parts of an image that a stage attended to.",
            "runs/birds/stage3 bird.jpg --out explained/"),
    },
    "Compare and check": {
        "evaluate": ("evaluation", "Recompute the scores of runs from their saved stages.", "runs/birds"),
        "report": ("evaluation", "Write a page about runs: one HTML file, with CSV and JSON.",
            "runs/birds --out report/"),
        "sweep": ("sweep", "Train and compare recipes x values x seeds, or resume a sweep.",
            "labelled/ --method promptccd gcd --seeds 1 2 3"),
        "verify": ("model", "Recompute the results of a run, or check a repository.", "me/promptccd-birds-stage3"),
        "audit": ("evaluation", "Check the rows that the paper prints against the paper's split.", "--benchmark cub"),
    },
    "Share": {
        "push": ("model", "Push the stages of a run to the Hub, each to its own repository.",
            "runs/birds --namespace me --dry-run"),
        "space": ("model", "Publish the page on the Hub as a Space with your model.",
            "push me/birds --model photographs"),
        "demo": ("page", "Serve a page on which people group their images.", "photographs"),
    },
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, or a code of `promptccd.errors`.

    Results go to stdout, messages to stderr. With ``--json`` stdout contains one JSON document, or nothing if the
    command fails before it has a result.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    make_printable(sys.stdout, sys.stderr)
    try:
        options = parse(words)
        options.command.check(options)
        if options.command.needs and "torch" not in sys.modules and sys.stderr and sys.stderr.isatty():
            print("Loading libraries takes some seconds.", file=sys.stderr)
        for module in options.command.needs:
            import_module(module)
        for place in getattr(options, "plugin", ()):
            import_module("promptccd.methods").load_plugin(place)
        with signals_end_command():
            try:
                log_to_stderr()
                options.command.run(options)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()  # notices here, and not when the interpreter leaves, that the reader went away
    except (Exception, KeyboardInterrupt) as error:
        end = exit_for(error)
        if end is None:
            raise
        if end.code > 128 and threading.current_thread() is threading.main_thread():
            processes.on_ending(processes.IGNORED)  # a signal ended it: a second signal is not reported
        close_stdout()
        if "--debug" in words:
            traceback.print_exception(error)
        to_stderr(advised(end, words))
        return end.code
    return 0


def parse(words: Sequence[str]) -> Any:
    """The options of the typed command, with the `Command`; help and the version are printed, and it exits."""
    name = words[0] if words else ""
    if (typed := command_parser(name, shows_all="--help-all" in words)) is not None:
        return typed.parse_args(words[1:])
    from promptccd.cli.options import Parser

    text = "Continual category discovery with prompt pools."
    for title, commands in COMMANDS.items():
        text += f"\n\n{title}:" + "".join(f"\n  {each:12}{commands[each][1]}" for each in commands)
    text += "\n\n`promptccd COMMAND --help` explains a command."
    parser = Parser(prog="promptccd", usage="promptccd COMMAND ...", description=text)
    parser.add_argument("--version", action="version", version=f"promptccd {__version__}")
    listed = parser.add_subparsers(required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    for each in (each for commands in COMMANDS.values() for each in commands):
        listed.add_parser(each)
    if name and not name.startswith("-"):
        parser.refuse(name)
    return parser.parse_args(words or ["--help"])


def command_parser(name: str, *, shows_all: bool = False) -> Parser | None:
    """The parser of a command, whose module is imported; `None` if there is no such command.

    Args:
        name: of the command.
        shows_all: whether its help shows the advanced options too.
    """
    from promptccd.cli.options import Parser, declare

    for commands in COMMANDS.values():
        if name in commands:
            module, purpose, example = commands[name]
            text = f"{purpose}\n\nExample: promptccd {name} {example}"
            parser = Parser(prog=f"promptccd {name}", description=text, shows_all=shows_all)
            parser.add_argument("--json", action="store_true", help="JSON instead of a table")
            parser.add_argument("--debug", action="store_true", help="traceback of an error")
            command: Command = getattr(import_module(f"promptccd.cli.{module}_commands"), f"{name}_command")
            for part in command.parts:
                part(parser) if callable(part) else declare(parser, part)
            parser.usage = parser.form
            parser.set_defaults(command=command)
            return parser
    return None

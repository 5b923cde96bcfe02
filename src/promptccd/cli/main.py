"""The command ``promptccd``. Whatever imports a neighbour waits for `main`, which knows what to say of a broken one."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from promptccd import __version__, processes
from promptccd.cli.ends import (
    end_of,
    ended_by_signals,
    let_go_of_stdout,
    make_printable,
    say,
    with_next,
)
from promptccd.cli.logs import log_to_stderr
from promptccd.errors import DiskError

if TYPE_CHECKING:
    from promptccd.cli.parsing import Parser

# What every command does, by the module beside this one that declares it, in a function `_declare_NAME`. Only the
# typed command's module is imported, and what the command needs only after its words have been read: help waits for no
# torch.
COMMANDS = {
    "training_commands": {
        "train": "train on your images, or all stages of a recipe; a run that was begun goes on",
        "split": "show the stages that images or a recipe are cut into; trains nothing",
        "data": "make copies of images that all trainings on them share; a training makes them, too",
        "parameters": "count what a model learns, part by part",
        "recipes": "list the recipes that come along",
    },
    "sweep_commands": {
        "sweep": "train recipes x values x seeds and compare them; one that was begun goes on",
    },
    "evaluation_commands": {
        "evaluate": "recompute a run's table from its saved stages",
        "report": "write a page about runs: an HTML file that stands alone, CSV and JSON",
        "audit": "hold the paper's rows against the split they are said to come from",
    },
    "model_commands": {
        "explain": "show what a stage looked at in an image, and which prompts acted",
        "predict": "assign the images of a folder to a stage's categories",
        "push": "push a run's stages to the Hub, a repository each",
        "space": "put the page on the Hub, as a Space over a model of yours",
        "verify": "recompute what a run or a repository claims",
    },
    "discovery_commands": {
        "discover": "group your images: known categories and new ones",
        "export": "take groups along: sorted into folders, as keywords, or to publish",
    },
    "page_commands": {
        "demo": "the page for people: group your images in the browser",
        "open": "sort photographs by eye: your folder as groups, in the browser",
    },
    "category_commands": {
        "categories": "list, rename, merge or dissolve categories, move images, undo; ids are never reused",
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, or one of `promptccd.errors`.

    Results go to stdout, messages to stderr. With ``--json`` stdout holds one JSON document, or nothing if the command
    fails before it has a result.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    make_printable(sys.stdout, sys.stderr)
    try:
        options = parse(words)
        if getattr(options, "needs", ()):
            _require_place()
        # The imports take seconds, in which a signal ends the process at once.
        for module in getattr(options, "needs", ()):
            import_module(module)
        for place in getattr(options, "plugin", ()):
            import_module("promptccd.methods").load_plugin(place)
        with ended_by_signals():
            _run(options)
    except (Exception, KeyboardInterrupt) as error:
        end = end_of(error)
        if end is None:
            raise
        if end.exit_code > 128 and threading.current_thread() is threading.main_thread():
            processes.on_ending(processes.IGNORED)  # a signal ended it: a second one is not reported again
        let_go_of_stdout()
        if "--debug" in words:
            traceback.print_exception(error)
        say(with_next(end, words))
        return end.exit_code
    return 0


def _require_place() -> None:
    """Refuse to work in a folder that is gone: a library of torch ends the process there, with words of its own."""
    try:
        os.getcwd()
    except OSError as error:
        raise DiskError(
            f"The folder that this command was started in is gone, or cannot be read ({error.strerror}): cd to "
            "another one, or to the same place again if it was made anew."
        ) from error


def _run(options: Any) -> None:
    try:
        log_to_stderr()
        options.run(options)
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()  # notices here, and not when the interpreter leaves, that the reader went away


def parse(words: Sequence[str]) -> Any:
    """The options of the typed command, with ``run``; if help or the version is asked for, prints it and exits."""
    name = words[0] if words else ""
    if (typed := command_parser(name)) is not None:
        return typed.parse_args(words[1:])
    from promptccd.cli.parsing import Parser

    parser = Parser(prog="promptccd", description="Continual category discovery with prompt pools.")
    parser.add_argument("--version", action="version", version=f"promptccd {__version__}")
    listed = parser.add_subparsers(required=True, metavar="COMMAND")
    for commands in COMMANDS.values():
        for each, text in commands.items():
            listed.add_parser(each, help=text)
    if name and not name.startswith("-"):
        parser.refuse(name)
    return parser.parse_args(words or ["--help"])


def command_parser(name: str) -> Parser | None:
    """The parser of a command, whose module is imported; none if there is no such command."""
    from promptccd.cli.parsing import Parser

    for module, commands in COMMANDS.items():
        if name in commands:
            parser = Parser(prog=f"promptccd {name}", description=commands[name])
            parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
            parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
            getattr(import_module(f"promptccd.cli.{module}"), f"_declare_{name}")(parser)
            return parser
    return None


if __name__ == "__main__":
    sys.exit(main())

"""The parser of a command, and options that several commands share. Nothing here loads torch."""

import argparse
import difflib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from promptccd.errors import ConfigurationError, nothing_at
from promptccd.images.limits import BYTES_PER_PIXEL, FITS, MAX_PIXELS, PAGES, IntakeLimits

MOST_DIGITS = 18  # of a typed number: the range of 64 bits
MOST_SEED = 10**MOST_DIGITS - 1
MOST_WORKERS = 512
MOST_MEGAPIXELS = 100_000


def whole_number(low: int | None = None, high: int | None = None) -> Callable[[str], int]:
    """A ``type`` of argparse: whole numbers, perhaps of a range."""

    def read(text: str) -> int:
        digits = text.removeprefix("-")
        value = int(text) if digits.isdecimal() and len(digits) <= MOST_DIGITS else None
        if value is None or (low is not None and value < low) or (high is not None and value > high):
            limits = ("" if low is None else f" from {low}") + ("" if high is None else f" to {high}")
            raise argparse.ArgumentTypeError(f"expected a whole number{limits}, got {text[:50]!r}")
        return value

    return read


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, and refuses abbreviations and empty arguments.

    The meaning of an abbreviation would change with the next option that begins alike.

    Attributes:
        shows_all: whether help shows the advanced options too.
        more: adds options that need slow imports; called with the typed words if they include an unknown option, or
            for ``--help-all``.
    """

    def __init__(self, *arguments: Any, shows_all: bool = False, **options: Any):
        form = partial(argparse.RawDescriptionHelpFormatter, max_help_position=24)
        super().__init__(*arguments, **{"allow_abbrev": False, "formatter_class": form, **options})
        self.shows_all = shows_all
        self.more: Callable[[list[str]], None] | None = None

    @property
    def form(self) -> str:
        """The usage: the arguments of the command and its required options."""
        words = [self.prog]
        for each in self._actions:
            value = str(each.metavar or each.dest.upper())
            value += " ..." * (each.nargs in ("+", "*"))
            if each.required and each.option_strings:
                words.append(f"{each.option_strings[0]} {value}")
            elif not each.option_strings:
                words.append(f"[{value}]" if each.nargs in ("?", "*") else value)
        return " ".join([*words, "[options]"])

    def error(self, message: str) -> NoReturn:
        """Raise the fault of the typed words as a `ConfigurationError`."""
        ended = message if message.endswith((".", "?")) else f"{message}."
        if "required" in message:
            ended = f"{ended[0].upper()}{ended[1:]} Usage: {self.form}."
        every = "--help-all" if "--help-all" in self._option_string_actions else "--help"
        raise ConfigurationError(f"{ended} `{self.prog} {every}` lists the options.")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The typed options; the error for an unknown option names the most similar one."""
        words = list(args or ())
        if "--help-all" not in self._option_string_actions:  # this command has no advanced options
            words = ["--help" if word == "--help-all" else word for word in words]
        end = words.index("--") if "--" in words else None
        flags = [word for word in words[:end] if word.startswith("--")]
        if "" in words or any(flag.endswith("=") for flag in flags):
            self.error("An argument is empty: give it a value, or leave it out")
        names = [flag.partition("=")[0] for flag in flags]
        if self.more and ("--help-all" in names or not self._option_string_actions.keys() >= {*names}):
            self.more(words)
        for name in names:
            if name not in self._option_string_actions:
                self.refuse(name)  # before argparse reports a misspelt option as a missing one
        options, unknown = self.parse_known_args(words, namespace)
        if unknown:
            self.refuse(" ".join(unknown))
        return options

    def refuse(self, name: str) -> NoReturn:
        """Raise that nothing has the typed name, with the most similar name."""
        chosen = (action.choices for action in self._actions if not action.option_strings)
        known = [*self._option_string_actions, *(str(each) for choices in chosen for each in choices or ())]
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
        self.error(f"Nothing is called {name}{f': did you mean {close[0]}?' if close else ''}")


# Arguments of a command by name, each with what `add_argument` takes.
Arguments = dict[str, dict[str, Any]]
Part = Arguments | Callable[[Parser], None]

DEVICE: Arguments = {
    "--device": dict(help="device, such as cpu or cuda:0 (default: a GPU if available)"),
}  # fmt: skip
PLUGIN: Arguments = {
    "--plugin": dict(metavar="FILE", action="append", default=[],
        help="Python file that registers a method of your own; may be repeated"),
}  # fmt: skip
MODEL_LIMIT: Arguments = {
    "--max_model_bytes": dict(metavar="N", type=whole_number(1),
        help="largest size of the model's weights in memory (default: twice the largest DINO)"),
}  # fmt: skip
WORKERS: Arguments = {
    "--num_workers": dict(metavar="N", type=whole_number(0, MOST_WORKERS),
        help="loader processes (default: up to 8 with a CUDA GPU, else 0)"),
}  # fmt: skip
DECODING: Arguments = {  # of a person's own images
    "--max-megapixels": dict(metavar="N", type=whole_number(1, MOST_MEGAPIXELS),
        help=f"size above which an image is skipped; each megapixel takes {BYTES_PER_PIXEL} MB of memory (default: "
        f"{MAX_PIXELS // 10**6})"),
    "--window": dict(nargs=2, type=float, metavar=("LOW", "HIGH"),
        help="values that are black and white in images with more than 8 bits (default: as each file says, or decided "
        "once by the values of the files)"),
    "--pages": dict(choices=PAGES, help="picture of a file with several pages (default: first)"),
    "--fit": dict(choices=FITS, help="view of an image that is not square: its centre, all of it with black bars, or "
        "all of it squeezed (default: crop)"),
    "--image_roots": dict(nargs="+", action="extend", default=[], metavar="PLACE",
        help="further folders that links among the images may lead into (default: links out of the images are "
        "skipped)"),
}  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        run: runs it with the typed options.
        needs: modules that are imported once the typed words are read, so that help need not wait for them.
        parts: its arguments.
        check: raises mistakes of the typed options that can be seen before these imports.
    """

    run: Callable[[argparse.Namespace], None]
    needs: Sequence[str]
    parts: Sequence[Part]
    check: Callable[[argparse.Namespace], object]


def command(
    needs: Sequence[str], *parts: Part, check: Callable[[argparse.Namespace], object] = vars
) -> Callable[[Callable[[argparse.Namespace], None]], Command]:
    """Make a function a command with arguments from tables, or from functions that get the parser."""
    return lambda run: Command(run, needs, parts, check)


def declare(parser: argparse._ActionsContainer, table: Arguments) -> None:
    """Add the arguments of a table."""
    for name, given in table.items():
        parser.add_argument(name, **given)


def advanced(*tables: Arguments) -> Callable[[Parser], None]:
    """Arguments that only ``--help-all`` shows."""

    def add(parser: Parser) -> None:
        hidden = {} if parser.shows_all else {"help": argparse.SUPPRESS}
        for table in tables:
            declare(parser, {name: given | hidden for name, given in table.items()})
        if "--help-all" not in parser._option_string_actions:
            parser.add_argument("--help-all", action="help", help="show all options")

    return add


def require_there(images: str, advice: str) -> None:
    """Refuse a path of images at which nothing is; any other text may be a data set of the Hub."""
    if images.startswith(("/", ".", "~")) and not os.path.exists(os.path.expanduser(images)):
        raise ConfigurationError(f"{nothing_at(images)} {advice}")


def reading_of(options: argparse.Namespace, max_files: int | None = None) -> dict[str, Any]:
    """How a person's own images are read: ``limits``, ``rendering`` and ``image_roots``, by the options of `DECODING`.

    Raises:
        ConfigurationError: a value does not belong to a rule.
    """
    from promptccd.images.rendering import Rendering  # here, so that help does not wait for numpy

    rendering = Rendering.from_dict({"given": options.window, "pages": options.pages, "fit": options.fit})
    pixels = None if options.max_megapixels is None else options.max_megapixels * 10**6
    limits = IntakeLimits.of_person(max_files=max_files, max_pixels=pixels)
    return {"limits": limits, "rendering": rendering, "image_roots": options.image_roots}


def show(options: argparse.Namespace, value: Any, text: Callable[[], str]) -> None:
    """Print a result as JSON or, without ``--json``, as text."""
    print(to_json(value) if options.json else text())


def to_json(value: Any) -> str:
    """JSON for any reader and any terminal: ASCII, and null for numbers that JSON does not have."""
    return json.dumps(_with_nulls(value), indent=1)


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_nulls(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_nulls(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

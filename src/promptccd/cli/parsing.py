"""Words to options: what every command shares, and every field of a recipe as an option."""

import argparse
import difflib
import inspect
import json
import math
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from promptccd.errors import ConfigurationError
from promptccd.training.objectives import METHODS
from promptccd.training.recipe import (
    Recipe,
    alternatives,
    describe_type,
    field_types,
    parse_value,
    says_none,
    section_types,
)

MOST_DIGITS = 18  # of a number that is typed: what 64 bits hold
MOST_SEED = 10**MOST_DIGITS - 1
MOST_WORKERS = 512
_GIVEN = "_given"


def whole_number(low: int | None = None, high: int | None = None) -> Callable[[str], int]:
    """What reads an option as a whole number, of a range if one is given."""

    def read(text: str) -> int:
        digits = text.removeprefix("-")
        value = int(text) if digits.isdecimal() and len(digits) <= MOST_DIGITS else None
        if value is None or (low is not None and value < low) or (high is not None and value > high):
            limits = ("" if low is None else f" from {low}") + ("" if high is None else f" to {high}")
            raise argparse.ArgumentTypeError(f"expected a whole number{limits}, got {text[:50]!r}")
        return value

    return read


class Parser(argparse.ArgumentParser):
    """A parser that raises what it has to say, and refuses an option that is given two different values."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.register("action", None, _StoreOnce)
        self.register("action", "store", _StoreOnce)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the words that were typed.

        Raises:
            ConfigurationError: always.
        """
        ended = message if message.endswith((".", "?")) else f"{message}."
        raise ConfigurationError(f"{ended} `{self.prog} --help` lists what there is.")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What was typed.

        Raises:
            ConfigurationError: it cannot be read; the likeliest that was meant is named.
        """
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser: Parser = getattr(options, "parser", self)
            parser.error(f"Nothing is called {' '.join(unknown)}{parser._likeliest(unknown)}")
        return options

    def _likeliest(self, unknown: Sequence[str]) -> str:
        typed = unknown[0].partition("=")[0]
        close = difflib.get_close_matches(typed, self._option_string_actions, n=1, cutoff=0.7)
        return f": did you mean {close[0]}?" if close else ""


class _StoreOnce(argparse.Action):
    """Store a value; another one for the same field would drop the first without a word."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        given: dict[str, Any] = namespace.__dict__.setdefault(_GIVEN, {})
        if option is not None and given.setdefault(self.dest, values) != values:
            parser.error(f"{option} is given twice, as {_shown(given[self.dest])} and as {_shown(values)}")
        setattr(namespace, self.dest, values)


def _shown(values: Any) -> str:
    return " ".join(map(str, values)) if isinstance(values, list) else str(values)


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


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--section.field`` for every field, and ``--field`` where no earlier section has that name."""
    taken: set[str] = set()
    for section, kind in section_types().items():
        group = parser.add_argument_group(section, inspect.cleandoc(kind.__doc__ or "").split("\n")[0])
        documented = dict(_field_docs(kind))
        if section == "model":
            documented["variant"] = "the method: " + ", ".join(
                f"{each.name} ({each.title}, {each.summary})" for each in METHODS.values()
            )
        for name, hint in field_types(kind).items():
            flags = [f"--{section}.{name}"] if name in taken else [f"--{name}", f"--{section}.{name}"]
            taken.add(name)
            group.add_argument(
                *flags,
                dest=f"{section}.{name}",
                nargs="+" if "list" in describe_type(hint) else None,
                metavar="VALUE",
                default=argparse.SUPPRESS,
                help=f"{documented.get(name, '')} ({describe_type(hint)})".replace("%", "%%"),
            )


def recipe_from(options: argparse.Namespace) -> Recipe:
    """The recipe of ``--config`` with the options that were given laid over it."""
    overrides = given_fields(options)
    if options.config is None:
        return Recipe.from_dict(overrides)
    return Recipe.from_yaml(options.config, overrides)


def given_fields(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Values of the fields that were given, by section and field."""
    fields: dict[str, dict[str, Any]] = {}
    for key, value in vars(options).items():
        if "." in key:
            section, name = key.split(".")
            fields.setdefault(section, {})[name] = option_value(
                value, field_types(section_types()[section])[name]
            )
    return fields


def option_value(given: str | list[str], hint: Any) -> Any:
    """The value an option means, given the type of its field."""
    options = alternatives(hint)
    words = given if isinstance(given, list) else [given]
    if len(words) == 1 and says_none(words[0], hint):
        return None
    choices = any(typing.get_origin(option) is Literal for option in options)
    if isinstance(given, list):  # one list, its items one by one, or a word that the field takes
        values = [parse_value(word) for word in words]
        if len(values) == 1 and isinstance(values[0], str) and "," in values[0]:
            values = [parse_value(f"[{words[0]}]")]
        alone = len(values) == 1 and (isinstance(values[0], list) or (choices and isinstance(values[0], str)))
        return values[0] if alone else values
    takes_more = any(option is int or typing.get_origin(option) is list for option in options)
    is_word = str in options or (choices and not takes_more)  # a column may be called 5
    return given if is_word else parse_value(given)


def _field_docs(kind: Any) -> Mapping[str, str]:
    """Text of every field in the ``Attributes:`` part of a docstring, so that help is written once."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:")[2]
    return {
        match["name"]: " ".join(match["text"].split())
        for match in re.finditer(r"^    (?P<name>\w+): (?P<text>.*(?:\n {5,}.*)*)", text, re.MULTILINE)
    }

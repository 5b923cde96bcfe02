"""The command line as argparse reads it, its complaints in one line like all others."""

import argparse
import difflib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from promptccd.errors import ConfigurationError

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

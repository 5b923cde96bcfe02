"""Words to options: what every command shares. Nothing here loads torch."""

import argparse
import difflib
import itertools
import json
import math
from collections.abc import Callable
from typing import Any, NoReturn

from promptccd.errors import ConfigurationError
from promptccd.images.limits import BIT_DEPTHS, BYTES_PER_PIXEL, MAX_PIXELS, IntakeLimits

MOST_DIGITS = 18  # of a number that is typed: what 64 bits hold
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
    """A parser that raises its errors, takes no abbreviations and takes every option once.

    The meaning of an abbreviation would change with the next option that begins alike.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **{"allow_abbrev": False, **options})
        self.register("action", None, _StoreOnce)
        self.register("action", "store", _StoreOnce)

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong with the typed words as a `ConfigurationError`."""
        ended = message if message.endswith((".", "?")) else f"{message}."
        if "required" in message:
            needed = [
                [*each.option_strings[:1], str(each.metavar)] for each in self._actions if each.required
            ]
            form = " ".join([self.prog, *itertools.chain(*needed)])
            ended = f"{ended[0].upper()}{ended[1:]} It is: {form}."
        raise ConfigurationError(f"{ended} `{self.prog} --help` lists what there is.")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options that were typed; of an unknown one, the error names the likeliest that was meant."""
        words = list(args or ())
        for word in words[: words.index("--") if "--" in words else None]:
            if word.startswith("--") and word.partition("=")[0] not in self._option_string_actions:
                self.refuse(word)  # before argparse misses an argument that was only misspelt
        options, unknown = self.parse_known_args(words, namespace)
        if unknown:
            self.refuse(" ".join(unknown))
        return options

    def refuse(self, typed: str) -> NoReturn:
        """Raise that nothing has the typed name, with the likeliest that was meant."""
        name = typed.partition("=")[0]
        close = difflib.get_close_matches(name, self._names(), n=1, cutoff=0.7)
        self.error(f"Nothing is called {name}{f': did you mean {close[0]}?' if close else ''}")

    def _names(self) -> list[str]:
        chosen = (action.choices for action in self._actions if not action.option_strings)
        return [*self._option_string_actions, *(str(name) for names in chosen for name in names or ())]


class _StoreOnce(argparse.Action):
    """Store a value, and refuse a second one for the same field, which would silently replace it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        given: dict[str, Any] = vars(namespace).setdefault("_given", {})
        if option is not None and given.setdefault(self.dest, values) != values:
            parser.error(f"{option} is given twice, as {_shown(given[self.dest])} and as {_shown(values)}")
        setattr(namespace, self.dest, values)


def _shown(values: Any) -> str:
    return " ".join(map(str, values)) if isinstance(values, list) else str(values)


def add_push_target(parser: argparse.ArgumentParser) -> None:
    """Add where a push goes, other than to the main branch."""
    parser.add_argument("--revision", metavar="BRANCH", help="branch to push to, made if it is not there")
    parser.add_argument(
        "--pull-request", "--pull_request", action="store_true", help="open a pull request instead of pushing"
    )


def add_model_limit(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that load a model from anywhere."""
    parser.add_argument(
        "--max_model_bytes",
        metavar="N",
        type=whole_number(1),
        help="the most that the model's weights may take in memory; twice the largest DINO's unless given",
    )


def add_device(parser: argparse._ActionsContainer) -> None:
    """Add the option of commands that compute features."""
    parser.add_argument("--device", help="where to compute, such as cpu or cuda:0; a GPU if there is one")


def add_decoding(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that read a person's own images."""
    parser.add_argument(
        "--max-megapixels",
        type=whole_number(1, MOST_MEGAPIXELS),
        metavar="N",
        help=f"skip larger images; {MAX_PIXELS // 10**6} unless given, four times as many for a JPEG as cameras write "
        f"it; each may take {BYTES_PER_PIXEL} MB of memory",
    )
    parser.add_argument(
        "--bit-depth",
        type=int,
        choices=BIT_DEPTHS,
        help="bits of the values of images with more than 8; unless given, what each file says, or else the fewest "
        "that hold the values of all of them",
    )
    parser.add_argument(
        "--image-roots",
        "--image_roots",
        nargs="+",
        action="extend",
        default=[],
        metavar="PLACE",
        help="further folders that links among the images may lead into; any other link out is skipped",
    )


def limits_of(options: argparse.Namespace, max_files: int | None = None) -> IntakeLimits:
    """Limits on a person's own images, with the options of `add_decoding`."""
    megapixels = options.max_megapixels
    return IntakeLimits.of_person(
        max_files=max_files, max_pixels=None if megapixels is None else megapixels * 10**6
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

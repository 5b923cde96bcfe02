"""Words to options: what every command shares. Nothing here loads torch."""

import argparse
import difflib
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


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows the first long name of an option."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        name = next(each for each in action.option_strings if each.startswith("--"))
        return f"{name} {self._format_args(action, self._get_default_metavar_for_optional(action))}".rstrip()

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if action.nargs in ("+", "*"):
            return f"{action.metavar or default_metavar} ..."
        return super()._format_args(action, default_metavar)


class _HelpOfAll(argparse.Action):
    """Print the help with the advanced options too."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        assert isinstance(parser, Parser)
        parser.advanced.clear()
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, takes no abbreviations and takes every option once.

    The meaning of an abbreviation would change with the next option that begins alike.

    Attributes:
        advanced: options that ``--help-all`` shows and ``--help`` does not.
        hints: types of the fields of a recipe, by ``section.field``.
        more: adds options that need slow imports; called with the typed words if one of them is an unknown option, or
            for ``--help-all``.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **{"allow_abbrev": False, "formatter_class": _Help, **options})
        self.register("action", None, _StoreOnce)
        self.register("action", "store", _StoreOnce)
        self.advanced: set[argparse.Action] = set()
        self.hints: dict[str, Any] = {}
        self.more: Callable[[list[str]], None] | None = None

    @property
    def form(self) -> str:
        """How the command is called: its arguments, the options it needs, and that there are others."""
        words = [self.prog]
        for each in self._actions:
            value = str(each.metavar or each.dest.upper())
            value += " ..." * (each.nargs in ("+", "*"))
            if each.required and each.option_strings:
                words.append(f"{each.option_strings[0]} {value}")
            elif not each.option_strings:
                words.append(f"[{value}]" if each.nargs in ("?", "*") else value)
        return " ".join([*words, "[options]"])

    def format_help(self) -> str:
        """The help, without advanced options."""
        kept = {each: each.help for each in self.advanced}
        groups = [each for each in self._action_groups if self.advanced.issuperset(each._group_actions)]
        titles = [each.description for each in groups]
        for action in kept:
            action.help = argparse.SUPPRESS
        for group in groups:
            group.description = None  # argparse leaves a group without text out
        self.usage = self.form
        try:
            return super().format_help()
        finally:
            for action, text in kept.items():
                action.help = text
            for group, title in zip(groups, titles, strict=True):
                group.description = title

    def error(self, message: str) -> NoReturn:
        """Raise the fault of the typed words as a `ConfigurationError`."""
        ended = message if message.endswith((".", "?")) else f"{message}."
        if "required" in message:
            ended = f"{ended[0].upper()}{ended[1:]} It is: {self.form}."
        every = "--help-all" if self.advanced else "--help"
        raise ConfigurationError(f"{ended} `{self.prog} {every}` lists what there is.")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options that were typed; for an unknown one, the error names the likeliest that was meant."""
        words = list(args or ())
        flags = [
            word for word in words[: words.index("--") if "--" in words else None] if word.startswith("--")
        ]
        if "" in words or any(flag.endswith("=") for flag in flags):
            self.error("An argument is empty: give it a value, or leave it out")
        if self.advanced:
            self.add_argument(
                "--help-all", action=_HelpOfAll, nargs=0, help="show all options, those of methods too"
            )
        names = [flag.partition("=")[0] for flag in flags]
        if self.more and ("--help-all" in names or not self._option_string_actions.keys() >= {*names}):
            self.more(words)
        for flag, name in zip(flags, names, strict=True):
            if name not in self._option_string_actions:
                self.refuse(flag)  # before argparse misses an argument that was only misspelt
        options, unknown = self.parse_known_args(words, namespace)
        if unknown:
            self.refuse(" ".join(unknown))
        options.hints = self.hints
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


def add_plugin(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that train or load a model of any method."""
    parser.add_argument(
        "--plugin",
        metavar="FILE",
        action="append",
        default=[],
        help="Python file that registers a method of your own; may be given several times",
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

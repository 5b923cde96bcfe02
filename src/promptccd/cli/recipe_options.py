"""The options of a recipe: every field of a section, and every option of a method."""

import argparse
import dataclasses
import inspect
import typing
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from promptccd import runs
from promptccd.cli.options import PLUGIN, Arguments, Parser, advanced, declare
from promptccd.data.options import alternatives, describe_type
from promptccd.errors import ConfigurationError
from promptccd.training.recipe import Recipe, field_types, names_recipe, recipe_for_images

LONGEST_CHOICES = 40  # characters of the choices that help writes for a value
_WORDS = {int: "INT", float: "FLOAT", str: "TEXT"}


def add_recipe_options(parser: Parser, shows_common: bool = True) -> None:
    """Add ``--field`` for every field, and ``--section.field`` where sections share the name.

    Options of methods are added if typed, or for ``--help-all``.

    Args:
        parser: of a command.
        shows_common: whether ``--help`` shows the common fields.
    """
    sections = field_types(Recipe)
    counts = Counter(item.name for kind in sections.values() for item in dataclasses.fields(kind))
    added: set[str] = set()
    common = None if parser.shows_all else parser.add_argument_group("settings")
    for section, kind in sections.items():
        group = common or parser.add_argument_group(section, (inspect.getdoc(kind) or "").partition("\n")[0])
        for item in dataclasses.fields(kind):
            name = f"{section}.{item.name}"
            flags = [f"--{item.name}"] * (item.name not in added) + [f"--{name}"] * (counts[item.name] > 1)
            added.add(item.name)
            meaning, value = item.metadata["help"], item.default
            if "(none:" not in meaning:
                shown = "none" if value in (None, dataclasses.MISSING) else value
                meaning += f" (default: {str(shown).lower() if isinstance(value, bool) else shown})"
            is_shown = parser.shows_all or (shows_common and item.metadata["common"])
            _add_field(parser, group, flags, name, item.type, meaning if is_shown else None)
    advanced()(parser)
    parser.more = lambda words: _add_method_options(parser, words)


def _add_method_options(parser: Parser, words: Iterable[str]) -> None:
    """Add the options of all methods, the plugins' too; this imports torch."""
    from promptccd.methods import METHODS, load_plugin

    for place in plugins_in(words):
        load_plugin(place)
    found: dict[str, list[tuple[str, dataclasses.Field[Any]]]] = {}
    meanings: dict[str, str] = {}
    for method in METHODS.values():
        for name, item in method.options.items():
            found.setdefault(name, []).append((method.name, item))
            meanings.setdefault(name, method.help_of(name) or "option of the method")
    group = parser.add_argument_group("methods", "Options of one method or more.")
    for name, items in found.items():
        values = {str(item.default) for _, item in items}
        own = [f"{method}: {item.default}" for method, item in items]
        shown = f"default: {values.pop()}" if len(values) == 1 else "defaults of " + ", ".join(own)
        hint = int | Literal["auto"] if name == "num_parts" else items[0][1].type
        flag = f"--{name}" if f"--{name}" not in parser._option_string_actions else f"--model.{name}"
        _add_field(parser, group, [flag], f"model.{name}", hint, f"{meanings[name]} ({shown})")


def _add_field(
    parser: Parser,
    group: argparse._ArgumentGroup,
    flags: list[str],
    name: str,
    hint: Any,
    meaning: str | None,
) -> None:
    """Add the option of a field; help shows it if it has a meaning."""
    metavar, choices = _metavar(hint)
    group.add_argument(
        *flags,
        dest=name,
        nargs="+" if "list" in describe_type(hint) else None,
        metavar=metavar,
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS if meaning is None else f"{meaning}{choices}".replace("%", "%%"),
    )


def _metavar(hint: Any) -> tuple[str, str]:
    """How help writes the value of a field, and its choices where they are too many for that."""
    words: list[str] = []
    for kind in alternatives(hint):
        while typing.get_origin(kind) is list:
            (kind,) = typing.get_args(kind)
        if typing.get_origin(kind) is Literal:
            words += map(str, typing.get_args(kind))
        elif kind is not type(None):
            words += ["true", "false"] if kind is bool else [_WORDS.get(kind, "MAPPING")]
    shown = "|".join(words)
    return (shown, "") if len(shown) <= LONGEST_CHOICES else ("NAME", f"; one of {', '.join(words)}")


def plugins_in(words: Iterable[str]) -> list[str]:
    """The files of ``--plugin`` among typed words."""
    return [
        after if word == "--plugin" else word.partition("=")[2]
        for word, after in pairwise([*words, ""])
        if word == "--plugin" or word.startswith("--plugin=")
    ]


_WHAT: Arguments = {
    "what": dict(metavar="IMAGES|RECIPE|RUN", nargs="?",
        help="your images: a folder with a sub-folder per category, a CSV of path,label, a parquet file or a Hub data "
        "set; or a recipe, as for --config; or a run to resume"),
    "--config": dict(metavar="RECIPE", help="name of `promptccd recipes`, or a YAML file"),
    "--method": dict(metavar="NAME",
        help="method for your images, from `promptccd recipes` or a plugin (default: promptccd)"),
}  # fmt: skip


def add_what(parser: Parser) -> None:
    """Add the options that name a recipe, or a person's own images to make one for."""
    declare(parser, _WHAT | PLUGIN)
    add_recipe_options(parser)


def recipe_from(options: argparse.Namespace, *, needs_images: bool = False) -> Recipe:
    """A named recipe, or a recipe for named images; fields of the command line replace its values.

    Raises:
        ConfigurationError: the words contradict each other; or images are needed, but missing.
    """
    overrides, what, config = given_fields(options), options.what, options.config
    if what is not None and (Path(what) / "manifest.json").is_file():
        if config is not None or options.method is not None:
            raise ConfigurationError(
                f"{what} is a run, which has its recipe: leave --config and --method out."
            )
        return runs.continued(runs.RunDirectory(what), overrides)
    if what is not None and (Path(what).absolute().parent / "manifest.json").is_file():
        raise ConfigurationError(f"{what} is a part of the run {Path(what).absolute().parent}: give the run.")
    if what is not None and not names_recipe(what):
        return recipe_for_images(what, options.method, config, overrides)
    if options.method is not None:
        raise ConfigurationError(
            f"--method {options.method} is for images of your own, which are missing: give a folder, or a recipe of "
            "the method as --config."
        )
    if what is not None and config is not None:
        raise ConfigurationError(f"Two recipes are given, {what} and {config}: give only one.")
    if (named := what or config) is None:
        recipe = Recipe.from_dict(overrides)  # which refuses a wrong value first
        if needs_images and not {"dataset", "benchmark"} & overrides.get("data", {}).keys():
            raise ConfigurationError(
                "Which images? Give a folder with a sub-folder per category, a CSV of path,label, a parquet file or a "
                "data set of the Hub; or a recipe, such as --config promptccd-digits (promptccd recipes lists them)."
            )
        return recipe
    return Recipe.from_yaml(named, overrides)


def given_fields(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Words of the fields that were given, by section and field."""
    fields: dict[str, dict[str, Any]] = {}
    for key, value in vars(options).items():
        section, dot, name = key.partition(".")
        if dot:
            fields.setdefault(section, {})[name] = value
    return fields

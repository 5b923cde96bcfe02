"""Every field of a recipe as an option."""

import argparse
import inspect
import re
import typing
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from promptccd import runs
from promptccd.data.ranges import alternatives
from promptccd.errors import ConfigurationError
from promptccd.training.methods import words_of_methods
from promptccd.training.recipe import (
    Recipe,
    describe_type,
    field_types,
    parse_value,
    says_none,
    section_types,
)


def add_recipe_options(parser: argparse.ArgumentParser, only: Collection[str] = ()) -> None:
    """Add ``--section.field`` for every field, and ``--field`` where no earlier section has that name.

    Args:
        parser: of a command.
        only: fields that the command reads, such as ``data.split``; all of them unless given.
    """
    taken: set[str] = set()
    for section, kind in section_types().items():
        if only and not any(each.startswith(f"{section}.") for each in only):
            continue
        group = parser.add_argument_group(section, inspect.cleandoc(kind.__doc__ or "").split("\n")[0])
        documented = _field_docs(kind)
        if section == "model":
            documented["variant"] = "the method: " + ", ".join(
                f"{each.name} ({each.title}, {each.summary})" for each in words_of_methods().values()
            )
        for name, hint in field_types(kind).items():
            if only and f"{section}.{name}" not in only:
                continue
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


def add_what(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a recipe, or images of one's own to make one for."""
    parser.add_argument(
        "what",
        metavar="IMAGES|RECIPE",
        nargs="?",
        help="images of your own: a folder with a sub-folder per category, a CSV of path,label, a parquet file, or a "
        "data set of the Hub, with --unlabelled for streams beside them; or a recipe, as --config takes it; or the "
        "folder of a run, which goes on, with the streams and labels that are given besides",
    )
    parser.add_argument("--config", metavar="RECIPE", help="a name of `promptccd recipes`, or a YAML file")
    parser.add_argument(
        "--method", metavar="NAME", help="for images of your own: a method of `promptccd recipes` (promptccd)"
    )
    add_recipe_options(parser)


def recipe_from(options: argparse.Namespace, *, needs_images: bool = False) -> Recipe:
    """The recipe that is named, or one for the images that are named; given fields replace its values.

    Raises:
        ConfigurationError: the words contradict each other; or images are needed, and none are named.
    """
    from promptccd.training.own_images import names_recipe, recipe_for_images

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
            f"--method {options.method} is for images of your own, and none are named: give a folder, or a recipe of "
            "the method as --config."
        )
    if what is not None and config is not None:
        raise ConfigurationError(f"Two recipes are given, {what} and {config}: give one of them.")
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
    """Values of the fields that were given, by section and field."""
    types = {section: field_types(kind) for section, kind in section_types().items()}
    fields: dict[str, dict[str, Any]] = {}
    for key, value in vars(options).items():
        section, dot, name = key.partition(".")
        if dot:
            fields.setdefault(section, {})[name] = option_value(value, types[section][name])
    return fields


def option_value(given: str | list[str], hint: Any) -> Any:
    """The value an option means, given the type of its field."""
    options = alternatives(hint)
    words = given if isinstance(given, list) else [given]
    if len(words) == 1 and says_none(words[0], hint):
        return None
    choices = any(typing.get_origin(option) is Literal for option in options)
    if any(typing.get_origin(option) is list and typing.get_args(option) == (str,) for option in options):
        return words  # places, which may be called 2024
    if isinstance(given, list):  # one list, its items one by one, or a word that the field takes
        values = [parse_value(word) for word in words]
        if len(values) == 1 and isinstance(values[0], str) and "," in values[0]:
            values = [parse_value(f"[{words[0]}]")]
        alone = len(values) == 1 and (isinstance(values[0], list) or (choices and isinstance(values[0], str)))
        return values[0] if alone else values
    takes_more = any(option is int or typing.get_origin(option) is list for option in options)
    is_word = str in options or (choices and not takes_more)  # a column may be called 5
    return given if is_word else parse_value(given)


def _field_docs(kind: Any) -> dict[str, str]:
    """Text of every field from the ``Attributes:`` of a docstring, so that help is written once."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:")[2]
    return {
        match["name"]: " ".join(match["text"].split())
        for match in re.finditer(r"^    (?P<name>\w+): (?P<text>.*(?:\n {5,}.*)*)", text, re.MULTILINE)
    }

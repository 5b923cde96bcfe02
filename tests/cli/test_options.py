"""Options of commands, recipes and methods are as released: defaults, limits, choices, and that each has help."""

import argparse
import json
from dataclasses import Field, asdict, fields
from typing import Any

from docs.building.commands import commands
from promptccd.cli.main import command_parser
from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.options import describe_type
from promptccd.discovery.options import AdaptationOptions
from promptccd.images.limits import IntakeLimits
from promptccd.methods import METHODS, Method
from promptccd.models.configuration import bounds_of
from promptccd.training.recipe import Recipe, field_types
from tests.kept import kept_text

OF_ACTION = ("nargs", "default", "required", "metavar")
NUMBERS = (-1, 0, 1, 2, 512, 513, 1000, 1001, 65_535, 65_536, 100_000, 100_001, 10**18 - 1, 10**18)
WORDS = [*map(str, NUMBERS), "0.5", "auto", "x"]


def _accepts(action: argparse.Action, word: str) -> bool:
    try:
        action.type(word)  # type: ignore[operator,misc]
    except (argparse.ArgumentTypeError, ValueError):
        return False
    return True


def _of_command(name: str, parser: argparse.ArgumentParser) -> dict[str, Any]:
    shown = {each.dest for each in command_parser(name)._actions if each.help != argparse.SUPPRESS}
    own = [each for each in parser._actions if name == "train" or "." not in each.dest]
    groups = {each: group.title for group in parser._action_groups for each in group._group_actions}
    return {"texts": [parser.description, parser.epilog, parser.usage]} | {
        ",".join(each.option_strings) or each.dest: {
            **{fact: getattr(each, fact) for fact in OF_ACTION},
            "choices": each.choices and [*each.choices],
            "accepts": each.type and [word for word in WORDS if _accepts(each, word)],
            "has help": bool(each.help),
            "shown": each.dest in shown,
            "group": groups[each],
        }
        for each in own
    }


def _of_field(item: "Field[Any]") -> list[Any]:
    made = item.default_factory() if callable(item.default_factory) else item.default
    known = item.metadata
    return [describe_type(item.type), made, known.get("range"), known.get("common"), bool(known.get("help"))]


def _of_method(method: Method) -> dict[str, Any]:
    bounds = bounds_of(method.model.config_class)
    own = {
        name: [*_of_field(item), bounds.get(name), bool(method.help_of(name))]
        for name, item in method.options.items()
    }
    facts = {each.name: getattr(method, each.name) for each in fields(method)}
    return own | {name: value for name, value in facts.items() if isinstance(value, bool | dict)}


def options() -> dict[str, str]:
    """All of them by name, as JSON."""
    sections = field_types(Recipe) | {"adaptation": AdaptationOptions}
    found = {
        "commands": {name: _of_command(name, parser) for name, parser in commands().items()},
        "fields": {
            name: {each.name: _of_field(each) for each in fields(kind)} for name, kind in sections.items()
        },
        "limits": {"visitors": asdict(IntakeLimits.for_visitors()), "own": asdict(IntakeLimits.of_person())},
        "methods": {name: _of_method(method) for name, method in METHODS.items()},
        "benchmarks": {name: asdict(each) | {"class_order": None} for name, each in BENCHMARKS.items()},
    }
    return {
        f"{part} {name} {option}": json.dumps(
            value, default=lambda each: getattr(each, "__name__", str(each))
        )
        for part, owners in found.items()
        for name, own in owners.items()
        for option, value in own.items()
    }


def test_options_are_as_released() -> None:
    text = "".join(f"{name}: {value}\n" for name, value in options().items())
    assert text.splitlines() == kept_text("options.txt", text).splitlines()

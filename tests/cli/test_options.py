"""Options of commands, fields of recipes and configurations: their defaults, limits and choices are as released.

`python -m tests.cli.test_options --write` writes the golden file of a change that is meant.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from docs.building.commands import commands
from promptccd.cli.main import command_parser
from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.options import describe_type
from promptccd.discovery.options import AdaptationOptions
from promptccd.images.limits import IntakeLimits
from promptccd.methods import METHODS, Method
from promptccd.models.configuration import STORED, bounds_of
from promptccd.training.recipe import Recipe, field_types

GOLDEN = Path(__file__).parents[1] / "golden" / "options.txt"
NUMBERS = (-1, 0, 1, 2, 512, 513, 65_535, 65_536, 100_000, 100_001, 10**18 - 1, 10**18)
WORDS = [*map(str, NUMBERS), "0.5", "auto", "x"]


def _accepts(action: argparse.Action, word: str) -> bool:
    try:
        action.type(word)  # type: ignore[operator,misc]
    except (argparse.ArgumentTypeError, ValueError):
        return False
    return True


def _of_action(action: argparse.Action, shown: set[str]) -> dict[str, Any]:
    found = {
        name: getattr(action, name) for name in ("dest", "nargs", "metavar", "default", "choices", "required")
    }
    kind = type(action).__name__.strip("_").removesuffix("Action")
    words = action.type and [word for word in WORDS if _accepts(action, word)]
    return {
        "kind": kind,
        **found,
        "accepts": words,
        "has help": bool(action.help),
        "shown": action.dest in shown,
    }


def _of_command(name: str, parser: argparse.ArgumentParser) -> dict[str, Any]:
    brief = command_parser(name)
    assert brief is not None
    shown = {action.dest for action in brief._actions if action.help != argparse.SUPPRESS}
    own = [each for each in parser._actions if name == "train" or "." not in each.dest]
    return {",".join(each.option_strings) or each.dest: _of_action(each, shown) for each in own}


def _of_field(item: "dataclasses.Field[Any]") -> dict[str, Any]:
    made = item.default_factory is not dataclasses.MISSING and item.default_factory()
    default = made if item.default is dataclasses.MISSING else item.default
    known = {key: value for key, value in item.metadata.items() if key in ("range", "common")}
    return {
        "type": describe_type(item.type),
        "default": default,
        "has help": bool(item.metadata.get("help")),
        **known,
    }


def _of_method(method: Method) -> dict[str, Any]:
    config = method.model.config_class
    bounds, common = bounds_of(config), {item.name for item in dataclasses.fields(PreTrainedConfig)}
    facts = {each.name: getattr(method, each.name) for each in dataclasses.fields(method)}
    words = {name: value for name, value in facts.items() if isinstance(value, bool | dict)}
    return words | {
        item.name: _of_field(item)
        | {"bounds": bounds.get(item.name), "stored": STORED.items() <= item.metadata.items()}
        for item in dataclasses.fields(config)
        if item.name not in common
    }


def options() -> dict[str, str]:
    """All of them by name, as JSON."""
    sections = field_types(Recipe) | {"adaptation": AdaptationOptions}
    limits = {"person": IntakeLimits.of_person(), "visitors": IntakeLimits.for_visitors()}
    found = {
        "commands": {name: _of_command(name, parser) for name, parser in commands().items()},
        "fields": {
            section: {each.name: _of_field(each) for each in dataclasses.fields(kind)}
            for section, kind in sections.items()
        },
        "limits": {name: dataclasses.asdict(each) for name, each in limits.items()},
        "methods": {name: _of_method(method) for name, method in METHODS.items()},
        "benchmarks": {
            name: dataclasses.asdict(benchmark) | {"class_order": len(benchmark.class_order or ())}
            for name, benchmark in BENCHMARKS.items()
        },
    }
    return {
        f"{part} {name} {option}": json.dumps(value, default=_plain)
        for part, owners in found.items()
        for name, own in owners.items()
        for option, value in own.items()
    }


def _plain(value: Any) -> Any:
    return [*value] if hasattr(value, "__iter__") else getattr(value, "__name__", str(value))


def test_options_are_as_released() -> None:
    golden = dict(line.split(": ", 1) for line in GOLDEN.read_text(encoding="utf-8").splitlines())
    assert options() == golden


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    GOLDEN.write_text("".join(f"{name}: {value}\n" for name, value in options().items()), encoding="utf-8")

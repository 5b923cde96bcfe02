"""Commands and recipe fields as Markdown, from the parser and the dataclasses that the program itself reads."""

import argparse
import re
from collections.abc import Iterable, Iterator

from promptccd.cli.main import COMMANDS, command_parser
from promptccd.cli.options import Parser
from promptccd.data.options import describe_type
from promptccd.training.recipe import Recipe, field_types, known_fields

EVERY_COMMAND = {"help", "json", "debug"}  # said once, in the text of the page


def commands_page() -> str:
    """Every command: its purpose, its form, its own options."""
    return "\n\n".join(_command(name, parser) for name, parser in commands().items())


def fields_page() -> str:
    """Every field of a recipe: type, default and meaning, section by section."""
    train = commands()["train"]
    defaults, hints = Recipe(), known_fields()
    parts = []
    for section in field_types(Recipe):
        (group,) = (each for each in train._action_groups if each.title == section)
        parts.append(f"## {section}\n\n{group.description}")
        for action in group._group_actions:
            kind_of_value = describe_type(hints[action.dest])
            meaning = (action.help or "").replace("%%", "%").partition(" (default:")[0]
            default = _shown(getattr(getattr(defaults, section), action.dest.partition(".")[2]))
            parts.append(
                _entry(
                    action.dest.replace(".", "-"),
                    f"`{action.option_strings[0]}`",
                    f"{_choices(kind_of_value)}; default {default}",
                    meaning,
                )
            )
    assert train.more is not None
    train.more([])
    (methods,) = (each for each in train._action_groups if each.title == "methods")
    parts.append(f"## methods\n\n{methods.description} A recipe writes them in the section `model`.")
    for action in methods._group_actions:
        kind_of_value = _choices(describe_type(hints[action.dest]))
        name = action.dest.replace(".", "-")
        parts.append(_entry(name, f"`{action.option_strings[0]}`", kind_of_value, action.help or ""))
    return "\n\n".join(parts)


def commands() -> dict[str, Parser]:
    """The parser of every command, by name."""
    found = {name: command_parser(name, shows_all=True) for listed in COMMANDS.values() for name in listed}
    return {name: parser for name, parser in found.items() if parser is not None}


def _command(name: str, parser: Parser) -> str:
    takes_recipe = any("." in action.dest for action in parser._actions)
    own = [
        action for action in parser._actions if "." not in action.dest and action.dest not in EVERY_COMMAND
    ]
    lines = [f"## {name}", f"{_sentence(parser.description or '')}", f"```text\n{parser.form}\n```"]
    if takes_recipe:
        lines.append("Takes every [recipe field](recipe_fields.md) as an option besides.")
    lines += _options(name, own)
    if parser.epilog:
        lines.append(f"```text\n{parser.epilog.strip()}\n```")
    return "\n\n".join(lines)


def _options(command: str, actions: Iterable[argparse.Action]) -> Iterator[str]:
    for action in actions:
        if action.help != argparse.SUPPRESS:
            title = ", ".join(f"`{flag}`" for flag in action.option_strings) or f"`{_value(action)}`"
            yield _entry(f"{command}-{action.dest.lower()}", title, _details(action), action.help or "")


def _details(action: argparse.Action) -> str:
    details = []
    if action.option_strings and action.nargs != 0:
        details.append(f"`{_value(action)}`")
    if action.choices is not None:
        details.append("one of " + ", ".join(f"`{each}`" for each in action.choices))
    if action.default not in (None, False, [], argparse.SUPPRESS):
        details.append(f"default {_shown(action.default)}")
    return "; ".join(details)


def _value(action: argparse.Action) -> str:
    value = action.metavar or action.dest.upper()
    name = " ".join(value) if isinstance(value, tuple) else value
    return f"{name} ..." if action.nargs in ("+", "*") else name


def _entry(anchor: str, title: str, details: str, meaning: str) -> str:
    """A definition: it reads on a phone, where a table of four columns does not."""
    about = f" <small>{details}</small>" if details else ""
    return f'<span id="{anchor}"></span>{title}{about}\n:   {_sentence(_code(meaning))}'


def _code(text: str) -> str:
    """Help writes code between one or two backticks and quotes percent signs; Markdown takes it from there."""
    return re.sub(r"``([^`]+)``", r"`\1`", text).replace("%%", "%").replace("<", "&lt;")


def _choices(described: str) -> str:
    return ", ".join(f"`{each}`" for each in re.split(r" \| | or ", described))


def _shown(value: object) -> str:
    if value is None or value == "":
        return "none"
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f"`{text}`" if text not in ("{}", "") else "empty"


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) or not text else ".")

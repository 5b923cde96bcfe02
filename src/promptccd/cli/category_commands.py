"""``promptccd categories``: reading and renaming load no torch, and answer at once."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from promptccd.cli.parsing import MOST_DIGITS, show
from promptccd.cli.tables import table
from promptccd.discovery.options import PAGE, TABLE
from promptccd.errors import RegistryError

if TYPE_CHECKING:
    from promptccd.discovery.project import Project
    from promptccd.registry import CategoryRegistry

logger = logging.getLogger(__name__)


def _declare_categories(categories: argparse.ArgumentParser) -> None:
    categories.add_argument("model", metavar="MODEL", help="folder of a finished stage or of a discovery")
    actions = [*_LOOKS, *_ACTIONS]
    categories.add_argument("action", choices=actions, metavar="ACTION", help=" | ".join(actions))
    categories.add_argument(
        "arguments", nargs="*", default=[], metavar="ARGUMENT",
        help="rename ID NAME | merge ID ID ... | move ID IMAGE ... (ID none: into no category) | gather IMAGE ... "
        "| split ID IMAGE ... | dissolve ID [none] (its images go to the nearest others, or to none) | "
        "regroup COUNT (fewer or more categories; what you named or said stays) | aside ID, or IMAGE ... "
        "(nothing to find: out of the result, and what is like that category follows it) | back ID (from "
        "aside) | confirm IMAGE ... | answer IMAGE IMAGE same|different | forget [IMAGE ...] (those that are "
        "not where they were) | rare [COUNT] (what to look at first: images far from all that is known, and "
        "from each other) | right [ID] (how much is, by those drawn blind); an image is its file, its picture or "
        "sha256 as assignments.csv has them or the "
        "beginning of one, or row:NUMBER of a training run",
    )  # fmt: skip
    categories.set_defaults(run=categories_command, needs=("promptccd.discovery.project.project",))


def categories_command(options: argparse.Namespace) -> None:
    """``promptccd categories``."""
    from promptccd.discovery.project import Command, Project

    folder = Path(os.path.expanduser(options.model))
    act = _ACTIONS.get(options.action)
    if options.arguments and options.action in _ALONE:
        raise RegistryError(
            f"Expected {options.action} alone, got {options.arguments}: it {_ALONE[options.action]}."
        )
    if act is None:
        _LOOKS[options.action](options, Project(folder))
        return
    project = Project(
        folder, Command([options.action, *options.arguments], lambda registry: _show(options, project))
    )
    act(project, options.arguments)
    if stale := [name for name in (PAGE, TABLE) if (folder / name).exists()]:
        logger.info(
            "The next promptccd discover with --out %s brings %s up to date.", folder, " and ".join(stale)
        )


def _show(options: argparse.Namespace, project: Project) -> None:
    registry = project.registry
    away = Counter(registry.members.get(key) for key in project.away())
    shown = [each for each in registry.categories.values() if options.json or not each.retired]

    def text() -> str:
        rows = [
            [str(each.id), each.name, each.state.value, f"stage {each.born}", each.size - away[each.id]]
            for each in shown
        ]
        lines = [table(["id", "name", "state", "since", "images"], rows)]
        if count := away.total():
            lines.append(
                f"Not where they were, and not counted: {count}. Put them back or plug their disk in; to forget them: "
                f"promptccd categories {options.model} forget"
            )
        if (right := project.how_right()).drawn:
            lines.append(right.line())
        return "\n".join(lines)

    show(options, [{**asdict(each), "away": away[each.id]} for each in shown], text)
    sys.stdout.flush()  # the list has to be out before the project forgets the command


def _show_right(options: argparse.Namespace, project: Project) -> None:
    if len(options.arguments) > 1:
        raise RegistryError(f"Expected right, or right ID, got {options.arguments}.")
    found = project.how_right(*(_category(project, each) for each in options.arguments))
    show(options, asdict(found), lambda: found.line())


def _show_rare(options: argparse.Namespace, project: Project) -> None:
    found, registry = project.rare_first(_count("rare", options.arguments or ["50"])), project.registry
    names, paths = {each.id: each.name for each in registry.active}, project.paths(found)
    homes = [registry.members.get(key) for key in found]
    values = [
        {"picture": key, "category": home, "path": paths[key]} for key, home in zip(found, homes, strict=True)
    ]

    def text_of() -> str:
        rows = [
            [key[:12], "in none" if home is None else names[home], paths[key]]
            for key, home in zip(found, homes, strict=True)
        ]
        return table(["picture", "category", "path"], rows)

    show(options, values, text_of)


def _count(action: str, arguments: Sequence[str]) -> int:
    text = arguments[0] if len(arguments) == 1 else ""
    if not text.isdecimal() or len(text) > MOST_DIGITS or int(text) < 1:
        raise RegistryError(f"Expected {action} COUNT, a whole number from 1 on, got {arguments}.")
    return int(text)


def _rename(project: Project, arguments: Sequence[str]) -> None:
    if len(arguments) != 2:
        raise RegistryError(
            f"Expected rename ID NAME, got {arguments}: put a name of several words in quotes."
        )
    project.rename(_category(project, arguments[0]), arguments[1])


def _split(project: Project, arguments: Sequence[str]) -> None:
    if not arguments:
        raise RegistryError(
            "Expected split ID, and the images of the new category unless they shall be suggested."
        )
    project.split(_category(project, arguments[0]), _images(project, arguments[1:]))


def _move(project: Project, arguments: Sequence[str]) -> None:
    if len(arguments) < 2:
        raise RegistryError(f"Expected move ID IMAGE ..., got {arguments}.")
    project.move(
        _images(project, arguments[1:]), None if arguments[0] == "none" else _category(project, arguments[0])
    )


def _dissolve(project: Project, arguments: Sequence[str]) -> None:
    if len(arguments) not in (1, 2) or arguments[1:] not in ([], ["none"]):
        raise RegistryError(f"Expected dissolve ID, or dissolve ID none, got {arguments}.")
    identity = _category(project, arguments[0])
    members = project.registry.members_of(identity)
    project.dissolve(identity, to_nearest=len(arguments) == 1)
    logger.info(
        "Category %d is gone, and later groupings will not bring it back; undo does. %s",
        identity,
        _whereabouts(project.registry, members),
    )


def _aside(project: Project, arguments: Sequence[str]) -> None:
    if not arguments:
        raise RegistryError("Expected aside ID, or the images to set aside.")
    registry, one = project.registry, arguments[0]
    ids = {str(each) for each in registry.categories} | {each.name for each in registry.active}
    if len(arguments) > 1 or one not in ids:
        project.set_images_aside(_images(project, arguments))
        return
    identity = _category(project, one)
    project.set_aside(identity)
    logger.info(
        "Category %d is set aside with its %d images: it counts for nothing, and what is like it follows it.%s",
        identity,
        project.registry.category(identity).size,
        " The next promptccd discover with this --out groups anew what was found beside it."
        if (project.folder / TABLE).exists()
        else "",
    )


def _back(project: Project, arguments: Sequence[str]) -> None:
    if len(arguments) != 1:
        raise RegistryError(f"Expected back ID, a category that is set aside, got {arguments}.")
    project.take_back(_category(project, arguments[0]))


def _answer(project: Project, arguments: Sequence[str]) -> None:
    if len(arguments) != 3 or arguments[2] not in ("same", "different"):
        raise RegistryError(f"Expected answer IMAGE IMAGE same, or different at the end, got {arguments}.")
    first, second = _images(project, arguments[:2])
    project.answer(first, second, same=arguments[2] == "same")


def _images(project: Project, names: Sequence[str]) -> list[str]:
    return [project.find(each) for each in names]


def _whereabouts(registry: CategoryRegistry, keys: list[str]) -> str:
    homes = Counter(registry.members.get(key) for key in keys)
    parts = [
        f"{count} to {'no category' if home is None else f'{home} ({registry.category(home).name})'}"
        for home, count in homes.most_common()
    ]
    return f"Its images went: {', '.join(parts)}." if parts else "It had no images."


def _category(project: Project, text: str) -> int:
    """The id of a category, from its number or its name."""
    if text.isdecimal() and len(text) <= MOST_DIGITS:
        return int(text)
    named = [
        each.id for each in project.registry.categories.values() if not each.retired and each.name == text
    ]
    if not named:
        raise RegistryError(
            f"Expected the number or the name of a category, got {text[:50]!r}: `promptccd categories "
            f"{project.folder} list` shows them."
        )
    return named[0]


_LOOKS: dict[str, Callable[[argparse.Namespace, Project], None]] = {
    "list": _show,
    "rare": _show_rare,
    "right": _show_right,
}
_ACTIONS: dict[str, Callable[[Project, Sequence[str]], object]] = {
    "rename": _rename,
    "merge": lambda project, arguments: project.merge([_category(project, each) for each in arguments]),
    "split": _split,
    "move": _move,
    "gather": lambda project, arguments: project.gather(_images(project, arguments)),
    "dissolve": _dissolve,
    "regroup": lambda project, arguments: project.regroup(_count("regroup", arguments)),
    "aside": _aside,
    "back": _back,
    "confirm": lambda project, arguments: project.confirm(_images(project, arguments)),
    "answer": _answer,
    "forget": lambda project, arguments: project.forget(_images(project, arguments) or None),
    "undo": lambda project, arguments: project.undo(),
    "redo": lambda project, arguments: project.redo(),
}

# Actions without arguments, and what they do.
_ALONE = {
    "list": "shows all categories",
    "undo": "takes back the newest correction; give it again for the one before",
    "redo": "does again what was undone last; give it again for the one after",
}

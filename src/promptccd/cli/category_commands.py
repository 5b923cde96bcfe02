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
from typing import TYPE_CHECKING, NamedTuple

from promptccd.cli.options import MOST_DIGITS, show
from promptccd.cli.tables import table
from promptccd.discovery.options import PAGE, TABLE
from promptccd.errors import RegistryError

if TYPE_CHECKING:
    from promptccd.discovery.project import Project
    from promptccd.registry import CategoryRegistry

logger = logging.getLogger(__name__)


class Action(NamedTuple):
    """One action: the form of its arguments, what it does, and the function that does it."""

    form: str
    text: str
    run: Callable[[Project, argparse.Namespace], object]

    def require_form(self, name: str, arguments: Sequence[str]) -> None:
        """Raise a `RegistryError` if there are too few or too many arguments."""
        words = self.form.split()
        least = sum(not word.startswith("[") and "..." not in word for word in words)
        if len(arguments) < least or (len(arguments) > len(words) and "..." not in self.form):
            raise RegistryError(
                f"Expected {name} {self.form or 'alone'}, got {arguments}. Put a name of several words in quotes."
            )


def _declare_categories(categories: argparse.ArgumentParser) -> None:
    categories.add_argument("model", metavar="MODEL", help="folder of a finished stage or of a discovery")
    actions = _VIEWS | _ACTIONS
    categories.add_argument("action", choices=actions, metavar="ACTION", help="action, see below")
    categories.add_argument(
        "arguments", nargs="*", default=[], metavar="ARGUMENT", help="arguments of the action, see below"
    )
    listed = [f"  {name} {each.form}\n      {each.text}" for name, each in actions.items()]
    categories.epilog = "\n".join(["actions:", *listed, "", _ARGUMENTS])
    categories.set_defaults(run=categories_command, needs=("promptccd.discovery.project.project",))


def categories_command(options: argparse.Namespace) -> None:
    """``promptccd categories``."""
    from promptccd.discovery.project import Command, Project

    folder, name, arguments = Path(os.path.expanduser(options.model)), options.action, options.arguments
    action = (_VIEWS | _ACTIONS)[name]
    action.require_form(name, arguments)
    if name in _VIEWS:
        action.run(Project(folder), options)
        return
    project = Project(folder, Command([name, *arguments], lambda registry: _show(project, options)))
    action.run(project, options)
    if stale := [each for each in (PAGE, TABLE) if (folder / each).exists()]:
        logger.info(
            "The next promptccd discover with --out %s brings %s up to date.", folder, " and ".join(stale)
        )


def _show(project: Project, options: argparse.Namespace) -> None:
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


def _show_right(project: Project, options: argparse.Namespace) -> None:
    found = project.how_right(*(_category(project, each) for each in options.arguments))
    show(options, asdict(found), lambda: found.line())


def _show_rare(project: Project, options: argparse.Namespace) -> None:
    found = project.rare_first(_count("rare", options.arguments or ["50"]))
    registry, paths = project.registry, project.paths(found)
    names = {each.id: each.name for each in registry.active}
    homes = {key: registry.members.get(key) for key in found}
    values = [{"picture": key, "category": homes[key], "path": paths[key]} for key in found]

    def text() -> str:
        rows = [
            [key[:12], "in none" if home is None else names[home], paths[key]] for key, home in homes.items()
        ]
        return table(["picture", "category", "path"], rows)

    show(options, values, text)


def _count(action: str, arguments: Sequence[str]) -> int:
    if not arguments[0].isdecimal() or len(arguments[0]) > MOST_DIGITS or int(arguments[0]) < 1:
        raise RegistryError(f"Expected {action} COUNT, a whole number from 1 on, got {arguments}.")
    return int(arguments[0])


def _split(project: Project, options: argparse.Namespace) -> None:
    category, *images = options.arguments
    project.split(_category(project, category), _images(project, images))


def _move(project: Project, options: argparse.Namespace) -> None:
    category, *images = options.arguments
    project.move(_images(project, images), None if category == "none" else _category(project, category))


def _dissolve(project: Project, options: argparse.Namespace) -> None:
    category, *target = options.arguments
    if target not in ([], ["none"]):
        raise RegistryError(f"Expected dissolve ID, or dissolve ID none, got {options.arguments}.")
    identity = _category(project, category)
    members = project.registry.members_of(identity)
    project.dissolve(identity, to_nearest=not target)
    logger.info(
        "Category %d is gone, and later groupings will not bring it back; undo does. %s",
        identity,
        _whereabouts(project.registry, members),
    )


def _aside(project: Project, options: argparse.Namespace) -> None:
    registry, arguments = project.registry, options.arguments
    ids = {str(each) for each in registry.categories} | {each.name for each in registry.active}
    if len(arguments) > 1 or arguments[0] not in ids:
        project.set_images_aside(_images(project, arguments))
        return
    identity = _category(project, arguments[0])
    project.set_aside(identity)
    logger.info(
        "Category %d is set aside with its %d images: it counts for nothing, and what is like it follows it.%s",
        identity,
        project.registry.category(identity).size,
        " The next promptccd discover with this --out groups anew what was found beside it."
        if (project.folder / TABLE).exists()
        else "",
    )


def _answer(project: Project, options: argparse.Namespace) -> None:
    *names, said = options.arguments
    if said not in ("same", "different"):
        raise RegistryError(
            f"Expected answer IMAGE IMAGE same, or different at the end, got {options.arguments}."
        )
    first, second = _images(project, names)
    project.answer(first, second, same=said == "same")


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


_ARGUMENTS = """ID is the number or the name of a category. IMAGE is a file, its picture or sha256 in assignments.csv or
the beginning of one, or row:NUMBER of a training run."""
_VIEWS = {
    "list": Action("", "show all categories", _show),
    "rare": Action("[COUNT]", "show images far from all that is known, and from each other", _show_rare),
    "right": Action("[ID]", "estimate the share of right images from those sampled at random", _show_right),
}
_ACTIONS = {
    "rename": Action("ID NAME", "name a category", lambda project, options: project.rename(
        _category(project, options.arguments[0]), options.arguments[1]
    )),
    "merge": Action("ID ID ...", "make one category of several", lambda project, options: project.merge(
        [_category(project, each) for each in options.arguments]
    )),
    "split": Action("ID [IMAGE ...]", "make some images of a category a new one (default: suggested)", _split),
    "move": Action("ID IMAGE ...", "move images into a category, or into none (ID none)", _move),
    "gather": Action("IMAGE ...", "make a category of images", lambda project, options: project.gather(
        _images(project, options.arguments)
    )),
    "dissolve": Action("ID [none]", "remove a category; its images go to the nearest ones, or to none", _dissolve),
    "regroup": Action("COUNT", "find fewer or more categories", lambda project, options: project.regroup(
        _count("regroup", options.arguments)
    )),
    "aside": Action("ID|IMAGE ...", "set a category aside, with what is like it, or images", _aside),
    "back": Action("ID", "restore a category that was set aside", lambda project, options: project.take_back(
        _category(project, options.arguments[0])
    )),
    "confirm": Action("IMAGE ...", "confirm the categories of images", lambda project, options: project.confirm(
        _images(project, options.arguments)
    )),
    "answer": Action("IMAGE IMAGE same|different", "say whether two images are of one category", _answer),
    "forget": Action("[IMAGE ...]", "forget images (default: missing ones)", lambda project, options: project.forget(
        _images(project, options.arguments) or None
    )),
    "undo": Action("", "undo the newest correction; again for the one before", lambda project, _: project.undo()),
    "redo": Action("", "redo what was undone last; again for the one after", lambda project, _: project.redo()),
}  # fmt: skip

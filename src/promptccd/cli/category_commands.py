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
from typing import TYPE_CHECKING, Any, NamedTuple

from promptccd.cli.options import MOST_DIGITS, command, show
from promptccd.cli.tables import table
from promptccd.discovery.options import PAGE, TABLE
from promptccd.errors import RegistryError

if TYPE_CHECKING:
    from promptccd.discovery.project import Project

logger = logging.getLogger(__name__)


class Action(NamedTuple):
    """One action: the form of its arguments, its help, and its function.

    A correction gets the project and the values of its arguments; an action that only shows also gets the options.
    """

    form: str
    text: str
    run: Callable[..., object]

    def values(self, project: Project, name: str, typed: Sequence[str]) -> list[Any]:
        """The values of typed arguments, by the words of the form.

        Raises:
            RegistryError: there are too few or too many, or an argument has the wrong form.
        """
        words = self.form.split()
        kinds = [word.strip("[]") for word in words if "..." not in word]
        least = sum(not word.startswith("[") and "..." not in word for word in words)
        most = len(kinds) if "..." not in self.form else len(typed)
        if not least <= len(typed) <= most:
            quotes = " Put a name of several words in quotes." if "NAME" in self.form else ""
            raise RegistryError(
                f"Expected {name} {self.form or 'alone'}, got {' '.join(typed) or 'nothing'}.{quotes}"
            )
        return [
            self._value(project, name, kinds[min(number, len(kinds) - 1)], text)
            for number, text in enumerate(typed)
        ]

    def _value(self, project: Project, name: str, kind: str, text: str) -> Any:
        if kind == "IMAGE":
            return project.find(text)
        if "none" in kind and text == "none":
            return None
        if kind in ("ID", "ID|none"):
            return _category(project, text)
        is_count = text.isdecimal() and len(text) <= MOST_DIGITS and int(text) > 0
        if (kind == "COUNT" and not is_count) or (kind.islower() and text not in kind.split("|")):
            wanted = "a whole number from 1 on" if kind == "COUNT" else kind.replace("|", " or ")
            raise RegistryError(f"Expected {wanted}, got {text[:50]!r}: {name} {self.form}.")
        return int(text) if kind == "COUNT" else text


def _declare_categories(categories: argparse.ArgumentParser) -> None:
    categories.add_argument("model", metavar="MODEL", help="folder of a finished stage or of a discovery")
    actions = _VIEWS | _ACTIONS
    categories.add_argument("action", choices=actions, metavar="ACTION", help="action, see below")
    categories.add_argument(
        "arguments", nargs="*", default=[], metavar="ARGUMENT", help="arguments of the action, see below"
    )
    listed = [f"  {name} {each.form}\n      {each.text}" for name, each in actions.items()]
    categories.epilog = "\n".join(["actions:", *listed, "", _ARGUMENTS])


@command(("promptccd.discovery.project.project",), _declare_categories)
def categories_command(options: argparse.Namespace) -> None:
    """``promptccd categories``."""
    from promptccd.discovery.project import Project

    folder, name, typed = Path(os.path.expanduser(options.model)), options.action, options.arguments
    project = Project(folder)
    if (view := _VIEWS.get(name)) is not None:
        view.run(project, options, *view.values(project, name, typed))
        return
    with project.command([name, *typed]) as is_done:
        if not is_done:
            _ACTIONS[name].run(project, *_ACTIONS[name].values(project, name, typed))
        _show_list(project, options)
    if stale := [each for each in (PAGE, TABLE) if (folder / each).exists()]:
        logger.info(
            "The next promptccd discover with --out %s brings %s up to date.", folder, " and ".join(stale)
        )


def _show_list(project: Project, options: argparse.Namespace) -> None:
    away, here = (Counter(map(project.members.get, keys)) for keys in (project.away(), project.here()))
    shown = [each for each in project.categories.values() if options.json or not each.retired]

    def text() -> str:
        rows = [
            [str(each.id), each.name, each.state.value, f"stage {each.born}", here[each.id]] for each in shown
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
    found = project.how_right()
    show(options, asdict(found), found.line)


def _dissolve(project: Project, category: int, *to: None) -> None:
    members = project.members_of(category)
    project.dissolve(category, to_nearest=not to)
    counts = Counter(project.members.get(key) for key in members)
    parts = [
        f"{count} to {'no category' if found is None else f'{found} ({project.category(found).name})'}"
        for found, count in counts.most_common()
    ]
    logger.info(
        "Category %d is gone, and later groupings will not bring it back; undo does. %s",
        category,
        f"Its images went: {', '.join(parts)}." if parts else "It had no images.",
    )


def _aside(project: Project, *typed: str) -> None:
    ids = {str(each) for each in project.categories} | {each.name for each in project.active}
    if len(typed) > 1 or typed[0] not in ids:
        project.set_images_aside([project.find(each) for each in typed])
        return
    identity = _category(project, typed[0])
    project.set_aside(identity)
    logger.info(
        "Category %d is set aside with its %d images: results leave it out, and similar images follow it.",
        identity, project.category(identity).size,
    )  # fmt: skip


def _category(project: Project, text: str) -> int:
    """The id of a category, from its number or its name."""
    if text.isdecimal() and len(text) <= MOST_DIGITS:
        return int(text)
    for each in project.categories.values():
        if not each.retired and each.name == text:
            return each.id
    raise RegistryError(
        f"Expected the number or the name of a category, got {text[:50]!r}: `promptccd categories {project.folder} "
        "list` shows them."
    )


_ARGUMENTS = """ID is the number or the name of a category. IMAGE is a file, its picture or sha256 in assignments.csv or
the beginning of either, or row:NUMBER of a training run."""
_VIEWS = {
    "list": Action("", "show all categories", _show_list),
    "right": Action("", "estimate the share of right images from randomly sampled images", _show_right),
}
_ACTIONS = {
    "rename": Action("ID NAME", "name a category", lambda project, *given: project.rename(*given)),
    "merge": Action("ID ID ...", "make one category of several", lambda project, *ids: project.merge(ids)),
    "split": Action(
        "ID [IMAGE ...]", "make some images of a category a new one (default: suggested)",
        lambda project, category, *images: project.split(category, images or None),
    ),
    "move": Action(
        "ID|none IMAGE ...", "move images into a category, or unassign them",
        lambda project, to, *images: project.move(images, to),
    ),
    "gather": Action("IMAGE ...", "make a category of images", lambda project, *images: project.gather(images)),
    "dissolve": Action("ID [none]", "remove a category; its images go to the nearest categories or to none", _dissolve),
    "regroup": Action("COUNT", "find fewer or more categories", lambda project, count: project.regroup(count)),
    "aside": Action("ID|IMAGE ...", "ignore a category, with later images like it, or single images", _aside),
    "back": Action("ID", "restore a category that was set aside", lambda project, each: project.restore(each)),
    "confirm": Action(
        "IMAGE ...", "confirm the categories of images", lambda project, *images: project.confirm(images)
    ),
    "answer": Action(
        "IMAGE IMAGE same|different", "say whether two images are of one category",
        lambda project, first, second, said: project.answer(first, second, same=said == "same"),
    ),
    "forget": Action(
        "[IMAGE ...]", "forget images (default: missing ones)",
        lambda project, *images: project.forget(images or None),
    ),
    "undo": Action("", "undo the newest correction; again for the one before", lambda project: project.undo()),
    "redo": Action("", "redo the last undone edit; again for the next", lambda project: project.redo()),
}  # fmt: skip

"""``promptccd categories``: reading and renaming load no torch, and answer at once."""

import argparse
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from promptccd.cli.parsing import MOST_DIGITS, show
from promptccd.cli.tables import table
from promptccd.discovery.options import PAGE, TABLE
from promptccd.discovery.registry_edits import correct, edit_registry, registry_in
from promptccd.errors import RegistryError
from promptccd.registry import CategoryRegistry, Merge, Rename

logger = logging.getLogger(__name__)


def _declare_categories(categories: argparse.ArgumentParser) -> None:
    categories.add_argument("model", metavar="MODEL", help="folder of a finished stage or of a discovery")
    categories.add_argument("action", choices=list(_ACTIONS), metavar="ACTION", help=" | ".join(_ACTIONS))
    categories.add_argument(
        "arguments", nargs="*", metavar="ARGUMENT",
        help="rename ID NAME | merge ID ID ... | move ID IMAGE ... | split ID IMAGE ... | dissolve ID; an image is "
        "its sha256, as assignments.csv has it, or row:NUMBER of a training run",
    )  # fmt: skip
    categories.set_defaults(run=categories_command)


def categories_command(options: argparse.Namespace) -> None:
    """``promptccd categories``."""
    folder = Path(os.path.expanduser(options.model))
    act = _ACTIONS[options.action]
    if options.arguments and options.action in _ALONE:
        raise RegistryError(
            f"Expected {options.action} alone, got {options.arguments}: it {_ALONE[options.action]}."
        )
    if act is None:
        _show(options, registry_in(folder))
        return
    edit_registry(
        folder,
        lambda registry: act(folder, registry, options.arguments),
        command=[options.action, *options.arguments],
        tell=lambda registry: _show(options, registry),
    )
    if stale := [name for name in (PAGE, TABLE) if (folder / name).exists()]:
        logger.info(
            "The next promptccd discover with --out %s brings %s up to date.", folder, " and ".join(stale)
        )


def _show(options: argparse.Namespace, registry: CategoryRegistry) -> None:
    shown = [each for each in registry.categories.values() if options.json or not each.retired]

    def text() -> str:
        rows = [
            [str(each.id), each.name, each.state.value, f"stage {each.born}", each.size] for each in shown
        ]
        return table(["id", "name", "state", "since", "images"], rows)

    show(options, [asdict(each) for each in shown], text)
    sys.stdout.flush()  # the list has to be out before `edit_registry` forgets the command


def _rename(folder: Path, registry: CategoryRegistry, arguments: list[str]) -> None:
    if len(arguments) != 2:
        raise RegistryError(
            f"Expected rename ID NAME, got {arguments}: put a name of several words in quotes."
        )
    correct(registry, Rename(_id(arguments[0]), arguments[1]))


def _merge(folder: Path, registry: CategoryRegistry, arguments: list[str]) -> None:
    correct(registry, Merge([_id(each) for each in arguments]))


def _split(folder: Path, registry: CategoryRegistry, arguments: list[str]) -> None:
    if not arguments:
        raise RegistryError(
            "Expected split ID, and the images of the new category unless they shall be suggested."
        )
    from promptccd.discovery.feature_edits import split_in

    split_in(folder, registry, _id(arguments[0]), arguments[1:])


def _move(folder: Path, registry: CategoryRegistry, arguments: list[str]) -> None:
    if len(arguments) < 2:
        raise RegistryError(f"Expected move ID IMAGE ..., got {arguments}.")
    from promptccd.discovery.feature_edits import move_in

    move_in(folder, registry, arguments[1:], _id(arguments[0]))


def _dissolve(folder: Path, registry: CategoryRegistry, arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise RegistryError(f"Expected dissolve ID, got {arguments}.")
    identity = _id(arguments[0])
    members = registry.members_of(identity)
    from promptccd.discovery.feature_edits import dissolve_in

    dissolve_in(folder, registry, identity)
    logger.info(
        "Category %d is gone, and later groupings will not bring it back; undo does. %s",
        identity,
        _whereabouts(registry, members),
    )


def _whereabouts(registry: CategoryRegistry, keys: list[str]) -> str:
    homes = Counter(registry.members.get(key) for key in keys)
    parts = [
        f"{count} to {'no category' if home is None else f'{home} ({registry.category(home).name})'}"
        for home, count in homes.most_common()
    ]
    return f"Its images went: {', '.join(parts)}." if parts else "It had no images."


def _id(text: str) -> int:
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise RegistryError(f"Expected the number of a category, got {text[:50]!r}: the list shows them.")
    return int(text)


_ACTIONS: dict[str, Callable[[Path, CategoryRegistry, list[str]], object] | None] = {
    "list": None,
    "rename": _rename,
    "merge": _merge,
    "split": _split,
    "move": _move,
    "dissolve": _dissolve,
    "undo": lambda folder, registry, arguments: registry.undo(),
    "redo": lambda folder, registry, arguments: registry.redo(),
}

# Actions without arguments, and what they do.
_ALONE = {
    "list": "shows all categories",
    "undo": "takes back the newest correction; give it again for the one before",
    "redo": "does again what was undone last; give it again for the one after",
}


COMMANDS = {"categories": _declare_categories}

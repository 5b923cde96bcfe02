"""Corrections to a registry on disk: that of a discovery, or of a checkpoint with its model.

A discovery's registry is read and written without torch, which takes longer to import than a correction takes.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from promptccd.errors import RegistryError
from promptccd.registry import (
    LONGEST_JOURNAL,
    CategoryRegistry,
    Edit,
    Journal,
    has_registry,
    load_registry,
    save_registry,
)
from promptccd.registry.changes import now
from promptccd.storage import (
    CHECKSUMS,
    PROJECT,
    REPLACED,
    lock_folder,
    remove_leftovers,
    require_no_links,
    write_directory,
    write_file,
)

logger = logging.getLogger(__name__)

RECORD = ".edit.json"  # names an edit that its command has not reported yet
OTHERS_TAKE_S = 2.0  # for a correction, such as one of a page that is open; a discovery takes longer


def edit_registry(
    folder: str | Path,
    act: Callable[[CategoryRegistry], object],
    *,
    command: Sequence[str] = (),
    tell: Callable[[CategoryRegistry], object] = lambda registry: None,
) -> CategoryRegistry:
    """Change a registry and write it back, with the model beside it if there is one; all of it or nothing.

    A person who sees a command die cannot know whether it was done, and `undo` twice is not `undo`. So the command
    stays written down until `tell` has returned, and until then the same command acts once, however often it is given.

    The assignments of a finished stage (``assignments.json``) and its card stay as they were written: the registry
    holds the corrections since, and the next stage goes on from it.

    Args:
        folder: of a finished stage, or what `discover` wrote.
        act: changes the registry.
        command: the words of the command; without any, every call acts.
        tell: reports the changed registry.

    Returns:
        The changed registry.

    Raises:
        RegistryError: there is none, it is damaged, or does not allow it; nothing changed.
        RunError: another process is writing there and does not end soon, or a link lies in the way.
    """
    place = Path(folder).absolute()  # "." has no name to put a new folder under
    aside = place.with_name(f"{REPLACED}{place.name}")  # where a process that was killed may have left it
    found = aside if aside.exists() and not place.exists() else place
    if _is_model(found):
        registry_in(found)  # so that no lock is left beside what is none of our models
        kept = place.parent
    else:
        kept = _kept(place)
    lock = lock_folder(kept, wait_s=OTHERS_TAKE_S)
    try:
        remove_leftovers(kept)
        store = _Checkpoint(place) if _is_model(place) else Journal(kept)
        if isinstance(store, Journal) and store.lines >= LONGEST_JOURNAL:
            store.write_whole()
        words, record = [place.name, *command], kept / RECORD
        if command and _read(record) == [words, store.mark]:
            logger.info(
                "%s was done already, by a process that ended before it could say so, and is not done twice. Give the "
                "command again to do it once more.",
                command[0],
            )
        else:
            act(store.registry)
            if command:
                write_file(record, json.dumps([words, store.mark]))
            store.write()
        tell(store.registry)
        record.unlink(missing_ok=True)
    finally:
        os.close(lock)
    return store.registry


def _kept(folder: Path) -> Path:
    """Where a discovery keeps its registry.

    Raises:
        RegistryError: there is none.
    """
    for kept in (folder / PROJECT, folder):
        if has_registry(kept):
            return kept
    raise RegistryError(
        f"{str(folder)!r} holds no registry of categories: give the folder of a finished stage, or the --out of "
        "promptccd discover."
    )


class _Checkpoint:
    """A model with its registry, both of which are written anew for every correction."""

    def __init__(self, place: Path):
        self.registry, self._place = registry_in(place), place

    @property
    def mark(self) -> str:
        """A name of the state that none after another edit, undo or redo has."""
        registry = self.registry
        return (
            f"{registry.state_hash()} {(registry.next_number, len(registry.log), len(registry.redo_stack))}"
        )

    def write(self) -> None:
        """Replace both."""
        import torch

        from promptccd.runs.prediction import load_model

        place, registry = self._place, self.registry
        require_no_links(place)
        model = load_model(place)
        found = registry.active_prototypes()
        model.set_categories(torch.from_numpy(found.matrix), found.ids, found.names)

        def fill(staging: Path) -> None:
            shutil.copytree(place, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(CHECKSUMS))
            model.save_pretrained(staging)
            save_registry(registry, staging)

        write_directory(place, fill, replace=True, needed=model.get_memory_footprint())
        later = place.with_name(f"stage{registry.stage + 1}")
        if place.name == f"stage{registry.stage}" and later.exists():
            logger.warning(
                "%s was made before this correction and does not know it: edit the newest stage.", later
            )


def correct(registry: CategoryRegistry, edit: Edit) -> None:
    """Make an edit, with the time it was made.

    Raises:
        RegistryError: it is not possible; nothing changed.
    """
    registry.edit(edit, time=now())


def registry_in(folder: Path) -> CategoryRegistry:
    """The registry of a folder; for a model that was saved without one, a new one with its categories.

    Raises:
        RegistryError: there is none, or it is damaged.
    """
    if not _is_model(folder):
        return Journal(_kept(folder)).registry
    if has_registry(folder):
        return load_registry(folder)
    from promptccd.discovery.categories import registry_of
    from promptccd.runs.prediction import load_model

    return registry_of(load_model(folder), folder)


def _read(record: Path) -> object:
    try:
        return json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").exists()

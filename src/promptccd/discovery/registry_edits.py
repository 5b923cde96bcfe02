"""Corrections to what lies on disk: a registry by itself, or a checkpoint whose model has to follow."""

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from promptccd.discovery.categories import assignment_in, registry_of
from promptccd.discovery.checkpoint import load_features
from promptccd.discovery.corrections import dissolve_category, move_images, split_category
from promptccd.discovery.session import now
from promptccd.errors import RegistryError
from promptccd.models import Assignment
from promptccd.registry import (
    CategoryRegistry,
    Edit,
    Move,
    NotACategory,
    has_registry,
    load_registry,
    save_registry,
)
from promptccd.runs.evaluate_run import RunEvaluation
from promptccd.runs.prediction import load_model
from promptccd.runs.run_directory import RunDirectory
from promptccd.runs.stage_checkpoint import key_of
from promptccd.storage import (
    CHECKSUMS,
    REPLACED,
    remove_leftovers,
    require_no_links,
    write_directory,
    write_file,
)

logger = logging.getLogger(__name__)

RECORD = ".edit.json"  # of an edit that nobody was told of yet


def edit_registry(
    folder: str | Path,
    act: Callable[[CategoryRegistry], object],
    *,
    command: Sequence[str] = (),
    tell: Callable[[CategoryRegistry], object] = lambda registry: None,
) -> CategoryRegistry:
    """Change a registry and write it back, with the model beside it if there is one; all of it or nothing.

    A person who sees a command die cannot know whether it was done, and `undo` twice is not `undo`. So the command is
    written down until its end was told, and until then the same command is done once, however often it is begun.

    What a finished stage assigned to whom (``assignments.json``) and its card stay as they were written: the registry
    says what was corrected since, and the next stage goes on from it.

    Args:
        folder: of a finished stage, or what `discover` wrote.
        act: what to do with the registry.
        command: the words a person said it in; without any, every call acts.
        tell: says how the registry is now.

    Returns:
        The registry as it is now.

    Raises:
        RegistryError: there is none, it is damaged, or does not allow it; nothing changed.
        RunError: another process is writing there, or a link lies in the way.
    """
    place = Path(folder).absolute()  # "." has no name to put a new folder under
    aside = place.with_name(f"{REPLACED}{place.name}")  # where a process that was killed may have left it
    found = aside if aside.exists() and not place.exists() else place
    registry_in(found)
    lock = RunDirectory(place.parent if _is_model(found) else place)
    lock.lock()
    try:
        remove_leftovers(lock.path)
        registry, record = registry_in(place), lock.path / RECORD
        words = [place.name, *command]
        if command and _read(record) == [words, _identity(registry)]:
            logger.info(
                "%s was done already, by a process that ended before it could say so, and is not done twice. Give the "
                "command again to do it once more.",
                command[0],
            )
        else:
            act(registry)
        if command:
            write_file(record, json.dumps([words, _identity(registry)]))
        if _is_model(place):
            _save_with_model(place, registry)
        else:
            save_registry(registry, place)
        tell(registry)
        record.unlink(missing_ok=True)
    finally:
        lock.unlock()
    return registry


def correct(registry: CategoryRegistry, edit: Edit) -> None:
    """Make an edit, with the time it was made.

    Raises:
        RegistryError: it is not possible; nothing changed.
    """
    registry.edit(edit, time=now())


def registry_in(folder: Path) -> CategoryRegistry:
    """The registry of a folder; for a model that was saved without one, one made of its categories.

    Raises:
        RegistryError: there is none, or it is damaged.
    """
    if has_registry(folder):
        return load_registry(folder)
    if _is_model(folder):
        return registry_of(load_model(folder), folder)
    raise RegistryError(
        f"{str(folder)!r} holds no registry of categories: give the folder of a finished stage, or the --out of "
        "promptccd discover."
    )


def _assignment(folder: Path, registry: CategoryRegistry) -> Assignment:
    """Images and their categories, by the features that a discovery left, or by those of a run's stage, computed anew.

    Raises:
        RegistryError: neither is to be had.
        PromptCCDError: the data of the run cannot be read.
    """
    found = load_features(folder) or _features_of_stage(folder)
    if found is None:
        raise RegistryError(
            f"{str(folder)!r} holds no features of its images and lies in no run, and without them there is no telling "
            "what each part looks like: edit the --out folder of promptccd discover."
        )
    keys, features = found
    settled = [each.id for each in registry.active if each.known or each.born < registry.stage]
    return assignment_in(registry, keys, features, settled=settled, temperature=1.0)


def split_in(
    folder: Path, registry: CategoryRegistry, category: int, images: Sequence[str], name: str | None = None
) -> None:
    """Cut a category in two; without images where their features suggest it.

    Raises:
        DataError: the category has fewer than two images, or all of them were given.
        RegistryError: there are no features, or the registry does not allow it.
    """
    correct(registry, split_category(_assignment(folder, registry), category, images or None, name=name))


def move_in(folder: Path, registry: CategoryRegistry, images: Sequence[str], to: int | None) -> None:
    """Put images into another category or into none; prototypes follow where features lie beside the registry."""
    edit = Move(images, to)
    if load_features(folder) is not None:
        edit = move_images(_assignment(folder, registry), images, to)
    correct(registry, edit)


def dissolve_in(folder: Path, registry: CategoryRegistry, category: int) -> None:
    """Say that a category is none.

    Beside a discovery's features its images go to the nearest other ones. In a stage of a run they become unassigned,
    so that the next stage does not learn from where nobody has put them.
    """
    registry.category(category)
    edit = NotACategory(category)
    if load_features(folder) is not None:
        edit = dissolve_category(_assignment(folder, registry), category)
    correct(registry, edit)


def _identity(registry: CategoryRegistry) -> str:
    """Never the same again once something happened to the registry, undone things included."""
    lengths = (registry.next_number, len(registry.log), len(registry.redo_stack))
    return f"{registry.state_hash()} {lengths}"


def _read(record: Path) -> object:
    try:
        return json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").exists()


def _save_with_model(place: Path, registry: CategoryRegistry) -> None:
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


def _features_of_stage(folder: Path) -> tuple[list[str], torch.Tensor] | None:
    """Keys and features of the images of a run up to the stage in a folder; `None` if that lies in no run."""
    run, name = RunDirectory(folder.absolute().parent), folder.absolute().name
    if not run.begun or not name.removeprefix("stage").isdecimal():
        return None
    evaluation, stage = RunEvaluation(str(run.path)), int(name.removeprefix("stage"))
    keys = [key_of(each) for images in evaluation.images[: stage + 1] for each in images.sample_ids.tolist()]
    return keys, torch.cat(evaluation.features_of_stage(stage)).cpu()

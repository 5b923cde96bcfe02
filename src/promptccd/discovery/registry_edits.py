"""Corrections that need features, and corrections to what lies on disk: a discovery, or a checkpoint and its model."""

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptccd.discovery.categories import assignment_in, registry_of
from promptccd.discovery.checkpoint import load_features
from promptccd.discovery.grouping import suggest_split
from promptccd.discovery.project import PROJECT
from promptccd.discovery.session import now
from promptccd.errors import DataError, RegistryError
from promptccd.models import Assignment
from promptccd.models.assignment import squared_distances
from promptccd.registry import (
    LONGEST_JOURNAL,
    CategoryRegistry,
    Edit,
    Journal,
    Move,
    NotACategory,
    Split,
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
    kept = place.parent if _is_model(found) else _kept(place)
    lock = RunDirectory(kept)
    lock.lock()
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
        lock.unlock()
    return store.registry


def _kept(folder: Path) -> Path:
    """Where the registry of a folder is that is no model."""
    return folder / PROJECT if has_registry(folder / PROJECT) else folder


class _Checkpoint:
    """A model with its registry, both of which are written anew for every correction."""

    def __init__(self, place: Path):
        self.registry, self._place = registry_in(place), place

    @property
    def mark(self) -> str:
        """Never the same again once something happened to the registry, undone things included."""
        registry = self.registry
        return (
            f"{registry.state_hash()} {(registry.next_number, len(registry.log), len(registry.redo_stack))}"
        )

    def write(self) -> None:
        """Both, in place of those that are there."""
        _save_with_model(self._place, self.registry)


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
    if _is_model(folder):
        return load_registry(folder) if has_registry(folder) else registry_of(load_model(folder), folder)
    if has_registry(kept := _kept(folder)):
        return Journal(kept).registry
    raise RegistryError(
        f"{str(folder)!r} holds no registry of categories: give the folder of a finished stage, or the --out of "
        "promptccd discover."
    )


def _assignment(folder: Path, registry: CategoryRegistry, keys: Sequence[str]) -> Assignment | None:
    """Images and their categories, of those whose features a discovery left; `None` if there are none."""
    kept, features = load_features(folder, keys)
    return _assigned(registry, kept, features) if kept else None


def _assigned(registry: CategoryRegistry, keys: Sequence[str], features: Tensor) -> Assignment:
    settled = [each.id for each in registry.active if each.known or each.born < registry.stage]
    return assignment_in(registry, keys, features, settled=settled, temperature=1.0)


def split_in(
    folder: Path, registry: CategoryRegistry, category: int, images: Sequence[str], name: str | None = None
) -> None:
    """Cut a category in two; without images where their features suggest it.

    Images without features, such as those that a model was trained on, stay.

    Raises:
        DataError: the category has fewer than two images with features, or all of them were given.
        RegistryError: there are no features, or the registry does not allow it.
    """
    members, of_run = registry.members_of(category), _features_of_stage(folder)
    found = _assignment(folder, registry, members) if of_run is None else _assigned(registry, *of_run)
    if found is None:
        raise RegistryError(
            f"{str(folder)!r} holds no features of images of category {category} and lies in no run, and without them "
            "there is no telling what each part looks like: run promptccd discover on these images again, or edit the "
            "--out folder that it wrote."
        )
    correct(registry, split_category(found, category, images or None, name=name))


def move_in(folder: Path, registry: CategoryRegistry, images: Sequence[str], to: int | None) -> None:
    """Put images into another category or into none; prototypes follow where features lie beside the registry."""
    touched = {registry.members.get(each) for each in images} | {to}
    keys = [key for each in touched if each is not None for key in registry.members_of(each)]
    found = _assignment(folder, registry, keys)
    correct(registry, Move(images, to) if found is None else move_images(found, images, to))


def dissolve_in(folder: Path, registry: CategoryRegistry, category: int) -> None:
    """Say that a category is none.

    Beside a discovery's features its images go to the nearest other ones. In a stage of a run they become unassigned,
    so that the next stage does not learn from where nobody has put them.
    """
    registry.category(category)
    edit = NotACategory(category, rest_to_nearest=(folder / PROJECT).is_dir())
    found = _assignment(folder, registry, registry.members_of(category))
    correct(registry, edit if found is None else dissolve_category(found, category))


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


def _features_of_stage(folder: Path) -> tuple[list[str], Tensor] | None:
    """Keys and features of the images of a run up to the stage in a folder; `None` if that lies in no run."""
    run, name = RunDirectory(folder.absolute().parent), folder.absolute().name
    if not run.begun or not name.removeprefix("stage").isdecimal():
        return None
    evaluation, stage = RunEvaluation(str(run.path)), int(name.removeprefix("stage"))
    keys = [key_of(each) for images in evaluation.images[: stage + 1] for each in images.sample_ids.tolist()]
    return keys, torch.cat(evaluation.features_of_stage(stage)).cpu()


def split_category(
    found: Assignment,
    category: int,
    images: Sequence[str] | None = None,
    *,
    name: str | None = None,
    seed: int = 1,
) -> Split:
    """Cut a category in two.

    Args:
        found: the images and their categories now.
        category: the id to cut; it stays with the images that are not given.
        images: keys of the part that becomes a category; none cuts where the features suggest it, the smaller part
            becoming the new one.
        name: of the new category.
        seed: of the suggestion.

    Raises:
        DataError: the category has fewer than two images here.
    """
    rows = found.rows_of(category)
    if len(rows) < 2:
        raise DataError(f"Category {category} has {len(rows)} images here; it takes two to split it.")
    if images is None:
        _, smaller = suggest_split(found.features, torch.tensor(rows), seed=seed)
        images = [found.keys[row] for row in smaller.tolist()]
    chosen = set(images)
    part = [row for row in rows if found.keys[row] in chosen]
    rest = [row for row in rows if found.keys[row] not in chosen]
    if not part or not rest:
        raise DataError(
            f"{len(part)} of the {len(rows)} images of category {category} were selected: select some, not all."
        )
    kept = found.prototypes[found.ids.index(category)].numpy()
    rest_prototype = kept if category in found.known_ids else _mean(found.features[rest])
    return Split(category, tuple(images), _mean(found.features[part]), rest_prototype, name)


def move_images(found: Assignment, images: Sequence[str], to: int | None) -> Move:
    """Put the selected images into another category, or with `None` into none.

    Categories that these images belong to, and no earlier ones, get a new prototype; settled ones keep theirs.
    """
    chosen = set(images)
    moved = [row for row, key in enumerate(found.keys) if key in chosen]
    touched = {int(found.category_ids[row]) for row in moved} | ({to} if to is not None else set())
    prototypes = {}
    for category in sorted(touched):
        rows = {row for row in found.rows_of(category) if found.keys[row] not in chosen}
        rows |= set(moved) if category == to else set()
        if rows and category not in found.known_ids:
            prototypes[category] = _mean(found.features[sorted(rows)])
    return Move(tuple(images), to, prototypes)


def dissolve_category(found: Assignment, category: int) -> NotACategory:
    """Say that a category is none; each of its images goes to the nearest other one.

    Those that are not among them came with earlier stages, and their features are gone: they go where the
    category's own prototype is nearest.
    """
    rows = found.rows_of(category)
    others = [row for row, identity in enumerate(found.ids) if identity != category]
    if not others:
        return NotACategory(category)
    ids = np.array(found.ids)[others]
    points, prototypes = found.features[rows].double(), found.prototypes[others].double()
    nearest = ids[squared_distances(points, prototypes).argmin(1).numpy()] if rows else []
    return NotACategory(
        category,
        {found.keys[row]: int(identity) for row, identity in zip(rows, nearest, strict=True)},
        rest_to_nearest=True,
    )


def _mean(features: Tensor) -> np.ndarray:
    return features.double().mean(0).numpy()

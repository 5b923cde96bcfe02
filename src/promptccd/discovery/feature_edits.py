"""Corrections that need features: means of categories, and which category is nearest."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptccd.discovery.categories import assignment_in
from promptccd.discovery.project import PROJECT
from promptccd.discovery.record import load_features
from promptccd.discovery.registry_edits import correct
from promptccd.errors import DataError, RegistryError
from promptccd.models import Assignment
from promptccd.models.assignment import squared_distances
from promptccd.registry import CategoryRegistry, Move, NotACategory, Split


def _assignment(folder: Path, registry: CategoryRegistry, keys: Sequence[str]) -> Assignment | None:
    """Categories of the images whose features a discovery left; `None` if there are none."""
    kept, features = load_features(folder, keys)
    return assigned(registry, kept, features) if kept else None


def assigned(registry: CategoryRegistry, keys: Sequence[str], features: Tensor) -> Assignment:
    """The images in the categories that a registry has them in."""
    settled = [each.id for each in registry.active if each.settled(registry.stage)]
    return assignment_in(registry, keys, features, settled=settled, temperature=1.0)


def split_in(
    folder: Path, registry: CategoryRegistry, category: int, images: Sequence[str], name: str | None = None
) -> None:
    """Cut a category in two; without `images`, where the features suggest it.

    Images without features, such as those that a model was trained on, stay in the category.

    Raises:
        DataError: the category has fewer than two images with features, or all of them were given.
        RegistryError: there are no features, or the registry does not allow it.
    """
    members, of_run = registry.members_of(category), _features_of_stage(folder)
    found = _assignment(folder, registry, members) if of_run is None else assigned(registry, *of_run)
    if found is None:
        raise RegistryError(
            f"{str(folder)!r} holds no features of images of category {category} and lies in no run, and without them "
            "there is no telling what each part looks like: run promptccd discover on these images again, or edit the "
            "--out folder that it wrote."
        )
    correct(registry, split_category(found, category, images or None, name=name))


def move_in(folder: Path, registry: CategoryRegistry, images: Sequence[str], to: int | None) -> None:
    """Put images into another category or into none, with new prototypes where the registry has features beside it."""
    chosen, homes = dict.fromkeys(images), {registry.members.get(each) for each in images} | {to}
    touched = [registry.category(each) for each in sorted(each for each in homes if each is not None)]
    after = {
        each.id: [key for key in registry.members_of(each.id) if key not in chosen]
        + list(chosen) * (each.id == to)
        for each in touched
        if not each.settled(registry.stage)
    }
    kept, features = load_features(folder, [key for keys in after.values() for key in keys])
    row_of = {key: row for row, key in enumerate(kept)}
    rows = {each: [row_of[key] for key in keys if key in row_of] for each, keys in after.items()}
    correct(
        registry, Move(images, to, {each: _mean(features[found]) for each, found in rows.items() if found})
    )


def dissolve_in(folder: Path, registry: CategoryRegistry, category: int) -> None:
    """Say that a category is none.

    With a discovery's features, its images go to the nearest other categories. In a stage of a run they become
    unassigned, so that the next stage does not learn from places that nobody chose.
    """
    registry.category(category)
    edit = NotACategory(category, rest_to_nearest=(folder / PROJECT).is_dir())
    found = _assignment(folder, registry, registry.members_of(category))
    correct(registry, edit if found is None else dissolve_category(found, category))


def _features_of_stage(folder: Path) -> tuple[list[str], Tensor] | None:
    """Keys and features of a run's images up to the stage in a folder; `None` if the folder is in no run."""
    from promptccd.runs.evaluate_run import RunEvaluation  # here, as below: the page corrects without them
    from promptccd.runs.run_directory import RunDirectory
    from promptccd.runs.stage_checkpoint import key_of

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
        images: keys of the part that becomes a category; by default the smaller part of the cut that the features
            suggest.
        name: of the new category.
        seed: of the suggestion.

    Raises:
        DataError: the category has fewer than two of these images, an image is not in it, or all were selected.
    """
    rows = found.rows_of(category)
    if len(rows) < 2:
        raise DataError(f"Category {category} has {len(rows)} images here; it takes two to split it.")
    if images is None:
        from promptccd.discovery.grouping import suggest_split

        _, smaller = suggest_split(found.features, torch.tensor(rows), seed=seed)
        images = [found.keys[row] for row in smaller.tolist()]
    chosen, members = set(images), {found.keys[row] for row in rows}
    if strangers := [each for each in images if each not in members]:
        raise DataError(
            f"{len(strangers)} of the {len(images)} images are not in category {category}, the first is "
            f"{strangers[0]!r}: select images of that category, each by its sha256 as assignments.csv has it."
        )
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

    Categories that lose or get images, and are not settled, get a new prototype.
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

    Images of earlier stages have no features any more: they go where the category's own prototype is nearest.
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

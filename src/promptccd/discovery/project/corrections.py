"""Corrections of a `Project` that need features: a category cut in two or dissolved, and other groups."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from promptccd.discovery.project import edits
from promptccd.discovery.project.changes import LogEntry
from promptccd.discovery.project.features import Features
from promptccd.discovery.project.record import PROJECT, read_record
from promptccd.discovery.project.registry import CategoryRegistry
from promptccd.errors import DataError, RegistryError
from promptccd.models.assignment import squared_distances

if TYPE_CHECKING:
    from promptccd.discovery.stage_grouping import FoundGroups


def split(
    registry: CategoryRegistry,
    features: Features,
    category: int,
    images: Sequence[str] | None = None,
    name: str | None = None,
) -> LogEntry:
    """Cut a category in two, see `Project.split`; the means of the features of both parts become their prototypes.

    A category of an earlier stage keeps its own. Images without features, such as training images,
    stay in the category.

    Raises:
        RegistryError: there are no features of the images, or see `edits.split`.
        DataError: the category has fewer than two images with features.
    """
    found = registry.category(category)
    members, matrix = features.of(registry.members_of(category))
    if not members:
        raise RegistryError(
            f"There are no features of images of category {category} here, and a split needs them: run promptccd "
            "discover on these images again, or edit the --out folder that it wrote; a stage that a run left is split "
            "inside its run."
        )
    if len(members) < 2:
        raise DataError(f"Category {category} has {len(members)} images here; it takes two to split it.")
    if not images:
        # Here, because it takes a second that other corrections need not wait.
        from promptccd.discovery.grouping import suggest_split

        _, smaller = suggest_split(matrix, torch.arange(len(members)), seed=1)
        images = [members[row] for row in smaller.tolist()]
    kept = registry.prototypes[found.prototype_row]
    part, rest = features.mean(images), features.mean(key for key in members if key not in set(images))
    if rest is None or found.is_fixed(registry.stage):
        rest = kept
    return edits.split(registry, category, images, kept if part is None else part, rest, name)


def dissolve(
    registry: CategoryRegistry, features: Features, category: int, *, rest_to_nearest: bool
) -> LogEntry:
    """Remove a group that is no category; each image goes to the nearest other category.

    Images without features go where the category's own prototype is nearest, or become unassigned if `rest_to_nearest`
    is false.

    Raises:
        RegistryError: there is no such category, or it was labelled.
    """
    members, points = features.of(registry.members_of(registry.category(category).id))
    others = registry.prototypes_of([each for each in registry.active if each.id != category])
    nearest: Mapping[str, int] = {}
    if members and others.ids:
        distances = squared_distances(points.double(), torch.from_numpy(others.matrix).double())
        nearest = {
            key: others.ids[row] for key, row in zip(members, distances.argmin(1).tolist(), strict=True)
        }
    return edits.not_a_category(registry, category, nearest, rest_to_nearest)


def find_anew(registry: CategoryRegistry, folder: Path, num_categories: int) -> "FoundGroups":
    """Find fewer or more groups of the newest images, from stored features; `registry` stays as it is.

    Categories that have a name or are of an earlier stage stay, with their images. Corrections of images stay too.

    Args:
        registry: the categories now.
        folder: of a discovery.
        num_categories: of all categories.

    Raises:
        RegistryError: there is nothing to group, or a trained model has found the groups, which then need it.
        DataError: there cannot be so many.
    """
    from promptccd.discovery.intake.seen import SeenFiles
    from promptccd.discovery.stage_grouping import Remembered, StageGrouping
    from promptccd.models.configuration import CategoryDiscoveryConfig

    if not (folder / PROJECT).is_dir():
        raise RegistryError(
            "These are categories of a run: promptccd discover MODEL IMAGES groups images again."
        )
    record = read_record(folder)
    if record["found_with"]["method"]:
        raise RegistryError(
            "A trained model has found these groups, and is needed to group again: promptccd discover "
            f"{record['found_with']['model']} IMAGES --num_categories {num_categories} with the same --out finds them, "
            "and keeps your corrections."
        )
    fixed = [each.id for each in registry.active if each.named or each.is_fixed(registry.stage)]
    temperature = CategoryDiscoveryConfig.confidence_temperature
    with closing(SeenFiles(folder / PROJECT, is_reader=True)) as seen:
        remembered = Remembered(registry, record["features"], seen)
        grouping = StageGrouping(registry, temperature, lambda ids: None, fixed, remembered, seed=1)
        found = grouping.find_anew(num_categories)
    if found is None:
        raise RegistryError(
            "All photographs are in groups that you named or ignored: there is nothing to group."
        )
    return found

"""Corrections of a `Project` that take more than a line: a category cut in two, or said to be none; other groups.

Means of features become the prototypes of categories whose images change, except of settled ones: the images of a later
stage leave a category as it was found.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from promptccd.discovery.project.edits import Edit, NotACategory, Split
from promptccd.discovery.project.features import Features
from promptccd.discovery.project.folder import PROJECT
from promptccd.discovery.project.record import read_record
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
    seed: int = 1,
) -> Edit:
    """Cut a category in two.

    Images without features, such as those that a model was trained on, stay in the category.

    Args:
        registry: the categories now.
        features: of their images.
        category: the id to cut; it stays with the images that are not given.
        images: keys of the part that becomes a category; by default the smaller part of the cut that the features
            suggest.
        name: of the new category.
        seed: of the suggestion.

    Raises:
        RegistryError: there are no features of it, or no such category.
        DataError: it has fewer than two images with features, an image is not in it, or all were selected.
    """
    found = registry.category(category)
    members, matrix = features.of(registry.members_of(category))
    if not members:
        raise RegistryError(
            f"There are no features of images of category {category} here, and without them there is no telling what "
            "each part looks like: run promptccd discover on these images again, or edit the --out folder that it "
            "wrote; a stage that a run left is split inside its run."
        )
    if len(members) < 2:
        raise DataError(f"Category {category} has {len(members)} images here; it takes two to split it.")
    if not images:
        # Here, because it takes a second that other corrections need not wait.
        from promptccd.discovery.grouping import suggest_split

        _, smaller = suggest_split(matrix, torch.arange(len(members)), seed=seed)
        images = [members[row] for row in smaller.tolist()]
    chosen = set(images)
    if strangers := [each for each in images if each not in set(members)]:
        raise DataError(
            f"{len(strangers)} of the {len(images)} images are not in category {category}, the first is "
            f"{strangers[0]!r}: select images of that category, each by its picture as assignments.csv has it."
        )
    rest = [key for key in members if key not in chosen]
    if not rest:
        raise DataError(
            f"{len(chosen)} of the {len(members)} images of category {category} were selected: select some, not all."
        )
    kept = registry.prototypes[found.prototype_row]
    return Split(
        category,
        tuple(images),
        _known(features.mean(chosen)),
        kept if found.settled(registry.stage) else _known(features.mean(rest)),
        name,
    )


def dissolve(
    registry: CategoryRegistry,
    features: Features,
    category: int,
    *,
    to_nearest: bool = True,
    rest_to_nearest: bool,
) -> Edit:
    """Say that a category is none.

    Args:
        registry: the categories now.
        features: of their images.
        category: its id.
        to_nearest: whether each of its images goes to the nearest other one; otherwise all become unassigned.
        rest_to_nearest: whether then images without features go where the category's own prototype is nearest;
            otherwise they become unassigned.

    Raises:
        RegistryError: there is no such category, or it was labelled.
    """
    if not to_nearest:
        return NotACategory(category)
    members, points = features.of(registry.members_of(registry.category(category).id))
    found = registry.active_prototypes()
    others = [row for row, identity in enumerate(found.ids) if identity != category]
    nearest: Mapping[str, int] = {}
    if members and others:
        prototypes = torch.from_numpy(found.matrix[others]).double()
        rows = squared_distances(points.double(), prototypes).argmin(1).tolist()
        nearest = {key: found.ids[others[row]] for key, row in zip(members, rows, strict=True)}
    return NotACategory(category, nearest, rest_to_nearest)


def find_anew(registry: CategoryRegistry, folder: Path, num_categories: int) -> "FoundGroups":
    """Find fewer or more groups of the newest images, from features that are kept; `registry` stays as it is.

    What a person named stays, with its images, and so does what was settled; what they said of images holds.

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
            "These are categories of a run: promptccd discover MODEL IMAGES groups images anew."
        )
    record = read_record(folder)
    if record["found_with"]["method"]:
        raise RegistryError(
            "A trained model has found these groups, and is needed for others: promptccd discover "
            f"{record['found_with']['model']} IMAGES --num_categories {num_categories} with the same --out finds them, "
            "and keeps what you corrected."
        )
    fixed = [each.id for each in registry.active if each.named or each.settled(registry.stage)]
    temperature = CategoryDiscoveryConfig.confidence_temperature
    with closing(SeenFiles(folder / PROJECT, is_reader=True)) as seen:
        remembered = Remembered(registry, record["features"], seen)
        grouping = StageGrouping(registry, temperature, lambda ids: None, fixed, remembered, seed=1)
        found = grouping.find_anew(num_categories)
    if found is None:
        raise RegistryError(
            "All photographs are in groups that you named or set aside: there is nothing to group."
        )
    return found


def _known(mean: np.ndarray | None) -> np.ndarray:
    assert mean is not None  # of images that have features
    return mean

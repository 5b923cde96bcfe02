"""Corrections that need features: where a category is cut, and what prototypes are left after images moved."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from promptccd.discovery.grouping import suggest_split
from promptccd.errors import DataError
from promptccd.models import Assignment
from promptccd.models.assignment import squared_distances
from promptccd.registry import Move, NotACategory, Split


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

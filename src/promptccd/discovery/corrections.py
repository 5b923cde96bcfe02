"""Corrections that need features: where a category is cut, and what prototypes are left after images moved."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from promptccd.discovery.grouping import suggest_split
from promptccd.discovery.standing import Standing
from promptccd.errors import DataError
from promptccd.registry import Move, NotACategory, Split


def split_category(
    standing: Standing,
    category: int,
    images: Sequence[str] | None = None,
    *,
    name: str | None = None,
    seed: int = 1,
) -> Split:
    """Cut a category in two.

    Args:
        standing: where images stand now.
        category: the id to cut; it stays with the images that are not given.
        images: keys of the part that becomes a category; none cuts where the features suggest it, the smaller part
            becoming the new one.
        name: of the new category.
        seed: of the suggestion.

    Raises:
        DataError: the category has fewer than two images here.
    """
    rows = standing.rows_of(category)
    if len(rows) < 2:
        raise DataError(f"Category {category} has {len(rows)} images here; it takes two to split it.")
    if images is None:
        _, smaller = suggest_split(standing.features, torch.tensor(rows), seed=seed)
        images = [standing.keys[row] for row in smaller.tolist()]
    chosen = set(images)
    part = [row for row in rows if standing.keys[row] in chosen]
    rest = [row for row in rows if standing.keys[row] not in chosen]
    if not part or not rest:
        raise DataError(
            f"{len(part)} of the {len(rows)} images of category {category} were selected: select some, not all."
        )
    kept = standing.grouping.prototypes[standing.grouping.ids.index(category)].numpy()
    rest_prototype = kept if _is_settled(standing, category) else _mean(standing.features[rest])
    return Split(category, tuple(images), _mean(standing.features[part]), rest_prototype, name)


def move_images(standing: Standing, images: Sequence[str], to: int | None) -> Move:
    """Put the selected images into another category, or with `None` into none.

    Categories that these images belong to, and no earlier ones, get a new prototype; settled ones keep theirs.
    """
    chosen = set(images)
    moved = [row for row, key in enumerate(standing.keys) if key in chosen]
    touched = {int(standing.grouping.category_ids[row]) for row in moved} | (
        {to} if to is not None else set()
    )
    prototypes = {}
    for category in sorted(touched):
        rows = {row for row in standing.rows_of(category) if standing.keys[row] not in chosen}
        rows |= set(moved) if category == to else set()
        if rows and not _is_settled(standing, category):
            prototypes[category] = _mean(standing.features[sorted(rows)])
    return Move(tuple(images), to, prototypes)


def dissolve_category(standing: Standing, category: int) -> NotACategory:
    """Say that a category is none; each of its images goes to the nearest other one.

    Those that are not in the standing came with earlier stages, and their features are gone: they go where the
    category's own prototype is nearest.
    """
    rows = standing.rows_of(category)
    others = [row for row, identity in enumerate(standing.grouping.ids) if identity != category]
    if not others:
        return NotACategory(category)
    ids = np.array(standing.grouping.ids)[others]
    points, prototypes = standing.features[rows].double(), standing.grouping.prototypes[others].double()
    squared = prototypes.square().sum(1) - 2 * points @ prototypes.T  # the points' own norms change no order
    nearest = ids[squared.argmin(1).numpy()] if rows else []
    return NotACategory(
        category,
        {standing.keys[row]: int(identity) for row, identity in zip(rows, nearest, strict=True)},
        rest_to_nearest=True,
    )


def _is_settled(standing: Standing, category: int) -> bool:
    return category in standing.grouping.ids[: standing.grouping.num_known]


def _mean(features: Tensor) -> np.ndarray:
    return features.double().mean(0).numpy()

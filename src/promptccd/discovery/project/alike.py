"""Categories that lie so close that they may be one: proposed to people, never merged by themselves."""

from collections import Counter

import numpy as np

from promptccd.discovery.project.registry import CategoryRegistry

ALIKE = 0.6  # of the squared distance that a category usually has to the one nearest to it
MOST_ALIKE = 6  # pairs: a few that somebody looks at


def alike_pairs(registry: CategoryRegistry) -> list[tuple[int, int]]:
    """Pairs of ids of active categories that lie unusually close, closest first, at most `MOST_ALIKE`.

    Two that bear a label or a person's name are told apart already, and one of which a person chose most of the images
    is what it is.

    Example:
        >>> alike_pairs(CategoryRegistry())
        []
    """
    active = registry.active
    if len(active) < 3:  # nothing is unusual about the only distance
        return []
    chosen = Counter(registry.pinned.values())
    made = np.array([2 * chosen[each.id] > each.size for each in active])
    told = np.array([each.known or each.named for each in active])
    points = registry.prototypes_of(active).matrix.astype(np.float64)
    points /= np.linalg.norm(points, axis=1, keepdims=True).clip(min=1e-12)
    squared = 2 - 2 * points @ points.T
    np.fill_diagonal(squared, np.inf)
    limit = ALIKE * np.median(squared.min(1))
    settled = (told[:, None] & told) | made[:, None] | made
    rows, columns = np.nonzero(np.triu(squared < limit) & ~settled)
    closest = np.argsort(squared[rows, columns], kind="stable")[:MOST_ALIKE].tolist()
    return [(active[rows[each]].id, active[columns[each]].id) for each in closest]

"""Proposals: what to check next, and groups that look like two or like one."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from promptccd.discovery.project.features import Features
from promptccd.discovery.project.registry import CategoryRegistry

SCREEN = 24
OFFERED = 9  # groups that a digit chooses
SEEDS = 4  # the most confident of a group represent it until as many are reviewed
TWO, FEWEST_OF_TWO = 0.21, 10  # see `halves`
_MOST_SEEDS, _MOST_LOOKED_AT = 50, 20_000  # of a group; photographs, least sure first
_LIKEST, _SHARPNESS = 3, 20.0
LIKELY = 0.7  # of the likeness to all groups, from which on 8 of 10 are right where they are
TRUSTED = 0.6  # share of reviewed photographs that stayed in a group, below which the group is not proposed


def screen(
    registry: CategoryRegistry, features: Features, keys: Sequence[str], skipped: Collection[str] = ()
) -> dict[str, Any] | None:
    """The photographs that are worth most to check at once; `None` if there is nothing left.

    Each photograph is likened to the three most similar reviewed photographs of every group. Photographs come first
    that are likely to be right, least likely first: most of a screen is right, and one key confirms it. Then come all
    other photographs, most contradicted first. Of photographs that look more like another group, 15 to 40 % belong
    there (Caltech-101, ten draws, with the backbone ``photographs``), so they are not proposed together.

    Args:
        registry: the categories.
        features: of the photographs.
        keys: the photographs in groups that are there.
        skipped: photographs to leave out.

    Returns:
        The ``group``; whether most are ``likely`` to belong there; the keys of ``images``, similar ones together, with
        the ``like`` of each to that group and the groups that are ``offered`` instead, likest first; and the number
        of ``reviewed`` photographs of the group.
    """
    sure, members, pinned = registry.confidences, registry.members, registry.pinned
    reviews = registry.reviews
    reviewed = reviews.keys() & pinned.keys()
    kept = [key for key in keys if key in features.row_of]
    by_group: dict[int, list[str]] = {}
    for key in sorted(kept, key=lambda each: (each not in reviewed, -sure.get(each, 1.0), each)):
        by_group.setdefault(members[key], []).append(key)
    asked = sorted(
        (key for key in kept if key not in reviewed and key not in skipped),
        key=lambda each: (sure.get(each, 1.0), each),
    )[:_MOST_LOOKED_AT]
    if not asked or len(by_group) < 2:
        return None
    ids = sorted(by_group)
    matrix, likeness = features.of(asked)[1], np.zeros((len(asked), len(ids)))
    rows = {key: row for row, key in enumerate(asked)}
    for place, group in enumerate(ids):
        known = sum(key in reviewed for key in by_group[group])
        seeds = by_group[group][: max(SEEDS, min(known, _MOST_SEEDS))]
        like = matrix @ features.of(seeds)[1].T
        for column, key in enumerate(seeds):
            if key in rows:
                like[rows[key], column] = -1  # it does not speak for itself
        likeness[:, place] = np.sort(like)[:, -_LIKEST:].mean(1)
    shares = np.exp(_SHARPNESS * likeness)
    shares /= shares.sum(1, keepdims=True)
    placed = np.array([ids.index(members[key]) for key in asked])
    best, own = shares.argmax(1), shares[np.arange(len(asked)), placed]
    doubt = np.where(best == placed, -own, shares.max(1) - own)
    seen = Counter(each.was for each in reviews.values())
    stayed = Counter(each.was for key, each in reviews.items() if members.get(key) == each.was)
    usual = (stayed.total() + 3) / (seen.total() + 4)  # of all groups, for a group with few reviews
    trusted = np.array([(stayed[group] + 4 * usual) / (seen[group] + 4) >= TRUSTED for group in ids])
    likely = (best == placed) & (own >= LIKELY) & trusted[placed]
    pool = likely if likely.any() else np.ones_like(likely)
    worth = dict[int, np.ndarray]()
    for place in set(best[pool].tolist()):
        mine = np.flatnonzero((best == place) & pool)
        worth[place] = mine[np.argsort(-doubt[mine], kind="stable")][:SCREEN]
    place = max(worth, key=lambda each: (float((doubt[worth[each]] + 1).sum()), -each))
    chosen = worth[place][_like_beside_like(matrix[worth[place]])]
    order = np.argsort(-shares[chosen], kind="stable")[:, :OFFERED]
    return {
        "group": ids[place],
        "likely": bool(likely.any()),
        "reviewed": sum(key in reviewed for key in by_group[ids[place]]),
        "images": [asked[row] for row in chosen],
        "like": [round(float(likeness[row, place]), 3) for row in chosen],
        "offered": [[ids[each] for each in row] for row in order.tolist()],
    }


def halves(
    registry: CategoryRegistry, features: Features, category: int
) -> tuple[list[str], list[str]] | None:
    """The two parts that Split would make of a category that looks like two, the larger first; `None` of any other.

    The measure is the distance of the parts' means, without what noise adds to it, in distances of neighbouring
    categories, times the share of the smaller part. Of groups that are half one class and half another, 9 of 10 reach
    `TWO`, and 4 of 10 other groups (Caltech-101, fourteen draws, with the backbone ``photographs``).
    """
    import torch

    from promptccd.clustering.kmeans import suggest_split

    means = torch.from_numpy(registry.prototypes_of(registry.active).matrix).double()
    members, vectors = features.of(registry.members_of(category))
    points = torch.from_numpy(vectors)
    if len(members) < FEWEST_OF_TWO or len(means) < 3 or bool((points == points[0]).all()):
        return None
    near = torch.cdist(means, means).fill_diagonal_(torch.inf).min(1).values.median()
    parts = suggest_split(points, seed=1)
    inside = [points[part].double() for part in parts]
    noise = sum(float(part.var(0, correction=0).sum()) / max(1, len(part) - 1) for part in inside)
    apart = float((inside[0].mean(0) - inside[1].mean(0)).square().sum()) - noise
    if max(0.0, apart) ** 0.5 / float(near) * len(parts[1]) / len(members) < TWO:
        return None
    larger, smaller = ([members[row] for row in part.tolist()] for part in parts)
    return larger, smaller


def _like_beside_like(points: np.ndarray) -> list[int]:
    """Rows of unit vectors in an order in which each is followed by the most similar remaining row."""
    likeness, order = points @ points.T, [0]
    likeness[:, 0] = -np.inf
    while len(order) < len(points):
        order.append(int(likeness[order[-1]].argmax()))
        likeness[:, order[-1]] = -np.inf
    return order

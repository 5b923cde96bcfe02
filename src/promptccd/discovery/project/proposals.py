"""Screens to check: photographs that one group is proposed for, by those that a person has put or left there."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from promptccd.discovery.project.features import Features
from promptccd.discovery.project.registry import CategoryRegistry

SCREEN = 24
OFFERED = 9  # groups that a digit chooses
SEEDS = 4  # the surest of a group stand for it until as many are reviewed
_MOST_SEEDS, _MOST_LOOKED_AT = 50, 20_000  # of a group; photographs, least sure first
_LIKEST, _SHARPNESS = 3, 20.0


def screen(
    registry: CategoryRegistry, features: Features, keys: Sequence[str], skipped: Collection[str] = ()
) -> dict[str, Any] | None:
    """The photographs that are worth most to check at once; `None` if there is nothing left.

    Each photograph is likened to the three likest of every group's reviewed ones. First come those that speak most
    against the group that they are in, all for the same other one; then those that hardly speak for theirs.

    Args:
        registry: the categories.
        features: of the photographs.
        keys: the photographs in groups that are there.
        skipped: those that are not asked about.

    Returns:
        The ``group``; the keys of ``images``, like beside like, with the ``like`` of each to that group and the
        groups that are ``offered`` instead, likest first; and how many ``reviewed`` ones the group has.
    """
    sure, members, pinned = registry.confidences.read(), registry.members.read(), registry.pinned.read()
    reviewed = registry.looks.read().keys() & pinned.keys()
    kept = [key for key in keys if key in features.row_of]
    by_group: dict[int, list[str]] = {}
    for key in sorted(kept, key=lambda each: (each not in reviewed, -sure.get(each, 1.0), each)):
        by_group.setdefault(members[key], []).append(key)
    asked = sorted(
        (key for key in kept if key not in pinned and key not in skipped),
        key=lambda each: (sure.get(each, 1.0), each),
    )[:_MOST_LOOKED_AT]
    if not asked or len(by_group) < 2:
        return None
    ids = sorted(by_group)
    matrix, likeness = features.of(asked)[1], torch.zeros(len(asked), len(ids))
    rows = {key: row for row, key in enumerate(asked)}
    for place, group in enumerate(ids):
        known = sum(key in reviewed for key in by_group[group])
        seeds = by_group[group][: max(SEEDS, min(known, _MOST_SEEDS))]
        like = matrix @ features.of(seeds)[1].T
        for column, key in enumerate(seeds):
            if key in rows:
                like[rows[key], column] = -1  # it does not speak for itself
        likeness[:, place] = like.topk(min(_LIKEST, len(seeds)), dim=1).values.mean(1)
    shares = (_SHARPNESS * likeness).softmax(1).numpy()
    homes = np.array([ids.index(members[key]) for key in asked])
    best, own = shares.argmax(1), shares[np.arange(len(asked)), homes]
    doubt = np.where(best == homes, -own, shares.max(1) - own)
    worth = dict[int, np.ndarray]()
    for place in set(best.tolist()):
        mine = np.flatnonzero(best == place)
        worth[place] = mine[np.argsort(-doubt[mine], kind="stable")][:SCREEN]
    place = max(worth, key=lambda each: (float((doubt[worth[each]] + 1).sum()), -each))
    chosen = worth[place][_like_beside_like(matrix[worth[place]])]
    order = np.argsort(-shares[chosen], axis=1, kind="stable")[:, :OFFERED]
    return {
        "group": ids[place],
        "reviewed": sum(key in reviewed for key in by_group[ids[place]]),
        "images": [asked[row] for row in chosen],
        "like": [round(float(likeness[row, place]), 3) for row in chosen],
        "offered": [[ids[each] for each in row] for row in order.tolist()],
    }


def _like_beside_like(points: torch.Tensor) -> list[int]:
    """Rows of unit vectors in an order in which each is followed by the likest of the others."""
    likeness, order = points @ points.T, [0]
    likeness[:, 0] = -torch.inf
    while len(order) < len(points):
        order.append(int(likeness[order[-1]].argmax()))
        likeness[:, order[-1]] = -torch.inf
    return order

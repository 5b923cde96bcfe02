"""Bring a grouping of a stage into a registry: ids, names and edits stay, and new categories get ids."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from promptccd.clustering.constraints import GroupingConstraints
from promptccd.errors import RegistryError
from promptccd.registry.draft import Draft
from promptccd.registry.matching import NEW, REJECTED, StageGroups, match_clusters, weighted_mean
from promptccd.registry.tables import LONGEST_KEY, SAME, Pair, Tables

_UNASSIGNED = -1
_SAME_PROTOTYPE = 1e-6  # rounding of a mean, not another mean


class Growth(NamedTuple):
    """What `grow` decided, beside the new values in its draft: see the attributes of `StageChange`."""

    cluster_ids: tuple[int | None, ...]
    rejected: tuple[str, ...]
    unsatisfied: tuple[Pair, ...]


def grow(draft: Draft, stage: int, groups: StageGroups) -> Growth:
    """Let a draft hold the registry after a grouping.

    Args:
        draft: of the registry.
        stage: stage of the images that were never seen before.
        groups: the grouping.

    Raises:
        RegistryError: the grouping is malformed, or does not fit the registry.
    """
    groups.check()
    tables, prototypes = draft.tables, draft.prototypes
    if len(prototypes) and prototypes.shape[1] != groups.prototypes.shape[1]:
        raise RegistryError(
            f"Expected prototypes of {prototypes.shape[1]} values as the registry has, got "
            f"{groups.prototypes.shape[1]}: these are features of another backbone."
        )
    for key in groups.keys:
        if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
            raise RegistryError(f"Expected keys of 1 to {LONGEST_KEY} characters, got {str(key)[:60]!r}.")
    clusters = np.asarray(groups.clusters, dtype=np.int64)
    matched = match_clusters(groups, tables, prototypes)
    constraints = tables.constraints()
    # A target is an id, no category, or for cluster k that has none yet: first_new + k.
    first_new = draft.next_id
    targets = _targets(groups.keys, clusters, matched, tables, first_new)
    _keep_together(targets, constraints, tables)
    _keep_apart(targets, constraints, tables)
    numbers = _number(draft, targets, first_new, stage)
    homes = np.array([numbers.get(targets[key], targets[key]) for key in groups.keys], dtype=np.int64)
    for index, (key, home) in enumerate(zip(groups.keys, homes.tolist(), strict=True)):
        if key not in tables.images:
            draft.put("images", key, stage)
        draft.put("members", key, None if home == _UNASSIGNED else home)
        if groups.confidences is not None:
            draft.put("confidences", key, round(float(groups.confidences[index]), 6))
    ids = [
        numbers.get(first_new + cluster) if each == NEW else None if each == REJECTED else int(each)
        for cluster, each in enumerate(matched.tolist())
    ]
    _update_prototypes(draft, groups, ids, homes, first_new)
    rejected = [
        key for key, cluster in zip(groups.keys, clusters, strict=True) if matched[cluster] == REJECTED
    ]
    return Growth(tuple(ids), tuple(rejected), _unsatisfied(tables))


def _targets(
    keys: Sequence[str], clusters: np.ndarray, matched: np.ndarray, tables: Tables, first_new: int
) -> dict[str, int]:
    targets: dict[str, int] = {}
    for key, cluster in zip(keys, clusters.tolist(), strict=True):
        stays = tables.members.get(key, _UNASSIGNED)
        found = int(matched[cluster])
        target = first_new + cluster if found == NEW else stays if found == REJECTED else found
        if target in tables.forbidden.get(key, ()):
            target = stays
        targets[key] = tables.pinned.get(key, target)
    return targets


def _keep_together(targets: dict[str, int], constraints: GroupingConstraints, tables: Tables) -> None:
    """Linked images follow those that are pinned or not being grouped, else the majority."""
    components: dict[str, list[str]] = {}
    for key in sorted({key for pair in constraints.must_link for key in pair}):
        components.setdefault(constraints.component_of(key), []).append(key)
    for keys in components.values():
        fixed = [
            tables.members[key]
            for key in keys
            if key in tables.members and (key in tables.pinned or key not in targets)
        ]
        votes = fixed or [targets[key] for key in keys if targets.get(key, _UNASSIGNED) != _UNASSIGNED]
        if not votes:
            continue
        winner = min(set(votes), key=lambda each: (-votes.count(each), each))
        for key in keys:
            if key in targets and key not in tables.pinned and winner not in tables.forbidden.get(key, ()):
                targets[key] = winner


def _keep_apart(targets: dict[str, int], constraints: GroupingConstraints, tables: Tables) -> None:
    """Of two images that came together and must not, one that was elsewhere before goes back there."""
    linked = {key for pair in constraints.must_link for key in pair}
    for pair in constraints.cannot_link:
        homes = [targets.get(key, tables.members.get(key, _UNASSIGNED)) for key in pair]
        if homes[0] != homes[1] or homes[0] == _UNASSIGNED:
            continue
        for key in reversed(pair):
            before = tables.members.get(key, homes[0])
            if key in targets and key not in tables.pinned and key not in linked and before != homes[0]:
                targets[key] = before
                break


def _number(draft: Draft, targets: Mapping[str, int], first_new: int, stage: int) -> dict[int, int]:
    """New ids by target, of clusters that have none and got images, largest first."""
    sizes = Counter(target - first_new for target in targets.values() if target >= first_new)
    numbers: dict[int, int] = {}
    for cluster in sorted(sizes, key=lambda each: (-sizes[each], each)):
        numbers[first_new + cluster] = draft.new_category(stage)
    return numbers


def _update_prototypes(
    draft: Draft, groups: StageGroups, ids: list[int | None], homes: np.ndarray, first_new: int
) -> None:
    """A category takes its clusters' mean if its images are theirs, else the mean of its own images if known."""
    prototypes, clusters = draft.prototypes, np.asarray(groups.clusters, dtype=np.int64)
    by_cluster = np.array([_UNASSIGNED if each is None else each for each in ids], dtype=np.int64)[clusters]
    sizes = np.bincount(clusters, minlength=len(ids))
    for identity in sorted(
        {int(each) for each in homes.tolist()} | {each for each in ids if each is not None}
    ):
        if identity == _UNASSIGNED:
            continue
        category, own = draft.tables.categories[identity], homes == identity
        rows = [cluster for cluster, each in enumerate(ids) if each == identity]
        is_first = identity >= first_new or not len(prototypes)
        if rows and np.array_equal(own, by_cluster == identity):
            vector = weighted_mean(groups.prototypes[rows], sizes[rows])
        elif groups.features is not None and own.any():
            vector = groups.features[own].mean(axis=0, dtype=np.float64)
        elif is_first:
            vector = weighted_mean(groups.prototypes[rows], sizes[rows])
        else:
            continue
        if is_first or np.abs(prototypes[category.prototype_row] - vector).max() > _SAME_PROTOTYPE:
            draft.set_prototype(identity, vector)


def _unsatisfied(tables: Tables) -> tuple[Pair, ...]:
    found = []
    for pair, answer in sorted(tables.links.items()):
        homes = [tables.members.get(key) for key in pair]
        if None not in homes and (homes[0] == homes[1]) != (answer == SAME):
            found.append(pair)
    return tuple(found)

"""Bring a grouping of a stage into a registry: ids, names and edits stay, and new categories get ids.

First every cluster is matched to the registered category that it is, if any. Three kinds of evidence count, in this
order: the grouping says it (clusters grown around a category's images or prototype), the cluster holds images of the
category (a stage that is grouped again), or both have much the same prototype (new images of a category discovered
before). Images that a person has pinned say little about a cluster: they stay in their category whatever was found.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from promptccd.clustering.constraints import GroupingConstraints
from promptccd.errors import RegistryError
from promptccd.registry.categories import LONGEST_KEY
from promptccd.registry.rows import Rows, Snapshot
from promptccd.registry.store import stored_key

NO_CATEGORY = -1  # in place of a cluster or a category, of an image that is in none
NEW, REJECTED = -1, -2  # clusters that are no registered category, or that a person said are none
MIN_SIMILARITY = 0.9  # least cosine of two prototypes of one category that are each other's nearest
_SAME_PROTOTYPE = 1e-6  # rounding of a mean, not another mean


@dataclass(frozen=True, eq=False)
class StageGroups:
    """What a grouping of a stage's images found.

    Attributes:
        keys: the images, each once, ``N`` of them. They may include images of earlier stages.
        clusters: row of every image's cluster, ``(N,)`` integers in ``0..K-1``, -1 for an image that waits without one.
        prototypes: mean of every cluster's unit features, ``(K, D)``. A cluster may be without images.
        ids: category of every cluster, ``K`` long, `None` where it is not settled; by default it never is.
        confidences: how sure each assignment is, ``(N,)`` in 0..1; without them nothing is reported as unsure.
        features: unit features ``(N, D)``. With them, a category that edits made different from its cluster gets
            the mean of its own images as a prototype; without them it keeps its prototype.
    """

    keys: Sequence[str]
    clusters: np.ndarray
    prototypes: np.ndarray
    ids: Sequence[int | None] | None = None
    confidences: np.ndarray | None = None
    features: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        keys: Sequence[str],
        category_ids: np.ndarray,
        ids: Sequence[int],
        prototypes: np.ndarray,
        *,
        settled: Container[int],
        confidences: np.ndarray | None = None,
        features: np.ndarray | None = None,
    ) -> "StageGroups":
        """Groups that bear ids, of which only those in `settled` are categories of the registry already.

        Args:
            keys: the images.
            category_ids: id of every image's group, ``(N,)``, -1 for an image that waits.
            ids: of all groups, ``K`` long.
            prototypes: of these, ``(K, D)``.
            settled: ids that stay; groups with another id are matched, or get an id of the registry.
            confidences: see the class.
            features: see the class.
        """
        row_of = {NO_CATEGORY: NO_CATEGORY} | {identity: row for row, identity in enumerate(ids)}
        clusters = np.array([row_of[each] for each in category_ids.tolist()], dtype=np.int64)
        kept = [identity if identity in settled else None for identity in ids]
        return cls(keys, clusters, prototypes, kept, confidences, features)

    @property
    def settled(self) -> Sequence[int | None]:
        """`ids`, as long as there are clusters."""
        return [None] * len(self.prototypes) if self.ids is None else self.ids

    def placed(self) -> tuple["StageGroups", list[str]]:
        """The images in clusters, and the keys of those that wait."""
        inside = self.clusters != NO_CATEGORY
        if inside.all():  # of millions of images the copies below take gigabytes
            return self, []
        rows = np.flatnonzero(inside).tolist()
        placed = replace(
            self,
            keys=[self.keys[row] for row in rows],
            clusters=self.clusters[inside],
            confidences=None if self.confidences is None else self.confidences[inside],
            features=None if self.features is None else self.features[inside],
        )
        return placed, [self.keys[row] for row in np.flatnonzero(~inside).tolist()]

    def checked(self) -> "StageGroups":
        """The grouping with clusters as 64-bit integers.

        Raises:
            RegistryError: lengths differ, a key or a settled id occurs twice, or a value is out of range.
        """
        for name in ("clusters", "confidences", "features"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.keys):
                raise RegistryError(f"Expected {len(self.keys)} {name}, one per image, got {len(values)}.")
        for key in self.keys:
            if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
                raise RegistryError(f"Expected keys of 1 to {LONGEST_KEY} characters, got {str(key)[:60]!r}.")
        if (repeated := _repeated(self.keys)) is not None:
            raise RegistryError(f"Image {repeated!r} was grouped twice: leave duplicates out.")
        if (repeated := _repeated(each for each in self.settled if each is not None)) is not None:
            raise RegistryError(f"Two clusters are said to be category {repeated}: join them first.")
        self._check_values()
        return replace(self, clusters=np.asarray(self.clusters).astype(np.int64))

    def _check_values(self) -> None:
        count, clusters = len(self.prototypes), np.asarray(self.clusters)
        if len(self.settled) != count:
            raise RegistryError(f"Expected {count} ids, one per cluster, got {len(self.settled)}.")
        if len(clusters) and clusters.dtype.kind not in "iu":
            raise RegistryError(f"Expected clusters to be integers, got {clusters.dtype}.")
        if len(clusters) and not NO_CATEGORY <= clusters.min() <= clusters.max() < count:
            raise RegistryError(
                f"Expected clusters of 0 to {count - 1}, or -1, got {clusters.min()} to {clusters.max()}."
            )
        if self.prototypes.ndim != 2 or not np.isfinite(self.prototypes).all():
            raise RegistryError(f"Expected finite prototypes (K, D), got shape {self.prototypes.shape}.")
        if self.confidences is not None and not ((self.confidences >= 0) & (self.confidences <= 1)).all():
            raise RegistryError("Expected confidences of 0 to 1, got one outside or NaN.")


def apply_grouping(rows: Rows, stage: int, groups: StageGroups, before: Snapshot) -> tuple[int | None, ...]:
    """Bring a grouping into the rows of a registry; returns `StageChange.cluster_ids`.

    Args:
        rows: of the registry, within a transaction.
        stage: stage of the images that were never seen before.
        groups: the grouping.
        before: what the registry knows.

    Raises:
        RegistryError: the grouping is malformed, or does not fit the registry.
    """
    groups, waiting = groups.checked().placed()
    prototypes, constraints = rows.prototypes, rows.constraints()
    if len(prototypes) and prototypes.shape[1] != groups.prototypes.shape[1]:
        raise RegistryError(
            f"Expected prototypes of {prototypes.shape[1]} values as the registry has, got "
            f"{groups.prototypes.shape[1]}: these are features of another backbone."
        )
    found = {key: (before.pinned.get(key), None) for key in waiting}
    elsewhere = before
    if gone := {key for key, (home, _) in found.items() if home is None}:
        members = {key: home for key, home in before.members.items() if key not in gone}
        elsewhere = replace(before, members=members)
    matched = _match_clusters(groups, elsewhere, constraints, prototypes)
    # A target is an id, no category, or for cluster k that has none yet: first_new + k.
    first_new = rows.next_id
    targets = _targets(groups.keys, groups.clusters, matched, elsewhere, constraints, first_new)
    _keep_together(targets, constraints, elsewhere)
    _keep_apart(targets, constraints, elsewhere)
    numbers = _number(rows, targets, first_new, stage)
    homes = np.array([numbers.get(targets[key], targets[key]) for key in groups.keys])
    sure = np.full(len(homes), None) if groups.confidences is None else groups.confidences.tolist()
    for key, home, confidence in zip(groups.keys, homes.tolist(), sure, strict=True):
        found[key] = (
            None if home == NO_CATEGORY else home,
            None if confidence is None else round(confidence, 6),
        )
    _write_images(rows, stage, before, found)
    ids = [
        numbers.get(first_new + cluster) if each == NEW else None if each == REJECTED else int(each)
        for cluster, each in enumerate(matched.tolist())
    ]
    _update_prototypes(rows, groups, ids, homes, first_new, prototypes, before)
    return tuple(ids)


def _write_images(
    rows: Rows, stage: int, before: Snapshot, found: Mapping[str, tuple[int | None, float | None]]
) -> None:
    """Put images into categories, or into none, with a confidence where there is one; new ones come with a stage.

    Random draws, and reviews of images that moved, say nothing of places that no person changed.
    """
    moved = {key for key, (home, _) in found.items() if before.members.get(key) != home}
    reviewed = rows.looks.read().keys() & found.keys() if moved else set()
    rows.store.run_each(
        "insert into image(key, stage, category, confidence, pinned, unseen, quarter) values(?, ?, ?, ?, 0, 0, 0)",
        [(stored_key(key), stage, *found[key]) for key in sorted(found.keys() - before.images.keys())],
    )
    rows.store.run_each(
        "update image set category = ?, confidence = coalesce(?, confidence) where key = ?",
        [
            (home, sure, stored_key(key))
            for key, (home, sure) in found.items()
            if key in before.images and (key in moved or sure not in (None, before.confidences.get(key)))
        ],
    )
    rows.count_images()
    if reviewed & moved:
        rows.choose(reviewed & moved)
        rows.drop_looks()
    rows.store.run_each(
        "update image set unseen = 0 where key = ?", [(stored_key(key),) for key in sorted(reviewed - moved)]
    )


def _targets(
    keys: Sequence[str],
    clusters: np.ndarray,
    matched: np.ndarray,
    before: Snapshot,
    constraints: GroupingConstraints,
    first_new: int,
) -> dict[str, int]:
    targets: dict[str, int] = {}
    for key, cluster in zip(keys, clusters.tolist(), strict=True):
        stays = before.members.get(key, NO_CATEGORY)
        found = int(matched[cluster])
        target = first_new + cluster if found == NEW else stays if found == REJECTED else found
        if target in constraints.forbidden.get(key, ()):
            target = stays
        targets[key] = before.pinned.get(key, target)
    return targets


def _keep_together(targets: dict[str, int], constraints: GroupingConstraints, before: Snapshot) -> None:
    """Linked images follow those that are pinned or not being grouped, else the majority."""
    components: dict[str, list[str]] = {}
    for key in sorted({key for pair in constraints.must_link for key in pair}):
        components.setdefault(constraints.component_of(key), []).append(key)
    for keys in components.values():
        fixed = [
            before.members[key]
            for key in keys
            if key in before.members and (key in before.pinned or key not in targets)
        ]
        votes = fixed or [targets[key] for key in keys if targets.get(key, NO_CATEGORY) != NO_CATEGORY]
        if not votes:
            continue
        winner = min(set(votes), key=lambda each: (-votes.count(each), each))
        for key in keys:
            if (
                key in targets
                and key not in before.pinned
                and winner not in constraints.forbidden.get(key, ())
            ):
                targets[key] = winner


def _keep_apart(targets: dict[str, int], constraints: GroupingConstraints, before: Snapshot) -> None:
    """Of two images that came together and must not, one that was elsewhere before goes back there."""
    linked = {key for pair in constraints.must_link for key in pair}
    for pair in constraints.cannot_link:
        home, other = (targets.get(key, before.members.get(key, NO_CATEGORY)) for key in pair)
        if home != other:
            continue
        for key in reversed(pair):
            earlier = before.members.get(key, home)
            if key in targets and key not in before.pinned and key not in linked and earlier != home:
                targets[key] = earlier
                break


def _number(rows: Rows, targets: Mapping[str, int], first_new: int, stage: int) -> dict[int, int]:
    """New ids by target, of clusters that have none and got images, largest first."""
    sizes = Counter(target - first_new for target in targets.values() if target >= first_new)
    numbers: dict[int, int] = {}
    for cluster in sorted(sizes, key=lambda each: (-sizes[each], each)):
        numbers[first_new + cluster] = rows.new_category(stage)
    return numbers


def _update_prototypes(
    registered: Rows,
    groups: StageGroups,
    ids: list[int | None],
    homes: np.ndarray,
    first_new: int,
    prototypes: np.ndarray,
    before: Snapshot,
) -> None:
    """A category takes its clusters' mean if its images are theirs, else the mean of its own images if known."""
    by_cluster = np.array([NO_CATEGORY if each is None else each for each in ids])[groups.clusters]
    sizes = np.bincount(groups.clusters, minlength=len(ids))
    for identity in sorted({*homes.tolist(), *ids} - {NO_CATEGORY, None}):
        category, own = before.categories.get(identity), homes == identity
        rows = [cluster for cluster, each in enumerate(ids) if each == identity]
        if category is not None and category.aside:  # later images like it must not change what it looks like
            continue
        is_first = identity >= first_new
        if rows and (own == (by_cluster == identity)).all():
            vector = weighted_mean(groups.prototypes[rows], sizes[rows])
        elif groups.features is not None and own.any():
            vector = groups.features[own].mean(axis=0, dtype=np.float64)
        elif is_first:
            vector = weighted_mean(groups.prototypes[rows], sizes[rows])
        else:
            continue
        if category is None or np.abs(prototypes[category.prototype_row] - vector).max() > _SAME_PROTOTYPE:
            registered.set_prototypes({identity: vector})


@dataclass
class _Evidence:
    """How many images of each cluster speak for each category.

    Columns are the categories that are not retired, and those that a person rejected: images that were taken out of
    these speak for them.
    """

    columns: list[int]
    free: np.ndarray  # (K, C) images nobody pinned
    pinned: np.ndarray  # (K, C)
    sizes: np.ndarray  # (K,) images of the cluster
    unpinned: np.ndarray  # (K,) of them not pinned
    totals: np.ndarray  # (C,) images that could speak for the category


def _match_clusters(
    groups: StageGroups, before: Snapshot, constraints: GroupingConstraints, prototypes: np.ndarray
) -> np.ndarray:
    """Category of every cluster ``(K,)``, or `NEW`, or `REJECTED`."""
    found = _settled(groups, before)
    evidence = _gather(groups, before, constraints)
    _by_shared_images(found, evidence, before)
    _join_merged(found, evidence, before)
    _by_prototype(found, groups, evidence, before, prototypes)
    return found


def _settled(groups: StageGroups, before: Snapshot) -> np.ndarray:
    found = np.full(len(groups.prototypes), NEW)
    for cluster, identity in enumerate(groups.settled):
        if identity is None:
            continue
        if identity not in before.categories:
            raise RegistryError(
                f"Cluster {cluster} is said to be category {identity}, which was never registered. Leave it open "
                "and it gets an id."
            )
        found[cluster] = _or_rejected(before.resolve(identity))
    return found


def _or_rejected(identity: int | None) -> int:
    return REJECTED if identity is None else identity


def _gather(groups: StageGroups, before: Snapshot, constraints: GroupingConstraints) -> _Evidence:
    living = [each.id for each in before.not_retired()]
    rejected = [each.id for each in before.categories.values() if each.rejected]
    columns = [*living, *rejected]
    position = {identity: column for column, identity in enumerate(columns)}
    free = np.zeros((len(groups.prototypes), len(columns)))
    pinned = np.zeros_like(free)
    unpinned = np.zeros(len(free))
    for key, cluster in zip(groups.keys, np.asarray(groups.clusters).tolist(), strict=True):
        if key in before.pinned:
            pinned[cluster, position[before.pinned[key]]] += 1
            continue
        unpinned[cluster] += 1
        if key in before.members:
            free[cluster, position[before.members[key]]] += 1
        for identity in constraints.forbidden.get(key, ()):
            if before.categories[identity].rejected:
                free[cluster, position[identity]] += 1
    totals = np.array([before.categories[each].size for each in columns])
    for identities in constraints.forbidden.values():
        for identity in identities:
            if before.categories[identity].rejected:
                totals[position[identity]] += 1
    sizes = np.bincount(groups.clusters, minlength=len(free))
    return _Evidence(columns, free, pinned, sizes, unpinned, totals)


def _by_shared_images(found: np.ndarray, evidence: _Evidence, before: Snapshot) -> None:
    """One category per cluster, so that as many images as possible stay where they are.

    A pair must share half of the cluster's images or half of the category's. Pinned images break ties only.
    """
    from scipy.optimize import linear_sum_assignment  # here, because names are read and given without it

    open_clusters = np.flatnonzero(found == NEW)
    taken = set(found.tolist())
    open_columns = np.flatnonzero([identity not in taken for identity in evidence.columns])
    part = np.ix_(open_clusters, open_columns)
    shared = evidence.free[part] + evidence.pinned[part]
    enough = (2 * shared >= evidence.sizes[open_clusters, None]) | (
        2 * shared >= evidence.totals[None, open_columns]
    )
    weight = evidence.free[part] + evidence.pinned[part] / (1 + evidence.pinned.sum())
    weight = np.where(enough, weight, 0)
    for row, column in zip(*linear_sum_assignment(weight, maximize=True), strict=True):
        if weight[row, column] > 0:
            identity = evidence.columns[open_columns[column]]
            found[open_clusters[row]] = REJECTED if before.categories[identity].rejected else identity


def _join_merged(found: np.ndarray, evidence: _Evidence, before: Snapshot) -> None:
    """A cluster most of whose images are in a merged category is a part of it that must not come apart."""
    survivors = {
        before.resolve(each.id) for each in before.categories.values() if each.merged_into is not None
    }
    for cluster in np.flatnonzero(found == NEW):
        if not evidence.free[cluster].any():
            continue
        column = int(evidence.free[cluster].argmax())
        most = 2 * evidence.free[cluster, column] >= evidence.unpinned[cluster]
        if most and evidence.columns[column] in survivors:
            found[cluster] = evidence.columns[column]


def _by_prototype(
    found: np.ndarray,
    groups: StageGroups,
    evidence: _Evidence,
    before: Snapshot,
    prototypes: np.ndarray,
) -> None:
    """Clusters and categories that are each other's nearest, among all of them, and near enough.

    Retired categories take part: what is nearest to one that was merged belongs to the survivor, and what is
    nearest to one that was rejected is rejected again.
    """
    candidates = [
        (identity, row) for identity in sorted(before.categories) for row in before.categories[identity].rows
    ]
    if not candidates:
        return
    similarity = unit(groups.prototypes) @ unit(prototypes[[row for _, row in candidates]]).T
    taken = set(found.tolist())
    for cluster in np.flatnonzero((found == NEW) & (evidence.unpinned > 0)):
        nearest = int(similarity[cluster].argmax())
        mutual = int(similarity[:, nearest].argmax()) == cluster
        identity, row = candidates[nearest]
        is_taken = identity in taken and row == before.categories[identity].prototype_row
        if not mutual or similarity[cluster, nearest] < MIN_SIMILARITY or is_taken:
            continue
        found[cluster] = _or_rejected(before.resolve(identity))


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1 in float64; a row of zeros stays one."""
    vectors = vectors.astype(np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float64).tiny)


def weighted_mean(means: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Mean in float64 of the images of which these are means, from their numbers; of the means where all are 0."""
    return np.average(means.astype(np.float64), axis=0, weights=sizes if sizes.any() else None)


def _repeated(values: Iterable[Any]) -> Any:
    return next((value for value, count in Counter(values).items() if count > 1), None)

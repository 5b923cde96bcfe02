"""Bring a grouping of a stage into a registry: ids, names and edits stay, and new categories get ids.

First every cluster is matched to the registered category that it is, if any. Three kinds of evidence count, in this
order: the grouping says it (clusters grown around a category's images or prototype), the cluster contains images of
the category (a stage that is grouped again), or both have similar prototypes (new images of a category discovered
before). Images that a person has pinned say little about a cluster: they stay in their category whatever was found.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from promptccd.discovery.project.rows import Rows, Snapshot, resolved
from promptccd.discovery.project.store import stored_key
from promptccd.errors import RegistryError

NO_CATEGORY = -1  # in place of a cluster or a category, for an unassigned image
NEW, REJECTED = -1, -2  # clusters without a registered category, or that a person rejected
MIN_SIMILARITY = 0.9  # least cosine of two prototypes of one category that are each other's nearest
_SAME_PROTOTYPE = 1e-6  # rounding of a mean, not another mean


@dataclass(frozen=True, eq=False)
class StageGroups:
    """The result of a grouping of a stage's images.

    Attributes:
        keys: the images, each once, ``N`` of them. They may include images of earlier stages.
        clusters: row of every image's cluster, ``(N,)`` integers in ``0..K-1``, -1 for an unassigned image.
        prototypes: mean of every cluster's unit features, ``(K, D)``. A cluster may be without images.
        ids: category of every cluster, ``K`` long, `None` where none is given; by default it never is.
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
        fixed: Container[int],
        **more: np.ndarray,
    ) -> "StageGroups":
        """Groups with ids, of which only `fixed` ones are categories of the registry already.

        Args:
            keys: the images.
            category_ids: id of every image's group, ``(N,)``, -1 for an image that waits.
            ids: of all groups, ``K`` long.
            prototypes: of these, ``(K, D)``.
            fixed: ids that stay; groups with another id are matched, or get an id of the registry.
            **more: further values of the class.
        """
        row_of = {NO_CATEGORY: NO_CATEGORY} | {identity: row for row, identity in enumerate(ids)}
        clusters = np.array([row_of[each] for each in category_ids.tolist()])
        kept = [identity if identity in fixed else None for identity in ids]
        return cls(keys, clusters, prototypes, kept, **more)

    def placed(self) -> tuple["StageGroups", list[str]]:
        """The images in clusters, and the keys of unassigned images."""
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


def apply_grouping(rows: Rows, stage: int, groups: StageGroups, before: Snapshot) -> tuple[int | None, ...]:
    """Bring a grouping into the rows of a registry; returns `StageChange.cluster_ids`.

    Args:
        rows: of the registry, within a transaction.
        stage: stage of the images that were never seen before.
        groups: the grouping, with values that fit each other.
        before: the categories and images of the registry.

    Raises:
        RegistryError: the grouping does not fit the registry.
    """
    groups, waiting = replace(groups, clusters=np.asarray(groups.clusters, dtype=np.int64)).placed()
    category_of = {key: before.pinned.get(key) for key in waiting}
    members: Mapping[str, int] = before.members
    if gone := {key for key, category in category_of.items() if category is None}:
        members = {key: category for key, category in members.items() if key not in gone}
    grouping = _Grouping(rows, groups, before._replace(members=members))
    targets = grouping.targets()
    sizes = Counter(target for target in targets.values() if target >= grouping.first_new)
    numbers = {  # ids for non-empty clusters without an id, largest first
        target: rows.new_category(stage) for target in sorted(sizes, key=lambda each: (-sizes[each], each))
    }
    placed = np.array([numbers.get(targets[key], targets[key]) for key in groups.keys])
    category_of |= {
        key: None if category == NO_CATEGORY else category
        for key, category in zip(groups.keys, placed.tolist(), strict=True)
    }
    sure = zip(groups.keys, [] if groups.confidences is None else groups.confidences.tolist(), strict=False)
    _write_images(rows, stage, before, category_of, {key: round(each, 6) for key, each in sure})
    ids = [
        numbers.get(grouping.first_new + cluster) if each == NEW else None if each == REJECTED else each
        for cluster, each in enumerate(grouping.matched.tolist())
    ]
    grouping.update_prototypes(ids, placed)
    return tuple(ids)


def _write_images(
    rows: Rows, stage: int, before: Snapshot, category_of: Mapping[str, int | None], sure: Mapping[str, float]
) -> None:
    """Put images into categories, or unassign them, with a confidence if known; new images come with a stage.

    Random draws, and reviews of images that moved, say nothing of places that no person changed.
    """
    moved = {key for key, category in category_of.items() if before.members.get(key) != category}
    reviewed = rows.reviews.keys() & category_of.keys() if moved else set()
    rows.run_each(
        "insert into image(key, stage, category, confidence, pinned, unseen) values(?, ?, ?, ?, 0, 0)",
        [
            (stored_key(key), stage, category_of[key], sure.get(key))
            for key in sorted(category_of.keys() - before.images.keys())
        ],
    )
    rows.run_each(
        "update image set category = ?, confidence = coalesce(?, confidence) where key = ?",
        [
            (category, sure.get(key), stored_key(key))
            for key, category in category_of.items()
            if key in before.images
            and (key in moved or sure.get(key) not in (None, before.confidences.get(key)))
        ],
    )
    rows.count_images()
    if reviewed & moved:
        rows.choose(reviewed & moved)
        rows.drop_looks()
    stay = [(stored_key(key),) for key in sorted(reviewed - moved)]
    rows.run_each("update image set unseen = 0 where key = ?", stay)


class _Grouping:
    """A grouping and the matching state of a registry.

    Evidence is how many images of each cluster speak for each category. Its columns are the categories that are not
    retired, and rejected categories: images that were removed from them represent them.

    Attributes:
        first_new: the target of cluster k that is no category yet is `first_new` + k. Other targets are ids.
        matched: category of every cluster ``(K,)``, or `NEW`, or `REJECTED`.

    Raises:
        RegistryError: it is of other features, or names a category that there never was.
    """

    def __init__(self, rows: Rows, groups: StageGroups, before: Snapshot):
        self._rows, self._groups, self._before = rows, groups, before
        self._constraints, self._prototypes = rows.constraints(), rows.prototypes
        width = groups.prototypes.shape[1]
        if len(self._prototypes) and self._prototypes.shape[1] != width:
            raise RegistryError(
                f"Expected prototypes of {self._prototypes.shape[1]} values as the registry has, got {width}: these "
                "are features of another backbone."
            )
        self.first_new = rows.next_id
        self.matched = np.full(len(groups.prototypes), NEW)
        for cluster, identity in enumerate(() if groups.ids is None else groups.ids):
            if identity is not None and identity not in before.categories:
                raise RegistryError(
                    f"Cluster {cluster} is given as category {identity}, which was never registered. Leave it open "
                    "and it gets an id."
                )
            self.matched[cluster] = NEW if identity is None else self._now(identity)
        self._count_evidence()
        self._match_shared_images()
        self._join_merged()
        self._match_prototypes()

    def _now(self, identity: int) -> int:
        """The category that contains the images of this category, or `REJECTED`."""
        found = resolved(self._before.categories, identity)
        return REJECTED if found is None else found

    def _count_evidence(self) -> None:
        before, forbidden = self._before, self._constraints.forbidden
        retired = [each for each in before.categories.values() if each.retired]
        rejected = {each.id for each in retired if each.merged_into is None}
        living = (each.id for each in before.categories.values() if not each.retired)
        self._columns = [*living, *sorted(rejected)]
        position = {identity: column for column, identity in enumerate(self._columns)}
        self._free = np.zeros((len(self.matched), len(self._columns)))  # (K, C) unpinned images
        self._pinned = np.zeros_like(self._free)
        self._unpinned = np.zeros(len(self.matched))
        for key, cluster in zip(self._groups.keys, self._groups.clusters.tolist(), strict=True):
            if key in before.pinned:
                self._pinned[cluster, position[before.pinned[key]]] += 1
                continue
            self._unpinned[cluster] += 1
            if key in before.members:
                self._free[cluster, position[before.members[key]]] += 1
            for identity in rejected.intersection(forbidden.get(key, ())):
                self._free[cluster, position[identity]] += 1
        self._totals = np.array([before.categories[each].size for each in self._columns])  # that could speak
        for identities in forbidden.values():
            for identity in rejected.intersection(identities):
                self._totals[position[identity]] += 1

    def _match_shared_images(self) -> None:
        """One category per cluster, so that as many images as possible stay where they are.

        A pair must share half of the cluster's images or half of the category's. Pinned images break ties only.
        """
        from scipy.optimize import linear_sum_assignment  # here, because names are read and given without it

        clusters, taken = np.flatnonzero(self.matched == NEW), set(self.matched.tolist())
        columns = np.flatnonzero([identity not in taken for identity in self._columns])
        part = np.ix_(clusters, columns)
        sizes = np.bincount(self._groups.clusters, minlength=len(self.matched))
        shared = 2 * (self._free[part] + self._pinned[part])
        enough = (shared >= sizes[clusters, None]) | (shared >= self._totals[None, columns])
        weight = np.where(enough, self._free[part] + self._pinned[part] / (1 + self._pinned.sum()), 0)
        for row, column in zip(*linear_sum_assignment(weight, maximize=True), strict=True):
            if weight[row, column] > 0:
                self.matched[clusters[row]] = self._now(self._columns[columns[column]])

    def _join_merged(self) -> None:
        """A cluster most of whose images are in a merged category is a part of it that must not come apart."""
        categories = self._before.categories.values()
        survivors = {self._now(each.id) for each in categories if each.merged_into is not None}
        for cluster in np.flatnonzero(self.matched == NEW):
            if self._free[cluster].any():
                column = int(self._free[cluster].argmax())
                is_most = 2 * self._free[cluster, column] >= self._unpinned[cluster]
                if is_most and self._columns[column] in survivors:
                    self.matched[cluster] = self._columns[column]

    def _match_prototypes(self) -> None:
        """Clusters and categories that are each other's nearest, among all of them, and near enough.

        Retired categories take part: images nearest to a merged category belong to the survivor, and images
        nearest to a rejected category are rejected again.
        """
        categories, taken = self._before.categories, set(self.matched.tolist())
        candidates = [(identity, row) for identity in sorted(categories) for row in categories[identity].rows]
        if not candidates:
            return
        similarity = unit(self._groups.prototypes) @ unit(self._prototypes[[row for _, row in candidates]]).T
        for cluster in np.flatnonzero((self.matched == NEW) & (self._unpinned > 0)):
            nearest = int(similarity[cluster].argmax())
            identity, row = candidates[nearest]
            is_mutual = int(similarity[:, nearest].argmax()) == cluster
            is_taken = identity in taken and row == categories[identity].prototype_row
            if is_mutual and similarity[cluster, nearest] >= MIN_SIMILARITY and not is_taken:
                self.matched[cluster] = self._now(identity)

    def targets(self) -> dict[str, int]:
        """The target of every image that is grouped."""
        before, forbidden, targets = self._before, self._constraints.forbidden, dict[str, int]()
        for key, cluster in zip(self._groups.keys, self._groups.clusters.tolist(), strict=True):
            stays, found = before.members.get(key, NO_CATEGORY), int(self.matched[cluster])
            target = self.first_new + cluster if found == NEW else stays if found == REJECTED else found
            targets[key] = before.pinned.get(key, stays if target in forbidden.get(key, ()) else target)
        self._keep_apart(targets)
        return targets

    def _keep_apart(self, targets: dict[str, int]) -> None:
        """If two images joined that must not, an image that was elsewhere before goes back there."""
        before = self._before
        for pair in self._constraints.cannot_link:
            category, other = (targets.get(key, before.members.get(key, NO_CATEGORY)) for key in pair)
            for key in reversed(pair) if category == other else ():
                earlier = before.members.get(key, category)
                if key in targets and key not in before.pinned and earlier != category:
                    targets[key] = earlier
                    break

    def update_prototypes(self, ids: Sequence[int | None], category_of: np.ndarray) -> None:
        """A category takes its clusters' mean if its images are theirs, else the mean of its own images if known.

        Args:
            ids: category of every cluster.
            category_of: category of every image that was grouped.
        """
        groups, prototypes = self._groups, self._prototypes
        by_cluster = np.array([NO_CATEGORY if each is None else each for each in ids])[groups.clusters]
        sizes = np.bincount(groups.clusters, minlength=len(ids))
        for identity in sorted({*category_of.tolist(), *ids} - {NO_CATEGORY, None}):
            category, own = self._before.categories.get(identity), category_of == identity
            clusters = [cluster for cluster, each in enumerate(ids) if each == identity]
            if category is not None and category.aside:  # later images like it must not change its prototype
                continue
            is_whole = clusters and (own == (by_cluster == identity)).all()
            if not is_whole and groups.features is not None and own.any():
                vector = groups.features[own].mean(axis=0, dtype=np.float64)
            elif is_whole or category is None:
                vector = weighted_mean(groups.prototypes[clusters], sizes[clusters])
            else:
                continue
            if (
                category is None
                or np.abs(prototypes[category.prototype_row] - vector).max() > _SAME_PROTOTYPE
            ):
                self._rows.set_prototypes({identity: vector})


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1 in float64; a row of zeros stays unchanged."""
    vectors = vectors.astype(np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float64).tiny)


def weighted_mean(means: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Mean in float64 of the images of which these are means, from their numbers; of the means where all are 0."""
    return np.average(means.astype(np.float64), axis=0, weights=sizes if sizes.any() else None)

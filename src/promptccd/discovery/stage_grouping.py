"""Group the images of one stage into the categories of a registry and new categories, which the registry adds."""

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptccd.clustering import CountEstimate, GroupingConstraints
from promptccd.clustering.stream import EarlierImages, enough_earlier
from promptccd.data.randomness import numpy_generator
from promptccd.discovery.grouping.open_grouping import KnownCategories, group_images
from promptccd.discovery.intake.seen import SeenFiles
from promptccd.discovery.project.observe import NO_CATEGORY, StageGroups
from promptccd.discovery.project.record import read_record
from promptccd.discovery.project.registry import CategoryRegistry
from promptccd.discovery.project.rows import StageChange
from promptccd.disk import PROJECT
from promptccd.errors import RegistryError
from promptccd.models import Assignment, CategorySpread
from promptccd.models.assignment import assign, squared_distances
from promptccd.models.configuration import CategoryDiscoveryConfig

MOST_REMEMBERED = 20_000  # earlier images that new images are compared with, a random sample


@dataclass(frozen=True, eq=False)
class NewImages:
    """Images to group.

    Attributes:
        keys: of the images.
        features: ``(N, D)``.
        duplicates: ``(N,)`` equal numbers for near-duplicates.
        constraints: of people.
        stage: that they came with.
    """

    keys: Sequence[str]
    features: Tensor
    duplicates: np.ndarray
    constraints: GroupingConstraints
    stage: int


@dataclass(frozen=True)
class StageGrouping:
    """Assign new images to existing or new categories, compared with the stored features of earlier images.

    Attributes:
        registry: of the categories; adds the groups.
        space: of the features, see `feature_space`.
        seen: stores features, and near-duplicates of earlier images.
        fixed: ids of categories that stay as they are.
        temperature: of the confidences.
        spread_for: how far categories of these ids spread, if that was measured.
        seed: random seed.
    """

    registry: CategoryRegistry
    space: str
    seen: SeenFiles
    fixed: Collection[int] = ()
    temperature: float = CategoryDiscoveryConfig.confidence_temperature
    spread_for: Callable[[Sequence[int]], CategorySpread | None] = lambda ids: None
    seed: int = 1

    # Earlier images

    def features(self, keys: Sequence[str]) -> tuple[list[str], Tensor]:
        """The keys of images with features, in their order, and unit features ``(N, D)`` of these."""
        vectors, there = self.seen.vectors(self.space, keys)
        there &= vectors.shape[1] == self.registry.prototypes.shape[1]
        return list(compress(keys, there)), torch.from_numpy(vectors[there])

    def before(self, stage: int, num_new: int, ids: Sequence[int]) -> EarlierImages | None:
        """Images that came before a stage, near-duplicates once; `None` if they are too few for `num_new` images.

        Rows follow the `ids` of the known categories; some are sampled where there are too many images.
        """
        images, members = self.registry.images, self.registry.members
        row_of = {category: row for row, category in enumerate(ids)}
        keys = sorted(key for key, came in images.items() if came < stage)
        if len(keys) > MOST_REMEMBERED:
            drawn = numpy_generator("remembered images", self.seed, stage).permutation(len(keys))
            keys = [keys[row] for row in sorted(drawn[:MOST_REMEMBERED].tolist())]
        followers = self.seen.followers(keys)
        found, features = self.features([key for key in keys if key not in followers])
        if not enough_earlier(len(found), num_new):
            return None
        rows = [row_of.get(members.get(key, NO_CATEGORY), NO_CATEGORY) for key in found]
        stages = torch.tensor([images[key] for key in found])
        return EarlierImages(features, torch.tensor(rows), stages, stage)

    @property
    def waiting(self) -> list[str]:
        """Keys of unassigned images that no constraint names."""
        constrained = self.registry.constraints().keys
        return [key for key in self.registry.unassigned if key not in constrained]

    def likest(self) -> dict[str, int]:
        """The active category that each of the `waiting` images with features is most like."""
        active, (keys, features) = self.registry.active_prototypes(), self.features(self.waiting)
        if not keys or not active.ids:
            return {}
        nearest = squared_distances(features, torch.from_numpy(active.matrix)).argmin(1)
        return {key: active.ids[row] for key, row in zip(keys, nearest.tolist(), strict=True)}

    def fitting(
        self, found: Assignment, known: KnownCategories, without: Collection[str]
    ) -> Assignment | None:
        """Unassigned images, except some, that fit into a category of a grouping; its first categories are known."""
        if known.spread is None or known.earlier is None:
            return None
        keys, features = self.features([key for key in self.waiting if key not in without])
        if not keys:
            return None
        rows = [*range(len(known.ids)), *[None] * (len(found.ids) - len(known.ids))]
        again = assign(
            features,
            found.prototypes.double(),
            found.ids,
            temperature=self.temperature,
            spread=known.spread.of(rows),
            keys=keys,
        )
        fits = again.select((~again.novel).nonzero()[:, 0])
        return fits if len(fits.keys) else None

    # New images

    def num_categories(self, keys: Sequence[str]) -> int:
        """Active categories that images are in now, with the fixed categories."""
        members = self.registry.members
        here = {members.get(key) for key in keys}
        return len(here.intersection(each.id for each in self.registry.active).union(self.fixed))

    def group(
        self, images: NewImages, num_categories: int | None = None
    ) -> tuple[StageChange, CountEstimate]:
        """`find` groups and add them to the registry; returns what changed, and the number of categories."""
        groups, estimate, num_found = self.find(images, num_categories)
        aside = {each.id for each in self.registry.aside}
        change = self.registry.observe(images.stage, groups)
        # A group like a category that people merged, rejected or ignored adds no category.
        ours = {each for each in change.cluster_ids if each is not None} - aside
        num_found = len(ours) if num_found is None else num_found
        return change, estimate.including(max(1, estimate.count - num_found + len(ours)))

    def find(
        self, images: NewImages, num_categories: int | None = None, *, aside_draws: bool = True
    ) -> tuple[StageGroups, CountEstimate, int | None]:
        """Find groups of images, and of unassigned images where they fit now; the registry stays as it is.

        Args:
            images: of the newest stage.
            num_categories: number of all categories, including fixed ones; `None` estimates it.
            aside_draws: whether images like an ignored category join that category.

        Returns:
            The groups, the number of categories before the registry tells which of them are set aside, and how many of
            the groups count in it; `None` for all.

        Raises:
            DataError: there cannot be so many, or constraints contradict it.
        """
        known = self._known(images, num_categories)
        drawn = self._like_what_is_aside(images, known) if aside_draws else None
        rest, found, waited = images, None, None
        if drawn is not None:
            gone = set(drawn.keys)
            rows = [row for row, key in enumerate(images.keys) if key not in gone]
            keys, duplicates = [images.keys[row] for row in rows], images.duplicates[rows]
            rest = replace(images, keys=keys, features=images.features[rows], duplicates=duplicates)
        if rest.keys:
            found, count = self._grouped(rest, known, num_categories)
            waited = self.fitting(found, known, set(images.keys))
        else:
            count = CountEstimate.known(max(1, self.num_categories(images.keys)))
        parts = [part for part in (found, waited, drawn) if part is not None]
        num_found = None if found is None else len(found.ids)
        return _groups_of(parts, self.registry.next_id), count, num_found

    def newest(self) -> NewImages | None:
        """The newest stage's images that may be grouped again, with stored features; `None` if nothing is left.

        None of these was nearest to a set-aside category, so `aside_draws` is not needed.
        """
        registry, members = self.registry, self.registry.members
        stay = {*self.fixed, *(each.id for each in registry.aside)}
        newest = sorted(key for key, stage in registry.images.items() if stage == registry.stage)
        keys, features = self.features([key for key in newest if members.get(key) not in stay])
        if not keys:
            return None
        first, numbers = self.seen.followers(keys), dict[str, int]()
        duplicates = np.array([numbers.setdefault(first.get(key, key), len(numbers)) for key in keys])
        return NewImages(keys, features, duplicates, registry.constraints(), registry.stage)

    def _known(self, images: NewImages, num_categories: int | None) -> KnownCategories:
        """The fixed categories, and earlier images where these decide which groups are new."""
        stay = set(self.fixed)
        fixed = self.registry.prototypes_of([each for each in self.registry.active if each.id in stay])
        if not fixed.ids:
            return KnownCategories.none(images.features.shape[1])
        ids, earlier = tuple(fixed.ids), None
        if num_categories is None:
            earlier = self.before(images.stage, len(images.keys), ids)
        known = KnownCategories(ids, torch.from_numpy(fixed.matrix), self.spread_for(ids), earlier)
        return known.measured(self.seed)

    def _grouped(
        self, images: NewImages, known: KnownCategories, num_categories: int | None
    ) -> tuple[Assignment, CountEstimate]:
        # Position of the first image with the same number.
        _, first, number = np.unique(images.duplicates, return_index=True, return_inverse=True)
        return group_images(
            images.features,
            images.keys,
            known,
            num_categories=num_categories,
            next_id=self.registry.next_id,
            constraints=images.constraints,
            seed=self.seed,
            temperature=self.temperature,
            first_of=first[number],
        )

    def _like_what_is_aside(self, images: NewImages, known: KnownCategories) -> Assignment | None:
        """Images that are nearer to a category that is set aside than to any other, known or new."""
        aside = self.registry.prototypes_of(self.registry.aside)
        if not aside.ids:
            return None
        rows = [*range(len(known.ids)), *[None] * len(aside.ids)]
        extended = replace(
            known,
            ids=(*known.ids, *aside.ids),
            prototypes=torch.cat([known.prototypes, torch.from_numpy(aside.matrix)]),
            spread=None if known.spread is None else known.spread.of(rows),
        )
        found, _ = self._grouped(images, extended, None)
        drawn = found.select(torch.isin(found.category_ids, torch.tensor(aside.ids)).nonzero()[:, 0])
        place = slice(len(known.ids), len(extended.ids))
        return replace(drawn, ids=found.ids[place], prototypes=found.prototypes[place])


def assignment_in(
    registry: CategoryRegistry,
    keys: Sequence[str],
    features: Tensor,
    *,
    stage: int | None = None,
    temperature: float = 1.0,
    spread_for: Callable[[Sequence[int]], CategorySpread | None] = lambda ids: None,
) -> Assignment:
    """Images in their categories of a registry; unassigned and ignored images are left out.

    Distances are to the prototypes of the registry.

    Args:
        registry: of these images.
        keys: of all images, also of unassigned images.
        features: unit features ``(N, D)``.
        stage: of the images, by default the newest; older categories count as known.
        temperature: of the confidences, in squared distance.
        spread_for: how far categories of these ids spread; `None` where that was not measured.
    """
    first = {each.id for each in registry.active if each.is_fixed(registry.stage if stage is None else stage)}
    members, pinned = registry.members, registry.pinned
    found = registry.active_prototypes()
    order = sorted(range(len(found.ids)), key=lambda row: (found.ids[row] not in first, found.ids[row]))
    ids = [found.ids[row] for row in order]
    position = {identity: row for row, identity in enumerate(ids)}
    placed = [row for row, key in enumerate(keys) if members.get(key) in position]
    kept = [keys[row] for row in placed]
    return assign(
        features[placed],
        torch.from_numpy(found.matrix[order]).double(),
        ids,
        temperature=temperature,
        spread=spread_for(ids),
        rows=torch.tensor([position[members[key]] for key in kept], dtype=torch.int64),
        decided=torch.tensor([key in pinned for key in kept], dtype=torch.bool),
        num_known=len(first.intersection(ids)),
        keys=kept,
    )


def _groups_of(parts: Sequence[Assignment], first_free: int) -> StageGroups:
    """One grouping of images that were grouped in parts; ids below `first_free` belong to the registry."""
    prototypes = dict[int, np.ndarray]()
    for part in parts:
        prototypes |= zip(part.ids, part.prototypes.numpy(), strict=True)
    return StageGroups.of(
        [key for part in parts for key in part.keys],
        torch.cat([part.category_ids for part in parts]).numpy(),
        list(prototypes),
        np.stack(list(prototypes.values())),
        fixed=range(first_free),
        confidences=torch.cat([part.confidences for part in parts]).clamp(0, 1).numpy(),
        features=(torch.cat([part.features for part in parts]) if parts[1:] else parts[0].features).numpy(),
    )


def find_again(registry: CategoryRegistry, folder: Path, num_categories: int) -> StageGroups:
    """Find fewer or more groups of the newest images, from stored features; `registry` stays as it is.

    Categories that have a name or are of an earlier stage stay, with their images. Corrections of images stay too.

    Args:
        registry: the categories now.
        folder: of a discovery.
        num_categories: of all categories.

    Raises:
        RegistryError: there is nothing to group, or a trained model has found the groups, which then need it.
        DataError: there cannot be so many.
    """
    if not (folder / PROJECT).is_dir():
        raise RegistryError(
            "These are categories of a run: promptccd discover MODEL IMAGES groups images again."
        )
    record = read_record(folder)
    if record["found_with"]["method"]:
        raise RegistryError(
            "A trained model has found these groups, and is needed to group again: promptccd discover "
            f"{record['found_with']['model']} IMAGES --num_categories {num_categories} with the same --out finds them, "
            "and keeps your corrections."
        )
    fixed = [each.id for each in registry.active if each.named or each.is_fixed(registry.stage)]
    with closing(SeenFiles(folder / PROJECT, is_reader=True)) as seen:
        grouping = StageGrouping(registry, record["features"], seen, fixed)
        if (images := grouping.newest()) is not None:
            return grouping.find(images, num_categories, aside_draws=False)[0]
    raise RegistryError("All photographs are in groups that you named or ignored: there is nothing to group.")

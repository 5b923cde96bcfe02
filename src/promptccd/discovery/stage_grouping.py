"""Group the images of one stage into the categories of a registry and new categories, which the registry adds."""

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptccd.clustering import CountEstimate, GroupingConstraints
from promptccd.data.randomness import numpy_generator
from promptccd.discovery.grouping import EarlierImages, KnownCategories, enough_earlier, group_images
from promptccd.discovery.intake.seen import SeenFiles
from promptccd.discovery.project.changes import StageChange
from promptccd.discovery.project.observe import NO_CATEGORY, StageGroups
from promptccd.discovery.project.record import read_record
from promptccd.discovery.project.registry import CategoryRegistry
from promptccd.disk import PROJECT
from promptccd.errors import RegistryError
from promptccd.models import Assignment, CategorySpread
from promptccd.models.assignment import assign, squared_distances
from promptccd.models.configuration import CategoryDiscoveryConfig

MOST_REMEMBERED = 20_000  # earlier images that new images are compared with, a random sample


class Remembered:
    """Images of all stages that have features, of memory or of disk.

    Args:
        registry: stage and category of each image.
        space: of the features, see `feature_space`.
        seen: stores features, and near-duplicates of earlier images.
    """

    def __init__(self, registry: CategoryRegistry, space: str, seen: SeenFiles):
        self._registry, self.space, self._seen = registry, space, seen

    def features(self, keys: Sequence[str]) -> dict[str, Tensor]:
        """Unit features by key, in the order of the keys, of images with features."""
        rows, there = self._seen.features(self.space, keys)
        if rows.shape[1] != self._registry.prototypes.shape[1]:
            return {}
        return {key: row for key, row, is_there in zip(keys, rows, there, strict=True) if is_there}

    def followers(self, keys: Sequence[str]) -> dict[str, str]:
        """The first image of its near-duplicate group, by key, of each image that is not the first."""
        return self._seen.followers(keys)

    def before(self, stage: int, num_new: int, ids: Sequence[int], seed: int) -> EarlierImages | None:
        """Images that came before a stage, near-duplicates once; `None` if they are too few for `num_new` images.

        Rows follow the `ids` of the known categories; the seed draws where there are too many images.
        """
        images, members = self._registry.images, self._registry.members
        row_of = {category: row for row, category in enumerate(ids)}
        keys = sorted(key for key, came in images.items() if came < stage)
        if len(keys) > MOST_REMEMBERED:
            drawn = numpy_generator("remembered images", seed, stage).permutation(len(keys))
            keys = [keys[row] for row in sorted(drawn[:MOST_REMEMBERED].tolist())]
        followers = self.followers(keys)
        features = self.features([key for key in keys if key not in followers])
        if not enough_earlier(len(features), num_new):
            return None
        return EarlierImages(
            torch.stack(list(features.values())),
            torch.tensor([row_of.get(members.get(key, NO_CATEGORY), NO_CATEGORY) for key in features]),
            torch.tensor([images[key] for key in features]),
            stage,
        )

    @property
    def waiting(self) -> list[str]:
        """Keys of unassigned images that no constraint names."""
        constrained = self._registry.constraints().keys
        return [key for key in self._registry.unassigned if key not in constrained]

    def likest(self) -> dict[str, int]:
        """The active category that each of the `waiting` images with features is most like."""
        active, features = self._registry.active_prototypes(), self.features(self.waiting)
        if not features or not active.ids:
            return {}
        prototypes = torch.from_numpy(active.matrix)
        nearest = squared_distances(torch.stack(list(features.values())), prototypes).argmin(1)
        return {key: active.ids[row] for key, row in zip(features, nearest.tolist(), strict=True)}

    def fitting(
        self, found: Assignment, known: KnownCategories, temperature: float, without: Collection[str]
    ) -> Assignment | None:
        """Unassigned images that fit into a category of a grouping now; its first categories are known.

        `temperature` is that of the confidences, `without` are the keys of the new images.
        """
        if known.spread is None or known.earlier is None:
            return None
        features = self.features([key for key in self.waiting if key not in without])
        if not features:
            return None
        rows = [*range(len(known.ids)), *[None] * (len(found.ids) - len(known.ids))]
        again = assign(
            torch.stack(list(features.values())),
            found.prototypes.double(),
            found.ids,
            temperature=temperature,
            spread=known.spread.of(rows),
            keys=list(features),
        )
        fits = again.select((~again.novel).nonzero()[:, 0])
        return fits if len(fits.keys) else None


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

    def without(self, gone: Collection[str]) -> "NewImages":
        """All but some of them."""
        rows = [row for row, key in enumerate(self.keys) if key not in gone]
        kept = [self.keys[row] for row in rows]
        return replace(self, keys=kept, features=self.features[rows], duplicates=self.duplicates[rows])


@dataclass(frozen=True, eq=False)
class FoundGroups:
    """Groups that are not in the registry yet.

    Attributes:
        stage: of the images.
        groups: of images, and of earlier unassigned images.
        count: the number of categories, before the registry tells which of them are set aside.
        num_found: categories among these that count.
    """

    stage: int
    groups: StageGroups
    count: CountEstimate
    num_found: int | None


@dataclass(frozen=True)
class StageGrouping:
    """Assign new images to existing or new categories.

    Attributes:
        registry: of the categories; adds the groups.
        temperature: of the confidences.
        spread_for: how far categories of these ids spread, if that was measured.
        fixed: ids of categories that stay as they are.
        remembered: images of earlier stages.
        seed: random seed.
    """

    registry: CategoryRegistry
    temperature: float
    spread_for: Callable[[Sequence[int]], CategorySpread | None]
    fixed: Collection[int]
    remembered: Remembered
    seed: int

    def num_categories(self, keys: Sequence[str]) -> int:
        """Active categories that images are in now, with the fixed categories."""
        members = self.registry.members
        here = {members.get(key) for key in keys}
        return len(here.intersection(each.id for each in self.registry.active).union(self.fixed))

    def group(
        self, images: NewImages, num_categories: int | None = None
    ) -> tuple[StageChange, CountEstimate]:
        """`find` and `add` groups; returns what changed, and the number of categories."""
        return self.add(self.find(images, num_categories))

    def add(self, found: FoundGroups) -> tuple[StageChange, CountEstimate]:
        """Add groups to the registry, which is in the state in which they were found."""
        aside = {each.id for each in self.registry.aside}
        change = self.registry.observe(found.stage, found.groups)
        # A group like a category that people merged, rejected or ignored adds no category.
        ours = {each for each in change.cluster_ids if each is not None} - aside
        num_found = len(ours) if found.num_found is None else found.num_found
        return change, found.count.including(max(1, found.count.count - num_found + len(ours)))

    def find(
        self, images: NewImages, num_categories: int | None = None, *, aside_draws: bool = True
    ) -> FoundGroups:
        """Find groups of images, and of unassigned images where they fit now.

        Args:
            images: of the newest stage.
            num_categories: number of all categories, including fixed ones; `None` estimates it.
            aside_draws: whether images like an ignored category join that category.

        Raises:
            DataError: there cannot be so many, or constraints contradict it.
        """
        known = self._known(images, num_categories)
        drawn = self._like_what_is_aside(images, known) if aside_draws else None
        rest = images if drawn is None else images.without(set(drawn.keys))
        found = waited = None
        present = self.num_categories(images.keys)
        if rest.keys:
            found, count = self._grouped(rest, known, num_categories)
            waited = self.remembered.fitting(found, known, self.temperature, set(images.keys))
        else:
            count = CountEstimate.known(max(1, present))
        parts = [part for part in (found, waited, drawn) if part is not None]
        num_found = None if found is None else len(found.ids)
        return FoundGroups(images.stage, _groups_of(parts, self.registry.next_id), count, num_found)

    def find_anew(self, num_categories: int | None = None) -> FoundGroups | None:
        """Find groups of the newest stage's images again, from stored features; `None` if nothing is left."""
        registry, remembered = self.registry, self.remembered
        stay, members = {*self.fixed, *(each.id for each in registry.aside)}, registry.members
        newest = sorted(key for key, stage in registry.images.items() if stage == registry.stage)
        features = remembered.features([key for key in newest if members.get(key) not in stay])
        if not features:
            return None
        keys, numbers = list(features), dict[str, int]()
        first = remembered.followers(keys)
        duplicates = np.array([numbers.setdefault(first.get(key, key), len(numbers)) for key in keys])
        rows = torch.stack(list(features.values()))
        # None of these was nearest to a set-aside category, so that test is skipped.
        images = NewImages(keys, rows, duplicates, registry.constraints(), registry.stage)
        return self.find(images, num_categories, aside_draws=False)

    def _known(self, images: NewImages, num_categories: int | None) -> KnownCategories:
        """The fixed categories, and earlier images where these decide which groups are new."""
        stay = set(self.fixed)
        fixed = self.registry.prototypes_of([each for each in self.registry.active if each.id in stay])
        if not fixed.ids:
            return KnownCategories.none(images.features.shape[1])
        ids, earlier = tuple(fixed.ids), None
        if num_categories is None:
            earlier = self.remembered.before(images.stage, len(images.keys), ids, self.seed)
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


def find_again(registry: CategoryRegistry, folder: Path, num_categories: int) -> FoundGroups:
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
    temperature = CategoryDiscoveryConfig.confidence_temperature
    with closing(SeenFiles(folder / PROJECT, is_reader=True)) as seen:
        remembered = Remembered(registry, record["features"], seen)
        grouping = StageGrouping(registry, temperature, lambda ids: None, fixed, remembered, seed=1)
        found = grouping.find_anew(num_categories)
    if found is None:
        raise RegistryError(
            "All photographs are in groups that you named or ignored: there is nothing to group."
        )
    return found

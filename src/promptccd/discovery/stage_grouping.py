"""Group the images of one stage into the categories of a registry and new ones, which the registry adds."""

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from promptccd.clustering import CountEstimate, GroupingConstraints
from promptccd.discovery.grouping import KnownCategories, group_images
from promptccd.discovery.remembered import Remembered
from promptccd.errors import DataError
from promptccd.models import Assignment, CategorySpread
from promptccd.registry import GROUPING, CategoryRegistry, SetAside, StageChange, StageGroups


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
    """Groups that no registry has taken in yet.

    Attributes:
        stage: of the images.
        groups: of images and of those that waited.
        count: the number of categories, before the registry says which of them are none.
        num_found: categories among these that count.
    """

    stage: int
    groups: StageGroups
    count: CountEstimate
    num_found: int | None


class StageGrouping:
    """Assign new images to existing categories or to new ones.

    Args:
        registry: of the categories; adds the groups.
        temperature: says how sure to be of an assignment.
        spread_for: says how far categories spread, if that was measured.
        fixed: ids of categories that stay as they are.
        remembered: images of earlier stages.
        seed: of all random draws.
    """

    def __init__(
        self,
        registry: CategoryRegistry,
        temperature: float,
        spread_for: Callable[[Sequence[int]], CategorySpread | None],
        fixed: Collection[int],
        remembered: Remembered,
        seed: int,
    ):
        self._registry, self._spread_for, self._seed = registry, spread_for, seed
        self._fixed, self._remembered = set(fixed), remembered
        self._temperature = temperature

    def num_categories(self, keys: Sequence[str]) -> int:
        """Active categories that images are in now, with the fixed ones."""
        members = self._registry.members.read()
        here = {members.get(key) for key in keys}
        return len(here.intersection(each.id for each in self._registry.active).union(self._fixed))

    def group(
        self, images: NewImages, num_categories: int | None = None
    ) -> tuple[StageChange, CountEstimate]:
        """Group images, and those that waited where they fit now; returns what changed, and the number of categories.

        Arguments and errors are those of `find`.
        """
        return self.take(self.find(images, num_categories))

    def take(self, found: FoundGroups) -> tuple[StageChange, CountEstimate]:
        """Let the registry take in what was found in its very state."""
        aside = {each.id for each in self._registry.aside}
        change = self._registry.observe(found.stage, found.groups)
        # A group like one that people merged, refused or set aside adds no category.
        ours = {each for each in change.cluster_ids if each is not None} - aside
        num_found = len(ours) if found.num_found is None else found.num_found
        return change, found.count.including(max(1, found.count.count - num_found + len(ours)))

    def find(
        self, images: NewImages, num_categories: int | None = None, *, aside_draws: bool = True
    ) -> FoundGroups:
        """Find groups of images, and of those that waited where they fit now.

        Args:
            images: of the newest stage.
            num_categories: of all categories, fixed ones included; `None` estimates it.
            aside_draws: whether what is like a category that was set aside comes to that one.

        Raises:
            DataError: there cannot be so many, or constraints contradict it.
        """
        known = self._known(images, num_categories)
        drawn = self._like_what_is_aside(images, known) if aside_draws else None
        rest = images if drawn is None else images.without(set(drawn.keys))
        first_free = self._registry.next_id
        found = waited = None
        present = self.num_categories(images.keys)
        if rest.keys:
            found, count = self._grouped(rest, known, num_categories)
            waited = self._remembered.fitting(found, known, self._temperature, set(images.keys))
        elif num_categories in (None, present):
            count = CountEstimate.known(max(1, present))
        else:
            raise DataError(
                f"All {len(images.keys)} images are like what was set aside, so there is nothing to make "
                f"{num_categories} categories of: leave the number out, or take back what was set aside."
            )
        parts = [part for part in (found, waited, drawn) if part is not None]
        num_found = None if found is None else len(found.ids)
        return FoundGroups(images.stage, _groups_of(parts, first_free), count, num_found)

    def regroup(self) -> tuple[StageChange, CountEstimate] | None:
        """Group the newest stage anew, from features that are there, if a category was set aside since it was grouped.

        Next to it, several categories may have looked like one. `None` if nothing was set
        aside, or nothing is left.
        """
        since = itertools.takewhile(lambda entry: entry.kind != GROUPING, reversed(self._registry.log))
        if not any(entry.kind == SetAside.kind for entry in since):
            return None
        found = self.find_anew()
        return None if found is None else self.take(found)

    def find_anew(self, num_categories: int | None = None) -> FoundGroups | None:
        """Find groups of the newest stage's images again, from features that are there; `None` if nothing is left.

        Args:
            num_categories: as for `find`.
        """
        registry, remembered = self._registry, self._remembered
        stay, members = {*self._fixed, *(each.id for each in registry.aside)}, registry.members.read()
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
        """The fixed categories, and what earlier images say of them where they decide what is new."""
        fixed = self._registry.prototypes_of(
            [each for each in self._registry.active if each.id in self._fixed]
        )
        if not fixed.ids:
            return KnownCategories.none(images.features.shape[1])
        ids, earlier = tuple(fixed.ids), None
        if num_categories is None:
            earlier = self._remembered.before(images.stage, len(images.keys), ids, self._seed)
        known = KnownCategories(ids, torch.from_numpy(fixed.matrix), self._spread_for(ids), earlier)
        return known.measured(self._seed)

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
            next_id=self._registry.next_id,
            constraints=images.constraints,
            seed=self._seed,
            temperature=self._temperature,
            first_of=first[number],
        )

    def _like_what_is_aside(self, images: NewImages, known: KnownCategories) -> Assignment | None:
        """Images that are nearer to a category that is set aside than to any other, known or new."""
        aside = self._registry.prototypes_of(self._registry.aside)
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
    """One grouping of images that were grouped in parts; ids below `first_free` are those of the registry."""
    prototypes = dict[int, np.ndarray]()
    for part in parts:
        prototypes |= zip(part.ids, part.prototypes.numpy(), strict=True)
    return StageGroups.of(
        [key for part in parts for key in part.keys],
        torch.cat([part.category_ids for part in parts]).numpy(),
        list(prototypes),
        np.stack(list(prototypes.values())),
        settled=range(first_free),
        confidences=torch.cat([part.confidences for part in parts]).clamp(0, 1).numpy(),
        features=(torch.cat([part.features for part in parts]) if parts[1:] else parts[0].features).numpy(),
    )

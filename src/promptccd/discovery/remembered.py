"""Images of earlier stages: new ones are compared with them, and those that fit nowhere wait among them."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from promptccd.data.randomness import numpy_generator
from promptccd.discovery.grouping import EarlierImages, KnownCategories, enough_earlier
from promptccd.discovery.intake.seen import SeenFiles
from promptccd.models import Assignment
from promptccd.models.assignment import assign, squared_distances
from promptccd.registry import CategoryRegistry
from promptccd.registry.observe import NO_CATEGORY

MOST_REMEMBERED = 20_000  # earlier images that new ones are compared with, drawn at random from more


class Remembered:
    """Images of all stages that have features, of memory or of disk.

    Args:
        registry: says with which stage each image came, and where it is now.
        space: what the features have to be of, see `feature_space`.
        seen: stores features, and which images are near-duplicates of earlier ones.
    """

    def __init__(self, registry: CategoryRegistry, space: str, seen: SeenFiles):
        self._registry, self.space, self._seen = registry, space, seen

    def features(self, keys: Sequence[str]) -> dict[str, Tensor]:
        """Unit features by key, in the order of the keys, of those images that have some."""
        rows, there = self._seen.features(self.space, keys)
        if rows.shape[1] != self._registry.prototypes.shape[1]:
            return {}
        return {key: row for key, row, is_there in zip(keys, rows, there, strict=True) if is_there}

    def followers(self, keys: Sequence[str]) -> dict[str, str]:
        """The first image of its near-duplicate group, by key, of each image that is not the first."""
        return self._seen.followers(keys)

    def before(self, stage: int, num_new: int, ids: Sequence[int], seed: int) -> EarlierImages | None:
        """Images that came before a stage, near-duplicates once; `None` if they are too few.

        Args:
            stage: the number of the new images' stage.
            num_new: how many of these there are.
            ids: of the known categories, in the order of their rows.
            seed: of the draw where there are too many.
        """
        images, members = self._registry.images.read(), self._registry.members.read()
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
        """Keys of images that fit nowhere yet, and of which nobody has said anything."""
        spoken_of = self._registry.constraints().keys
        return [key for key in self._registry.unassigned if key not in spoken_of]

    def likest(self) -> dict[str, int]:
        """The active category that each of the images that wait is most like, where its features are there."""
        active, features = self._registry.active_prototypes(), self.features(self.waiting)
        if not features or not active.ids:
            return {}
        prototypes = torch.from_numpy(active.matrix)
        nearest = squared_distances(torch.stack(list(features.values())), prototypes).argmin(1)
        return {key: active.ids[row] for key, row in zip(features, nearest.tolist(), strict=True)}

    def fitting(
        self, found: Assignment, known: KnownCategories, temperature: float, without: Collection[str]
    ) -> Assignment | None:
        """Images that fitted nowhere and fit into one of the categories that were found now.

        Args:
            found: how new images were grouped; its first categories are the known ones.
            known: these.
            temperature: of the confidences.
            without: keys of the new images.
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

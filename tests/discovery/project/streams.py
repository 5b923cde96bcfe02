"""Streams of images that stand as unit vectors around their true category, and how they are grouped."""

from functools import partial
from typing import Any

import numpy as np
import torch

from promptccd.discovery.project import CategoryRegistry, LogEntry, StageGroups, edits
from promptccd.discovery.project.features import Features
from promptccd.discovery.project.observe import unit

WIDTH = 24
Edit = tuple[Any, ...]


CENTRES = unit(np.random.default_rng(7).normal(size=(40, WIDTH)))


class Images:
    """Images of some true categories: their keys, features and true categories.

    Args:
        prefix: how their keys begin.
        truths: number of images by true category.
        seed: of the noise.
    """

    def __init__(self, prefix: str, truths: dict[int, int], seed: int = 0):
        generator = np.random.default_rng(seed)
        self.truths = np.repeat(list(truths), list(truths.values()))
        self.keys = [f"{prefix}:{number}" for number in range(len(self.truths))]
        noise = generator.normal(size=(len(self.truths), WIDTH)) * 0.05
        self.features = unit(CENTRES[self.truths] + noise).astype(np.float32)

    def of(self, *truths: int) -> list[str]:
        return [key for key, truth in zip(self.keys, self.truths, strict=True) if truth in truths]

    def groups(
        self,
        fixed: dict[int, int] | None = None,
        seed: int = 0,
        together: tuple[int, ...] = (),
        **more: object,
    ) -> StageGroups:
        """One cluster per true category, in an order of its own.

        Args:
            fixed: category id by true category, where the grouping knows it.
            seed: of the order of clusters.
            together: true categories that the grouping takes for one, the first of them.
            **more: further fields of `StageGroups`.
        """
        truths = np.where(np.isin(self.truths, together), together[0] if together else 0, self.truths)
        order = np.random.default_rng(seed).permutation(np.unique([*truths.tolist(), *(fixed or {})]))
        clusters = np.array([order.tolist().index(truth) for truth in truths])
        inside = [truths == each for each in order]
        means = [
            self.features[own].mean(0) if own.any() else CENTRES[each]
            for each, own in zip(order, inside, strict=True)
        ]
        ids = [(fixed or {}).get(int(each)) for each in order]
        return StageGroups(self.keys, clusters, np.stack(means), ids, **more)


def give_features(registry: CategoryRegistry, *images: Images) -> CategoryRegistry:
    """Let edits know the features of some images, as a project does."""
    keys = [key for each in images for key in each.keys]
    features = Features(keys, torch.from_numpy(np.concatenate([each.features for each in images])))
    registry.features = lambda needed=False: features
    return registry


def do(
    registry: CategoryRegistry, edit: Edit, time: str | None = None, drawn: tuple[str, int] | None = None
) -> LogEntry:
    """Make an edit: a function of `edits` with its arguments; `time` and `drawn` for its entry in the log."""
    function, *arguments = edit
    registry.now, registry.sampled = lambda: time, drawn  # type: ignore[method-assign]
    try:
        return function(registry, *arguments)
    finally:
        registry.sampled = None
        del registry.now


def random_edit(registry: CategoryRegistry, generator: np.random.Generator) -> Edit:
    """Some edit of any kind, with plausible values; the registry may refuse it."""
    living, keys = [each.id for each in registry.active], sorted(registry.images)
    some = [keys[index] for index in generator.permutation(len(keys))[: generator.integers(1, 6)]]
    one, two = (int(each) for each in generator.choice(living, 2))
    members, number = registry.members_of(one), generator.integers(10_000)
    aside = [each.id for each in registry.aside if each.name != edits.IGNORED_NAME]
    choices: list[Edit] = [
        (edits.rename, one, f"name {number}"),
        (edits.merge, [one, two]),
        (edits.merge, [one, two], f"both {number}"),
        (edits.gather, some),
        (edits.split, one, members[: max(1, len(members) // 3)]),
        (edits.move, some, one),
        (edits.move, some, None),
        (edits.sort, some, [[one, two, None][generator.integers(3)] for _ in some]),
        (partial(edits.dissolve, to_nearest=False), one),
        (partial(edits.answer, same=bool(number % 2)), some[0], keys[-1]),
        (edits.confirm, some),
        (edits.set_aside, one),
        (edits.set_images_aside, some),
        (edits.restore, aside[0] if aside else one),
        (edits.forget, some[:1]),
    ]
    return choices[generator.integers(len(choices))]

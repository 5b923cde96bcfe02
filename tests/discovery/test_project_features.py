"""Means of features at the width and number that people have are the same, however images came and went."""

import numpy as np
import pytest
import torch

from promptccd.discovery.project.features import Features, Means
from promptccd.registry import CategoryRegistry, Move, StageGroups

COUNT, WIDTH, KINDS = 12_000, 384, 3


def stream(seed: int) -> tuple[list[str], torch.Tensor, CategoryRegistry]:
    """Unit features in a few large categories, none of them settled."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(KINDS, WIDTH))
    home = generator.integers(0, KINDS, COUNT)
    found = centres[home] + generator.normal(size=(COUNT, WIDTH))
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    keys, registry = [f"{number:064x}" for number in range(COUNT)], CategoryRegistry()
    registry.observe(0, StageGroups(keys, home, centres / np.linalg.norm(centres, axis=1, keepdims=True)))
    return keys, torch.from_numpy(found).float(), registry


@pytest.mark.moderate
def test_sums_that_followed_hundreds_of_moves_are_those_of_who_adds_up_anew() -> None:
    keys, found, registry = stream(5)
    features = Features(keys, found)
    followed, generator = Means(features, registry), np.random.default_rng(7)
    for each in registry.active:
        followed.warm(each.id)
    for _ in range(60):
        images = [keys[row] for row in generator.choice(COUNT, 200, replace=False)]
        revision = registry.store.revision
        registry.edit(Move(images, int(generator.integers(KINDS))))
        if generator.random() < 0.3:
            registry.undo()
        followed.take(registry.store.changes_since(revision))
    anew = Means(Features(keys[::-1], found.flip(0)), registry)
    chosen = [keys[row] for row in generator.choice(COUNT, 500, replace=False)]
    ours, theirs = followed.after(chosen, 1), anew.after(chosen, 1)
    assert ours.keys() == theirs.keys() == set(range(KINDS))
    assert all(np.array_equal(*(np.float32(each[kind]) for each in (ours, theirs))) for kind in ours)
    left = [key for key, home in registry.members.items() if home == 1 or key in chosen]
    expected = found[[int(key, 16) for key in left]].double().mean(0).numpy()
    np.testing.assert_allclose(ours[1], expected, atol=1e-12)

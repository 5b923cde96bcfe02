"""What is remembered of earlier images: features that are kept, each moment once, and what waits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from promptccd.discovery import SeenFiles, stage_grouping
from promptccd.discovery.grouping import EarlierImages, KnownCategories
from promptccd.discovery.project import CategoryRegistry, StageGroups, edits
from promptccd.discovery.project.observe import NO_CATEGORY
from promptccd.discovery.stage_grouping import StageGrouping
from promptccd.models import CategorySpread
from promptccd.models.assignment import assign

SPACE, WIDTH = "space", 4
AXES = np.eye(WIDTH)


def key(number: int) -> str:
    return f"{number:064x}"


def seen(counts: list[int]) -> CategoryRegistry:
    """A stage for each number, of so many images; even ones are in category 0, odd ones in category 1."""
    registry, first = CategoryRegistry(), 0
    for stage, count in enumerate(counts):
        numbers = np.arange(first, first + count)
        ids = [0, 1] if stage else None
        registry.observe(stage, StageGroups([*map(key, numbers)], numbers % 2, AXES[:2], ids))
        first += count
    return registry


def kept(folder: Path, count: int) -> SeenFiles:
    cache = SeenFiles(folder)
    cache.store_features(SPACE, [*map(key, range(count))], torch.from_numpy(AXES[np.arange(count) % 2]))
    return cache


def test_earlier_images_are_those_of_stages_before_each_moment_once(tmp_path: Path) -> None:
    registry, cache = seen([100, 40, 30]), kept(tmp_path, 130)
    cache.store_followers([], {key(1): key(0), key(101): key(100)})
    edits.move(registry, [key(4)], None)
    found = StageGrouping(registry, SPACE, cache).before(2, 50, [1, 0])
    assert found is not None and found.newest == 2
    numbers = [each for each in range(130) if each not in (1, 101)]  # of 130 to 139 there are no features
    assert found.stages.tolist() == [int(each >= 100) for each in numbers]
    rows = [NO_CATEGORY if each == 4 else 1 - each % 2 for each in numbers]
    assert found.rows.tolist() == rows, "rows of the ids as they are given"
    assert found.features.tolist() == AXES[np.array(numbers) % 2].tolist()


def test_with_too_few_earlier_images_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    registry, cache = seen([120, 5]), kept(tmp_path, 120)
    past = StageGrouping(registry, SPACE, cache)
    assert past.before(1, 240, [0, 1]) is not None
    assert past.before(1, 241, [0, 1]) is None  # less than one for two new ones
    cache.store_followers([], {key(each): key(0) for each in range(1, 22)})
    assert past.before(1, 5, [0, 1]) is None  # 99


def test_of_many_earlier_images_some_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_grouping, "MOST_REMEMBERED", 110)
    registry, cache = seen([400, 5]), kept(tmp_path, 400)
    drawn = [StageGrouping(registry, SPACE, cache, seed=seed).before(1, 5, [0, 1]) for seed in (1, 1, 2)]
    one, same, other = (each.rows.tolist() for each in drawn)
    assert len(one) == len(other) == 110
    assert one == same != other


def test_features_come_in_the_order_of_the_keys(tmp_path: Path) -> None:
    registry, cache = seen([6]), kept(tmp_path, 4)
    keys = [key(3), key(9), key(0)]
    assert list(StageGrouping(registry, SPACE, cache).features(keys)) == [key(3), key(0)]
    assert not StageGrouping(registry, "another", cache).features(keys)
    cache.store_features("wide", [key(0)], torch.ones(1, WIDTH + 1))
    assert not StageGrouping(registry, "wide", cache).features(keys)


def test_what_waits_is_what_nobody_spoke_of_and_is_most_like_something(tmp_path: Path) -> None:
    registry, cache = seen([6]), kept(tmp_path, 5)
    edits.move(registry, [key(0)], None)
    clusters = np.array([1, 0, *[NO_CATEGORY] * 3])
    registry.observe(0, StageGroups([*map(key, range(1, 6))], clusters, AXES[:2], [0, 1]))
    past = StageGrouping(registry, SPACE, cache)
    assert past.waiting == [key(3), key(4), key(5)], "a person took the first one out"
    assert past.likest() == {key(3): 1, key(4): 0}, "the last one has no features"
    edits.move(registry, [key(3)], 1)
    edits.confirm(registry, [key(3)])
    assert past.waiting == [key(4), key(5)]


def test_what_waited_and_fits_now_comes_along_unless_it_is_among_the_new_images(tmp_path: Path) -> None:
    registry, cache = seen([6]), SeenFiles(tmp_path)
    clusters = np.array([*[NO_CATEGORY] * 4, 0, 1])
    registry.observe(0, StageGroups([*map(key, range(6))], clusters, AXES[:2], [0, 1]))
    features = torch.from_numpy(AXES[[1, 3, 2, 2]])  # 1 is far from all
    cache.store_features(SPACE, [*map(key, range(4))], features)
    past = StageGrouping(registry, SPACE, cache)
    prototypes = torch.from_numpy(AXES[:3]).float()
    found = assign(prototypes, prototypes, [0, 1, 2], temperature=0.1, keys=["a", "b", "c"])
    earlier = EarlierImages(prototypes[:2], torch.tensor([0, 1]), torch.tensor([0, 0]), 1)
    spread = CategorySpread(torch.eye(WIDTH), torch.full((2,), 0.1), 0.1, 1.5, 2.0, 4.0, 0.1, 1.0)
    known = KnownCategories((0, 1), prototypes[:2], spread, earlier)
    fits = past.fitting(found, known, {key(3)})
    assert fits is not None and (fits.keys, fits.category_ids.tolist()) == ((key(0), key(2)), [1, 2])
    assert past.fitting(found, known, {key(0), key(2), key(3)}) is None
    for unknown in (replace(known, spread=None), replace(known, earlier=None)):
        assert past.fitting(found, unknown, set()) is None

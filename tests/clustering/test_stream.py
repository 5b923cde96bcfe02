"""A category opens where images have come to lie and hardly any lay before, and in no other case."""

import numpy as np
import pytest
import torch

from promptccd.clustering import GroupingConstraints
from promptccd.clustering.stream import Stream
from promptccd.discovery.grouping import EarlierImages, KnownCategories, group_images
from promptccd.discovery.project.observe import NO_CATEGORY

WIDTH, KINDS = 16, 6


def world(seed: int, kinds: int = 30) -> torch.Tensor:
    """Centres ``(kinds, D)`` whose clouds touch: the usual distance between two is some four spreads."""
    return torch.randn(kinds, WIDTH, generator=torch.Generator().manual_seed(seed)) * 0.7


def images(centres: torch.Tensor, counts: list[int], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    parts = [
        centre + 0.5 * torch.randn(count, WIDTH, generator=generator)
        for centre, count in zip(centres, counts, strict=False)
    ]
    return torch.cat(parts)


def stream(
    centres: torch.Tensor, newest: list[int], before: list[list[int]], seed: int = 0, known: int = KINDS
) -> Stream:
    """The newest images, so many of each centre, after stages of so many each."""
    earlier = [images(centres, counts, seed * 100 + stage) for stage, counts in enumerate(before)]
    return Stream(
        points=images(centres, newest, seed * 100 + 99),
        earlier=torch.cat(earlier),
        stages=torch.cat([torch.full((len(each),), stage) for stage, each in enumerate(earlier)]),
        existing=centres[:known],
        stage=len(before),
        seed=seed,
    )


@pytest.mark.slow
def test_where_nothing_is_new_nothing_opens_in_forty_stages():
    centres, opened = world(0), 0
    for stage in range(2, 42):
        before = [[20] * KINDS for _ in range(min(stage, 8))]
        opened += len(stream(centres, [20] * KINDS, before, seed=stage).opened().centres)
    assert opened <= 1


@pytest.mark.parametrize("seed", range(5))
def test_a_new_kind_opens_at_its_centre(seed):
    centres = world(seed)
    found = stream(centres, [20] * KINDS + [15], [[20] * KINDS] * 3, seed).opened()
    assert len(found.centres) == 1
    assert torch.cdist(found.centres, centres).argmin() == KINDS
    assert found.doubtful in (0, 1)


@pytest.mark.parametrize("seed", range(5))
def test_kinds_that_come_together_open_one_each(seed):
    centres = world(seed)
    found = stream(centres, [20] * KINDS + [25, 25, 25], [[20] * KINDS] * 4, seed).opened()
    distances = torch.cdist(found.centres, centres)
    assert sorted(distances.argmin(1).tolist()) == [KINDS, KINDS + 1, KINDS + 2]
    assert distances.amin(1).max() < 0.8


def test_one_kind_with_many_images_opens_once():
    found = stream(world(3), [20] * KINDS + [150], [[20] * KINDS] * 4).opened()
    assert len(found.centres) == 1


def test_a_kind_of_three_images_a_stage_is_found_when_there_are_enough():
    centres = world(1)
    before = [[20] * KINDS] * 24
    opened = [
        len(stream(centres, [20] * KINDS + [3], before + [[20] * KINDS + [3]] * stages).opened().centres)
        for stages in (0, 8)
    ]
    assert opened == [0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_a_known_category_may_come_more_often_pause_and_return(seed):
    centres = world(seed)
    often, pauses = [100, *[20] * (KINDS - 1)], [0, *[20] * (KINDS - 1)]
    assert not len(stream(centres, often, [[20] * KINDS] * 6, seed).opened().centres)
    assert not len(stream(centres, [20] * KINDS, [[20] * KINDS] * 3 + [pauses] * 6, seed).opened().centres)


def test_a_part_that_was_always_there_is_not_new_but_one_that_comes_is():
    centres = world(2)
    part = centres[:1] + 1.2 * torch.nn.functional.normalize(
        torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(5)), dim=1
    )
    here = torch.cat([centres[:KINDS], part])
    always = stream(here, [20] * KINDS + [20], [[20] * KINDS + [20]] * 6)
    comes = stream(here, [20] * KINDS + [20], [[20] * KINDS + [0]] * 6)
    assert not len(always.opened().centres)
    assert len(comes.opened().centres) == 1


def test_what_may_err_more_opens_more_and_says_so():
    centres = world(4)
    one = stream(centres, [20] * KINDS + [5], [[20] * KINDS] * 4)
    found = [one.opened(10.0**power) for power in range(-9, 5)]
    counts = [len(each.centres) for each in found]
    assert counts == sorted(counts)
    first = next(row for row, count in enumerate(counts) if count)
    assert first > 0
    assert found[first].doubtful == 1
    assert found[first - 1].missed >= 1
    assert (found[0].doubtful, found[0].missed) == (0, 0)


def known_and_earlier(centres: torch.Tensor, counts: list[int]) -> KnownCategories:
    """Categories as a project of its own has them: with their images, but without a measured spread."""
    features = torch.nn.functional.normalize(images(centres, counts, 7), dim=1)
    rows = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    prototypes = torch.stack([features[rows == row].mean(0) for row in range(len(counts))])
    stages = torch.arange(len(features)) % 3
    earlier = EarlierImages(features, rows, stages, newest=3)
    return KnownCategories(tuple(range(len(counts))), prototypes, None, earlier).measured(0)


def test_a_project_of_its_own_opens_what_is_new_and_lets_wait_what_fits_nowhere():
    centres = world(6)
    known = known_and_earlier(centres, [50] * KINDS)
    odd = -centres[:KINDS].mean(0, keepdim=True) * 4
    newest = torch.cat([images(centres, [20] * KINDS + [20], 8), odd])
    keys = [f"{row:04d}" for row in range(len(newest))]
    found, estimate = group_images(newest, keys, known, next_id=KINDS)
    assert known.spread is not None
    assert estimate.count == KINDS + 1
    assert estimate.low <= estimate.count <= estimate.high
    assert found.category_ids[-1] == NO_CATEGORY
    new = found.category_ids[-21:-1]
    assert (new == KINDS).float().mean() > 0.8
    truth = torch.arange(KINDS).repeat_interleave(20)
    assert (found.category_ids[: len(truth)] == truth).float().mean() > 0.8
    assert (found.category_ids == NO_CATEGORY).float().mean() < 0.15


def test_a_number_that_is_given_is_obeyed_and_nothing_waits():
    centres = world(6)
    known = known_and_earlier(centres, [50] * KINDS)
    newest = images(centres, [20] * KINDS + [20], 8)
    found, estimate = group_images(
        newest, [f"{row:04d}" for row in range(len(newest))], known, next_id=KINDS, num_categories=KINDS + 2
    )
    assert estimate.count == KINDS + 2
    assert (found.category_ids >= 0).all()


def test_what_a_person_said_of_an_image_keeps_it_from_waiting():
    centres = world(6)
    known = known_and_earlier(centres, [50] * KINDS)
    odd = -centres[:KINDS].mean(0, keepdim=True) * 4
    newest = torch.cat([images(centres, [20] * KINDS, 8), odd, odd * 1.1])
    keys = [f"{row:04d}" for row in range(len(newest))]
    said = GroupingConstraints(pinned={keys[-1]: 2}, forbidden={keys[-2]: frozenset({3})})
    found, _ = group_images(newest, keys, known, next_id=KINDS, constraints=said)
    assert found.category_ids[-1] == 2
    assert found.category_ids[-2] not in (NO_CATEGORY, 3)


def test_images_of_one_moment_wait_together_and_count_once():
    centres = world(6)
    known = known_and_earlier(centres, [50] * KINDS)
    odd = -centres[:KINDS].mean(0, keepdim=True) * 4
    plain = images(centres, [20] * KINDS, 8)
    burst = odd + 0.01 * torch.randn(30, WIDTH, generator=torch.Generator().manual_seed(1))
    newest = torch.cat([plain, burst])
    keys = [f"{row:04d}" for row in range(len(newest))]
    moments = np.arange(len(newest))
    moments[len(plain) :] = len(plain)
    found, estimate = group_images(newest, keys, known, next_id=KINDS, first_of=moments.tolist())
    assert estimate.count == KINDS
    assert (found.category_ids[len(plain) :] == NO_CATEGORY).all()
    alone, more = group_images(newest, keys, known, next_id=KINDS)
    assert more.count == KINDS + 1
    assert (alone.category_ids[len(plain) :] == KINDS).all()

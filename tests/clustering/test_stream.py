"""A category opens where images have come to lie and hardly any lay before, and in no other case."""

from typing import Any

import pytest
import torch

from promptccd.clustering import GroupingConstraints
from promptccd.clustering.stream import APART, EarlierImages, Stream
from promptccd.discovery.grouping.open_grouping import KnownCategories, group_images
from promptccd.discovery.project.observe import NO_CATEGORY

WIDTH, KINDS = 16, 6
USUAL = [20] * KINDS


def world(seed: int) -> torch.Tensor:
    """Centres ``(30, D)`` whose clouds touch: the usual distance between two is some four spreads."""
    return torch.randn(30, WIDTH, generator=torch.Generator().manual_seed(seed)) * 0.7


def images(centres: torch.Tensor, counts: list[int], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    parts = [
        centre + 0.5 * torch.randn(count, WIDTH, generator=generator)
        for centre, count in zip(centres, counts, strict=False)
    ]
    return torch.cat(parts)


def stream(centres: torch.Tensor, newest: list[int], before: list[list[int]], seed: int = 0) -> Stream:
    """The newest images, so many of each centre, after stages of so many each."""
    earlier = [images(centres, counts, seed * 100 + stage) for stage, counts in enumerate(before)]
    return Stream(
        points=images(centres, newest, seed * 100 + 99),
        earlier=torch.cat(earlier),
        stages=torch.cat([torch.full((len(each),), stage) for stage, each in enumerate(earlier)]),
        existing=centres[:KINDS],
        stage=len(before),
        seed=seed,
    )


@pytest.mark.slow
def test_where_nothing_is_new_nothing_opens_in_forty_stages():
    opened = 0
    for stage in range(2, 42):
        opened += len(stream(world(0), USUAL, [USUAL] * min(stage, 8), seed=stage).opened().centres)
    assert opened <= 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("new", "stages"), [([15], 3), ([25, 25, 25], 4)], ids=["one", "three together"])
def test_new_kinds_open_one_each_at_their_centres(new, stages, seed):
    centres = world(seed)
    found = stream(centres, USUAL + new, [USUAL] * stages, seed).opened()
    distances = torch.cdist(found.centres, centres)
    assert sorted(distances.argmin(1).tolist()) == [KINDS + place for place in range(len(new))]
    assert distances.amin(1).max() < 0.8
    assert found.doubtful in range(len(new) + 1)


def with_a_part() -> torch.Tensor:
    """A seventh kind that is a part of the first."""
    centres, drawn = world(2), torch.Generator().manual_seed(5)
    part = torch.nn.functional.normalize(torch.randn(1, WIDTH, generator=drawn), dim=1)
    return torch.cat([centres[:KINDS], centres[:1] + 1.2 * part])


# Centres, the newest images of each kind, those of each stage before, and how many categories open.
CASES = {
    "many images of one kind": (world(3), [*USUAL, 150], [USUAL] * 4, 1),
    "three images of a kind": (world(1), [*USUAL, 3], [USUAL] * 24, 0),
    "three a stage, of which there are enough": (world(1), [*USUAL, 3], [USUAL] * 24 + [[*USUAL, 3]] * 8, 1),
    "a part that was always there": (with_a_part(), [*USUAL, 20], [[*USUAL, 20]] * 6, 0),
    "a part that comes": (with_a_part(), [*USUAL, 20], [[*USUAL, 0]] * 6, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_a_category_opens_for_enough_images_of_what_was_not_there(name):
    centres, newest, before, expected = CASES[name]
    assert len(stream(centres, newest, before).opened().centres) == expected


@pytest.mark.parametrize("seed", range(5))
def test_a_known_category_may_come_more_often_pause_and_return(seed):
    often, pauses = [100, *USUAL[1:]], [0, *USUAL[1:]]
    assert not len(stream(world(seed), often, [USUAL] * 6, seed).opened().centres)
    assert not len(stream(world(seed), USUAL, [USUAL] * 3 + [pauses] * 6, seed).opened().centres)


def test_what_may_err_more_opens_more_and_says_so():
    one = stream(world(4), [*USUAL, 5], [USUAL] * 4)
    found = [one.opened(10.0**power) for power in range(-9, 5, 2)]
    counts = [len(each.centres) for each in found]
    assert counts == sorted(counts)
    first = next(row for row, count in enumerate(counts) if count)
    assert first > 0
    assert found[first].doubtful == 1
    assert found[first - 1].missed >= 1
    assert (found[0].doubtful, found[0].missed) == (0, 0)


@pytest.mark.parametrize("rounded", [1e-3, -1e-3])
def test_new_groups_lie_as_far_apart_as_known_ones_do_beyond_the_error_of_their_means(rounded: float):
    """Known centres are 2 apart; images lie 1 from theirs, so means of four and of two are off by 1/4 and 1/2."""
    existing, new = torch.tensor([[0.0, 0], [2, 0]]), torch.tensor([[0.0, 50], [0, 50]])
    new[1, 1] += (APART * 4 + 3 / 4 + rounded) ** 0.5
    sides = torch.tensor([[1.0, 0], [-1, 0]])
    late = torch.cat([new[0] + sides.repeat(2, 1), new[1] + sides])
    found = Stream(late, existing[:0], torch.zeros(0), existing, stage=1, seed=0)
    assert found._apart(late, new) == (rounded > 0)


# A project of its own: its categories have their images, but no measured spread.

CENTRES = world(6)
ODD = -CENTRES[:KINDS].mean(0, keepdim=True) * 4  # an image that fits nowhere


@pytest.fixture(scope="module")
def known() -> KnownCategories:
    features = torch.nn.functional.normalize(images(CENTRES, [50] * KINDS, 7), dim=1)
    rows = torch.arange(KINDS).repeat_interleave(50)
    prototypes = torch.stack([features[rows == row].mean(0) for row in range(KINDS)])
    earlier = EarlierImages(features, rows, torch.arange(len(features)) % 3, newest=3)
    return KnownCategories(tuple(range(KINDS)), prototypes, None, earlier).measured(0)


def grouped(
    known: KnownCategories, counts: list[int], *more: torch.Tensor, **options: Any
) -> tuple[Any, Any]:
    """Categories of so many images of each kind and of further images, and the estimated number."""
    newest = torch.cat([images(CENTRES, counts, 8), *more])
    keys = [f"{row:04d}" for row in range(len(newest))]
    found, estimate = group_images(newest, keys, known, next_id=KINDS, **options)
    return found.category_ids, estimate


def test_a_project_of_its_own_opens_what_is_new_and_lets_wait_what_fits_nowhere(known):
    found, estimate = grouped(known, [*USUAL, 20], ODD)
    assert known.spread is not None
    assert estimate.count == KINDS + 1
    assert estimate.low <= estimate.count <= estimate.high
    assert found[-1] == NO_CATEGORY
    assert (found[-21:-1] == KINDS).float().mean() > 0.8
    truth = torch.arange(KINDS).repeat_interleave(20)
    assert (found[: len(truth)] == truth).float().mean() > 0.8
    assert (found == NO_CATEGORY).float().mean() < 0.15


def test_a_number_that_is_given_is_obeyed_and_nothing_waits(known):
    found, estimate = grouped(known, [*USUAL, 20], num_categories=KINDS + 2)
    assert estimate.count == KINDS + 2
    assert (found >= 0).all()


def test_what_a_person_said_of_an_image_keeps_it_from_waiting(known):
    first, second = (f"{sum(USUAL) + place:04d}" for place in (0, 1))
    said = GroupingConstraints(pinned={second: 2}, forbidden={first: frozenset({3})})
    found, _ = grouped(known, USUAL, ODD, ODD * 1.1, constraints=said)
    assert found[-1] == 2
    assert found[-2] not in (NO_CATEGORY, 3)


def test_images_of_one_moment_wait_together_and_count_once(known):
    burst = ODD + 0.01 * torch.randn(30, WIDTH, generator=torch.Generator().manual_seed(1))
    first_of = [*range(sum(USUAL)), *[sum(USUAL)] * 30]
    found, estimate = grouped(known, USUAL, burst, first_of=first_of)
    assert estimate.count == KINDS
    assert (found[-30:] == NO_CATEGORY).all()
    alone, more = grouped(known, USUAL, burst)
    assert more.count == KINDS + 1
    assert (alone[-30:] == KINDS).all()

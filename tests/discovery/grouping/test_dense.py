"""Groups of very different sizes are found where they lie densely, and groups of one size as before."""

import pytest
import torch

from promptccd.discovery.grouping import KnownCategories, group_images
from promptccd.discovery.grouping.open_grouping import FEWEST_DENSE, MOST_DENSE, dense_places

WIDTH = 12


def crowd(
    sizes: list[int], seed: int, spread: float = 0.25, between: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images around one centre for each size, and some between all of them; and the centre of each, -1 for those."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(len(sizes), WIDTH, generator=generator)
    truth = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    points = centres[truth] + spread * torch.randn(len(truth), WIDTH, generator=generator)
    lost = 1.5 * torch.randn(between, WIDTH, generator=generator)
    return torch.cat([points, lost]), torch.cat([truth, torch.full((between,), -1)])


LONG_TAIL = [150, 120, 90, *[20] * 5, *[8] * 6, *[3] * 12]


def purity(found: torch.Tensor, truth: torch.Tensor) -> float:
    """Share of images that are of the most frequent kind of their group."""
    right = sum(int(truth[found == group].bincount().max()) for group in found.unique())
    return right / len(truth)


def found_in(points: torch.Tensor, **options: object) -> tuple[torch.Tensor, object]:
    keys = [f"{row:05d}" for row in range(len(points))]
    found, estimate = group_images(points, keys, KnownCategories.none(WIDTH), next_id=0, **options)
    return found.category_ids, estimate


@pytest.mark.parametrize("seed", range(3))
def test_small_kinds_beside_large_ones_are_found(seed):
    points, truth = crowd(LONG_TAIL, seed)
    places = dense_places(points, torch.zeros(len(points), dtype=torch.int64))
    assert places is not None
    groups, low, high = places
    placed = groups >= 0
    assert purity(groups[placed], truth[placed]) > 0.95
    assert low < len(LONG_TAIL) <= high
    small = truth >= 3 + 5 + 6
    assert len(groups[small & placed].unique()) >= 6


def test_groups_that_stand_apart_as_well_stay():
    points, truth = crowd([30] * 8, 1)
    assert dense_places(points, truth) is None


def test_images_that_lie_between_groups_make_none_dense():
    points, _ = crowd([30] * 4, 1, between=80)
    assert dense_places(points, torch.zeros(len(points), dtype=torch.int64)) is None


@pytest.mark.parametrize("count", [FEWEST_DENSE - 1, MOST_DENSE + 1])
def test_too_few_and_too_many_images_are_left_to_k_means(count):
    assert dense_places(torch.randn(count, 2), torch.zeros(count, dtype=torch.int64)) is None


@pytest.mark.moderate
def test_grouping_takes_the_view_that_stands_apart(monkeypatch):
    points, truth = crowd(LONG_TAIL, 0)
    found, estimate = found_in(points)
    assert estimate.low <= len(LONG_TAIL) <= estimate.high
    assert purity(found, truth) > 0.9
    assert len(found.unique()) == estimate.count

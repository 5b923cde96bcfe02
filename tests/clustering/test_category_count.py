import pytest
import torch

from promptccd.clustering.counting import CountEstimate, estimate_by_split_merge
from promptccd.errors import DataError
from tests.messages import TEXT

from .test_split_merge import blobs

TEN = [30, 32, 35, 38, 40, 42, 45, 48, 52, 60]


def test_reads_as_a_range_and_never_as_a_bare_number():
    estimate = CountEstimate(84, 80, 88, "k-means", "1 point of labelled accuracy")
    assert str(estimate) == TEXT["84-80-to-88-within-1"]
    assert estimate.range == (80, 88)


def test_another_count_stretches_the_range_and_a_given_one_stays_given():
    estimate = CountEstimate(5, 4, 6, "split_merge", "x")
    for count, low, high in ((5, 4, 6), (2, 2, 6), (9, 4, 9)):
        assert estimate.including(count) == CountEstimate(count, low, high, "split_merge", "x")
    assert CountEstimate.known(5).including(3) == CountEstimate.known(3)


@pytest.mark.parametrize(("low", "high"), [(85, 90), (80, 83), (0, 84)])
def test_the_range_holds_the_count(low, high):
    with pytest.raises(DataError, match="1 <= low <= count <= high"):
        CountEstimate(84 if low else 0, low, high, "k-means", "1 point")


@pytest.mark.moderate
@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0])
def test_estimate_of_a_mixture_is_an_ordered_range(spread):
    points, _ = blobs(TEN, spread=spread)
    estimate = estimate_by_split_merge(points, 8, seed=0)
    assert estimate.low <= 10 <= estimate.high
    assert estimate.margin in str(estimate)


@pytest.mark.slow
@pytest.mark.parametrize("known", [6, 9, 10])
def test_settled_categories_stay_whole_and_apart(known):
    """Sizes at which the prior alone would split or merge: replay of a settled category is one category."""
    sizes = [90, 130, 100, 110, 95, 140, 40, 45, 50, 55]
    points, groups = blobs(sizes, spread=1.0)
    fixed = groups.where(groups < known, -1)
    estimate = estimate_by_split_merge(points, known, fixed=fixed, seed=0)
    assert known <= estimate.low <= estimate.count
    assert estimate.count == 10


def test_new_images_of_settled_categories_found_nothing_new():
    points, groups = blobs([40] * 6, spread=1.0)
    fixed = groups.where(torch.arange(240) % 2 == 0, -1)
    estimate = estimate_by_split_merge(points, 6, fixed=fixed, seed=0)
    assert (estimate.count, estimate.low) == (6, 6)

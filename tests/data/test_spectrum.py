"""The spectrum protocol: how much is labelled, as class blocks and cuts."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.splits import CategorySplit, cut_by_rule, spectrum_split
from promptccd.errors import ConfigurationError, DataError
from promptccd.runs import stage_stream
from promptccd.training.options import DataArguments
from promptccd.training.recipe import Recipe
from tests.messages import TEXT


def cut(num_categories: int, images: int, *options: float) -> CategorySplit:
    """The split of so many categories of so many images each."""
    labels = np.repeat(np.arange(num_categories), images)
    names = [f"category {number}" for number in range(num_categories)]
    return cut_by_rule("mixed", labels, names, *spectrum_split(num_categories, *options), 1)[1]


def images_by_category(split: CategorySplit, images: int) -> np.ndarray:
    """Number of images, stages x categories."""
    return np.stack([np.bincount(ids // images, minlength=len(split.categories)) for ids in split.sample_ids])


def test_counts_are_the_rule_worked_out_by_hand() -> None:
    counts = images_by_category(cut(20, 60, 0.5, 0.5), 60)
    assert counts[:, :10].T.tolist() == [[30, 15, 15]] * 10
    assert counts[:, 10:15].T.tolist() == [[0, 42, 18]] * 5
    assert counts[:, 15:].T.tolist() == [[0, 0, 60]] * 5


def test_a_share_is_the_decimal_number() -> None:
    """29 % of 100 is 29, although the float product is 28.999999999999996."""
    for percent, count in product(range(1, 100), (10, 30, 60, 100, 101, 196, 200, 500)):
        exact = percent * count // 100
        assert int(count * spectrum_split(10, 0.5, percent / 100)[1][0][0]) == exact, (percent, count)
        if 1 <= exact <= count - 2:
            blocks = spectrum_split(count, percent / 100, 0.5)[0]
            assert blocks == (exact, math.ceil((count - exact) / 2), (count - exact) // 2), (percent, count)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((20, 0.0, 0.5), "0 < category_ratio < 1, got 0.0"),
        ((20, 20, 0.5), "0 < category_ratio < 1, got 20"),
        ((20, 0.5, 1.0), "0 < sample_ratio < 1, got 1.0"),
        ((20, 0.5, -0.2), "0 < sample_ratio < 1, got -0.2"),
        ((20, float("nan"), 0.5), "0 < category_ratio < 1, got nan"),
        ((4, 0.2, 0.5), "category_ratio 0.2 of 4 categories labels 0 and leaves 4"),
        ((5, 0.8, 0.5), "category_ratio 0.8 of 5 categories labels 4 and leaves 1"),
    ],
)
def test_values_that_make_no_split_are_named(given: tuple, said: str) -> None:
    with pytest.raises(DataError, match=said):
        spectrum_split(*given)
    for ratio, blocks in ((0.2, (1, 2, 2)), (0.6, (3, 1, 1))):  # one category of a block is enough
        assert spectrum_split(5, ratio, 0.5)[0] == blocks


def test_ratios_stand_for_blocks_and_cuts() -> None:
    data = DataArguments(benchmark="cub", category_ratio=0.2, sample_ratio=0.8)
    assert data.resolved.class_blocks == (40, 80, 80)
    assert data.resolved.class_order == BENCHMARKS["cub"].class_order
    assert data.resolved_cuts == ((0.8, 0.5, 1.0), (0.7, 1.0), (1.0,))
    own = DataArguments(dataset="mine", num_classes=30, category_ratio=0.5, sample_ratio=0.5)
    assert own.resolved.class_blocks == (15, 8, 7)
    of_a_run = DataArguments(dataset="mine", class_blocks=[15, 8, 7], category_ratio=0.5, sample_ratio=0.5)
    assert of_a_run.resolved.class_blocks == (15, 8, 7)
    assert DataArguments(benchmark="cub").resolved_cuts is None
    assert DataArguments(cuts=[[0.5, 1.0], [1.0]]).resolved_cuts == [[0.5, 1.0], [1.0]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"category_ratio": 0.5}, "are given together"),
        ({"sample_ratio": 0.5}, "are given together"),
        ({"category_ratio": 0.5, "sample_ratio": 0.5, "split_rule": "sessions"}, "split_rule sessions"),
        (
            {"category_ratio": 0.5, "sample_ratio": 0.5, "class_blocks": [7, 1, 1, 1]},
            "class_blocks .7, 1, 1, 1.",
        ),
        ({"category_ratio": 0.5, "sample_ratio": 0.5, "cuts": [[0.5, 1.0], [1.0]]}, "give one or the other"),
    ],
)
def test_half_a_protocol_or_two_are_refused(given: dict, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Recipe.from_dict({"data": given})
    with pytest.raises(ConfigurationError, match=TEXT["category-ratio-1-got-2-0"]):
        Recipe.from_dict({"data": {"category_ratio": 2, "sample_ratio": 0.5}})


def test_the_stream_is_that_of_the_blocks_and_cuts(image_folder: Path) -> None:
    """The ratios are a way to write a split, not another kind of split."""
    given = {"dataset": str(image_folder), "num_classes": 5}
    ratios = stage_stream(DataArguments(**given, category_ratio=0.4, sample_ratio=0.5), 1)
    written = stage_stream(
        DataArguments(**given, class_blocks=[2, 2, 1], cuts=[[0.5, 0.5, 1.0], [0.7, 1.0], [1.0]]), 1
    )
    assert ratios.split.fingerprint == written.split.fingerprint
    assert [count.images for count in ratios.counts] == [30, 14 + 2 * 21, 16 + 2 * 9 + 30]

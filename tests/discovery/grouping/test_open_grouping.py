"""Groups beside known categories without a spread: k-means under constraints, dense groups, and questions."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from promptccd.clustering import GroupingConstraints
from promptccd.clustering.kmeans import suggest_split
from promptccd.discovery.grouping.open_grouping import (
    FEWEST_DENSE,
    MOST_DENSE,
    GroupingProblem,
    KnownCategories,
    dense_places,
    group_images,
)
from promptccd.discovery.grouping.questions import _doubt, pair_questions
from promptccd.errors import DataError
from promptccd.evaluation import clustering_accuracy
from tests.clustering.test_split_merge import blobs
from tests.discovery.grouping.conftest import groups_of, homes, keys_of, prototypes_of, satisfied
from tests.messages import TEXT


@pytest.fixture(scope="module")
def ten():
    points, groups = blobs([40, 30, 30, 25, 20, 40, 30, 30, 25, 20], width=64, spread=0.6)
    return points, groups, prototypes_of(points[::2], groups[::2], range(6))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_separate_groups_are_counted_and_found(count, spread):
    points, groups = blobs([300 // count] * count, width=384, spread=spread)
    found, estimate = groups_of(points)
    assert estimate.count == count
    assert clustering_accuracy(groups.numpy(), found.category_ids.numpy(), ()).all > 99


def test_without_constraints_every_image_is_with_the_nearest_prototype(digits):
    points, known = digits
    found, _ = groups_of(points, known, num_categories=12, next_id=7)
    squared = torch.cdist(points.double(), found.prototypes.double()).square()
    nearest = squared.topk(2, largest=False)
    ids = torch.tensor(found.ids)
    assert torch.equal(ids[nearest.indices[:, 0]], found.category_ids)
    assert torch.equal(ids[nearest.indices[:, 1]], found.second_ids)
    torch.testing.assert_close(nearest.values[:, 0].float(), found.distances)
    torch.testing.assert_close(torch.softmax(-squared / 0.1, 1).amax(1).float(), found.confidences)
    for place in range(7, 12):
        own = points[found.category_ids == found.ids[place]]
        torch.testing.assert_close(own.double().mean(0).float(), found.prototypes[place])


@pytest.mark.parametrize("seed", range(40))
def test_constraints_hold_or_no_grouping_can_satisfy_them(seed):
    """Seven images, two known and one or two new categories: all groupings are tried where ours is refused."""
    rng = np.random.default_rng(seed)
    points = normalize(torch.from_numpy(rng.normal(size=(7, 3))), dim=1)
    keys = list("abcdefg")
    known = KnownCategories((4, 9), normalize(torch.from_numpy(rng.normal(size=(2, 3))), dim=1))
    count = int(rng.integers(3, 5))
    pairs = list(itertools.combinations(keys, 2))
    drawn = [pairs[each] for each in rng.choice(len(pairs), 8, replace=False)]
    try:
        pinned, forbidden = {"a": int(rng.choice([4, 9]))}, {"b": {4}, "c": {9, 20}}
        constraints = GroupingConstraints(tuple(drawn[:2]), tuple(drawn[2:]), pinned, forbidden)
    except DataError:
        return
    ids = (4, 9, 20, 21)[:count]
    possible = any(
        satisfied(constraints, dict(zip(keys, each, strict=True)))
        and set(each) >= set(ids[2:])  # a new category has an image
        for each in itertools.product(ids, repeat=7)
    )
    options = {"num_categories": count, "next_id": 20, "constraints": constraints}
    try:
        found, _ = group_images(points, keys, known, **options)
    except DataError as error:
        assert "categories" in str(error)
        assert not possible
    else:
        assert satisfied(constraints, homes(found))
        assert found.confidences[0] == 1


@pytest.mark.parametrize("alike", [True, False])
def test_images_that_must_be_apart_take_the_place_of_other_groups(alike):
    """Four categories, or images that are all alike: the images of one that people keep apart get their groups."""
    points, groups = (torch.ones(80, 16), torch.zeros(80)) if alike else blobs([20] * 4, width=16, spread=0.3)
    keys = keys_of(points)
    rivals = [keys[row] for row in (groups == 0).nonzero()[:4, 0].tolist()]
    apart = GroupingConstraints(cannot_link=tuple(itertools.combinations(rivals, 2)))
    for count in (None, 4):
        found, _ = groups_of(points, num_categories=count, constraints=apart)
        assert len({homes(found)[key] for key in rivals}) == 4
    five = GroupingConstraints(cannot_link=tuple(itertools.combinations([*rivals, keys[-1]], 2)))
    with pytest.raises(DataError, match=TEXT["cannot-be-kept-apart-with-4"]):
        groups_of(points, num_categories=4, constraints=five)


def test_an_image_without_a_category_is_refused_though_others_can_be_kept_apart():
    known = KnownCategories((4, 9), torch.eye(4)[:2])
    points = torch.eye(4)[[0, 0, 1]]
    apart = {"cannot_link": (("00000", "00001"),)}
    found, _ = groups_of(points, known, 10, num_categories=2, constraints=GroupingConstraints(**apart))
    assert sorted(found.category_ids.tolist()[:2]) == [4, 9]
    nowhere = GroupingConstraints(**apart, forbidden={"00002": {4, 9}})
    with pytest.raises(DataError, match="categories"):
        groups_of(points, known, num_categories=2, next_id=10, constraints=nowhere)


def test_a_pin_to_a_new_id_opens_that_category(ten):
    points, groups, known = ten
    chosen = [keys_of(points)[row] for row in (groups == 7).nonzero()[:2, 0].tolist()]
    constraints = GroupingConstraints(pinned=dict.fromkeys(chosen, 7))
    found, _ = groups_of(points, known, num_categories=10, next_id=6, constraints=constraints)
    assert found.ids == (0, 1, 2, 3, 4, 5, 7, 6, 8, 9)
    assert set(found.category_ids[groups == 7].tolist()) == {7}
    with pytest.raises(DataError, match=TEXT["1-that-images-are-pinned-to"]):
        groups_of(points, known, num_categories=6, next_id=6, constraints=constraints)


@pytest.mark.parametrize("count", [None, 2, 3])
def test_images_that_are_all_pinned_to_known_categories_open_none(count):
    known, pinned = KnownCategories((4, 9), torch.eye(4)[2:]), {"00000": 4, "00001": 9, "00002": 4}
    constraints = GroupingConstraints(pinned=pinned)
    found, estimate = groups_of(torch.eye(4)[:3], known, 10, num_categories=count, constraints=constraints)
    assert found.category_ids.tolist() == [4, 9, 4]
    assert (found.ids, estimate.count) == ((4, 9), 2)


def test_one_image_and_images_that_are_alike():
    one, _ = groups_of(torch.randn(1, 3), next_id=5)
    assert (one.ids, one.category_ids.tolist(), one.second_ids.tolist()) == ((5,), [5], [-1])
    assert one.confidences.tolist() == [1]
    for count in (None, 4):
        alike, estimate = groups_of(torch.ones(6, 3), num_categories=count)
        assert (alike.category_ids.tolist(), estimate.count) == ([0] * 6, 1)
    every, _ = groups_of(torch.eye(3), num_categories=3)
    assert sorted(every.category_ids.tolist()) == [0, 1, 2]
    assert pair_questions(one) == pair_questions(every) == []


def test_features_that_are_no_numbers_are_refused():
    with pytest.raises(DataError, match="finite"):
        groups_of(torch.nan * torch.eye(4))


def test_a_split_separates_what_is_two(ten):
    points, groups, _ = ten
    members = (groups >= 8).nonzero()[:, 0].flip(0)
    large, small = suggest_split(points[members], seed=0)
    assert len(large) >= len(small)
    assert len(groups[members[large]].unique()) == len(groups[members[small]].unique()) == 1
    noise = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    assert len({tuple(suggest_split(noise, seed=3)[0].tolist()) for _ in range(4)}) == 1
    few_first = torch.tensor([[1.0, 0.0]] * 2 + [[0.0, 1.0]] * 3)
    assert [part.tolist() for part in suggest_split(few_first)] == [[2, 3, 4], [0, 1]]
    with pytest.raises(DataError, match=TEXT["got-3-that-are-all-alike"]):
        suggest_split(torch.ones(3, 4))


def test_a_centre_without_images_is_no_group():
    points, groups = blobs([10, 10], width=8, spread=0.1)
    problem = GroupingProblem(points, keys_of(points), KnownCategories.none(8), 0, None, 0.1)
    centres = torch.stack([torch.full((8,), 9.0), *(points[groups == each][0] for each in (0, 1))])
    found = problem.converged(centres)
    assert (len(found.centres), found.labels.tolist()) == (2, groups[problem.order].tolist())


# Groups of very different sizes are found where they lie densely, and groups of one size as before.

LONG_TAIL = [150, 120, 90, *[20] * 5, *[8] * 6, *[3] * 12]


@pytest.mark.parametrize("seed", range(3))
def test_small_categories_beside_large_ones_are_found(seed):
    points, truth = blobs(LONG_TAIL, width=12, spread=0.25, seed=seed)
    groups, low, high = dense_places(points, torch.zeros(len(points), dtype=torch.int64))
    placed = groups >= 0
    right = sum(int(truth[groups == each].bincount().max()) for each in groups[placed].unique())
    assert right / placed.sum() > 0.95
    assert low < len(LONG_TAIL) <= high
    small = truth >= 3 + 5 + 6
    assert len(groups[small & placed].unique()) >= 6


@pytest.mark.parametrize(
    ("sizes", "between", "are_found"),
    [
        ([30] * 8, 0, True),
        ([30] * 4, 80, False),
        ([FEWEST_DENSE // 3 - 1] * 3, 0, False),
        ([MOST_DENSE // 3 + 1] * 3, 0, False),
    ],
    ids=["k-means finds them as well", "many images lie between", "too few images", "too many images"],
)
def test_the_rest_is_left_to_k_means(sizes, between, are_found):
    points, truth = blobs(sizes, width=12, spread=0.25, seed=1)
    lost = normalize(torch.randn(between, 12, generator=torch.Generator().manual_seed(1)), dim=1)
    groups = truth if are_found else torch.zeros(len(points) + between, dtype=torch.int64)
    assert dense_places(torch.cat([points, lost]), groups) is None


# Questions about pairs of images: they cover many borders, and none is asked whose answer follows


def pair_of(question):
    """Both keys, the smaller first, as constraints hold them."""
    return tuple(sorted((question.first, question.second)))


def linked(constraints, kind, pairs):
    """These constraints and more links of a kind."""
    return replace(constraints, **{kind: (*getattr(constraints, kind), *pairs)})


def test_questions_are_diverse_in_any_order_of_images_and_never_asked_again(digits):
    found, _ = groups_of(*digits, num_categories=10, next_id=7)
    questions, category = pair_questions(found), homes(found)
    assert len({frozenset((category[each.first], each.second_category)) for each in questions}) >= 4
    for each in questions:
        assert category[each.second] == each.second_category
    order = torch.randperm(len(found.keys), generator=torch.Generator().manual_seed(0))
    assert pair_questions(found.select(order)) == questions
    asked = {pair_of(each) for each in questions}
    again = {pair_of(each) for each in pair_questions(found, asked)}
    assert len(asked) == len(again) == 10
    assert not asked & again


def test_doubt_is_one_midway_and_falls_with_the_share_of_the_margin():
    """To exp(-2) at the median margin."""
    near = torch.tensor([0.5, 0.6, 0.0, 0.4, 4.0, 1.0, 1.0, *[0.25] * 4])
    far = torch.tensor([0.5, 0.4, 0.0, 0.6, 6.0, 3.0, 3.0, *[0.75] * 4])
    found = SimpleNamespace(distances=near, second_distances=far, margins=far - near)
    expected = [1, 1, 1, np.exp(-0.8), np.exp(-0.8), *[np.exp(-2)] * 6]
    assert _doubt(found).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.moderate) for seed in range(3, 6))]
)
def test_small_random_cases_never_ask_what_follows(seed):
    rng = np.random.default_rng(seed)
    points = torch.from_numpy(rng.normal(size=(8, 3)))
    truth = dict(zip(keys_of(points), rng.integers(0, 3, 8).tolist(), strict=True))
    constraints, asked = GroupingConstraints(), []
    for _ in range(10):
        found, _ = groups_of(points, constraints=constraints)
        pairs = [pair_of(each) for each in pair_questions(found, asked, constraints=constraints, count=2)]
        kinds = ["must_link" if truth[one] == truth[two] else "cannot_link" for one, two in pairs]
        for pair in pairs:
            linked(constraints, "must_link", [pair])  # either would be a `DataError` if the other followed
            linked(constraints, "cannot_link", [pair])
        asked += pairs
        for kind, pair in zip(kinds, pairs, strict=True):
            constraints = linked(constraints, kind, [pair])
    assert asked and len(set(asked)) == len(asked)
    assert satisfied(constraints, homes(found))

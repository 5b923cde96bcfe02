import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from promptccd.clustering import GroupingConstraints
from promptccd.discovery.grouping import KnownCategories, group_images, suggest_split
from promptccd.errors import DataError
from promptccd.evaluation import clustering_accuracy
from tests.clustering.test_split_merge import blobs
from tests.discovery.grouping.conftest import keys_of, prototypes_of
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
    found, estimate = group_images(points, keys_of(points), KnownCategories.none(384), next_id=0)
    assert estimate.count == count
    assert clustering_accuracy(groups.numpy(), found.category_ids.numpy(), ()).all > 99


@pytest.mark.moderate
def test_new_groups_open_beside_known_ones(ten):
    points, groups, known = ten
    found, estimate = group_images(points, keys_of(points), known, next_id=20)
    assert estimate.low <= 10 <= estimate.high
    assert found.ids == (*range(6), 20, 21, 22, 23)
    assert found.category_ids[groups < 6].tolist() == groups[groups < 6].tolist()
    assert "(" in str(estimate)
    assert torch.equal(found.prototypes[:6], known.prototypes)


def test_without_constraints_every_image_is_with_the_nearest_prototype(digits):
    points, known = digits
    found, _ = group_images(points, keys_of(points), known, num_categories=12, next_id=7)
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


def satisfied(constraints, of):
    """Whether categories by key obey, image by image."""
    return (
        all(of[one] == of[two] for one, two in constraints.must_link)
        and all(of[one] != of[two] for one, two in constraints.cannot_link)
        and all(of[key] == category for key, category in constraints.pinned.items())
        and all(of[key] not in banned for key, banned in constraints.forbidden.items())
    )


@pytest.mark.parametrize("seed", range(40))
def test_constraints_hold_or_no_grouping_can_satisfy_them(seed):
    """Seven images, two known and one or two new categories: all groupings are tried where ours is refused."""
    rng = np.random.default_rng(seed)
    points = normalize(torch.from_numpy(rng.normal(size=(7, 3))), dim=1)
    keys = list("abcdefg")
    known = KnownCategories((4, 9), normalize(torch.from_numpy(rng.normal(size=(2, 3))), dim=1))
    count, next_id = int(rng.integers(3, 5)), 20
    pairs = list(itertools.combinations(keys, 2))
    drawn = [pairs[each] for each in rng.choice(len(pairs), 8, replace=False)]
    try:
        constraints = GroupingConstraints(
            tuple(drawn[:2]), tuple(drawn[2:]), {"a": int(rng.choice([4, 9]))}, {"b": {4}, "c": {9, 20}}
        )
    except DataError:
        return
    ids = (4, 9, 20, 21)[:count]
    possible = any(
        satisfied(constraints, dict(zip(keys, each, strict=True)))
        and set(each) >= set(ids[2:])  # a new category has an image
        for each in itertools.product(ids, repeat=7)
    )
    try:
        found, _ = group_images(
            points, keys, known, num_categories=count, next_id=next_id, constraints=constraints
        )
    except DataError as error:
        assert "categories" in str(error)
        assert not possible
    else:
        of = dict(zip(keys, found.category_ids.tolist(), strict=True))
        assert satisfied(constraints, of)
        assert found.confidences[0] == 1


def test_images_that_must_be_apart_open_groups_even_where_they_look_alike():
    points = torch.ones(4, 3)
    apart = GroupingConstraints(cannot_link=tuple(itertools.combinations("abc", 2)))
    found, _ = group_images(points, list("abcd"), KnownCategories.none(3), next_id=0, constraints=apart)
    assert len(set(found.category_ids[:3].tolist())) == 3
    with pytest.raises(DataError, match=TEXT["images-and-cannot-be-kept-apart"]):
        group_images(
            points, list("abcd"), KnownCategories.none(3), num_categories=2, next_id=0, constraints=apart
        )


def test_a_pin_to_a_new_id_opens_that_category(ten):
    points, groups, known = ten
    keys = keys_of(points)
    chosen = [keys[row] for row in (groups == 7).nonzero()[:2, 0].tolist()]
    constraints = GroupingConstraints(pinned=dict.fromkeys(chosen, 7))
    found, _ = group_images(points, keys, known, num_categories=10, next_id=6, constraints=constraints)
    assert found.ids == (0, 1, 2, 3, 4, 5, 7, 6, 8, 9)
    assert set(found.category_ids[groups == 7].tolist()) == {7}
    with pytest.raises(DataError, match=TEXT["1-that-images-are-pinned-to"]):
        group_images(points, keys, known, num_categories=6, next_id=6, constraints=constraints)


@pytest.mark.parametrize("count", [None, 2, 3])
def test_images_that_are_all_pinned_to_known_categories_open_none(count):
    known, pinned = KnownCategories((4, 9), torch.eye(4)[2:]), {"a": 4, "b": 9, "c": 4}
    found, estimate = group_images(
        torch.eye(4)[:3],
        list("abc"),
        known,
        num_categories=count,
        next_id=10,
        constraints=GroupingConstraints(pinned=pinned),
    )
    assert found.category_ids.tolist() == [4, 9, 4]
    assert (found.ids, estimate.count) == ((4, 9), 2)


def test_known_categories_without_an_image_stay():
    points, groups = blobs([20, 20, 20], width=32, spread=0.3)
    known = prototypes_of(points, groups, [0, 1, 2])
    found, _ = group_images(points[groups == 1], keys_of(points[groups == 1]), known, next_id=3)
    assert found.category_ids.tolist() == [1] * 20
    assert found.ids == known.ids
    assert torch.equal(found.prototypes, known.prototypes)


def test_one_image_and_images_that_are_alike():
    none = KnownCategories.none(3)
    one, _ = group_images(torch.randn(1, 3), ["a"], none, next_id=5)
    assert (one.ids, one.category_ids.tolist(), one.second_ids.tolist()) == ((5,), [5], [-1])
    assert one.confidences.tolist() == [1]
    for count in (None, 4):
        alike, estimate = group_images(
            torch.ones(6, 3), list("abcdef"), none, num_categories=count, next_id=0
        )
        assert alike.category_ids.tolist() == [0] * 6
        assert estimate.count == 1
    every, _ = group_images(torch.eye(3), list("abc"), none, num_categories=3, next_id=0)
    assert sorted(every.category_ids.tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"features": torch.full((3, 4), torch.nan)}, "finite"),
        ({"num_categories": 1}, "2 <= num_categories <= 5"),
        ({"num_categories": 6}, "2 <= num_categories <= 5"),
    ],
)
def test_bad_input_is_refused(changed, message):
    values = {"features": torch.eye(4)[:3], **changed}
    with pytest.raises(DataError, match=message):
        group_images(**values, keys=list("abc"), next_id=2, known=KnownCategories((0, 1), torch.eye(4)[-2:]))


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

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from promptccd.clustering import GroupingConstraints
from promptccd.discovery.grouping import KnownCategories, group_images, pair_questions
from promptccd.errors import DataError
from promptccd.models import Assignment
from tests.discovery.grouping.conftest import keys_of


def pair_of(question):
    """Both keys, the smaller first, as constraints hold them."""
    return tuple(sorted((question.first, question.second)))


def with_answers(constraints, pairs, truth):
    same = [pair for pair in pairs if truth[pair[0]] == truth[pair[1]]]
    return linked(constraints, same, [pair for pair in pairs if pair not in same])


def linked(constraints, must_link=(), cannot_link=()):
    """These constraints and more links."""
    return replace(
        constraints,
        must_link=(*constraints.must_link, *must_link),
        cannot_link=(*constraints.cannot_link, *cannot_link),
    )


def test_questions_are_diverse_in_any_order_of_images_and_never_asked_again(digits):
    points, known = digits
    found, _ = group_images(points, keys_of(points), known, num_categories=10, next_id=7)
    questions = pair_questions(found)
    category = dict(zip(found.keys, found.category_ids.tolist(), strict=True))
    assert len({frozenset((category[each.first], each.second_category)) for each in questions}) >= 4
    for each in questions:
        assert category[each.second] == each.second_category
        assert 0 <= each.doubt <= 1
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))
    assert pair_questions(found.select(order)) == questions
    asked = {pair_of(each) for each in questions}
    again = {pair_of(each) for each in pair_questions(found, asked)}
    assert len(asked) == len(again) == 10
    assert not asked & again


def test_few_images_give_few_questions():
    points = torch.eye(3)
    grouping, _ = group_images(points, list("abc"), KnownCategories.none(3), num_categories=3, next_id=0)
    assert pair_questions(grouping) == []
    one, _ = group_images(points[:1], ["a"], KnownCategories.none(3), next_id=0)
    assert pair_questions(one) == []


def doubtful(*places):
    """Images in doubt at places far from each other, each among two typical ones of its groups and ten settled ones.

    Settled ones are of the median margin: half of what their two distances add up to.

    Args:
        places: by key, an image's group, the next group, and the distances to both.
    """
    rows = [("typical", 0, 20.0, 8, 9, 0.0, 1.0)]
    for place, images in enumerate(places):
        rows += [(f"settled {place}-{each}", place, 0.5 + each, 8, 9, 0.25, 0.75) for each in range(10)]
        for shift, (key, (own, other, near, far)) in enumerate(images.items()):
            rows.append((key, place, 0.01 * shift, own, other, near, far))
            rows += [(f"{each} {key}", place, 20.0, each, 9, 0.0, 1.0) for each in (own, other)]
    keys, place, shift, own, other, near, far = zip(*rows, strict=True)
    features = torch.nn.functional.one_hot(torch.tensor(place), len(places) + 1).double()
    features[:, -1] = torch.tensor(shift)
    return Assignment(
        features=torch.nn.functional.normalize(features, dim=1),
        prototypes=torch.zeros(len({*own, *other}), len(places) + 1),
        ids=tuple(sorted({*own, *other})),
        num_known=0,
        category_ids=torch.tensor(own),
        confidences=torch.ones(len(rows)),
        distances=torch.tensor(near),
        second_ids=torch.tensor(other),
        second_distances=torch.tensor(far),
        novel=torch.zeros(len(rows), dtype=torch.bool),
        keys=keys,
    )


def test_an_image_is_shown_beside_the_most_typical_one_of_the_next_group_that_has_any():
    found = doubtful({"a": (0, 1, 0.5, 0.5)}, {"b": (1, 0, 0.4, 0.6)})
    question = pair_questions(found, count=1)[0]
    assert (question.first, question.second, question.second_category) == ("a", "1 a", 1)
    nobody = replace(found, second_ids=torch.full_like(found.second_ids, 7))
    question = pair_questions(nobody, count=1)[0]
    assert (question.first, question.second, question.second_category) == ("a", "0 a", 0)


def test_doubt_is_one_midway_and_falls_with_the_share_of_the_margin():
    """To exp(-2) at the median margin."""
    images = {
        "midway": (0, 1, 0.5, 0.5),
        "moved": (0, 1, 0.6, 0.4),
        "on both": (0, 1, 0.0, 0.0),
        "nearer": (0, 1, 0.4, 0.6),
        "nearer, far out": (0, 1, 4.0, 6.0),
        "as the median": (0, 1, 1.0, 3.0),
    }
    questions = pair_questions(doubtful(images), count=20)
    doubts = {each.first: each.doubt for each in questions}
    expected = [1, 1, 1, np.exp(-0.8), np.exp(-0.8), np.exp(-2)]
    assert [doubts[key] for key in images] == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(10))
def test_small_random_cases_never_ask_what_follows(seed):
    rng = np.random.default_rng(seed)
    points, keys = torch.from_numpy(rng.normal(size=(8, 3))), list("abcdefgh")
    truth = dict(zip(keys, rng.integers(0, 3, 8).tolist(), strict=True))
    constraints, asked = GroupingConstraints(), []
    for _ in range(10):
        grouping, _ = group_images(points, keys, KnownCategories.none(3), next_id=0, constraints=constraints)
        pairs = [pair_of(each) for each in pair_questions(grouping, asked, constraints=constraints, count=2)]
        if not pairs:
            break
        for one, two in pairs:
            with_same, with_other = (
                _possible(constraints, must_link=[(one, two)]),
                _possible(constraints, cannot_link=[(one, two)]),
            )
            assert with_same
            assert with_other
        asked += pairs
        constraints = with_answers(constraints, pairs, truth)
    assert all(asked.count(pair) == 1 for pair in asked)
    of = dict(zip(keys, grouping.category_ids.tolist(), strict=True))
    assert all(
        (of[one] == of[two]) == (truth[one] == truth[two])
        for one, two in itertools.chain(constraints.must_link, constraints.cannot_link)
    )


def _possible(constraints, **more):
    try:
        linked(constraints, **more)
    except DataError:
        return False
    return True

"""Questions about pairs of images: they cover many borders, and none is asked whose answer follows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize, one_hot

from promptccd.clustering import GroupingConstraints
from promptccd.discovery.grouping import pair_questions
from promptccd.models import Assignment
from tests.discovery.grouping.conftest import groups_of, homes, keys_of, satisfied


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
        assert 0 <= each.doubt <= 1
    order = torch.randperm(len(found.keys), generator=torch.Generator().manual_seed(0))
    assert pair_questions(found.select(order)) == questions
    asked = {pair_of(each) for each in questions}
    again = {pair_of(each) for each in pair_questions(found, asked)}
    assert len(asked) == len(again) == 10
    assert not asked & again


@pytest.mark.parametrize("count", [1, 3])
def test_few_images_give_few_questions(count):
    found, _ = groups_of(torch.eye(3)[:count], num_categories=count)
    assert pair_questions(found) == []


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
    features = one_hot(torch.tensor(place), len(places) + 1).double()
    features[:, -1] = torch.tensor(shift)
    return Assignment(
        features=normalize(features, dim=1),
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


@pytest.mark.parametrize("seed", range(6))
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

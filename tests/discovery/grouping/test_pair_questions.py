"""Questions about pairs of images: they cover many borders, and none is asked whose answer follows."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from promptccd.clustering import GroupingConstraints
from promptccd.discovery.grouping.questions import _doubt, pair_questions
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


def test_doubt_is_one_midway_and_falls_with_the_share_of_the_margin():
    """To exp(-2) at the median margin."""
    near, far = (
        torch.tensor([0.5, 0.6, 0.0, 0.4, 4.0, 1.0, 1.0]),
        torch.tensor([0.5, 0.4, 0.0, 0.6, 6.0, 3.0, 3.0]),
    )
    near, far = torch.cat([near, torch.full((4,), 0.25)]), torch.cat([far, torch.full((4,), 0.75)])
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

"""Images and their categories, by hand: distances, confidences, second choices."""

import math
from typing import Any

import pytest
import torch

from promptccd.models import assignment
from promptccd.models.assignment import CategorySpread, assign, nearest, squared_distances

FEATURES = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
PROTOTYPES = torch.tensor([[1.0, 0.0], [0.0, 0.5]])
OF_IMAGES = ("features", *assignment._OF_IMAGES)


def test_the_nearest_prototype_by_hand() -> None:
    found = assign(FEATURES, PROTOTYPES, [7, 3], temperature=0.5, keys="abc")
    assert found.category_ids.tolist() == [7, 3, 3]
    assert found.distances.tolist() == pytest.approx([0, 0.25, 0.45])
    assert found.second_ids.tolist() == [3, 7, 7]
    assert found.second_distances.tolist() == pytest.approx([1.25, 2, 0.8])
    chances = [1 / (1 + math.exp(-margin / 0.5)) for margin in (1.25, 1.75, 0.35)]
    assert found.confidences.tolist() == pytest.approx(chances)
    assert found.margins.tolist() == pytest.approx([1.25, 1.75, 0.35])
    assert (found.rows_of(3), found.num_known) == ([1, 2], 2)
    turned = found.select(torch.tensor([2, 0]))
    assert (turned.keys, turned.ids) == (("c", "a"), found.ids)
    for name in OF_IMAGES:
        assert torch.equal(getattr(turned, name), getattr(found, name)[[2, 0]])
    ids, confidences = nearest(FEATURES, PROTOTYPES, [7, 3], 5, temperature=0.5)
    assert ids.tolist() == [[7, 3], [3, 7], [3, 7]]
    torch.testing.assert_close(confidences[:, 0], found.confidences)
    torch.testing.assert_close(confidences.sum(1), torch.ones(3))


def test_categories_that_are_given_are_kept_and_a_person_is_sure() -> None:
    decided = torch.tensor([True, False, False])
    rows = torch.tensor([1, 1, 0])
    found = assign(FEATURES, PROTOTYPES, [7, 3], temperature=1, rows=rows, decided=decided, num_known=1)
    assert (found.category_ids.tolist(), found.second_ids.tolist()) == ([3, 3, 7], [7, 7, 3])
    assert found.margins.tolist() == pytest.approx([-1.25, 1.75, -0.35])
    chances = [1, 1 / (1 + math.exp(-1.75)), 1 / (1 + math.exp(0.35))]
    assert found.confidences.tolist() == pytest.approx(chances)
    assert found.num_known == 1


def test_a_known_spread_by_hand() -> None:
    """Squared distances in a metric twice as fine across as up, over the typical spread of 0.8.

    Named is by these; how likely an image is of any category at all is read in spreads of their own, 0.5 and 2. Both
    chances are read from distances, not from their squares.
    """
    spread = CategorySpread(
        torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([0.5, 2.0]), 0.8, 1.5, border=1.0, slope=4.0,
        temperature=0.5, separation=0.95,
    )  # fmt: skip
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.0], [0.6, 0.8], [0.6, 0.2]])
    prototypes = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    found = assign(features, prototypes, [7, 3], temperature=9.0, spread=spread)
    best, chances = nearest(features, prototypes, [7, 3], 1, temperature=9.0, spread=spread)
    assert torch.equal(best[:, 0], found.category_ids)
    # In float32 too, as all that is said of an image.
    torch.testing.assert_close(chances[:, 0], found.confidences)
    squared = [[0, 4], [5, 1], [1, 1], [4 * 0.16 + 0.64, 4 * 0.36 + 0.64], [4 * 0.16 + 0.04, 4 * 0.36 + 0.04]]
    own = [0, 1, 0, 0, 0]  # the last two are nearer to the wide category in its own spreads
    explained = [1 / (1 + math.exp(4 * (min(one / 0.5, other / 2) ** 0.5 - 1))) for one, other in squared]
    roots = [[(each / 0.8) ** 0.5 for each in row] for row in squared]
    shares = [1 / (1 + math.exp(-abs(one - other) / 0.5)) for one, other in roots]
    assert found.category_ids.tolist() == [(7, 3)[each] for each in own]
    assert found.second_ids.tolist() == [(3, 7)[each] for each in own]
    distances = [[each / 0.8 for each in row] for row in squared]
    assert found.distances.tolist() == pytest.approx([distances[row][own[row]] for row in range(5)], abs=1e-6)
    others = [distances[row][1 - own[row]] for row in range(5)]
    assert found.second_distances.tolist() == pytest.approx(others)
    both = [share * chance for share, chance in zip(shares, explained, strict=True)]
    assert found.confidences.tolist() == pytest.approx(both)
    assert found.novel.tolist() == [False, False, False, True, False]
    decided = torch.arange(5) == 3
    sure = assign(features, prototypes, [7, 3], temperature=9.0, spread=spread, decided=decided)
    assert not sure.novel.any()
    assert sure.confidences[3] == 1


@pytest.mark.parametrize(("separation", "tells"), [(0.8999, False), (0.9, True)])
def test_as_likely_of_none_as_of_one_is_not_strange_and_new_ones_stand_out_from_nine_in_ten(
    separation: float, tells: bool
) -> None:
    spread = CategorySpread(torch.eye(2), torch.ones(1), 1.0, 1.5, 2.0, 4.0, 1.0, separation)
    assert spread.tells_new is tells
    features = torch.tensor([[3.0, 0.0], [3.001, 0.0]])
    found = assign(features, torch.tensor([[1.0, 0.0]]), [0], temperature=1.0, spread=spread)
    assert found.novel.tolist() == [False, True]


def test_one_category_has_no_second_and_none_has_no_images() -> None:
    alone = assign(FEATURES, PROTOTYPES[:1], [4], temperature=1)
    assert alone.second_ids.tolist() == [-1] * 3
    assert alone.second_distances.isinf().all()
    assert alone.confidences.tolist() == [1] * 3
    nothing = assign(FEATURES[:0], PROTOTYPES[:0], [], temperature=1, rows=torch.empty(0, dtype=torch.int64))
    assert (nothing.ids, nothing.category_ids.tolist(), nothing.rows_of(0)) == ((), [], [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_squared_distances_are_those_of_differences(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    points, centres = (torch.randn(count, 5, generator=generator, dtype=dtype) for count in (7, 4))
    expected = (points[:, None] - centres).square().sum(2)
    torch.testing.assert_close(squared_distances(points, centres), expected)
    assert (squared_distances(points, points) >= 0).all()
    found = assign(points, centres, range(4), temperature=0.5)
    named = [found.confidences, found.distances, found.second_distances, found.prototypes]
    assert {each.dtype for each in named} == {torch.float32}


@pytest.mark.parametrize("known", [True, False])
def test_images_are_assigned_block_by_block_as_all_at_once(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    features, prototypes = torch.randn(23, 4, generator=generator), torch.randn(5, 4, generator=generator)
    options: dict[str, Any] = {
        "temperature": 0.3,
        "spread": CategorySpread(torch.eye(4), torch.rand(5) + 0.5, 1, 2, 1.5, 2, 0.7, 0.95)
        if known
        else None,
        "rows": torch.arange(23) % 5,
        "decided": torch.arange(23) % 3 == 0,
        "keys": [str(each) for each in range(23)],
    }
    whole = assign(features, prototypes, range(5), **options)
    monkeypatch.setattr(assignment, "DISTANCE_ELEMENTS", 20)
    blocks = assign(features, prototypes, range(5), **options)
    assert (blocks.keys, blocks.ids, blocks.num_known) == (whole.keys, whole.ids, whole.num_known)
    for name in OF_IMAGES:
        torch.testing.assert_close(getattr(blocks, name), getattr(whole, name))

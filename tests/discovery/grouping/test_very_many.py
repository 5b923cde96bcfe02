"""More images than a tree is made of: groups are those of fewer."""

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from promptccd.clustering import GroupingConstraints
from promptccd.clustering.spread import measure_spread
from promptccd.discovery.grouping import EarlierImages, KnownCategories, group_images, group_tree
from promptccd.discovery.grouping.group_tree import lloyd
from tests.clustering.test_split_merge import blobs
from tests.discovery.grouping.conftest import keys_of
from tests.discovery.grouping.test_group_tree import units_of

GROUPS, EACH, WIDTH = 8, 80, 32


@pytest.fixture
def few(monkeypatch):
    """As few images make a tree beside those below as do beside millions."""

    def most(number: int) -> None:
        monkeypatch.setattr(group_tree, "MOST_SAMPLED", number)

    most(250)
    return most


@pytest.fixture(scope="module")
def crowd():
    """Images of eight categories, the truth, and what people said of some."""
    points, groups = blobs([EACH] * GROUPS, width=WIDTH, spread=0.3)
    keys, (one, two) = keys_of(points), (groups.eq(each).nonzero()[:, 0].tolist() for each in (2, 3))
    said = GroupingConstraints(
        must_link=[(keys[one[0]], keys[two[0]])],
        cannot_link=[(keys[one[1]], keys[one[2]])],
        pinned={keys[one[3]]: 30},
        forbidden={keys[two[1]]: {30}},
    )
    moments = np.arange(len(keys))
    moments[two[5:8]] = two[5]
    return points, groups, keys, said, moments


def known_of(points, groups, kind):
    """Nothing, categories beside which new ones open, or what a stream has brought before."""
    if kind == "nothing":
        return KnownCategories.none(WIDTH), 0
    old = groups < 4
    prototypes = torch.stack([points[groups == each].mean(0) for each in range(4)])
    spread = measure_spread(points[old], groups[old], prototypes, seed=1)
    earlier = None
    if kind == "stream":
        near = points[old] + 0.01
        earlier = EarlierImages(near, groups[old], torch.zeros(len(near), dtype=torch.int64), 1)
    return KnownCategories(tuple(range(4)), prototypes, spread, earlier), 4


@pytest.mark.parametrize("kind", ["nothing", "open set", "stream"])
def test_they_are_grouped_as_fewer_are(crowd, few, kind):
    points, groups, keys, said, moments = crowd
    known, next_id = known_of(points, groups, kind)
    options = {"next_id": next_id, "constraints": said, "seed": 3, "first_of": moments}
    options["num_categories"] = GROUPS + 1 if kind == "nothing" else None
    few(len(points))
    fewer, count = group_images(points, keys, known, **options)
    few(250)
    found, again = group_images(points, keys, known, **options)
    assert count.count == again.count == len(found.ids) > GROUPS / 2
    assert adjusted_rand_score(fewer.category_ids, found.category_ids) == 1
    of = dict(zip(keys, found.category_ids.tolist(), strict=True))
    assert all(of[one] == of[two] for one, two in said.must_link)
    assert all(of[one] != of[two] for one, two in said.cannot_link)
    assert all(of[key] == category for key, category in said.pinned.items())
    assert all(of[keys[row]] == of[keys[moment]] for row, moment in enumerate(moments.tolist()))


@pytest.mark.parametrize("kind", ["nothing", "open set", "stream"])
def test_their_order_changes_no_group(crowd, few, kind):
    points, groups, keys, _, moments = crowd
    known, next_id = known_of(points, groups, kind)
    count = GROUPS if kind == "nothing" else None
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))
    # The first image of the moment stays the one that stands for it.
    stands = order.argsort().numpy()[moments[order]]
    found, _ = group_images(points, keys, known, next_id=next_id, num_categories=count, first_of=moments)
    shuffled, _ = group_images(
        points[order],
        [keys[row] for row in order],
        known,
        next_id=next_id,
        num_categories=count,
        first_of=stands,
    )
    assert torch.equal(found.category_ids[order], shuffled.category_ids)


def test_k_means_of_very_many_does_not_wait_for_the_last_one_in_a_thousand(few):
    points = torch.linspace(0, 1, 4_000)[:, None]
    start = torch.tensor([[0.0], [0.6]])
    found = lloyd(units_of(points), start, 0)
    few(4_000)
    rest = lloyd(units_of(points), start, 0)
    moved = (found.labels != rest.labels).sum()
    assert 0 < moved < 20
    assert torch.equal(found.labels, torch.cdist(points, found.centres).argmin(1))

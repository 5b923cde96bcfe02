"""More images than a tree is made of: features stay where they are, on disk too, and groups are those of fewer."""

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from promptccd.clustering import GroupingConstraints, kmeans
from promptccd.clustering.spread import measure_spread
from promptccd.discovery.grouping import (
    EarlierImages,
    KnownCategories,
    group_images,
    group_tree,
    open_grouping,
    units,
)
from promptccd.discovery.grouping.group_tree import lloyd
from promptccd.errors import DataError
from promptccd.models import assignment
from tests.clustering.test_split_merge import blobs
from tests.discovery.grouping.test_group_tree import keys_of, units_of
from tests.tensor_memory import TensorMemory

GROUPS, EACH, WIDTH = 8, 80, 32


@pytest.fixture
def few(monkeypatch):
    """As few images make a tree beside those below as do beside millions."""

    def most(number: int) -> None:
        for module in (group_tree, open_grouping):
            monkeypatch.setattr(module, "MOST_SAMPLED", number)

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


def test_a_mapped_file_is_grouped_where_it_lies(crowd, few, tmp_path):
    points, _, keys, *_ = crowd
    points.half().numpy().tofile(tmp_path / "features")
    mapped = np.memmap(tmp_path / "features", np.float16, "r", shape=tuple(points.shape))
    nothing = KnownCategories.none(WIDTH)
    found, count = group_images(mapped, keys, nothing, num_categories=GROUPS, next_id=0)
    copied, again = group_images(points.half(), keys, nothing, num_categories=GROUPS, next_id=0)
    assert count == again and torch.equal(found.category_ids, copied.category_ids)
    assert torch.equal(found.prototypes, copied.prototypes)
    assert found.features.data_ptr() == mapped.ctypes.data
    bad = points.half()
    bad[600, 3] = torch.nan
    with pytest.raises(DataError, match="infinity in row 600"):
        group_images(bad.numpy(), keys, nothing, next_id=0)


@pytest.mark.slow
def test_they_take_little_memory_beside_their_features(few, monkeypatch):
    few(1_000)
    monkeypatch.setattr(units, "TABLE_ELEMENTS", 2**17)
    monkeypatch.setattr(assignment, "DISTANCE_ELEMENTS", 2**17)
    monkeypatch.setattr(kmeans, "POINTS_PER_BLOCK", 512)
    points, _ = blobs([5_000] * 4, width=192, spread=0.3)
    with TensorMemory() as memory:
        group_images(points, keys_of(points), KnownCategories.none(192), num_categories=4, next_id=0)
    assert 0 < memory.peak < points.nbytes / 4


def test_k_means_of_very_many_does_not_wait_for_the_last_one_in_a_thousand(few):
    points = torch.linspace(0, 1, 4_000)[:, None]
    start = torch.tensor([[0.0], [0.6]])
    found = lloyd(units_of(points), start, 0)
    few(4_000)
    rest = lloyd(units_of(points), start, 0)
    moved = (found.labels != rest.labels).sum()
    assert 0 < moved < 20
    assert torch.equal(found.labels, torch.cdist(points, found.centres).argmin(1))

"""MetaGCD's sessions, the redrawn streams of C-GCD, and the other class splits, with the declared counts."""

import itertools
import json

import numpy as np
import pytest

from promptccd.data import CategorySplit, StageStream
from promptccd.data.splits import cut_by_rule
from promptccd.errors import DataError
from tests.conftest import coloured_images

FIVE = [80, 5, 5, 5, 5]


def sessions(
    per_category: int = 500, blocks: list[int] = FIVE, seed: int = 1
) -> tuple[np.ndarray, CategorySplit]:
    """Categories of equal size, cut in sessions."""
    labels = np.repeat(np.arange(sum(blocks)), per_category)
    names = [f"c{number}" for number in range(sum(blocks))]
    return cut_by_rule("sessions", labels, names, blocks, None, seed)


def test_counts_of_the_setting() -> None:
    """32,000 labelled; 2,000 known images a session beside 1,500 novel ones more each time."""
    labels, cut = sessions()
    assert [len(ids) for ids in cut.sample_ids] == [32000, 3500, 5000, 6500, 8000]
    assert [count.classes for count in cut.counts] == [80, 85, 90, 95, 100]
    assert [int(np.sum(labels[ids] < 80)) for ids in cut.sample_ids[1:]] == [2000] * 4
    drawn = np.unique(np.concatenate(cut.sample_ids))
    assert np.array_equal(np.flatnonzero(labels >= 0), drawn) and len(drawn) < len(labels)
    for ids in cut.sample_ids[1:]:
        sizes = np.bincount(labels[ids], minlength=100)
        assert set(sizes[:80]) == {25}
        assert set(sizes[80:]) <= {0, 300}


def test_known_images_stand_once_and_novel_ones_recur() -> None:
    labels, cut = sessions(50)
    ids = [rows[labels[rows] < 80] for rows in cut.sample_ids]
    together = np.concatenate(ids)
    assert len(np.unique(together)) == len(together) == 80 * 50
    first_novel = [set(rows[labels[rows] == 80].tolist()) for rows in cut.sample_ids[1:]]
    assert all(len(rows) == 30 for rows in first_novel)
    assert len({frozenset(rows) for rows in first_novel}) == 4  # every session draws anew
    assert any(one & two for one, two in itertools.pairwise(first_novel))
    for rows in cut.sample_ids:
        assert np.array_equal(rows, np.unique(rows))


def test_novel_order_is_seeded_and_known_categories_keep_theirs() -> None:
    orders = [sessions(10, seed=seed)[1].categories for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert all(order[:80] == tuple(f"c{number}" for number in range(80)) for order in orders)
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


def test_a_stream_of_sessions_has_the_categories_of_its_source() -> None:
    table = coloured_images(5, 20)
    stages = StageStream.from_dataset(table, class_blocks=[2, 1, 1, 1], split_rule="sessions", seed=4)
    assert [stage.num_categories for stage in stages] == [2, 3, 4, 5]
    names = table.features["label"].names
    for stage in stages:
        truth = stages.evaluation_labels(stage)
        assert set(truth) == set(range(stage.num_categories))
        source = [names[item] for item in table.select(stage.sample_ids)["label"]]
        assert [stages.categories[item] for item in truth] == source
    seeds = [
        StageStream.from_dataset(table, class_blocks=[2, 1, 1, 1], split_rule="sessions", seed=seed)
        for seed in (4, 5)
    ]
    assert seeds[0].split.fingerprint == stages.split.fingerprint != seeds[1].split.fingerprint


@pytest.mark.parametrize(
    ("blocks", "images", "cuts", "stages", "seen"),
    [
        ([50, *[10] * 5], 500, None, [20_000, 5_250, 5_500, 5_750, 6_000, 6_250], 25),
        ([50, *[5] * 10], 500, None, [20_000, *(2_000 + 25 * (50 + 5 * t) for t in range(10))], 25),
        ([100, *[20] * 5], 29, [[0.8, 0.8, 0.175]], [2_300, 960, 1_060, 1_160, 1_260, 1_360], 5),
    ],
)
def test_streams_of_cgcd_draw_earlier_categories_again(
    blocks: list[int], images: int, cuts: list[list[float]] | None, stages: list[int], seen: int
) -> None:
    source = np.repeat(np.arange(sum(blocks)), images)
    names = [f"c{number}" for number in range(sum(blocks))]
    labels, cut = cut_by_rule("redrawn", source, names, blocks, cuts, 1)
    assert [len(ids) for ids in cut.sample_ids] == stages
    assert CategorySplit.from_dict(json.loads(json.dumps(cut.to_dict()))) is not None
    first = set(cut.sample_ids[0].tolist())
    for stage, ids in enumerate(cut.sample_ids[1:], start=1):
        assert first.isdisjoint(ids.tolist())  # of known categories, images without a label
        sizes, earlier = np.bincount(labels[ids], minlength=sum(blocks)), sum(blocks[:stage])
        assert set(sizes[:earlier]) == {seen}
        assert set(sizes[earlier : earlier + blocks[stage]]) == {int(0.8 * images)}
    one, two = (set(ids[labels[ids] < blocks[0]].tolist()) for ids in cut.sample_ids[1:3])
    assert one & two and one != two
    with pytest.raises(DataError, match="three shares"):
        cut_by_rule("redrawn", source, names, blocks, [[0.8, 0.8]], 1)

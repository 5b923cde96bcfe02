"""The split rules and their counts: the paper's, MetaGCD's sessions, the redrawn streams of C-GCD, the spectrum."""

import itertools
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, Features, Image, Value
from PIL import ImageOps

from promptccd.data import CategorySplit, LabelledStage, StageStream
from promptccd.data.benchmarks import BENCHMARKS
from promptccd.data.labels import Layout
from promptccd.data.splits import cut_by_rule, spectrum_split
from promptccd.errors import ConfigurationError, DataError, SplitMismatchError
from promptccd.runs import stage_stream
from promptccd.training.options import DataArguments
from promptccd.training.recipe import Recipe
from tests.conftest import coloured_images
from tests.messages import TEXT

CIFAR100 = Path(
    os.environ.get("PROMPTCCD_CIFAR100", Path(__file__).parents[3] / "shared" / "data" / "cifar100")
)


def cut(
    blocks: list[int], images: int, rule: str = "mixed", cuts: list | None = None, seed: int = 1
) -> tuple[np.ndarray, CategorySplit]:
    """Labels and split of categories of so many images each."""
    labels = np.repeat(np.arange(sum(blocks)), images)
    return cut_by_rule(rule, labels, [f"c{number}" for number in range(sum(blocks))], blocks, cuts, seed)


@pytest.mark.parametrize(
    ("blocks", "each", "images", "shares"),
    [
        ([70, 10, 10, 10], 500, [30450, 5950, 6550, 7050], [0.4118, 0.1603, 0.1489]),
        ([140, 20, 20, 20], 500, [60900, 11900, 13100, 14100], [0.4118, 0.1603, 0.1489]),
        ([70, 10, 10, 10], 100, [6090, 1190, 1310, 1410], [0.4118, 0.1603, 0.1489]),
        ([140, 20, 20, 20], 50, [6020, 1120, 1380, 1480], [0.375, 0.2029, 0.1892]),
        ([140, 20, 20, 20], 30, [3640, 700, 800, 860], [0.4, 0.175, 0.1628]),
    ],
    ids=["CIFAR-100", "TinyImageNet", "CIFAR-100 test", "TinyImageNet val", "CUB"],
)
def test_counts_and_old_shares_of_the_paper(blocks: list, each: int, images: list, shares: list) -> None:
    _, split = cut(blocks, each)
    assert [count.images for count in split.stages] == images
    assert [count.old_share for count in split.stages[1:]] == shares


def test_every_image_is_used_once_and_stays_when_other_categories_change() -> None:
    labels, split = cut([7, 1, 1, 1], 37)
    assert sorted(np.concatenate(split.sample_ids).tolist()) == list(range(len(labels)))
    _, other = cut([6, 1, 1, 1], 37)
    assert set(split.sample_ids[0][labels[split.sample_ids[0]] < 6]) == set(other.sample_ids[0])


def test_fingerprint_changes_with_all_that_matters() -> None:
    shapes = [([7, 1, 1, 1], 37, 1), ([7, 1, 1, 1], 37, 1), ([7, 1, 1, 1], 37, 2), ([6, 2, 1, 1], 37, 1)]
    made = [cut(blocks, images, seed=seed) for blocks, images, seed in (*shapes, ([7, 1, 1, 1], 38, 1))]
    plain, again, *others = (split.fingerprint for _, split in made)
    assert plain == again and len({plain, *others}) == 4


def test_fingerprint_changes_with_the_pixels() -> None:
    table = coloured_images(5, 20)
    images = [ImageOps.invert(table[0]["image"]), *table[1:]["image"]]
    other = Dataset.from_dict({"image": images, "label": table["label"]}, table.features)
    first, same, changed = (
        StageStream.from_dataset(each, class_blocks=[2, 1, 1, 1]).split for each in (table, table, other)
    )
    assert first.fingerprint == same.fingerprint != changed.fingerprint
    assert np.array_equal(first.sample_ids[0], changed.sample_ids[0])


@pytest.mark.slow
@pytest.mark.cifar100
def test_real_cifar100() -> None:
    if not CIFAR100.exists():
        pytest.skip(f"the real CIFAR-100 is not there: no folder {CIFAR100.name} (set PROMPTCCD_CIFAR100)")
    options = {"class_blocks": [70, 10, 10, 10], "layout": Layout(label="fine_label")}
    stages = StageStream.from_dataset(str(CIFAR100), **options)
    assert [len(stage) for stage in stages] == [30450, 5950, 6550, 7050]
    assert [count.old_share for count in stages.counts[1:]] == [0.4118, 0.1603, 0.1489]
    assert [count.classes for count in stages.counts] == [70, 80, 90, 100]
    assert stages.categories[:2] == ("apple", "aquarium_fish")
    test = StageStream.from_dataset(str(CIFAR100), split="test", **options)
    assert [count.old_share for count in test.counts[1:]] == [0.4118, 0.1603, 0.1489]


def test_a_stream_is_a_sequence(stages: StageStream) -> None:
    assert len(stages) == 4
    assert [stage.index for stage in stages] == [0, 1, 2, 3]
    assert [stage.index for stage in stages[1:3]] == [1, 2]
    assert stages[-1].index == 3
    assert [stage.num_categories for stage in stages] == [2, 3, 4, 5]
    assert isinstance(stages.labelled, LabelledStage)
    with pytest.raises(DataError, match="stage 0"):
        _ = stages[1:].labelled


def test_an_unlabelled_stage_has_nothing_to_read_a_label_from(stages: StageStream) -> None:
    for stage in stages[1:]:
        for images in (stage.images, stage.images.whole):
            kept = {"table", "_table", "_column", "_roots", "decoding", "whole", "rows", "name", "left_out"}
            assert set(vars(images)) in (kept, {*kept, "_files"})  # of files; these images are in memory
            assert images.table.column_names == images._table.column_names == [images._column]
            assert not images.left_out
        assert stage.images._table.column_names == ["image"]
        assert not any("label" in name for name in vars(stage))
    truth = stages.evaluation_labels(stages[2])
    assert len(truth) == len(stages[2])
    assert set(truth) == {0, 1, 2, 3}


def test_another_split_is_refused_with_both_fingerprints(stages: StageStream) -> None:
    with pytest.raises(SplitMismatchError, match=f"abc.*{stages.split.fingerprint}"):
        stages.require_fingerprint("abc", "The run")


def labelled(values: list, feature) -> Dataset:
    images = [np.zeros((4, 4, 3), np.uint8)] * len(values)
    features = Features({"picture": Image(), "kind": feature})
    return Dataset.from_dict({"picture": images, "kind": values}, features=features)


@pytest.mark.fault(26)
@pytest.mark.parametrize(
    ("values", "feature", "said"),
    [
        ([0.5, 1.0, 0.0, 1.0], Value("float32"), "holds 0.5"),
        ([0, 1, None, 1], Value("int64"), "Row 2"),
        ([0, 1, 0, -1], Value("int64"), "Row 3"),
        ([1, 1, 1, 1], Value("int64"), "1 category"),
    ],
    ids=["float", "none", "negative", "one class"],
)
def test_labels_that_are_none_are_refused(values: list, feature, said: str) -> None:
    with pytest.raises(DataError, match=said):
        StageStream.from_dataset(labelled(values, feature), class_blocks=[1, 1], layout=Layout(label="kind"))


@pytest.mark.fault(28)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"class_blocks": [3, 1, 1, 1]},
            r"sum to 6, but the data set has 5 categories \(.+, .+, .+, .+, .+\): let",
        ),
        ({"class_blocks": [5]}, "at least two sizes"),
        (
            {"class_blocks": [2, 3], "split_rule": "session"},
            r"mixed \| sessions \| redrawn \| whole, got 'session'",
        ),
        ({"class_blocks": [2, 3], "split_rule": "sessions", "cuts": [[0.5, 1.0], [1.0]]}, "leave out cuts"),
        ({"class_blocks": [2, 2], "split_rule": "sessions"}, "sum to 4, but the data set has 5"),
        ({"class_blocks": [4.9, 1.1]}, r"whole numbers of categories, got \[4\.9, 1\.1\]"),
        ({"class_blocks": [0, 5]}, "the first positive"),
        ({"class_blocks": [4, 1], "cuts": [[0.5, 1.0]]}, "rows of .2, 1. ratios"),
        ({"class_blocks": [4, 1], "cuts": [[0.5, 0.5], [1.0]]}, "1.0 at the end"),
        ({"class_blocks": [4, 1], "cuts": [[1.0, 1.0], [0.0]]}, "1.0 at the end"),
        ({"class_blocks": [2, 3, 0], "cuts": [[1.0, 1.0, 1.0], [1.0, 1.0], [1.0]]}, "Stage 2 has no image"),
        (
            {"class_blocks": [2, 1, 1, 1], "layout": Layout(image="picture")},
            "Columns: image, label. Set --image",
        ),
        (
            {"class_blocks": [2, 1, 1, 1], "layout": Layout(label="kind")},
            "Columns: label. Set --label_column",
        ),
    ],
)
def test_what_cannot_be_cut_says_why(options: dict, said: str) -> None:
    with pytest.raises(DataError, match=said):
        StageStream.from_dataset(coloured_images(5, 4), **options)


@pytest.mark.fault(33)
def test_what_people_give_instead_of_a_data_set_is_told_what_to_give() -> None:
    table = Dataset.from_dict({"image": ["a.png", "b.png"], "label": ["x", "y"]})
    given: list[tuple[object, str]] = [
        (DatasetDict({"test": table}), r"got DatasetDict\. Give one split, such as dataset\['train'\]"),
        (
            table.to_iterable_dataset(),
            r"got IterableDataset\. .*read a stream first: Dataset\.from_generator",
        ),
        ([1, 2], r"Expected a datasets\.Dataset or a name, got list\."),
        (table, r"image_roots allows others"),
        (table.cast_column("image", Image()).select([]), "has no row"),
        ("no_such_folder/", "Nothing is at 'no_such_folder/'"),
    ]
    for dataset, said in given:
        with pytest.raises(DataError, match=said):
            StageStream.from_dataset(dataset, class_blocks=[1, 1])


# Sessions, and streams that draw again

FIVE = [80, 5, 5, 5, 5]


def test_counts_of_the_setting() -> None:
    """32,000 labelled; 2,000 known images a session beside 1,500 novel ones more each time."""
    labels, split = cut(FIVE, 500, "sessions")
    assert [len(ids) for ids in split.sample_ids] == [32000, 3500, 5000, 6500, 8000]
    assert [count.classes for count in split.stages] == [80, 85, 90, 95, 100]
    assert [int(np.sum(labels[ids] < 80)) for ids in split.sample_ids[1:]] == [2000] * 4
    drawn = np.unique(np.concatenate(split.sample_ids))
    assert np.array_equal(np.flatnonzero(labels >= 0), drawn) and len(drawn) < len(labels)
    for ids in split.sample_ids[1:]:
        sizes = np.bincount(labels[ids], minlength=100)
        assert set(sizes[:80]) == {25}
        assert set(sizes[80:]) <= {0, 300}


def test_known_images_stand_once_and_novel_ones_recur() -> None:
    labels, split = cut(FIVE, 50, "sessions")
    ids = [rows[labels[rows] < 80] for rows in split.sample_ids]
    together = np.concatenate(ids)
    assert len(np.unique(together)) == len(together) == 80 * 50
    first_novel = [set(rows[labels[rows] == 80].tolist()) for rows in split.sample_ids[1:]]
    assert all(len(rows) == 30 for rows in first_novel)
    assert len({frozenset(rows) for rows in first_novel}) == 4  # every session draws anew
    assert any(one & two for one, two in itertools.pairwise(first_novel))
    for rows in split.sample_ids:
        assert np.array_equal(rows, np.unique(rows))


def test_novel_order_is_seeded_and_known_categories_keep_theirs() -> None:
    orders = [cut(FIVE, 10, "sessions", seed=seed)[1].categories for seed in (1, 1, 2)]
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
    other = StageStream.from_dataset(table, class_blocks=[2, 1, 1, 1], split_rule="sessions", seed=5)
    for label in range(5):  # every category has other images by another seed, whatever its place in the order
        drawn, others = ({*ids[ids % 5 == label]} for ids in (stages[3].sample_ids, other[3].sample_ids))
        assert drawn != others


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
    labels, split = cut(blocks, images, "redrawn", cuts)
    assert [len(ids) for ids in split.sample_ids] == stages
    again = CategorySplit.from_dict(json.loads(json.dumps(split.to_dict())))
    assert (again.stages, again.cuts, again.rule) == (split.stages, split.cuts, "redrawn")
    first = set(split.sample_ids[0].tolist())
    for stage, ids in enumerate(split.sample_ids[1:], start=1):
        assert first.isdisjoint(ids.tolist())  # of known categories, images without a label
        sizes, earlier = np.bincount(labels[ids], minlength=sum(blocks)), sum(blocks[:stage])
        assert set(sizes[:earlier]) == {seen}
        assert set(sizes[earlier : earlier + blocks[stage]]) == {int(0.8 * images)}
    one, two = (set(ids[labels[ids] < blocks[0]].tolist()) for ids in split.sample_ids[1:3])
    assert one & two and one != two
    with pytest.raises(DataError, match="three shares"):
        cut(blocks, images, "redrawn", [[0.8, 0.8]])


# The spectrum protocol: how much is labelled, as class blocks and cuts


def test_counts_are_the_rule_worked_out_by_hand() -> None:
    blocks, cuts = spectrum_split(20, 0.5, 0.5)
    labels, split = cut(blocks, 60, cuts=cuts)
    counts = np.stack([np.bincount(labels[ids], minlength=20) for ids in split.sample_ids])
    assert counts[:, :10].T.tolist() == [[30, 15, 15]] * 10
    assert counts[:, 10:15].T.tolist() == [[0, 42, 18]] * 5
    assert counts[:, 15:].T.tolist() == [[0, 0, 60]] * 5


def test_a_share_is_the_decimal_number() -> None:
    """29 % of 100 is 29, although the float product is 28.999999999999996."""
    for percent, count in itertools.product(range(1, 100), (10, 30, 60, 100, 101, 196, 200, 500)):
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

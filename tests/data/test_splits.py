"""The facts of benchmarks, and the split rules with their counts: the paper's, sessions, redrawn streams, spectrum."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from PIL import ImageOps

from promptccd.data import CategorySplit, LabelledStage, StageStream
from promptccd.data.benchmarks import BENCHMARKS, BenchmarkName
from promptccd.data.labels import Layout
from promptccd.data.splits import cut_by_rule, select_rows, spectrum_split
from promptccd.errors import ConfigurationError, DataError
from promptccd.runs import stage_stream
from promptccd.training.options import DataArguments
from promptccd.training.recipe import Recipe
from tests.conftest import coloured_images
from tests.messages import TEXT


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
def test_real_cifar100(cifar100: Path) -> None:
    options = {"class_blocks": [70, 10, 10, 10], "layout": Layout(label="fine_label")}
    stages = StageStream.from_dataset(str(cifar100), **options)
    assert [len(stage) for stage in stages] == [30450, 5950, 6550, 7050]
    assert [count.old_share for count in stages.counts[1:]] == [0.4118, 0.1603, 0.1489]
    assert [count.classes for count in stages.counts] == [70, 80, 90, 100]
    assert stages.categories[:2] == ("apple", "aquarium_fish")
    test = StageStream.from_dataset(str(cifar100), split="test", **options)
    assert [count.old_share for count in test.counts[1:]] == [0.4118, 0.1603, 0.1489]


def test_a_stream_is_a_sequence(stages: StageStream) -> None:
    assert len(stages) == 4
    assert [stage.index for stage in stages] == [0, 1, 2, 3]
    assert ([stage.index for stage in stages[1:3]], stages[-1].index) == ([1, 2], 3)
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
        ({"class_blocks": [3, 1, 1, 1]}, r"sum to 6, but the data set has 5 categories \((.+, ){4}.+\): let"),
        ({"class_blocks": [2, 3], "split_rule": "session"}, TEXT["mixed-sessions-redrawn-whole"]),
        ({"class_blocks": [2, 3], "layout": Layout(image="picture")}, "Columns: image, label. Set --image"),
        ({"class_blocks": [2, 3], "layout": Layout(label="kind")}, "Columns: label. Set --label_column"),
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
        (table.to_iterable_dataset(), TEXT["got-iterabledataset-read-a"]),
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


def test_sessions_have_the_counts_of_the_setting_and_draw_novel_images_again() -> None:
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
    # Known images stand once, and novel ones recur.
    ids = [rows[labels[rows] < 80] for rows in split.sample_ids]
    together = np.concatenate(ids)
    assert len(np.unique(together)) == len(together) == 80 * 500
    first_novel = [set(rows[labels[rows] == 80].tolist()) for rows in split.sample_ids[1:]]
    assert all(len(rows) == 300 for rows in first_novel)
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


HALVES = {"category_ratio": 0.5, "sample_ratio": 0.5}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"category_ratio": 0.5}, "are given together"),
        ({"sample_ratio": 0.5}, "are given together"),
        ({**HALVES, "split_rule": "sessions"}, "split_rule sessions"),
        ({**HALVES, "class_blocks": [7, 1, 1, 1]}, "class_blocks .7, 1, 1, 1."),
        ({**HALVES, "cuts": [[0.5, 1.0], [1.0]]}, "give one or the other"),
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
    cuts = [[0.5, 0.5, 1.0], [0.7, 1.0], [1.0]]
    written = stage_stream(DataArguments(**given, class_blocks=[2, 2, 1], cuts=cuts), 1)
    assert ratios.split.fingerprint == written.split.fingerprint
    assert [count.images for count in ratios.counts] == [30, 14 + 2 * 21, 16 + 2 * 9 + 30]


# The facts of the paper's data sets, and the rules that pick rows of one

# The paper's table of data sets: categories, those labelled at first, new ones per stage, parts with background.
PAPER = {
    "cifar100": (100, 70, 10, 6),
    "imagenet100": (100, 70, 10, 7),
    "tinyimagenet": (200, 140, 20, 6),
    "cub": (200, 140, 20, 8),
    "aircraft": (100, 70, 10, 10),
    "cars": (196, 130, 22, 9),
    "caltech101": (101, 71, 10, 7),
}

OWN = ("class_order", "num_classes", "images_per_class", "held_out")  # of a benchmark, and not of other data


def test_the_table_is_the_papers() -> None:
    assert tuple(BENCHMARKS) == get_args(BenchmarkName) == ("digits", *PAPER)
    for name, (classes, known, step, parts) in PAPER.items():
        benchmark = BENCHMARKS[name]
        assert benchmark.class_blocks == (known, step, step, step), name
        assert sum(benchmark.class_blocks) == classes, name
        assert benchmark.num_parts == parts, name
        assert benchmark.num_classes in (None, classes), name
    assert (BENCHMARKS["cifar100"].image_column, BENCHMARKS["cifar100"].label_column) == ("img", "fine_label")
    assert BENCHMARKS["digits"].num_parts is None
    assert sum(BENCHMARKS["digits"].class_blocks) == 10


def test_tinyimagenet_has_the_order_of_its_own_list() -> None:
    order = BENCHMARKS["tinyimagenet"].class_order
    shipped = [names[0] for names in order]
    assert shipped[:3] == ["n02124075", "n04067472", "n04540053"]
    assert len(set(shipped)) == 200
    assert all(name[0] == "n" and len(name) == 9 and name[1:].isdigit() for names in order for name in names)
    on_the_hub = [names[-1] for names in order]
    assert len(set(on_the_hub)) == 200
    assert sum(ours != theirs for ours, theirs in zip(shipped, on_the_hub, strict=True)) == 18
    assert [name for name, benchmark in BENCHMARKS.items() if benchmark.class_order] == ["tinyimagenet"]


def test_rules_against_brute_force() -> None:
    names = ["ant", "bee", "cat", "dog", "elk"]
    data = np.random.default_rng(5).permutation(np.repeat(np.arange(5), [30, 41, 37, 33, 29]))
    order = ["dog", "ant", "elk", "cat", "bee"]
    counts = {"num_classes": 4, "images_per_class": 20}
    labels, used = select_rows(data, names, class_order=order, held_out=0.2, **counts)
    without, _ = select_rows(data, names, held_out=0.2)
    assert used == ("dog", "ant", "elk", "cat")
    expected = [-1] * len(data)
    taken = dict.fromkeys(used, 0)
    for row, label in enumerate(data):
        name = names[label]
        if name in taken and taken[name] < 20 and without[row] != -1:
            expected[row] = used.index(name)
            taken[name] += 1
    assert labels.tolist() == expected
    for label, count in enumerate([30, 41, 37, 33, 29]):
        assert np.sum(without == label) == count - int(count * 0.2)
    assert all(new in (-1, old) for new, old in zip(without, data, strict=True))


def test_what_is_given_wins_over_the_benchmark() -> None:
    assert DataArguments(benchmark="cub").resolved == BENCHMARKS["cub"]
    own = {"dataset": "elsewhere", "split": "valid", "image_column": "picture", "images_per_class": 7}
    given = DataArguments(benchmark="tinyimagenet", class_blocks=[80, 40, 40, 40], **own).resolved
    assert (given.dataset, given.split, given.image_column) == ("elsewhere", "valid", "picture")
    assert (given.label_column, given.class_blocks, given.images_per_class) == ("label", (80, 40, 40, 40), 7)
    assert given.class_order == BENCHMARKS["tinyimagenet"].class_order
    fewer = DataArguments(benchmark="tinyimagenet", num_classes=10, class_blocks=[7, 1, 1, 1]).resolved
    assert (fewer.num_classes, fewer.class_list) == (10, BENCHMARKS["tinyimagenet"].class_list)


@pytest.mark.parametrize(
    ("given", "is_benchmark"),
    [
        ({}, False),
        ({"class_blocks": [7, 1, 1, 1]}, False),
        *(({"benchmark": name, "class_blocks": [2, 1, 1, 1]}, False) for name in PAPER),
        ({"benchmark": "cifar100"}, True),
        ({"benchmark": "cifar100", "class_blocks": [40, 30, 20, 10]}, True),
        ({"benchmark": "cifar100", "class_blocks": [7, 1, 1, 1]}, False),
        ({"benchmark": "cifar100", "class_blocks": [7, 1, 1, 1], "num_classes": 10}, True),
        ({"benchmark": "cifar100", "class_blocks": [70, 10, 10, 10], "num_classes": 10}, False),
    ],
)
def test_data_are_the_benchmarks_where_the_blocks_make_up_its_categories(
    given: dict, is_benchmark: bool
) -> None:
    data = DataArguments(**given)
    assert data.is_benchmark is is_benchmark
    assert is_benchmark or given.get("num_classes") or not any(getattr(data.resolved, name) for name in OWN)


def test_columns_of_the_benchmark_count_where_the_data_has_them(tmp_path: Path) -> None:
    images = coloured_images(5, 5)
    coarse = images.add_column("coarse_label", [0] * len(images), feature=ClassLabel(names=["thing"]))
    coarse.rename_columns({"image": "img", "label": "fine_label"}).save_to_disk(str(tmp_path / "same"))
    images.rename_columns({"image": "picture", "label": "kind"}).save_to_disk(str(tmp_path / "other"))
    blocks = [2, 1, 1, 1]
    expected = StageStream.from_dataset(images, class_blocks=blocks).split.fingerprint
    for folder in ("same", "other"):
        data = DataArguments(benchmark="cifar100", dataset=str(tmp_path / folder), class_blocks=blocks)
        assert stage_stream(data, 1).split.fingerprint == expected, folder
    with pytest.raises(DataError, match="No column 'fine_label'"):
        stage_stream(replace(data, label_column="fine_label"), 1)


def test_a_local_copy_is_held_to_the_rules_of_the_benchmark(tmp_path: Path) -> None:
    """Without class_blocks of its own, a folder is taken for a copy: a fifth of every category is held out."""
    coloured_images(101, 5).save_to_disk(str(tmp_path / "copy"))
    stages = stage_stream(DataArguments(benchmark="caltech101", dataset=str(tmp_path / "copy")), 1)
    assert sum(len(stage) for stage in stages) == 101 * 4

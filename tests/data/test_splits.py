"""The split rule, held to the paper's counts."""

import os
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value

from promptccd.data import LabelledStage, StageStream
from promptccd.data.labels import Layout
from promptccd.data.splits import PAPER_CUTS, cut_by_rule, cut_sizes
from promptccd.errors import DataError, SplitMismatchError
from tests.conftest import coloured_images

CIFAR100 = Path(
    os.environ.get("PROMPTCCD_CIFAR100", Path(__file__).parents[3] / "shared" / "data" / "cifar100")
)


@pytest.mark.parametrize(
    ("num_images", "known", "first", "second"),
    [
        (500, [435, 35, 15, 15], [350, 100, 50], [450, 50]),
        (100, [87, 7, 3, 3], [70, 20, 10], [90, 10]),
        (50, [43, 3, 2, 2], [35, 10, 5], [45, 5]),
        (30, [26, 2, 1, 1], [21, 6, 3], [27, 3]),
    ],
)
def test_rounding_of_the_paper(num_images: int, known: list, first: list, second: list) -> None:
    assert [cut_sizes(num_images, row) for row in PAPER_CUTS] == [known, first, second, [num_images]]


def split(num_categories: int, per_category: int, blocks: list[int], seed: int = 1):
    labels = np.repeat(np.arange(num_categories), per_category)
    names = [str(category) for category in range(num_categories)]
    return labels, cut_by_rule("mixed", labels, names, blocks, None, seed)[1]


@pytest.mark.parametrize(
    ("shape", "images", "shares"),
    [
        ((100, 500, [70, 10, 10, 10]), [30450, 5950, 6550, 7050], [0.4118, 0.1603, 0.1489]),
        ((200, 500, [140, 20, 20, 20]), [60900, 11900, 13100, 14100], [0.4118, 0.1603, 0.1489]),
        ((100, 100, [70, 10, 10, 10]), [6090, 1190, 1310, 1410], [0.4118, 0.1603, 0.1489]),
        ((200, 50, [140, 20, 20, 20]), [6020, 1120, 1380, 1480], [0.375, 0.2029, 0.1892]),
    ],
    ids=["CIFAR-100", "TinyImageNet", "CIFAR-100 test", "TinyImageNet val"],
)
def test_counts_and_old_shares_of_the_paper(shape: tuple, images: list, shares: list) -> None:
    _, cut = split(*shape)
    assert [count.images for count in cut.counts] == images
    assert [count.old_share for count in cut.counts[1:]] == shares


def test_every_image_is_used_once_and_stays_when_other_categories_change() -> None:
    labels, cut = split(10, 37, [7, 1, 1, 1])
    assert sorted(np.concatenate(cut.sample_ids).tolist()) == list(range(len(labels)))
    _, other = split(9, 37, [6, 1, 1, 1])
    assert set(cut.sample_ids[0][labels[cut.sample_ids[0]] < 6]) == set(other.sample_ids[0])


def test_fingerprint_changes_with_all_that_matters() -> None:
    plain = split(10, 37, [7, 1, 1, 1])[1].fingerprint
    assert split(10, 37, [7, 1, 1, 1])[1].fingerprint == plain
    others = [split(10, 37, [7, 1, 1, 1], 2), split(10, 37, [6, 2, 1, 1]), split(10, 38, [7, 1, 1, 1])]
    assert len({plain, *(cut.fingerprint for _, cut in others)}) == 4


@pytest.mark.slow
@pytest.mark.cifar100
def test_real_cifar100() -> None:
    if not CIFAR100.exists():
        pytest.skip(f"the real CIFAR-100 is not there: no folder {CIFAR100.name} (set PROMPTCCD_CIFAR100)")
    stages = StageStream.from_dataset(
        str(CIFAR100), class_blocks=[70, 10, 10, 10], layout=Layout(label="fine_label")
    )
    assert [len(stage) for stage in stages] == [30450, 5950, 6550, 7050]
    assert [count.old_share for count in stages.counts[1:]] == [0.4118, 0.1603, 0.1489]
    assert [count.classes for count in stages.counts] == [70, 80, 90, 100]
    assert stages.categories[:2] == ("apple", "aquarium_fish")
    test = StageStream.from_dataset(
        str(CIFAR100), class_blocks=[70, 10, 10, 10], layout=Layout(label="fine_label"), split="test"
    )
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
            kept = {"_table", "_column", "_roots", "decoding", "whole", "rows", "name"}
            assert set(vars(images)) in (kept, {*kept, "_paths"})  # of files; these images are in memory
            assert images._table.column_names == [images._column]
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
def test_names_gaps_and_unused_classes_are_fine() -> None:
    cuts = [[0.5, 1.0], [1.0]]
    names = StageStream.from_dataset(
        labelled(["b", "a", "b", "a"], Value("string")),
        class_blocks=[1, 1],
        cuts=cuts,
        layout=Layout(label="kind"),
    )
    assert names.categories == ("a", "b")
    gaps = StageStream.from_dataset(
        labelled([70, 3, 70, 3], Value("int64")), class_blocks=[1, 1], cuts=cuts, layout=Layout(label="kind")
    )
    assert gaps.categories == ("3", "70")
    unused = StageStream.from_dataset(
        labelled([0, 2, 0, 2], ClassLabel(names=["x", "y", "z"])), class_blocks=[1, 1], cuts=cuts
    )
    assert unused.categories == ("x", "z")


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

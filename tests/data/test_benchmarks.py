"""The facts of the paper's data sets, and the rules that pick rows of one."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from datasets import ClassLabel

from promptccd.data import StageStream
from promptccd.data.benchmarks import BENCHMARKS, BenchmarkName
from promptccd.data.splits import select_rows
from promptccd.errors import DataError
from promptccd.runs import stage_stream
from promptccd.training.options import DataArguments
from tests.conftest import coloured_images

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
    labels, used = select_rows(
        data, names, class_order=order, num_classes=4, images_per_class=20, held_out=0.2
    )
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


def test_a_name_may_have_several_spellings() -> None:
    labels = np.array([0, 1, 1, 0])
    for names in (["new", "b"], ["old", "b"]):
        selected, used = select_rows(labels, names, class_order=["b", ("old", "new")])
        assert selected.tolist() == [1, 0, 0, 1]
        assert used == ("b", "old")


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"class_order": ["ant", "bee"]}, "has 1 more .cat"),
        ({"class_order": list("vwxyz")}, "it lacks 5 .v, w, x., has 3 more .ant, bee, cat."),
        ({"class_order": ["ant", "bee", "cat", "ant"]}, "or has a category twice"),
        ({"class_order": [("ant", "bee"), "cat"]}, "or has a category twice"),
        ({"num_classes": 4}, "num_classes in 1..3.* got 4"),
        ({"num_classes": 0}, "num_classes in 1..3.* got 0"),
        ({"images_per_class": 0}, "images_per_class >= 1, got 0"),
        ({"held_out": 1.0}, "held_out < 1, got 1.0"),
    ],
)
def test_rules_that_do_not_fit_say_why(rules: dict, said: str) -> None:
    with pytest.raises(DataError, match=said):
        select_rows(np.array([0, 1, 2, 0, 1, 2]), ["ant", "bee", "cat"], **rules)


def test_what_is_given_wins_over_the_benchmark() -> None:
    assert DataArguments(benchmark="cub").resolved == BENCHMARKS["cub"]
    given = DataArguments(
        benchmark="tinyimagenet",
        dataset="elsewhere",
        split="valid",
        image_column="picture",
        class_blocks=[80, 40, 40, 40],
        images_per_class=7,
    ).resolved
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
    coarse = images.add_column("coarse_label", [0] * len(images)).cast_column(
        "coarse_label", ClassLabel(names=["thing"])
    )
    coarse.rename_columns({"image": "img", "label": "fine_label"}).save_to_disk(str(tmp_path / "same"))
    images.rename_columns({"image": "picture", "label": "kind"}).save_to_disk(str(tmp_path / "other"))
    blocks = [2, 1, 1, 1]
    expected = StageStream.from_dataset(images, class_blocks=blocks).split.fingerprint
    for folder in ("same", "other"):
        data = DataArguments(benchmark="cifar100", dataset=str(tmp_path / folder), class_blocks=blocks)
        assert stage_stream(data, 1).split.fingerprint == expected, folder
    wrong = DataArguments(
        benchmark="cifar100", dataset=str(tmp_path / "other"), class_blocks=blocks, label_column="fine_label"
    )
    with pytest.raises(DataError, match="No column 'fine_label'"):
        stage_stream(wrong, 1)


def test_a_local_copy_is_held_to_the_rules_of_the_benchmark(tmp_path: Path) -> None:
    """Without class_blocks of its own, a folder is taken for a copy: a fifth of every category is held out."""
    coloured_images(101, 5).save_to_disk(str(tmp_path / "copy"))
    stages = stage_stream(DataArguments(benchmark="caltech101", dataset=str(tmp_path / "copy")), 1)
    assert sum(len(stage) for stage in stages) == 101 * 4

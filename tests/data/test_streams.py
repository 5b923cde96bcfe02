"""Images that really have no labels arrive in streams beside labelled ones, from every container that is read."""

import os
import shutil
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, Image, Value

from promptccd.data import StageStream
from promptccd.data.readable import StageImages
from promptccd.data.splits import CategorySplit
from promptccd.data.stages import read_labels
from promptccd.errors import DataError
from promptccd.images.decode import Decoding
from promptccd.runs.start import stage_stream
from promptccd.training.options import DataArguments
from promptccd.training.progress import progress_bar
from tests.data.layouts import categories, listed, picture, put, written
from tests.messages import TEXT


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Two categories of three images."""
    return categories(tmp_path / "labelled", ("kind 0", "kind 1"), each=3)


@pytest.mark.parametrize(
    ("names", "feature", "categories"),
    [
        (["a", None, "b", "a", "Unlabelled ", "b"], Value("string"), ("a", "b")),
        (["b", "unlabeled", "a", "b", None, "a"], Value("string"), ("a", "b")),
        ([0, -1, 1, 0, None, 1], ClassLabel(names=["x", "y"]), ("x", "y")),
        ([0, 2, 1, 0, 2, 1], ClassLabel(names=["x", "y", "unlabelled"]), ("x", "y")),
    ],
)
def test_what_a_table_leaves_empty_is_one_stream(
    names: list, feature: object, categories: tuple[str, ...]
) -> None:
    columns = {"image": [{"bytes": picture(number)} for number in range(6)], "label": names}
    table = Dataset.from_dict(columns, Features({"image": Image(), "label": feature}))
    stages = StageStream.from_dataset(table, unlabelled=[])
    assert [stage.sample_ids.tolist() for stage in stages] == [[0, 2, 3, 5], [1, 4]]
    assert stages.categories == categories
    assert stages[1].place.endswith(", without a label")


def test_a_list_with_empty_labels_may_say_with_which_stream_each_comes(tmp_path: Path) -> None:
    labels = ("a,", ",10", "b,3", ",9", ",10", "a,", ",")
    place = str(listed(tmp_path, head="path,label,Stream", labels=labels))
    stages = StageStream.from_dataset(place, unlabelled=[])
    assert [stage.sample_ids.tolist() for stage in stages] == [[0, 2, 5], [6], [3], [1, 4]]
    places = [stage.place.rpartition(", ")[2] for stage in stages[1:]]
    assert places == ["without a label", "stream 9", "stream 10"]
    with pytest.raises(DataError, match=TEXT["row-has-no-label"]):
        StageStream.from_dataset(place, class_blocks=[1, 1])


def test_more_streams_change_nothing_of_those_before(labelled: Path, tmp_path: Path) -> None:
    weeks = [str(categories(tmp_path, (f"week{week}",), 3, 10 * week) / f"week{week}") for week in (1, 2, 3)]
    three = StageStream.from_dataset(str(labelled), unlabelled=weeks, seed=4)
    two = StageStream.from_dataset(str(labelled), unlabelled=weeks[:2], seed=4)
    assert three.split.first(3).fingerprint == two.split.fingerprint != three.split.fingerprint
    assert CategorySplit.from_dict(three.split.to_dict()).first(3).to_dict() == two.split.to_dict()
    other = StageStream.from_dataset(str(labelled), unlabelled=weeks[1:], seed=4)
    assert other.split.contents[0] == two.split.contents[0]
    assert other.split.first(2).fingerprint != two.split.first(2).fingerprint


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["empty"], r"'.*empty' holds no image that can be used.*Put images into it, or leave it out"),
        (["nowhere"], "Nothing is at 'nowhere'"),
        (["week01", "./week01/"], r"The stream './week01/' contains the images of 'week01': give them once"),
        (["labelled"], r"The stream 'labelled' contains the images of 'labelled': give them once"),
        (["week01", "twin"], r"The stream 'twin' contains the images of 'week01': give them once"),
        ([], r"All images of '.*labelled' have a label.*--unlabelled FOLDER.*such as --class_blocks 1 1$"),
    ],
)
def test_a_stream_that_is_none_is_told_in_one_line(
    names: list[str], said: str, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "week01" / "a.png", 7)
    shutil.copytree(tmp_path / "week01", tmp_path / "twin")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=said) as refused:
        StageStream.from_dataset("labelled", unlabelled=names)
    assert "\n" not in str(refused.value)
    shutil.rmtree(next((tmp_path / "labelled").iterdir()))
    with pytest.raises(DataError, match="unlabelled FOLDER.$"):  # of one category no part can be new
        StageStream.from_dataset("labelled", unlabelled=[])


def test_a_picture_counts_where_it_came_first(
    labelled: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = written(tmp_path / "week01", {"old.png": 3, "new.png": 8, "twice.png": 8, "other.png": 9})
    second = written(tmp_path / "week02", {"again.png": 9})
    (second / "notes.txt").write_text("a heron\n")
    stages = StageStream.from_dataset(str(labelled), unlabelled=[str(first), str(second)])
    assert [*stages.left_out] == [f"{second}: notes.txt"]
    seen: dict = {}
    read = [StageImages.read(stage, 0, progress_bar, seen=seen) for stage in stages[:2]]
    assert [read[1].name_of(index) for index in range(len(read[1]))] == ["new.png", "other.png"]
    assert (read[1].report.used, len(read[1].digests)) == (2, 2)
    assert TEXT["count-once-where-they-came-first"] in caplog.text
    with pytest.raises(DataError, match=TEXT["all-1-images-of-stage-2"]):
        StageImages.read(stages[2], 0, progress_bar, seen=seen)


def test_labels_that_come_later_are_known_by_the_picture(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, {"a.png": 1, "b.png": 2, "c.png": 3, "again.png": 3})
    rows = ["path,label", "a.png,moth", "b.png,", "c.png,bee", "again.png,fly", "gone.png,moth"]
    later = put(tmp_path / "later.csv", "\n".join(rows))
    newest = put(tmp_path / "newest.csv", "path,label\na.png,moth of night\n")
    places = [str(later), str(newest)]
    assert sorted(read_labels(places, "train", (), Decoding()).values()) == ["fly", "moth of night"]
    assert TEXT["1-of-4-images-cannot-be"] in caplog.text
    assert TEXT["later-csv-1-pictures-are-listed"] in caplog.text
    assert "newest.csv: " not in caplog.text  # another table may correct the one before
    none = put(tmp_path / "none.csv", "path,label\na.png,\n")
    with pytest.raises(DataError, match="names no label"):
        read_labels([str(none)], "train", (), Decoding())
    bare = Dataset.from_dict({"image": [str(tmp_path / "a.png")]}, Features({"image": Image()}))
    for place in (str(tmp_path), bare):
        with pytest.raises(DataError, match=TEXT["nothing-says-which-category-an-image"]):
            read_labels([place], "train", [tmp_path], Decoding())


def test_names_that_a_person_gave_groups_are_labels(labelled: Path, tmp_path: Path) -> None:
    """Of a project that was corrected since its table was written nothing is believed."""
    pictures = [put(tmp_path / "week01" / f"{number}.png", number) for number in range(10, 13)]
    names = ["moth", "discovered 7", "discovered at night"]
    project = tmp_path / "groups"
    (project / ".promptccd").mkdir(parents=True)
    rows = [f"{path.name},{path},p{place},{place},{names[place]},new" for place, path in enumerate(pictures)]
    head = "file,path,picture,category,name,known"
    table = put(project / "assignments.csv", "\n".join([head, *rows]))
    options = {"unlabelled": [str(tmp_path / "week01")], "labels": [str(project)]}
    stages = StageStream.from_dataset(str(labelled), **options)
    assert sorted(stages.later_labels.values()) == ["discovered at night", "moth"]
    corrected = put(project / ".promptccd" / "categories.sqlite", "")
    then = table.stat().st_mtime_ns
    os.utime(corrected, ns=(then + 1, then + 1))
    with pytest.raises(DataError, match=TEXT["was-corrected-after-its-assignments-csv"]):
        StageStream.from_dataset(str(labelled), **options)
    os.utime(corrected, ns=(then, then))
    assert len(StageStream.from_dataset(str(labelled), **options).later_labels) == 2


@pytest.mark.parametrize(
    ("label", "asked"), [("piza", "pizza"), ("Pizza", "pizza"), ("soup 2", ""), ("bread", ""), ("pizza", "")]
)
def test_labels_that_come_later_are_asked_about(label: str, asked: str, tmp_path: Path) -> None:
    written(tmp_path, {f"{number}.png": number for number in range(5)})
    lists = ("0.png,pizza\n1.png,soup 1\n2.png,pizza", f"3.png,{label}", "4.png,")
    first, later, stream = (
        str(put(tmp_path / f"{number}.csv", f"path,label\n{lines}")) for number, lines in enumerate(lists)
    )
    options = {"unlabelled": [stream], "labels": [later]}
    if asked:
        with pytest.raises(DataError, match=TEXT["did-you-mean-accept-new-labels"].format(label, asked)):
            StageStream.from_dataset(first, **options)
    stages = stage_stream(DataArguments(dataset=first, **options, accept_new_labels=bool(asked)), seed=1)
    assert set(stages.later_labels.values()) == {label}

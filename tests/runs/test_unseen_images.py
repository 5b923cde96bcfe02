"""Unseen images have to be unseen: the pictures are compared, whatever their files are called."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from promptccd.data import StageStream
from promptccd.data.readable import StageImages
from promptccd.errors import DataError
from promptccd.runs import RunDirectory, RunEvaluation
from promptccd.runs.evaluate import cut_unseen, require_unseen
from promptccd.runs.start import stage_stream
from promptccd.training.options import DataArguments
from promptccd.training.progress import progress_bar
from tests.conftest import coloured_images, save_by_kind
from tests.data import test_readable as same
from tests.messages import TEXT


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Three categories, 10 images each to train on and 10 others to test with."""
    for seed, split in enumerate(("train", "test")):
        save_by_kind(coloured_images(3, 10, seed=40 + seed), tmp_path / "own" / split)
    return tmp_path / "own"


def test_copies_of_training_images_are_counted_and_one_is_named(own, caplog):
    def check() -> None:
        read = []
        for split in ("test", "train"):
            stages = StageStream.from_dataset(str(own), split=split, class_blocks=[3], split_rule="whole")
            read.append([StageImages.read(stage, 0, progress_bar) for stage in stages])
        require_unseen(*read)

    check()
    assert "copies" not in caplog.text
    for number, path in enumerate(sorted((own / "train" / "kind 0").iterdir())[:2]):
        shutil.copy(path, own / "test" / "kind 0" / f"z{number}.PNG")
    check()
    assert TEXT["2-of-32-test-images-are"] in caplog.text
    assert TEXT["test-kind-0-z0-png-of"] in caplog.text
    shutil.copytree(own / "train" / "kind 1", own / "test" / "kind 2" / "more")
    with pytest.raises(DataError, match=TEXT["12-of-42-test-images-are"]):
        check()


def test_pictures_of_two_labels_are_left_out_as_the_training_did(trained_run: Path, monkeypatch) -> None:
    (one,), (other,) = same.samples(0, 0, 1), same.samples(0, 1, 1)
    monkeypatch.setattr(RunDirectory, "require_split", lambda run, stages: None)
    stream = same.stages_of(same.with_copies({other: one}), blocks=(2, 1))
    report = RunEvaluation(str(trained_run), stages=stream).images[0].report
    assert report.conflicting.keys() == {f"row {one}", f"row {other}"}


@pytest.mark.parametrize(("megapixels", "left_out"), [(1, ["train/kind 0/large.png"]), (2, [])])
def test_images_above_the_limit_of_a_recipe_are_left_out(own, megapixels: int, left_out: list[str]) -> None:
    Image.new("RGB", (1001, 1000)).save(own / "train" / "kind 0" / "large.png")
    data = DataArguments(dataset=str(own), class_blocks=[2, 1], max_megapixels=megapixels)
    read = [StageImages.read(stage, 0, progress_bar).report for stage in stage_stream(data, 1)]
    assert [name for report in read for name in report.skipped] == left_out


def cut(data: DataArguments, split: str | None) -> StageStream:
    return cut_unseen(stage_stream(data, 1), None, data.resolved.test_split, split, None)


def test_a_test_split_without_a_category_is_told(own):
    data = DataArguments(dataset=str(own), class_blocks=[2, 1])
    assert cut(data, "test").categories == ("kind 0", "kind 1", "kind 2")
    shutil.rmtree(own / "test" / "kind 2")
    with pytest.raises(DataError, match=TEXT["split-test-of-sum-to-3"]):
        cut(data, "test")


def test_what_a_person_held_out_comes_before_a_test_split_that_a_copy_of_a_benchmark_may_lack(own):
    shutil.rmtree(own / "test")
    data = DataArguments(
        benchmark="cifar100", dataset=str(own), class_blocks=[2, 1], num_classes=3, held_out=0.4
    )
    with pytest.raises(DataError, match=TEXT["or-train-with-held-out"]):
        cut(replace(data, held_out=0.0), None)
    trained = {name for stage in stage_stream(data, 1) for name in stage.sample_ids.tolist()}
    tested = {name for stage in cut(data, None) for name in stage.sample_ids.tolist()}
    assert tested and trained.isdisjoint(tested)
    assert len(trained | tested) == sum(1 for path in own.rglob("*") if path.is_file())

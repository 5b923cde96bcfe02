"""Of a data set of the Hub the stages are those of the same rows in memory, by commit, and without a network later."""

import io

import pytest
from datasets import Dataset, concatenate_datasets

from promptccd.data import StageStream
from promptccd.discovery.intake.reading import read_intake
from promptccd.errors import DataError
from tests.conftest import coloured_images
from tests.discovery.conftest import image_of
from tests.hub.server import Hub
from tests.images.test_decode import PNG
from tests.messages import TEXT

NAME, OPTIONS = "team/photos", {"class_blocks": [2, 1, 1], "num_classes": 4, "images_per_class": 9}


def as_file(table: Dataset) -> bytes:
    table.to_parquet(stream := io.BytesIO())
    return stream.getvalue()


@pytest.fixture
def tables() -> dict[str, list[Dataset]]:
    return {
        "train": [coloured_images(5, 12, seed=seed) for seed in (1, 2)],
        "test": [coloured_images(5, 12, seed=3)],
    }


def publish(hub: Hub, tables: dict[str, list[Dataset]]) -> None:
    files = {
        f"data/{split}-{number:05d}-of-{len(parts):05d}.parquet": as_file(part)
        for split, parts in tables.items()
        for number, part in enumerate(parts)
    }
    hub.add(NAME, files, kind="dataset")


def same(ours: StageStream, whole: StageStream) -> None:
    assert ours.split.to_dict() == whole.split.to_dict()
    for one, other in zip(ours, whole, strict=True):
        assert list(one.images.content_keys()) == list(other.images.content_keys())


@pytest.mark.parametrize("split", ["train", "test"])
def test_stages_are_those_of_the_whole_data_set(hub: Hub, tables, split: str) -> None:
    publish(hub, tables)
    ours = StageStream.from_dataset(NAME, split=split, **OPTIONS)
    same(ours, StageStream.from_dataset(concatenate_datasets(tables[split]), split=split, **OPTIONS))
    hub.log.clear()
    StageStream.from_dataset(NAME, split=split, **OPTIONS, seed=2)
    assert not hub.requests("GET", ".parquet")


def test_what_was_fetched_needs_no_network_again(hub: Hub, tables, monkeypatch) -> None:
    publish(hub, tables)
    first = StageStream.from_dataset(NAME, **OPTIONS).split.fingerprint
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    hub.log.clear()
    assert StageStream.from_dataset(NAME, **OPTIONS).split.fingerprint == first
    assert not hub.log


def test_a_new_commit_is_read_and_the_old_rows_are_not_taken_for_it(hub: Hub, tables) -> None:
    publish(hub, tables)
    StageStream.from_dataset(NAME, **OPTIONS)
    tables["train"][0] = coloured_images(5, 12, seed=4)
    publish(hub, tables)
    same(
        StageStream.from_dataset(NAME, **OPTIONS),
        StageStream.from_dataset(concatenate_datasets(tables["train"]), **OPTIONS),
    )


def test_tables_that_differ_or_are_damaged_are_refused(hub: Hub, tables) -> None:
    tables["train"][1] = tables["train"][1].rename_column("image", "picture")
    publish(hub, tables)
    with pytest.raises(DataError, match=TEXT["could-not-load-dataset-team-photos"]):
        StageStream.from_dataset(NAME, **OPTIONS)
    hub.add("team/broken", {"train.parquet": b"no parquet at all"}, kind="dataset")
    with pytest.raises(DataError, match=TEXT["could-not-load-dataset-team-broken"]):
        StageStream.from_dataset("team/broken", **OPTIONS)


def test_data_set_of_the_hub_is_read(hub: Hub) -> None:
    coloured_images(3, 4).push_to_hub("user/pictures")
    with read_intake("user/pictures") as intake:
        assert intake.report().used == 12
        assert image_of(intake, intake.files[3]).size == (16, 16)


def test_folders_of_images_on_the_hub_are_read(hub: Hub) -> None:
    hub.add("user/folder", {"train/a.png": PNG}, kind="dataset")
    with read_intake("user/folder") as intake:
        assert [file.verdict.note for file in intake.files] == [""]
        assert intake.read_bytes(intake.files[0]) == PNG

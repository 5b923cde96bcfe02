"""Of a data set of the Hub one split is fetched, and its stages are those of the whole data set."""

import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Value, concatenate_datasets
from datasets import Image as ImageColumn
from huggingface_hub import HfApi

from promptccd.data import StageStream
from promptccd.discovery.intake.reading import read_intake
from promptccd.errors import DataError
from tests.conftest import coloured_images
from tests.discovery.conftest import image_of
from tests.hub.server import Hub
from tests.images.test_decode import PNG
from tests.messages import TEXT

NAME, OPTIONS = "team/photos", {"class_blocks": [2, 1, 1], "num_classes": 4, "images_per_class": 9}
PER_FILE, FILES = 60, 10
FEATURES = Features(
    {
        "image": ImageColumn(),
        "label": ClassLabel(names=[f"c{each}" for each in range(20)]),
        "embedding": Value("binary"),
    }
)


def rows(count: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    content: list = [*rng.integers(0, 256, (count, 24, 24, 3), np.uint8)]
    content[1] = None
    labels, wide = rng.integers(0, 20, count).tolist(), [rng.bytes(900) for _ in range(count)]
    return Dataset.from_dict({"image": content, "label": labels, "embedding": wide}, features=FEATURES)


def as_file(table: Dataset, per_group: int = 20) -> bytes:
    metadata = {"huggingface": json.dumps({"info": {"features": table.features.to_dict()}})}
    stream = io.BytesIO()
    pq.write_table(
        table.data.table.combine_chunks().replace_schema_metadata(metadata), stream, row_group_size=per_group
    )
    return stream.getvalue()


@pytest.fixture
def tables() -> dict[str, list[Dataset]]:
    return {
        "train": [rows(PER_FILE, seed) for seed in range(FILES)],
        "validation": [rows(PER_FILE, 50)],
        "test": [rows(PER_FILE, 60), rows(PER_FILE, 61)],
    }


def publish(hub: Hub, tables: dict[str, list[Dataset]]) -> dict[str, bytes]:
    files = {
        f"data/{split}-{number:05d}-of-{len(parts):05d}.parquet": as_file(part)
        for split, parts in tables.items()
        for number, part in enumerate(parts)
    }
    hub.add(NAME, files, kind="dataset")
    return files


def fetched(hub: Hub) -> set[str]:
    return {
        each.path.rpartition("/")[2] for each in hub.log if each.method == "GET" and ".parquet" in each.path
    }


def same(ours: StageStream, whole: StageStream) -> None:
    assert ours.split.to_dict() == whole.split.to_dict()
    for one, other in zip(ours, whole, strict=True):
        assert [one.decode(place).verdict for place in range(len(one))] == [
            other.decode(place).verdict for place in range(len(other))
        ]
        pixels = [np.asarray(each.decode(0).image) for each in (one, other)]
        assert np.array_equal(*pixels)
        assert list(one.images.content_keys()) == list(other.images.content_keys())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"held_out": 0.3},
        {"held_out": 0.3, "held_out_only": True, "split_rule": "whole"},
        {"split_rule": "sessions"},
        {"split": "test", "images_per_class": None},
    ],
    ids=str,
)
def test_stages_are_those_of_the_whole_data_set(hub: Hub, tables, options: dict) -> None:
    publish(hub, tables)
    given = {**OPTIONS, **options}
    ours = StageStream.from_dataset(NAME, **given)
    table = concatenate_datasets(tables[given.get("split", "train")])
    same(ours, StageStream.from_dataset(table, **given))
    hub.log.clear()
    StageStream.from_dataset(NAME, **given, seed=2)
    assert not fetched(hub)


@pytest.mark.moderate
def test_what_was_fetched_needs_no_network_again(hub: Hub, tables, monkeypatch) -> None:
    publish(hub, tables)
    first = StageStream.from_dataset(NAME, **OPTIONS).split.fingerprint
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    hub.log.clear()
    assert StageStream.from_dataset(NAME, **OPTIONS).split.fingerprint == first
    assert not hub.log


@pytest.mark.slow
def test_a_new_commit_is_read_and_the_old_rows_are_not_taken_for_it(hub: Hub, tables) -> None:
    publish(hub, tables)
    StageStream.from_dataset(NAME, **OPTIONS)
    tables["train"][0] = rows(PER_FILE, 77)
    publish(hub, tables)
    same(
        StageStream.from_dataset(NAME, **OPTIONS),
        StageStream.from_dataset(concatenate_datasets(tables["train"]), **OPTIONS),
    )


@pytest.mark.moderate
def test_tables_that_differ_or_are_damaged_are_refused(hub: Hub, tables) -> None:
    files = publish(hub, tables)
    odd = {
        name: as_file(tables["train"][2].rename_column("image", "picture"))
        for name in files
        if "00002" in name
    }
    hub.add(NAME, odd, kind="dataset")
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
    api = HfApi()
    api.create_repo("user/folder", repo_type="dataset")
    api.upload_file(
        path_or_fileobj=PNG, path_in_repo="train/a.png", repo_id="user/folder", repo_type="dataset"
    )
    with read_intake("user/folder") as intake:
        assert [file.verdict.note for file in intake.files] == [""]
        assert intake.read_bytes(intake.files[0]) == PNG

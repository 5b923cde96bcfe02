"""Of a data set of the Hub only what is used is fetched and kept, and nothing else is different."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Value, concatenate_datasets
from datasets import Image as ImageColumn
from PIL import Image

from promptccd.data import StageStream, hub_rows
from promptccd.data.hub_rows import FILE, folder_of
from promptccd.data.image_rows import DatasetSource
from promptccd.data.loading import open_images
from promptccd.errors import DataError, DiskError
from tests.hub.server import Fault, Hub

NAME, OPTIONS = "team/photos", {"class_blocks": [2, 1, 1], "num_classes": 4, "images_per_class": 9}
PER_FILE, FILES = 60, 10
FEATURES = Features(
    {
        "image": ImageColumn(),
        "label": ClassLabel(names=[f"c{each}" for each in range(20)]),
        "embedding": Value("binary"),
    }
)


def picture(rng: np.random.Generator, most: int = 255) -> bytes:
    deep = most > 255
    pixels = rng.integers(0, most + 1, (24, 24) if deep else (24, 24, 3))
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint16 if deep else np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def rows(count: int, seed: int, deep: Sequence[int] = ()) -> Dataset:
    rng = np.random.default_rng(seed)
    content: list = [
        {"bytes": picture(rng, 1500 if row in deep else 255), "path": f"{row}.png"} for row in range(count)
    ]
    content[1] = None
    labels, wide = rng.integers(0, 20, count).tolist(), [rng.bytes(900) for _ in range(count)]
    return Dataset.from_dict({"image": content, "label": labels, "embedding": wide}, features=FEATURES)


def as_file(table: Dataset, per_group: int = 20) -> bytes:
    told = {"huggingface": json.dumps({"info": {"features": table.features.to_dict()}})}
    stream = io.BytesIO()
    pq.write_table(
        table.data.table.combine_chunks().replace_schema_metadata(told), stream, row_group_size=per_group
    )
    return stream.getvalue()


@pytest.fixture
def tables() -> dict[str, list[Dataset]]:
    return {
        "train": [rows(PER_FILE, seed) for seed in range(FILES)],
        "validation": [rows(PER_FILE, 50)],
        "test": [rows(PER_FILE, 60), rows(PER_FILE, 61)],
    }


def publish(hub: Hub, tables: dict[str, list[Dataset]], name: str = NAME) -> dict[str, bytes]:
    files = {
        f"data/{split}-{number:05d}-of-{len(parts):05d}.parquet": as_file(part)
        for split, parts in tables.items()
        for number, part in enumerate(parts)
    }
    hub.add(name, files, kind="dataset")
    return files


def fetched(hub: Hub) -> set[str]:
    return {
        each.path.rpartition("/")[2] for each in hub.log if each.method == "GET" and ".parquet" in each.path
    }


def bytes_below(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file() and not each.is_symlink())


def same(ours: StageStream, whole: StageStream) -> None:
    assert ours.split.to_dict() == whole.split.to_dict()
    for one, other in zip(ours, whole, strict=True):
        assert [one.decode(place).verdict for place in range(len(one))] == [
            other.decode(place).verdict for place in range(len(other))
        ]
        pixels = [np.asarray(each.decode(0).image) for each in (one, other)]
        assert np.array_equal(*pixels)
        assert list(one.images.known_by()) == list(other.images.known_by())


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
    assert not list((Path(datasets.config.HF_DATASETS_CACHE)).glob("team___photos")), "nothing was built"


@pytest.mark.slow
def test_little_is_kept_and_other_splits_and_columns_are_not_fetched(hub: Hub, tables) -> None:
    files = publish(hub, tables)
    StageStream.from_dataset(NAME, **OPTIONS)
    assert all(name.startswith("train-") for name in fetched(hub))
    train = sum(len(content) for name, content in files.items() if "train" in name)
    kept = bytes_below(folder_of(NAME))
    assert kept < 0.5 * train  # nearly every second row is one that fingerprints look at
    parts = [pa.ipc.open_stream(each).read_all() for each in sorted(folder_of(NAME).glob(f"*/*/{FILE}"))]
    assert {tuple(part.column_names) for part in parts} == {("label",), ("image",)}
    again = len(hub.log)
    StageStream.from_dataset(NAME, **OPTIONS, seed=2)
    assert not {each.path for each in hub.log[again:] if ".parquet" in each.path}, (
        "another seed uses the same rows"
    )


@pytest.mark.slow
def test_images_that_nobody_uses_still_say_how_deep_all_are(hub: Hub, tables) -> None:
    deep = rows(PER_FILE, 3, deep=range(2, PER_FILE))
    looked_at = np.linspace(0, PER_FILE * FILES - 1, 256).astype(int) - 3 * PER_FILE
    alone = next(row for row in range(2, PER_FILE) if row not in looked_at and deep[row]["label"] >= 4)
    content = deep.cast_column("image", ImageColumn(decode=False))["image"][:]
    content[alone] = {"bytes": picture(np.random.default_rng(0), most=60_000), "path": None}
    tables["train"][3] = Dataset.from_dict(
        {**deep.remove_columns("image").to_dict(), "image": content}, FEATURES
    )
    tables["train"][3] = tables["train"][3].select_columns(list(FEATURES))
    publish(hub, tables)
    same(
        StageStream.from_dataset(NAME, **OPTIONS),
        StageStream.from_dataset(concatenate_datasets(tables["train"]), **OPTIONS),
    )


@pytest.mark.moderate
def test_what_was_fetched_needs_no_network_again(hub: Hub, tables, monkeypatch) -> None:
    publish(hub, tables)
    first = StageStream.from_dataset(NAME, **OPTIONS).split.fingerprint
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    hub.log.clear()
    assert StageStream.from_dataset(NAME, **OPTIONS).split.fingerprint == first
    with pytest.raises(DataError, match="Could not fetch rows of 'team/photos'.*run the same command again"):
        StageStream.from_dataset(NAME, **{**OPTIONS, "images_per_class": 4})
    with pytest.raises(DataError, match="Could not fetch rows of 'team/photos'"):
        open_images(NAME).table  # noqa: B018
    assert not hub.log


@pytest.mark.moderate
def test_what_is_there_is_read_where_nothing_may_be_written(hub: Hub, tables, monkeypatch) -> None:
    publish(hub, tables)
    first = StageStream.from_dataset(NAME, **OPTIONS).split.fingerprint

    def refuse(folder: Path, wait_s: float) -> None:
        raise DiskError(f"{folder} is read-only")

    monkeypatch.setattr(hub_rows, "FolderLock", refuse)
    assert StageStream.from_dataset(NAME, **OPTIONS).split.fingerprint == first
    with pytest.raises(DiskError, match="is read-only"):
        StageStream.from_dataset(NAME, **{**OPTIONS, "images_per_class": 4})


@pytest.mark.moderate
def test_a_table_that_says_that_it_has_any_number_of_rows_is_read_whole(
    hub: Hub, tables, monkeypatch
) -> None:
    """Which says what is wrong; a mask of 2**40 rows would take all memory."""
    publish(hub, tables)
    monkeypatch.setattr(hub_rows, "MOST_ROWS", PER_FILE * FILES - 1)
    assert isinstance(open_images(NAME).source, Dataset)
    monkeypatch.setattr(hub_rows, "MOST_ROWS", PER_FILE * FILES)
    (Path(datasets.config.HF_DATASETS_CACHE) / "team___photos").rename(folder_of(NAME).parent / "aside")
    assert isinstance(open_images(NAME).source, hub_rows.HubRows)


@pytest.mark.slow
def test_a_connection_that_breaks_costs_the_files_that_did_not_come(hub: Hub, tables, waits) -> None:
    publish(hub, tables)
    table = concatenate_datasets(tables["train"])
    open_images(NAME).columns(["label"])
    hub.plan(
        lambda request: request.method == "GET" and "train-00007" in request.path, Fault(status=503), times=6
    )
    with pytest.raises(DataError, match="Could not fetch rows of 'team/photos'.*What came of it is kept"):
        StageStream.from_dataset(NAME, **OPTIONS)
    came = len(list(folder_of(NAME).glob(f"*/*/{FILE}")))
    hub.log.clear()
    same(StageStream.from_dataset(NAME, **OPTIONS), StageStream.from_dataset(table, **OPTIONS))
    assert "train-00007-of-00010.parquet" in fetched(hub)
    assert len(fetched(hub)) == 2 * FILES - came, "those that came are not fetched again"


@pytest.mark.moderate
@pytest.mark.skipif(sys.platform == "win32", reason="it would end the tests themselves")
def test_ctrl_c_waits_for_no_file_that_is_fetched(hub: Hub, tables, monkeypatch) -> None:
    publish(hub, tables)
    monkeypatch.setattr(hub_rows, "_BATCH", 1)
    only, done, never = hub_rows._only, list[int](), threading.Event()

    def slow(table: pa.Table, features: Features, wanted: np.ndarray) -> pa.Table:
        done.append(len(wanted))
        if len(done) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        never.wait(0.1 if len(done) <= 4 else 1)  # time to hear of it, on a full machine too
        return only(table, features, wanted)

    monkeypatch.setattr(hub_rows, "_only", slow)
    with pytest.raises(KeyboardInterrupt):
        open_images(NAME).columns(["label"])
    assert len(done) < PER_FILE, "of four files at a time"
    assert not list(folder_of(NAME).glob(f"*/*/{FILE}"))


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
def test_what_datasets_has_made_of_it_is_used(hub: Hub, tables) -> None:
    publish(hub, tables)
    datasets.load_dataset(NAME)
    hub.log.clear()
    StageStream.from_dataset(NAME, **OPTIONS)
    assert not fetched(hub)
    assert not list(folder_of(NAME).glob(f"*/*/{FILE}"))


@pytest.mark.moderate
def test_tables_that_cannot_be_read_in_part_are_read_whole(hub: Hub, tables) -> None:
    """Such as of files with different columns, which `datasets` refuses, too: it says why."""
    files = publish(hub, tables)
    odd = {
        name: as_file(tables["train"][2].rename_column("image", "picture"))
        for name in files
        if "00002" in name
    }
    hub.add(NAME, odd, kind="dataset")
    with pytest.raises(DataError, match="Could not load dataset 'team/photos'|[Cc]olumn"):
        StageStream.from_dataset(NAME, **OPTIONS)
    hub.add("team/broken", {"train.parquet": b"no parquet at all"}, kind="dataset")
    with pytest.raises(DataError, match="Could not load dataset 'team/broken'"):
        StageStream.from_dataset("team/broken", **OPTIONS)


@pytest.mark.moderate
def test_a_split_that_is_not_there_is_named(hub: Hub, tables) -> None:
    publish(hub, tables)
    with pytest.raises(DataError, match=r"has no split 'dev'; it has \['test', 'train', 'validation'\]"):
        StageStream.from_dataset(NAME, **OPTIONS, split="dev")


@pytest.mark.moderate
def test_all_of_a_split_is_that_split_with_all_its_columns(hub: Hub, tables) -> None:
    publish(hub, tables)
    found, whole = open_images(NAME, "test").table, concatenate_datasets(tables["test"])
    assert found.features == whole.features
    assert found.with_format("arrow")[:].equals(whole.with_format("arrow")[:])
    assert all(name.startswith("test-") for name in fetched(hub))


@pytest.mark.moderate
def test_images_to_discover_are_one_split_and_one_column(hub: Hub, tables) -> None:
    publish(hub, tables)
    source = DatasetSource.load(NAME)
    assert len(source._rows) == PER_FILE * FILES
    assert (
        source._rows.read(0)
        == tables["train"][0].cast_column("image", ImageColumn(decode=False))[0]["image"]["bytes"]
    )
    assert all(name.startswith("train-") for name in fetched(hub))


SPLIT = f"""
from promptccd.data import StageStream
print(StageStream.from_dataset({NAME!r}, **{OPTIONS!r}).split.fingerprint)
"""


@pytest.mark.slow
def test_two_processes_fetch_once_for_both(hub: Hub, tables, tmp_path: Path) -> None:
    publish(hub, tables)
    environment = {**os.environ, **hub.environment(tmp_path / "hf-home")}
    both = [
        subprocess.Popen([sys.executable, "-c", SPLIT], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [each.communicate(timeout=300)[0] for each in both]
    assert [each.returncode for each in both] == [0, 0]
    whole = StageStream.from_dataset(concatenate_datasets(tables["train"]), **OPTIONS)
    assert {each.strip() for each in said} == {whole.split.fingerprint}
    one = len([each for each in hub.log if each.method == "GET" and "train-00003" in each.path])
    again = len(hub.log)
    environment["HF_HOME"] = environment["HF_DATASETS_CACHE"] = str(tmp_path / "other")
    subprocess.run([sys.executable, "-c", SPLIT], env=environment, check=True, stdout=subprocess.PIPE)
    alone = len([each for each in hub.log[again:] if each.method == "GET" and "train-00003" in each.path])
    assert one == alone

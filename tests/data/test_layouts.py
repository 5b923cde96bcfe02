"""Folders, lists and data sets are read as in ``tests/golden/layouts``, and name no file that is not their own."""

import json
import logging
import os
import pickle
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from datasets import Image as ImageColumn
from huggingface_hub import constants

from promptccd.data import StageStream, spreadsheets
from promptccd.data.hub import is_of_data_set
from promptccd.data.image_rows import ForeignFileError, ImageRows
from promptccd.data.labels import DETECTED, Layout, read_categories
from promptccd.data.readable import StageImages
from promptccd.data.tables import image_roots, load_images, open_images
from promptccd.errors import DataError
from promptccd.images.files import read_regular_file
from promptccd.images.limits import ByteBudget, IntakeLimits, SkippedFileError
from promptccd.training.progress import progress_bar
from tests.conftest import coloured_images
from tests.data.layouts import LAYOUTS, TREES, listed, picture, put
from tests.data.tables import TABLES, workbook
from tests.hub.hostile_tables import as_table, rows, write_parquet
from tests.kept import GOLDEN, kept
from tests.messages import TEXT

RECORD = "layouts/layouts.json"
CASES = {**LAYOUTS, **TREES, **TABLES}
NUMBERS = {picture(number): number for number in range(40)}


@pytest.mark.fault(26)
@pytest.mark.parametrize("name", CASES)
def test_a_layout_is_read_as_recorded(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "promptccd")
    found = observed(name, tmp_path, caplog)
    assert found == kept(RECORD, found, name, text_of=a_line_each)


def test_every_recorded_layout_is_a_case() -> None:
    assert CASES.keys() == json.loads((GOLDEN / RECORD).read_text("utf-8")).keys()


def a_line_each(whole: Mapping[str, Any]) -> str:
    lines = (
        f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in whole.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}"


def observed(name: str, folder: Path, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """What is read of a case that is written below a folder, in some splits and, if it may say them, without labels.

    Images by number with their labels, the order of names, files that are left out by their reasons, and what is said;
    or why it is refused.
    """
    make, options = CASES[name] if isinstance(CASES[name], tuple) else (CASES[name], None)
    has_splits = name in LAYOUTS or "split" in name or "train" in name
    named = {"splits": ("train", "test")[: 1 + has_splits], **(options or {})}
    splits = named.pop("splits")
    layout = Layout(**named) if named or options == {} else DETECTED
    place = make(folder / "photos")
    given = place if isinstance(place, Dataset) else str(place)
    found = {split: _read(given, layout, caplog, split=split) for split in splits}
    if all(value == found[splits[0]] for value in found.values()):
        found = {"every split": found[splits[0]]}
    if name not in TABLES or "split" in name:
        found["unlabelled"] = _read(given, layout, caplog, labelled=False)
    return json.loads(json.dumps(found).replace(json.dumps(str(folder))[1:-1], "<here>"))


def _read(
    given: str | Dataset, layout: Layout, caplog: pytest.LogCaptureFixture, **options: Any
) -> dict[str, Any]:
    caplog.clear()
    try:
        opened = open_images(given, layout=layout, **options)
        opened.require_own_files()
        found = _described(opened, layout)
    except DataError as error:
        words, foreign, _ = str(error).partition("Could not load dataset")  # by `datasets`, in its words
        found = {"refused": foreign or words}
    except Exception as error:
        found = {"refused": type(error).__name__}
    said = [each.getMessage() for each in caplog.records if each.name.startswith("promptccd")]
    return {**found, "said": said} if said else found


def _described(opened: ImageRows, layout: Layout) -> dict[str, Any]:
    table, labels, names = opened.table.with_format(None), [None] * len(opened), ()
    if "label" in table.column_names:
        ids, names = read_categories(table, "label", layout)
        labels = [names[label] if label >= 0 else None for label in ids.tolist()]
    others = [name for name in table.column_names if name not in ("image", "label")]
    images = []
    for row, label in zip(table.cast_column("image", ImageColumn(decode=False)), labels, strict=True):
        also = {name: row[name] for name in others}
        images.append([_number(row["image"]), label, *([also] if also else [])])
    return {"images": images, "names": names, "left out": dict(sorted(opened.left_out.items()))}


def _number(image: Mapping[str, Any]) -> int | str:
    if (content := image["bytes"]) is None and not Path(image["path"]).exists():
        return "missing"
    return NUMBERS.get(Path(image["path"]).read_bytes() if content is None else content, "no image")


# Which files a data set may name


BLOCKS = [2, 1, 1, 1]


def by_path(folder: Path) -> Dataset:
    """Rows that name a file each."""
    records = rows()
    for number, record in enumerate(records):
        place = put(folder / f"{number}.png", record["image"]["bytes"])
        record["image"] = {"bytes": None, "path": str(place)}
    return as_table(records)


@pytest.mark.parametrize(
    ("file", "is_own"),
    [
        ("hf://datasets/a/b@c0ffee/data/train.parquet", True),
        ("hf://datasets/a/b@c0ffee/a..b/train.parquet", True),
        ("hf://datasets/a/bb@c0ffee/train.parquet", False),
        ("hf://datasets/a/c@c0ffee/train.parquet", False),
        ("hf://datasets/a/b@c0ffee/../../c/train.parquet", False),
        ("zip://x::hf://datasets/a/b@c0ffee/train.zip", False),
        ("hf://datasets/a/b@c0ffee/train.zip::file:///etc/passwd", False),
        ("/etc/passwd", False),
    ],
)
def test_an_address_is_of_a_file_of_that_data_set_alone(file: str, is_own: bool) -> None:
    assert is_of_data_set(file, "a/b") is is_own


def test_a_table_in_memory_needs_its_folders_to_be_given(tmp_path: Path) -> None:
    table = by_path(tmp_path / "mine")
    with pytest.raises(DataError, match=TEXT["row-0-of-the-data-set"]):
        StageStream.from_dataset(table, class_blocks=BLOCKS)
    stages = StageStream.from_dataset(table, class_blocks=BLOCKS, image_roots=[tmp_path / "mine"])
    plain = StageStream.from_dataset(coloured_images(5, 12), class_blocks=BLOCKS)
    assert stages.split.fingerprint == plain.split.fingerprint
    with pytest.raises(DataError, match="Row 0 of"):
        StageStream.from_dataset(table, class_blocks=BLOCKS, image_roots=[tmp_path / "min"])


def test_images_travel_to_a_loader_process_without_the_other_columns_and_the_format_of_their_table() -> None:
    table = as_table(rows())
    plain = len(pickle.dumps(table.select_columns("image")))
    images = ImageRows(table.with_transform(lambda batch: batch))
    sent = pickle.dumps(images)
    assert len(sent) < 1.5 * plain
    assert pickle.loads(sent).read(3) == images.read(3)


def test_a_file_that_became_a_link_is_not_followed_later(tmp_path: Path) -> None:
    table = by_path(tmp_path / "mine")
    images = ImageRows(table, roots=[tmp_path / "mine"])
    images.require_own_files()
    shutil.copy(tmp_path / "mine" / "3.png", tmp_path / "secret.png")
    (tmp_path / "mine" / "3.png").unlink()
    (tmp_path / "mine" / "3.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(ForeignFileError):
        images.read(3)
    assert images.decode(3).image is None


def test_a_file_that_grows_while_it_is_read_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, status = tmp_path / "grows.png", os.fstat
    place.write_bytes(b"0123456789")

    def fstat(descriptor: int) -> os.stat_result:
        before = status(descriptor)
        with place.open("ab") as more:
            more.write(b"0123456789")
        return before

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(SkippedFileError, match=TEXT["grew-while-it-was-read"]):
        read_regular_file(str(place), ByteBudget(IntakeLimits(), "a test"))


def test_a_repository_in_the_cache_is_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "datasets--user--pictures"
    snapshot = repository / "snapshots" / "0123"
    assert image_roots("user/pictures") == (str(repository),)
    (repository / "blobs").mkdir(parents=True)
    write_parquet(rows(), repository / "blobs" / "abc")
    snapshot.mkdir(parents=True)
    (snapshot / "train.parquet").symlink_to("../../blobs/abc")
    assert image_roots(str(snapshot)) == (str(repository),)
    assert len(load_images(str(snapshot))) == 60
    (tmp_path / "hub" / "datasets--user--private").mkdir()
    write_parquet(rows(), tmp_path / "hub" / "datasets--user--private" / "secret.parquet")
    (snapshot / "train.parquet").unlink()
    (snapshot / "train.parquet").symlink_to(tmp_path / "hub" / "datasets--user--private" / "secret.parquet")
    with pytest.raises(DataError, match=TEXT["which-is-no-file-of-its"]):
        load_images(str(snapshot))


def test_half_of_a_stage_may_be_missing_and_no_more_also_if_a_list_names_a_file_twice(tmp_path: Path) -> None:
    put(tmp_path / "0.png", 0)
    for missing in (8, 9):
        rows = "path,label\n" + "gone.png,a\n" * missing + "0.png,a\n0.png,b\n" * 4
        place = put(tmp_path / "list.csv", rows)
        (stage,) = StageStream.from_dataset(str(place), split_rule="whole")
        if missing == 8:
            assert len(StageImages.read(stage, 0, progress_bar)) == 8
            continue
        with pytest.raises(DataError, match=TEXT["9-of-17-images"]):
            StageImages.read(stage, 0, progress_bar)


def test_one_parquet_file_is_a_data_set_whatever_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a [1]"
    folder.mkdir()
    for name in ("photos[2].parquet", "photos2.parquet"):
        write_parquet(rows()[: 20 if "[" in name else 10], folder / name)
    assert len(load_images(str(folder / "photos[2].parquet"))) == 20
    assert image_roots(str(folder / "photos[2].parquet")) == (str(folder),)


@pytest.mark.parametrize("kind", ["list", "parquet"])
def test_every_row_of_a_table_is_used_or_listed(kind: str, tmp_path: Path) -> None:
    place = listed(tmp_path, path="photos\\{}.png", labels="ab" * 7 + "a")
    files = [tmp_path / "photos" / f"{number}.png" for number in range(15)]
    files[12].write_bytes(b"")
    files[13].write_text("a heron\n")
    files[14].unlink()
    odd = {
        "photos/12.png": "empty file",
        "photos/13.png": "starts like text",
        "photos/14.png": "no such file",
    }
    if kind == "parquet":
        images = [{"bytes": file.read_bytes() if file.exists() else None, "path": None} for file in files]
        place = tmp_path / "table.parquet"
        write_parquet([{"image": each, "label": row % 2} for row, each in enumerate(images)], place)
        odd = {"row 12": "empty file", "row 13": "starts like text", "row 14": "no image given"}
    stages = StageStream.from_dataset(str(place), class_blocks=[1, 1])
    reports = [StageImages.read(stage, 0, progress_bar).report for stage in stages]
    skipped = {name: why for report in reports for name, why in report.skipped.items()}
    assert skipped.keys() == odd.keys()
    assert all(said in skipped[name] for name, said in odd.items())
    assert (sum(each.used for each in reports), sum(each.images for each in reports)) == (12, 15)
    assert not stages.left_out


def test_a_workbook_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Path(str(workbook("list.xlsx")(tmp_path)))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "openpyxl", None)
        with pytest.raises(DataError, match=TEXT["list-xlsx-needs-openpyxl-pip-install"]):
            load_images(str(book))
    with monkeypatch.context() as small:
        small.setattr(spreadsheets, "MOST_UNPACKED", 1000)
        with pytest.raises(DataError, match=TEXT["list-xlsx-is-no-workbook-unpacks"]):
            load_images(str(book))
    book.write_bytes(book.read_bytes()[:-200])
    with pytest.raises(DataError, match=TEXT["list-xlsx-is-no-workbook-that"]):
        load_images(str(book))
    with pytest.raises(DataError, match="list.csv': No such file"):  # any more
        spreadsheets.read_sheet(book.with_suffix(".csv"))

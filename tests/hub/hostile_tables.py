"""Data sets that name what is not theirs: a way in each, and what lies outside of them."""

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as PilImage
from PIL.PngImagePlugin import PngInfo

from tests.conftest import coloured_images
from tests.models.hostile import later

MARKER = b"CANARY-of-another-persons-file"
NAMES = [f"category {number}" for number in range(5)]
RAW = Features(
    {"image": {"bytes": Value("binary"), "path": Value("string")}, "label": ClassLabel(names=NAMES)}
)
CARD = "dataset_info:\n  features:\n  - name: image\n    dtype: image\n  - name: label\n    dtype: int64\n"


@dataclass(frozen=True)
class Places:
    """Where things are.

    Attributes:
        data: the data set's folder, empty at first.
        secret: a folder beside it that is not the data set's; `secret_files` fills it.
    """

    data: Path
    secret: Path

    @property
    def image(self) -> str:
        """A picture that nobody gave away."""
        return str(self.secret / "secret.png")

    def told(self, words: str) -> str:
        """Words in which ``{data}``, ``{secret}`` and ``{image}`` stand."""
        return words.format(data=self.data, secret=self.secret, image=self.image)


Way = Callable[[Places], None]


def rows(count: int = 12) -> list[dict]:
    """Honest rows."""
    table = coloured_images(5, count).cast_column("image", Image(decode=False))
    return [{**record, "image": {**record["image"], "path": None}} for record in table]


def foreign(path: str) -> list[dict]:
    """Honest rows, and one that names a file."""
    listed = rows()
    listed[37] = {"image": {"bytes": None, "path": path}, "label": 2}
    return listed


def as_table(records: list[dict]) -> Dataset:
    """Rows as published tables hold them."""
    return Dataset.from_list(records, features=RAW).cast_column("image", Image())


def write_parquet(records: list[dict], path: Path) -> None:
    """Rows as they are: `datasets` itself would put the bytes of every file that it can reach into the table."""
    pyarrow.parquet.write_table(as_table(records).data.table, path)


def secret_files(folder: Path) -> None:
    """A picture, and tables, archives and saved data sets of it, all with a marker inside."""
    folder.mkdir()
    info = PngInfo()
    info.add_text("Comment", MARKER.decode())
    stream = io.BytesIO()
    pixels = np.random.default_rng(5).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    PilImage.fromarray(pixels).save(stream, "PNG", pnginfo=info)
    (folder / "secret.png").write_bytes(stream.getvalue())
    table = as_table(
        [{"image": {"bytes": stream.getvalue(), "path": None}, "label": row % 5} for row in range(60)]
    )
    table.to_parquet(folder / "secret.parquet")
    table.save_to_disk(str(folder / "saved"))
    (folder / "secret.csv").write_text(f"file_name,label,note\na.png,0,{MARKER.decode()}\n")
    (folder / "secret.jsonl").write_text(json.dumps({"file_name": "a.png", "note": MARKER.decode()}) + "\n")
    (folder / "secret.md").write_text(f"---\npretty_name: {MARKER.decode()}\n---\n")
    with zipfile.ZipFile(folder / "secret.zip", "w") as archive:
        archive.write(folder / "secret.png", "a/secret.png")


def pictures(folder: Path) -> Path:
    """An image folder of five categories, honest so far."""
    for number, record in enumerate(coloured_images(5, 12)):
        place = folder / NAMES[record["label"]]
        place.mkdir(parents=True, exist_ok=True)
        record["image"].save(place / f"{number}.png")
    return folder


@later
def in_parquet(places: Places, path: str) -> None:
    """A table of which a row names a path."""
    places.data.mkdir()
    write_parquet(foreign(places.told(path)), places.data / "train.parquet")


@later
def with_link(places: Places, name: str, target: str, path: str) -> None:
    """As `in_parquet`, by way of a link inside."""
    in_parquet("{data}/" + path)(places)
    (places.data / name).symlink_to(places.told(target))


@later
def metadata(places: Places, file_name: str, suffix: str = "csv") -> None:
    """An image folder whose metadata names a file."""
    pictures(places.data)
    names = [str(path.relative_to(places.data)) for path in sorted(places.data.rglob("*.png"))]
    names.append(places.told(file_name))
    listed = [{"file_name": name, "label": number % 5} for number, name in enumerate(names)]
    text = "file_name,label\n" + "".join(f"{row['file_name']},{row['label']}\n" for row in listed)
    if suffix == "jsonl":
        text = "".join(json.dumps(row) + "\n" for row in listed)
    (places.data / f"metadata.{suffix}").write_text(text)


@later
def card(places: Places, words: str, name: str = "README.md") -> None:
    """An image folder whose card says where its data are."""
    pictures(places.data)
    text = f"configs:\n- config_name: default\n  {places.told(words)}\n"
    (places.data / name).write_text(f"---\n{text}---\n" if name == "README.md" else text)


@later
def typed(places: Places, name: str, text: str) -> None:
    """Text files whose card calls a column of paths images."""
    places.data.mkdir()
    (places.data / name).write_text(places.told(text))
    (places.data / "README.md").write_text(f"---\n{CARD}---\n")


@later
def linked(places: Places, name: str, target: str, alone: bool = False) -> None:
    """A file of the data set that is a link out."""
    if alone:
        places.data.mkdir()
    else:
        pictures(places.data)
    (places.data / name).symlink_to(places.secret / target)


@later
def saved(places: Places, change: Way) -> None:
    """What `save_to_disk` left, changed."""
    as_table(rows()).save_to_disk(str(places.data))
    change(places)


def another_part(places: Places) -> None:
    """One of the saved table's files is another data set's."""
    state = json.loads((places.data / "state.json").read_text())
    part = next((places.secret / "saved").glob("*.arrow"))
    state["_data_files"] = [{"filename": os.path.relpath(part, places.data)}]
    (places.data / "state.json").write_text(json.dumps(state))


def linked_part(places: Places) -> None:
    """The same by a link."""
    part = next(places.data.glob("*.arrow"))
    part.unlink()
    part.symlink_to(next((places.secret / "saved").glob("*.arrow")))


def another_split(places: Places) -> None:
    """A saved dictionary of which a split lies elsewhere."""
    places.data.mkdir()
    (places.data / "dataset_dict.json").write_text(json.dumps({"splits": [f"../{places.secret.name}/saved"]}))


def saved_rows(places: Places) -> None:
    """A row of a saved table names a file; saving by the ordinary way would read it, so it is put in by hand."""
    part = next(places.data.glob("*.arrow"))
    table = as_table(foreign(places.image)).data.table
    with pyarrow.OSFile(str(part), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def pipe(places: Places) -> None:
    """A row names a pipe, which nobody writes to."""
    in_parquet("{data}/pipe.png")(places)
    os.mkfifo(places.data / "pipe.png")


def like_named(places: Places) -> None:
    """A row names a file of a folder whose name begins like the data set's."""
    Path(f"{places.data}-secret").mkdir()
    shutil.copy(places.image, f"{places.data}-secret/secret.png")
    in_parquet("{data}-secret/secret.png")(places)


# Every way in, by what it is; each makes the data set's folder.
TABLES: dict[str, Way] = {
    "an absolute path": in_parquet("{image}"),
    "a path that leads up": in_parquet("{data}/../secret/secret.png"),
    "a path from here": in_parquet("../secret/secret.png"),
    "a path from home": in_parquet("~/secret.png"),
    "a file that is not there": in_parquet("{secret}/nothing.png"),
    "a link": with_link("link.png", "{image}", "link.png"),
    "a link to a folder": with_link("sub", "{secret}", "sub/secret.png"),
    "a link up and down": with_link("up", "..", "up/secret/secret.png"),
    "a web address": in_parquet("http://127.0.0.1:9/secret.png"),
    "a file's address": in_parquet("file://{image}"),
    "a file's address in capitals": in_parquet("FILE://{image}"),
    "an address of the Hub": in_parquet("hf://datasets/user/secret/secret.png"),
    "a file of an archive": in_parquet("zip://a/secret.png::{secret}/secret.zip"),
    "a chain of addresses": in_parquet("simplecache::file://{image}"),
    "a null byte": in_parquet("{image}\0.png"),
    "a folder": in_parquet("{secret}"),
    "a device": in_parquet("/dev/zero"),
    "a pipe": pipe,
    "a folder of the same beginning": like_named,
    "metadata with an absolute path": metadata("{image}"),
    "metadata that leads up": metadata("../secret/secret.png"),
    "metadata with an address": metadata("file://{image}", "jsonl"),
    "metadata that is a link": linked("metadata.csv", "secret.csv"),
    "json metadata that is a link": linked("metadata.jsonl", "secret.jsonl"),
    "an image that is a link": linked(f"{NAMES[3]}/x.png", "secret.png"),
    "a column of a csv": typed("train.csv", "image,label\n{image},0\n"),
    "a column of json lines": typed("train.jsonl", '{{"image": {{"path": "{image}"}}, "label": 0}}\n'),
    "a card that leads up": card("data_files: ../secret/*.png"),
    "a card with an absolute path": card("data_files: {secret}/*.parquet"),
    "a card with a folder": card("data_dir: {secret}"),
    "a card with splits": card("data_files:\n  - split: train\n    path: [{secret}/*.parquet]"),
    "a card with a file's address": card("data_files: file://{secret}/*.parquet"),
    "a card with a web address": card("data_files: http://127.0.0.1:9/train.parquet"),
    "a card of the other name": card("data_files: {secret}/*.parquet", ".huggingface.yaml"),
    "a card that is a link": linked("README.md", "secret.md"),
    "a table that is a link": linked("train.parquet", "secret.parquet", True),
    "a csv that is a link": linked("train.csv", "secret.csv", True),
    "an archive that is a link": linked("train.zip", "secret.zip", True),
    "a saved part elsewhere": saved(another_part),
    "a saved part that is a link": saved(linked_part),
    "a saved split elsewhere": another_split,
    "a saved row": saved(saved_rows),
}

"""Publish: pixels without metadata, names of groups, and nothing about their owner, for `datasets`."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from promptccd import systems
from promptccd.data.names import display_name
from promptccd.discovery.exports.export_folder import (
    DIGITS,
    Export,
    ExportFolder,
    Item,
    OnProgress,
    text_item,
)
from promptccd.discovery.exports.names import folder_names
from promptccd.discovery.exports.rows import AssignmentRow, grouped
from promptccd.discovery.project.photos import Photos
from promptccd.errors import DataError

HASH_DIGITS = 10  # of a file's hash in its name, so that no two files of a category collide
_SPLIT = "train"  # as which `datasets` reads all of it
# `datasets` takes these, in small letters, for splits wherever they stand in a path.
_SPLIT_WORDS = re.compile("train|test|val|dev|eval")
_KINDS = {
    "label": "string", "category": "int64", "known": "string", "confidence": "float32", "stage": "int64",
    "sha256": "string",
}  # fmt: skip


def export_publish(
    photos: Photos, rows: Sequence[AssignmentRow], out: Path, on_progress: OnProgress, project: str = ""
) -> Export:
    """Write ``publish/train/<group>/<hash>.jpg`` and ``metadata.jsonl``, an ImageFolder of `datasets`.

    The pixels are exactly those that were grouped, without metadata, see `promptccd.images.clean`. ``label`` is
    the name of the group, letter by letter; in names of folders the words that `datasets` takes for splits begin with a
    capital letter.

    Arguments and errors are those of `promptccd.discovery.exports.formats.Format.write`.
    """
    with ExportFolder.opened(out / "publish", project=project) as folder:
        inside, notes = grouped(rows)
        folders = folder_names(
            {row.category: _without_splits(row.name) for row in inside if row.category is not None}
        )
        suffixes = {made_of: Path(place).suffix for place, made_of in folder.made_of().items()}
        items = [_picture(photos, row, folders, suffixes) for row in inside]
        placed = folder.put(items, on_progress)
        there = [
            (placed[item.place], row) for item, row in zip(items, inside, strict=True) if item.place in placed
        ]
        listed = [{"file_name": place.removeprefix(f"{_SPLIT}/"), **_facts(row)} for place, row in there]
        text = "".join(json.dumps(each, ensure_ascii=False, separators=(",", ":")) + "\n" for each in listed)
        metadata = f"{_SPLIT}/metadata.jsonl"
        folder.put([text_item(metadata, text, metadata)])
        found = folder.finish()
        found.photographs = len(there)
        found.notes += notes + _unlisted(folder.path, {*placed.values(), metadata})
    return found


def export_parquet(
    photos: Photos, rows: Sequence[AssignmentRow], out: Path, on_progress: OnProgress, project: str = ""
) -> Export:
    """Write ``publish-parquet/data/train-00000-of-00001.parquet``, for ``load_dataset(folder)``; a row a photograph.

    It holds what `export_publish` writes, but that ``label`` is a number, whose name ``README.md`` has: a group that is
    renamed leaves the table as it is. Where anything else has changed, all of it is written again.

    Arguments and errors are those of `promptccd.discovery.exports.formats.Format.write`.
    """
    inside, notes = grouped(rows)
    names = dict(sorted({row.category: row.name for row in inside}.items()))
    label_of = {category: number for number, category in enumerate(names)}
    records = [(row, {**_facts(row), "label": label_of[row.category]}) for row in inside]
    content = f"{json.dumps([facts for _, facts in records])}{_rendering_of(photos)}"
    digest = hashlib.sha256(content.encode()).hexdigest()[:DIGITS]
    with ExportFolder.opened(out / "publish-parquet", project=project) as folder:
        there = {place: made for place, made in folder.made_of().items() if made.startswith(digest)}
        missing = list[tuple[str, str]]()
        if there and set(there.values()) == {_shard(digest, each, len(there)) for each in range(len(there))}:
            folder.put([Item(place, made, _is_there, place) for place, made in there.items()])
        else:
            shards = _shards(photos, records, folder.scratch, missing, on_progress)
            made_of = f"{digest} in part" if missing else digest  # what comes back is looked for again
            folder.put(
                Item(place, _shard(made_of, number, len(shards)), partial(_rename, path), place)
                for number, (place, path) in enumerate(shards.items())
            )
        folder.put([text_item("README.md", _card(list(names.values())), "README.md")])
        found = folder.finish()
        found.missing += missing
        found.photographs = len(inside) - len(missing)
        found.notes += notes
    return found


def _shards(
    photos: Photos,
    rows: Sequence[tuple[AssignmentRow, dict[str, Any]]],
    staging: Path,
    missing: list[tuple[str, str]],
    on_progress: OnProgress,
) -> dict[str, Path]:
    """Files of the data set by place, and in `missing` why photographs are in none of them."""
    # Takes a second, for which the page of a project need not wait.
    from datasets import Features, Image, Value

    from promptccd.data.shards import write_shards

    def records() -> Iterator[dict[str, Any]]:
        for row, facts in rows:
            on_progress()
            try:
                suffix, content = _clean(photos, row)
            except DataError as error:
                missing.append((row.file, str(error)))
            else:
                yield {"image": {"bytes": content, "path": f"{row.sha256}{suffix}"}, **facts}

    kinds = {**_KINDS, "label": "int64"}
    features = Features({"image": Image(), **{name: Value(kind) for name, kind in kinds.items()}})
    return write_shards(staging, "data", records(), features)


def _card(names: Sequence[str]) -> str:
    """The card, from which `datasets` and the Hub read the names of the labels."""
    labels = {"class_label": {"names": {str(number): name for number, name in enumerate(names)}}}
    features: list[dict[str, Any]] = [{"name": "image", "dtype": "image"}, {"name": "label", "dtype": labels}]
    features += [{"name": name, "dtype": kind} for name, kind in _KINDS.items() if name != "label"]
    text = yaml.safe_dump({"dataset_info": {"features": features}}, allow_unicode=True, sort_keys=False)
    return f"---\n{text}---\n"


def _picture(
    photos: Photos, row: AssignmentRow, folders: Mapping[int, str], suffixes: Mapping[str, str]
) -> Item:
    def make(target: Path) -> str:
        suffix, content = _clean(photos, row)
        target.write_bytes(content)
        return "" if made_of in suffixes else suffix

    assert row.category is not None
    made_of = f"pixels{_rendering_of(photos)} {row.sha256[:HASH_DIGITS]}"
    place = f"{_SPLIT}/{folders[row.category]}/{row.sha256[:HASH_DIGITS]}{suffixes.get(made_of, '')}"
    return Item(place, made_of, make, row.file)


def _rendering_of(photos: Photos) -> str:
    """The rule that pixels depend on; empty where none is decided."""
    given = {name: value for name, value in vars(photos.decoding.rendering).items() if value is not None}
    return f" {given}" if given else ""


def _clean(photos: Photos, row: AssignmentRow) -> tuple[str, bytes]:
    from promptccd.images.clean import clean_image

    clean = clean_image(photos.original(row.picture), photos.decoding)
    if clean is None:
        raise DataError("it could be decoded before and cannot be now")
    return clean


def _facts(row: AssignmentRow) -> dict[str, Any]:
    return {"label": row.name, **{name: getattr(row, name) for name in _KINDS if name != "label"}}


def _shard(made_of: str, number: int, count: int) -> str:
    return f"{made_of}, {number + 1} of {count}"


def _rename(path: Path, target: Path) -> None:
    systems.rename(path, target)


def _is_there(target: Path) -> None:
    raise DataError("it was removed during the export")


def _unlisted(folder: Path, placed: set[str]) -> list[str]:
    """A note on files of a person that `datasets` would read as well, if there are any."""
    each = sorted(
        display_name(path.relative_to(folder).as_posix())
        for path in (folder / _SPLIT).rglob("*")
        if path.is_file() and path.relative_to(folder).as_posix() not in placed
    )
    if not each:
        return []
    return [
        f"Not of the export, {len(each)}: {', '.join(each[:10])}. `load_dataset` reads the folder once images among "
        "them are moved away."
    ]


def _without_splits(name: str) -> str:
    return _SPLIT_WORDS.sub(lambda word: word[0].capitalize(), name)

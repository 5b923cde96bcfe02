"""Publish: pixels without metadata, names of groups, and nothing about their owner, for `datasets`."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from promptccd.discovery.exports.export_folder import Export, ExportFolder, Item, text_item
from promptccd.discovery.exports.names import folder_names
from promptccd.discovery.exports.rows import AssignmentRow, grouped
from promptccd.discovery.project.photos import Photos
from promptccd.errors import DataError

HASH_DIGITS = 10  # of a file's hash in its name, so that no two files of a category collide
_SPLIT = "train"  # as which `datasets` reads all of it
# `datasets` interprets these, in lower case, as splits anywhere in a path.
_SPLIT_WORDS = re.compile("train|test|val|dev|eval")
_FACTS = ("category", "known", "confidence", "stage", "sha256")


def fill(folder: ExportFolder, photos: Photos, rows: Sequence[AssignmentRow]) -> Export:
    """Write ``publish/train/<group>/<hash>.jpg`` and ``metadata.jsonl``, an ImageFolder of `datasets`.

    The pixels are exactly as they were grouped, without metadata, see `promptccd.images.clean`. ``label`` is
    the name of the group, letter by letter; in names of folders the words that `datasets` takes for splits begin with a
    capital letter.
    """
    inside, notes = grouped(rows)
    names = {row.category: _without_splits(row.name) for row in inside if row.category is not None}
    folders, listed = folder_names(names), list[dict[str, Any]]()
    for row in inside:
        if place := folder.add(_picture(photos, row, folders)):
            facts = {"label": row.name, **{name: getattr(row, name) for name in _FACTS}}
            listed.append({"file_name": place.removeprefix(f"{_SPLIT}/"), **facts})
    text = "".join(json.dumps(each, ensure_ascii=False, separators=(",", ":")) + "\n" for each in listed)
    metadata = f"{_SPLIT}/metadata.jsonl"
    folder.add(text_item(metadata, text, metadata))
    return folder.finish(len(listed), notes)


def _picture(photos: Photos, row: AssignmentRow, folders: Mapping[int, str]) -> Item:
    def make(target: Path) -> str:
        suffix, content = _clean(photos, row)
        target.write_bytes(content)
        return suffix

    assert row.category is not None
    digits = row.sha256[:HASH_DIGITS]
    place = f"{_SPLIT}/{folders[row.category]}/{digits}"
    return Item(place, f"pixels{_rendering_of(photos)} {digits}", make, row.file, is_bare=True)


def _rendering_of(photos: Photos) -> str:
    """The rule that pixels depend on; empty if undecided."""
    given = {name: value for name, value in vars(photos.decoding.rendering).items() if value is not None}
    return f" {given}" if given else ""


def _clean(photos: Photos, row: AssignmentRow) -> tuple[str, bytes]:
    from promptccd.images.clean import clean_image

    clean = clean_image(photos.original(row.picture), photos.decoding)
    if clean is None:
        raise DataError("it could be decoded before and cannot be now")
    return clean


def _without_splits(name: str) -> str:
    return _SPLIT_WORDS.sub(lambda word: word[0].capitalize(), name)

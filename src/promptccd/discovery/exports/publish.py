"""Publish: pixels without metadata, names of groups, and nothing about their owner, for `datasets`."""

import json
import re
from collections.abc import Sequence
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
    names = {
        category: _SPLIT_WORDS.sub(lambda word: word[0].capitalize(), row.name) for category, row in inside
    }
    folders, listed = folder_names(names), list[dict[str, Any]]()
    for category, row in inside:
        if place := folder.add(_picture(photos, row, folders[category])):
            facts = {"label": row.name, **{name: getattr(row, name) for name in _FACTS}}
            listed.append({"file_name": place.removeprefix(f"{_SPLIT}/"), **facts})
    text = "".join(json.dumps(each, ensure_ascii=False, separators=(",", ":")) + "\n" for each in listed)
    metadata = f"{_SPLIT}/metadata.jsonl"
    folder.add(text_item(metadata, text, metadata))
    return folder.finish(len(listed), notes)


def _picture(photos: Photos, row: AssignmentRow, folder: str) -> Item:
    def make(target: Path) -> str:
        from promptccd.images.clean import clean_image

        clean = clean_image(photos.original(row.picture), photos.decoding)
        if clean is None:
            raise DataError("it could be decoded before and cannot be now")
        suffix, content = clean
        target.write_bytes(content)
        return suffix

    # The rule that pixels depend on, if it is decided.
    given = {name: value for name, value in vars(photos.decoding.rendering).items() if value is not None}
    digits = row.sha256[:HASH_DIGITS]
    made_of = f"pixels{f' {given}' if given else ''} {digits}"
    return Item(f"{_SPLIT}/{folder}/{digits}", made_of, make, row.file, is_bare=True)

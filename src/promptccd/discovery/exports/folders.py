"""Sort into folders: every photograph as it is, under its own name, in a folder with the name of its group."""

import io
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from PIL import Image

from promptccd.discovery.exports.export_folder import (
    DIGITS,
    Export,
    ExportFolder,
    Item,
    link_or_copy,
)
from promptccd.discovery.exports.names import Names, folder_names
from promptccd.discovery.exports.rows import AssignmentRow, grouped
from promptccd.discovery.project.photos import Photos


def fill(folder: ExportFolder, photos: Photos, rows: Sequence[AssignmentRow]) -> Export:
    """Write ``folders/<group>/<own name>``: links to the untouched files where the disk can, else copies."""
    inside, notes = grouped(rows)
    added = [(folder.add(item), row) for row, item in zip(inside, _items(photos, inside), strict=True)]
    there = [(place, row) for place, row in added if place]
    found = folder.finish(len(there), notes)
    copies = sum(max(0, len(photos.files_of(row.picture)) - 1) for row in inside)
    if copies:
        found.notes.append(f"Further files with the same pictures, left out: {copies}.")
    linked = sum(_is_link(folder.path / place, photos.path(row.picture)) for place, row in there)
    if linked:
        found.notes.append(
            f"{linked} of them are links to your files and use no space: do not edit a link in place."
        )
    return found


def _items(photos: Photos, rows: Sequence[AssignmentRow]) -> Iterator[Item]:
    folders = folder_names({row.category: row.name for row in rows if row.category is not None})
    names = {identity: Names() for identity in folders}
    for row in rows:
        assert row.category is not None
        path = photos.path(row.picture)
        above, name = os.path.split(path or row.file)
        marks = [os.path.basename(above)] if os.path.basename(above) else []
        unique = names[row.category].add(name, [*marks, row.sha256[:6]])
        make = partial(_make, photos, row.picture, needs_suffix=not path)  # a row of a data set has no file
        place = f"{folders[row.category]}/{unique}"
        yield Item(place, row.sha256[:DIGITS], make, row.file, is_bare=not path, is_hashed=True)


def _make(photos: Photos, key: str, target: Path, *, needs_suffix: bool) -> str:
    file = photos.file_of(key)
    if file is not None:
        link_or_copy(file, target)
        return ""
    content = photos.original(key)
    target.write_bytes(content)
    return _suffix_of(content) if needs_suffix else ""


def _suffix_of(content: bytes) -> str:
    """How files of the format of a picture end."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            kind = str(image.format).lower()
    except Exception:  # Pillow raises a dozen kinds; the name says less then, and the picture is as it was
        return ""
    return {"jpeg": ".jpg", "mpo": ".jpg", "tiff": ".tif"}.get(kind, f".{kind}")


def _is_link(path: Path, original: str) -> bool:
    try:
        return bool(original) and os.path.samefile(path, original)
    except OSError:
        return False

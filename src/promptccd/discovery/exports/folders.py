"""Sort into folders: every photograph as it is, under its own name, in a folder with the name of its group."""

import contextlib
import io
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from PIL import Image

from promptccd.discovery.exports.export_folder import DIGITS, Export, ExportFolder, Item, link_or_copy
from promptccd.discovery.exports.names import Names, folder_names
from promptccd.discovery.exports.rows import AssignmentRow, grouped
from promptccd.discovery.project.photos import Photos


def fill(folder: ExportFolder, photos: Photos, rows: Sequence[AssignmentRow]) -> Export:
    """Write ``folders/<group>/<own name>``: links to the untouched files where the disk can, else copies."""
    inside, notes = grouped(rows)
    folders = folder_names({category: row.name for category, row in inside})
    names = {category: Names() for category in folders}
    places, linked = list[str](), 0
    for category, row in inside:
        path = photos.path(row.picture)  # none of a row of a data set
        above, name = os.path.split(path or row.file)
        marks = [os.path.basename(above)] if os.path.basename(above) else []
        unique = names[category].add(name, [*marks, row.sha256[:6]])
        make = partial(_make, photos, row.picture, needs_suffix=not path)
        place = f"{folders[category]}/{unique}"
        item = Item(place, row.sha256[:DIGITS], make, row.file, is_bare=not path, is_hashed=True)
        places.append(folder.add(item))
    found = folder.finish(sum(map(bool, places)), notes)
    if copies := sum(photos.copies_of(row.picture) for _, row in inside):
        found.notes.append(f"Further files with the same pictures, left out: {copies}.")
    for place, (_, row) in zip(places, inside, strict=True):
        path = photos.path(row.picture)
        with contextlib.suppress(OSError):
            linked += bool(place and path) and os.path.samefile(folder.path / place, path)
    if linked:
        found.notes.append(
            f"{linked} of them are links to your files and use no space: do not edit a link in place."
        )
    return found


def _make(photos: Photos, key: str, target: Path, *, needs_suffix: bool) -> str:
    file = photos.file_of(key)
    if file is not None:
        link_or_copy(file, target)
        return ""
    content = photos.original(key)
    target.write_bytes(content)
    if not needs_suffix:
        return ""
    try:
        with Image.open(io.BytesIO(content)) as image:
            kind = str(image.format).lower()
    except Exception:  # Pillow raises a dozen kinds; the name says less then, and the picture is as it was
        return ""
    return {"jpeg": ".jpg", "mpo": ".jpg", "tiff": ".tif"}.get(kind, f".{kind}")

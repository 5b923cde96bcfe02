"""Sort into folders: every photograph as it is, under its own name, in a folder that is called like its group."""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from PIL import Image

from promptccd.discovery.exports.kept_folder import DIGITS, Export, Item, KeptFolder, Tick, link_or_copy
from promptccd.discovery.exports.names import Names, folder_names
from promptccd.discovery.exports.rows import AssignmentRow, grouped
from promptccd.discovery.project.photos import Photos

FOLDERS = "folders"


def export_folders(
    photos: Photos, rows: Sequence[AssignmentRow], out: Path, tick: Tick, project: str = ""
) -> Export:
    """Write ``folders/<group>/<own name>``: links to the untouched files where the disk can, else copies.

    Args:
        photos: gives the photographs.
        rows: which is in which group; those in none are left out.
        out: where the folder goes.
        tick: called for every photograph; what it raises ends the export.
        project: as `KeptFolder.opened` takes it.

    Raises:
        DiskError: it cannot be written, or a folder of that name was made by somebody else.
    """
    there = {row.sha256[:DIGITS]: photos.path(row.picture) for row in rows}
    with KeptFolder.opened(out / FOLDERS, there, project) as folder:
        suffixes = {made_of: os.path.splitext(place)[1] for place, made_of in folder.held().items()}
        inside, notes = grouped(rows)
        items = list(_items(photos, inside, suffixes))
        folder.put(items, tick)
        found = folder.finish()
        found.photographs = len(items) - len(found.missing)
        found.notes += notes
        copies = sum(max(0, len(photos.files_of(row.picture)) - 1) for row in inside)
        if copies:
            found.notes.append(f"Further files with the same pictures, left out: {copies}.")
        linked = sum(_takes_no_room(folder.path / item.place, item.source) for item in items)
        if linked:
            found.notes.append(
                f"{linked} of them are links to the files themselves and take no room: do not edit one in place."
            )
    return found


def _items(photos: Photos, rows: Sequence[AssignmentRow], suffixes: Mapping[str, str]) -> Iterator[Item]:
    folders = folder_names({row.category: row.name for row in rows if row.category is not None})
    taken = {identity: Names() for identity in folders}
    for row in rows:
        assert row.category is not None
        path = photos.path(row.picture)
        above, name = os.path.split(path or row.file)
        marks = [os.path.basename(above)] if os.path.basename(above) else []
        called = taken[row.category].take(name, [*marks, row.sha256[:6]])
        made_of = row.sha256[:DIGITS]
        suffix = "" if path else suffixes.get(made_of, "")
        yield Item(
            place=f"{folders[row.category]}/{called}{suffix}",
            made_of=made_of,
            make=partial(_make, photos, row.picture, needs_suffix=not path and not suffix),
            called=row.file,
            source=path if os.path.isfile(path) else "",
        )


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


def _takes_no_room(place: Path, source: str) -> bool:
    try:
        return bool(source) and os.path.samefile(place, source)
    except OSError:
        return False

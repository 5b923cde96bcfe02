"""Sort into folders: every photograph as it is, under its own name, in a folder that is called like its group."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from promptccd.discovery.exports.kept_folder import DIGITS, Export, Item, KeptFolder, Tick, link_or_copy
from promptccd.discovery.exports.names import Names, folder_names
from promptccd.discovery.exports.originals import Originals
from promptccd.discovery.exports.rows import AssignmentRow

FOLDERS = "folders"


def export_folders(originals: Originals, rows: Sequence[AssignmentRow], out: Path, tick: Tick) -> Export:
    """Write ``folders/<group>/<own name>``: links to the untouched files where the disk can, else copies.

    Args:
        originals: gives the photographs.
        rows: which is in which group; those in none are left out.
        out: where the folder goes.
        tick: called for every photograph; what it raises ends the export.

    Raises:
        DiskError: it cannot be written, or a folder of that name was made by somebody else.
    """
    there = {row.sha256[:DIGITS]: originals.path(row.picture) for row in rows}
    with KeptFolder.opened(out / FOLDERS, there) as folder:
        items = list(_items(originals, rows))
        folder.put(items, tick)
        found = folder.finish()
        found.photographs = len(items) - len(found.missing)
        linked = sum(_takes_no_room(folder.path / item.place, item.source) for item in items)
        if linked:
            found.notes.append(
                f"{linked} of them are links to the files themselves and take no room: do not edit one in place."
            )
    return found


def _items(originals: Originals, rows: Sequence[AssignmentRow]) -> Iterator[Item]:
    grouped = [row for row in rows if row.category is not None]
    folders = folder_names({row.category: row.name for row in grouped if row.category is not None})
    taken = {identity: Names() for identity in folders}
    for row in grouped:
        assert row.category is not None
        path = originals.path(row.picture)
        above, name = os.path.split(path or row.file)
        marks = [os.path.basename(above)] if os.path.basename(above) else []
        called = taken[row.category].take(name, [*marks, row.sha256[:6]])
        yield Item(
            place=f"{folders[row.category]}/{called}",
            made_of=row.sha256[:DIGITS],
            make=partial(_make, originals, row.picture),
            called=row.file,
            source=path if os.path.isfile(path) else "",
        )


def _make(originals: Originals, key: str, target: Path) -> None:
    file = originals.file_of(key)
    if file is not None:
        link_or_copy(file, target)
    else:
        target.write_bytes(originals.original(key))


def _takes_no_room(place: Path, source: str) -> bool:
    try:
        return bool(source) and os.path.samefile(place, source)
    except OSError:
        return False

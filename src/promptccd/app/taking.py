"""Files to take away, written within what is left of the disk: how large they become is not known before."""

import zipfile
from pathlib import Path
from typing import Any, cast

from promptccd.app.store import Shelf, blocks, size_of
from promptccd.data.intake import Intake, IntakeFile
from promptccd.data.limits import MIB
from promptccd.discovery.session import DiscoverySession

BYTES_PER_PIXEL = 4  # of a picture of noise, encoded without loss, and some more
ROOM = MIB  # for what is small beside a picture: names, tables, the head of a file


def rationed(session: DiscoverySession, shelf: Shelf) -> DiscoverySession:
    """The session for an export: before a picture is encoded, there is room for it on the shelf, or it ends.

    Whatever asks it for a file may then raise what `Shelf.reserve` does.
    """
    return cast(DiscoverySession, _Rationed(session, shelf))


class _Rationed:
    def __init__(self, session: DiscoverySession, shelf: Shelf):
        self._session, self._shelf = session, shelf
        self._written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def file_of(self, key: str) -> tuple[Intake, IntakeFile]:
        """As that of the session."""
        intake, file = self._session.file_of(key)
        written = size_of(self._shelf.folder)
        if written != self._written:  # pictures may wait in memory until there are enough of them
            self._shelf.settle()
            self._written = written
        width, height = file.image_size or (0, 0)
        self._shelf.reserve(BYTES_PER_PIXEL * width * height + ROOM)
        return intake, file


def zipped(folder: Path, shelf: Shelf) -> Path:
    """A zip archive in the place of a folder; every file goes as soon as it is packed.

    Raises:
        DataError: it becomes too much for one visitor.
        FullError: there is no room.
    """
    target = folder.with_name(f"{folder.name}.zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            shelf.settle()
            shelf.reserve(blocks(path.stat().st_size) + ROOM)
            archive.write(path, path.relative_to(folder))
            path.unlink()
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir()
    folder.rmdir()
    shelf.settle()
    return target


def bytes_of_model(session: DiscoverySession) -> int:
    """What a checkpoint of the session takes, and some more."""
    tensors = [*session.model.parameters(), *session.model.buffers()]
    return sum(each.nbytes for each in tensors) + 8 * ROOM

"""Photographs as files: their dates and originals, and exports; of one's own machine alone.

A window names rows. Paths come from the project, and files are opened with the guard of all pictures: below its
folders, through no link that leads out, and while they show what they showed.
"""

import logging
import posixpath
import re
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from starlette.responses import Response

from promptccd import systems
from promptccd.discovery.exports.formats import FORMATS
from promptccd.discovery.exports.rows import AssignmentRow, project_rows
from promptccd.discovery.intake.locations import item_name, sound_file
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.photos import Photos
from promptccd.errors import DataError, PromptCCDError, RegistryError, RunError
from promptccd.images.capture_dates import seconds_of

logger = logging.getLogger(__name__)

# Media types of the files that every browser shows or plays, by their first bytes; other files are saved.
SHOWN = {
    re.compile(rb"\xff\xd8\xff"): "image/jpeg",
    re.compile(rb"\x89PNG\r\n\x1a\n"): "image/png",
    re.compile(rb"GIF8"): "image/gif",
    re.compile(rb"BM"): "image/bmp",
    re.compile(rb"RIFF....WEBP", re.DOTALL): "image/webp",
    re.compile(rb"RIFF....WAVE", re.DOTALL): "audio/wav",
    re.compile(rb"ID3|\xff[\xf2\xf3\xfb]"): "audio/mpeg",
    re.compile(rb"OggS"): "audio/ogg",
    re.compile(rb"fLaC"): "audio/flac",
}


def dates(project: ProjectView) -> bytes:
    """When every photograph was taken, in seconds by the clock of its camera, float64; NaN where nobody knows."""
    photos = project.photos
    return np.array([seconds_of(photos.date(key)) for key in photos.keys], "<f8").tobytes()


def facts(project: ProjectView, row: int) -> dict[str, Any]:
    """Where the file of a photograph is, and when it was taken."""
    key = project.photos.keys[row]
    path = project.photos.path(key)
    return {"path": sound_file(path) or item_name(path) or path, "date": project.photos.date(key)}


def original(project: ProjectView, row: int) -> Response:
    """The file of a photograph as it is; one that browsers do not show is saved under its name."""
    key = project.photos.keys[row]
    content = project.photos.original(key)
    kind = next((kind for begin, kind in SHOWN.items() if begin.match(content)), "")
    if sound_file(project.photos.path(key)) and not kind.startswith("audio/"):
        raise DataError(f"{project.photos.names[row]!r} is no sound, whatever its name says.")
    headers = {"cache-control": "no-store"}
    if not kind:
        name = posixpath.basename(project.photos.names[row])
        headers["content-disposition"] = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    return Response(content, media_type=kind or "application/octet-stream", headers=headers)


def show_in_folder(project: ProjectView, row: int) -> dict[str, str]:
    """Let the file manager of this machine show the file of a photograph.

    Raises:
        DataError: the file is not where it was, or shows something else.
        RunError: it lies in an archive or a data set, or nothing here shows folders.
    """
    path = project.photos.file_of(project.photos.keys[row])
    if path is None:
        raise RunError(f"{project.photos.names[row]!r} is no file: it lies in an archive or a data set.")
    if not systems.has_shown(path):
        raise RunError(f"Nothing on this machine shows folders. The file is {path}")
    return {"path": str(path)}


class _StoppedError(PromptCCDError):
    """A person cancelled the export."""


class ExportJob:
    """One export of a project at a time.

    Attributes:
        progress: of the newest export: its ``kind``, how many photographs are ``done`` of the ``count``, and at the end
            the ``place`` of the folder with ``told``, sentences about it, or the ``problem``; `None` if there was no
            export, or it was cancelled.
    """

    def __init__(self, project: ProjectView):
        self._project, self._stopped = project, threading.Event()
        self.progress: dict[str, Any] | None = None
        self._thread: threading.Thread | None = None

    def start(self, kind: str) -> None:
        """Begin to write the groups as they are now.

        Raises:
            RegistryError: there is no such export, or one is being written.
        """
        if kind not in FORMATS:
            raise RegistryError(f"Expected one of {', '.join(FORMATS)}, got {kind[:40]!r}.")
        if self._thread is not None and self._thread.is_alive():
            raise RegistryError("Another export is being written: wait for it, or cancel it.")
        rows, photos = rows_of(self._project), self._project.photos
        count = sum(row.category is not None for row in rows)
        self.progress = dict(kind=kind, done=0, count=count, place="", photographs=0, told=[], problem="")
        self._stopped.clear()
        arguments = self.progress, rows, photos
        self._thread = threading.Thread(target=self._write, args=arguments, name="export", daemon=True)
        self._thread.start()

    def show(self) -> dict[str, str]:
        """Let the file manager of this machine show the exported folder.

        Raises:
            RunError: nothing was exported, or nothing here shows folders.
        """
        place = self.progress["place"] if self.progress else ""
        if not place or not systems.has_shown(Path(place)):
            raise RunError(
                f"Nothing on this machine shows folders. The folder is {place}" if place else "No export."
            )
        return {"path": place}

    def stop(self) -> None:
        """Cancel the export; the next one starts again."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _write(self, progress: dict[str, Any], rows: list[AssignmentRow], photos: Photos) -> None:
        def on_progress() -> None:
            if self._stopped.is_set() or self._project.closing:
                raise _StoppedError("The export was cancelled.")
            progress["done"] = min(progress["done"] + 1, progress["count"])  # of copies there are more

        try:
            found = FORMATS[progress["kind"]].write(photos, rows, self._project.out, on_progress)
            progress["told"], progress["photographs"] = found.lines(), found.photographs
            progress["place"] = str(found.place.absolute())
        except _StoppedError:
            self.progress = None
        except PromptCCDError as error:
            logger.warning("%s", error)
            progress["problem"] = str(error)
        except Exception as error:  # the page asks until there is a place or a problem
            logger.exception("Unexpected error in an export.")
            progress["problem"] = (
                f"It was not written whole: {type(error).__name__}. Your groups are as they were; the terminal says "
                "more."
            )


def rows_of(project: ProjectView) -> list[AssignmentRow]:
    """A row of every photograph, in the order of the files."""
    with project.still:
        registry, photos = project.registry.copy(), project.photos
    return project_rows(registry, photos)

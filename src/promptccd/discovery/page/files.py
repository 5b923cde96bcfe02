"""Photographs as files: their dates and originals, and exports; of one's own machine alone.

A window names rows. Paths come from the project, and files are opened with the guard of all pictures: below its
folders, through no link that leads out, and only unchanged files.
"""

import posixpath
import re
from typing import Any
from urllib.parse import quote

import numpy as np
from starlette.responses import Response

from promptccd import systems
from promptccd.discovery.exports.formats import FORMATS, Format
from promptccd.discovery.exports.rows import AssignmentRow, project_rows
from promptccd.discovery.intake.locations import item_name, sound_file
from promptccd.discovery.project import ProjectView
from promptccd.errors import DataError, RegistryError, RunError
from promptccd.images.capture_dates import seconds_of

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
    """When every photograph was taken, in seconds by the clock of its camera, float64; NaN if unknown."""
    photos = project.photos
    return np.array([seconds_of(photos.date(key)) for key in photos.keys], "<f8").tobytes()


def facts(project: ProjectView, row: int) -> dict[str, Any]:
    """Where the file of a photograph is, and when it was taken."""
    key = project.photos.keys[row]
    path = project.photos.path(key)
    return {"path": sound_file(path) or item_name(path) or path, "date": project.photos.date(key)}


def original(project: ProjectView, row: int) -> Response:
    """The unchanged file of a photograph; browsers save formats that they cannot show under its name."""
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
        RunError: it is in an archive or a data set, or this machine cannot show folders.
    """
    path = project.photos.file_of(project.photos.keys[row])
    if path is None:
        raise RunError(f"{project.photos.names[row]!r} is no file: it is in an archive or a data set.")
    if not systems.has_shown(path):
        raise RunError(f"Nothing on this machine shows folders. The file is {path}")
    return {"path": str(path)}


def export(project: ProjectView, kind: str) -> dict[str, Any]:
    """Write the groups as they are now; returns the ``place`` of the folder with ``lines``, sentences about it.

    Raises:
        RegistryError: there is no such export.
        DiskError: it cannot be written.
        RunError: it is of another project, or another export is writing it.
    """

    def on_progress() -> None:
        if project.closing:
            raise RunError("The export was not completed, since the page was closed.")

    found = format_named(kind).write(project.photos, rows_of(project), project.out, on_progress)
    return {"place": str(found.place.absolute()), "photographs": found.photographs, "lines": found.lines()}


def show_export(project: ProjectView, kind: str) -> dict[str, str]:
    """Let the file manager of this machine show an exported folder.

    Raises:
        RegistryError: there is no such export.
        RunError: nothing was exported, or nothing here shows folders.
    """
    format_named(kind)
    place = (project.out / kind).absolute()
    if not place.is_dir() or not systems.has_shown(place):
        raise RunError(f"Nothing on this machine shows folders. The folder is {place}")
    return {"path": str(place)}


def format_named(kind: str) -> Format:
    """The export format of a name; a `RegistryError` if unknown."""
    if kind not in FORMATS:
        raise RegistryError(f"Expected one of {', '.join(FORMATS)}, got {kind[:40]!r}.")
    return FORMATS[kind]


def rows_of(project: ProjectView) -> list[AssignmentRow]:
    """A row of every photograph, in the order of the files."""
    with project.lock:
        registry, photos = project.registry.copy(), project.photos
    return project_rows(registry, photos)

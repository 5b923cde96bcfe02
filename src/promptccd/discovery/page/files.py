"""A photograph as a file: its date, its folder, the file itself, and what was left out; of one's own machine alone.

A window names rows. Paths come from the project, and files are opened with the guard of all pictures: below its
folders, through no link that leads out, and while they show what they showed.
"""

import csv
import io
import posixpath
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from starlette.responses import Response

from promptccd import systems
from promptccd.discovery.options import TABLE
from promptccd.discovery.project import ProjectView
from promptccd.disk import read_file
from promptccd.errors import RunError
from promptccd.images.capture_dates import seconds_of
from promptccd.images.decode import Status

LARGEST_TABLE = 2**30  # bytes
# Media types of the files that every browser shows, by their first bytes; other files are saved.
SHOWN = {
    re.compile(rb"\xff\xd8\xff"): "image/jpeg",
    re.compile(rb"\x89PNG\r\n\x1a\n"): "image/png",
    re.compile(rb"GIF8"): "image/gif",
    re.compile(rb"BM"): "image/bmp",
    re.compile(rb"RIFF....WEBP", re.DOTALL): "image/webp",
}


def dates(project: ProjectView) -> bytes:
    """When every photograph was taken, in seconds by the clock of its camera, float64; NaN where nobody knows."""
    photos = project.photos
    return np.array([seconds_of(photos.date(key)) for key in photos.keys], "<f8").tobytes()


def folders(project: ProjectView) -> list[dict[str, Any]]:
    """Folders that hold photographs, with the rows of these."""
    found = dict[str, list[int]]()
    for row, name in enumerate(project.photos.names):
        found.setdefault(posixpath.dirname(name), []).append(row)
    return [{"name": name, "rows": rows} for name, rows in sorted(found.items())]


def facts(project: ProjectView, row: int) -> dict[str, Any]:
    """Where the file of a photograph is, and when it was taken."""
    key = project.photos.keys[row]
    return {"path": project.photos.path(key), "date": project.photos.date(key)}


def original(project: ProjectView, row: int) -> Response:
    """The file of a photograph as it is; one that browsers do not show is saved under its name."""
    content = project.photos.original(project.photos.keys[row])
    kind = next((kind for begin, kind in SHOWN.items() if begin.match(content)), "")
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


def skipped(project: ProjectView) -> list[dict[str, Any]]:
    """Files that the newest discovery left out, by reason, the most frequent first; none where its table is gone."""
    try:
        text = read_file(Path(project.out) / TABLE, LARGEST_TABLE).decode(errors="replace")
    except OSError:
        return []
    if Status.SKIPPED.value not in text:  # most tables are long, and have none
        return []
    found = dict[str, list[str]]()
    for line in csv.DictReader(io.StringIO(text)):
        if line.get("status") == Status.SKIPPED.value:
            found.setdefault(line.get("note") or "", []).append(line.get("file") or "")
    return [
        {"note": note, "files": files}
        for note, files in sorted(found.items(), key=lambda each: -len(each[1]))
    ]

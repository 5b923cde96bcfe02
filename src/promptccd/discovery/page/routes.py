"""Routes of the page: pictures, groups and corrections of a project."""

import asyncio
import json
import posixpath
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from promptccd import systems
from promptccd.discovery.exports.formats import FORMATS
from promptccd.discovery.exports.rows import AssignmentRow, project_rows
from promptccd.discovery.intake.seen import item_name, sound_file
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.edits import CORRECTIONS, Kind
from promptccd.discovery.project.photos import SIDES
from promptccd.errors import PromptCCDError, RegistryError, RunError
from promptccd.images.camera import seconds_of
from promptccd.images.decode import media_type
from promptccd.images.limits import MIB

Answer = Callable[[ProjectView, Request], Any]  # bytes, a response, or what becomes JSON
Action = Callable[[ProjectView, Mapping[str, Any]], dict[str, Any]]  # of the JSON object that was sent

BODY_BYTES = 4 * MIB  # of a correction: 400,000 rows
MOST_AT_ONCE = 64  # pictures in an answer
MOST_EXAMPLES = 1000  # photographs in an address
WAITS_S, LOOKS_EVERY_S = 20.0, 0.1  # of a window that waits for news
FOREVER = "private, max-age=31536000, immutable"  # its address changes with the photographs
NOT_KEPT = {"cache-control": "no-store"}
SHOWN = {  # media types of the files that every browser shows or plays, by suffix; other files are saved
    ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".gif": "image/gif", ".bmp": "image/bmp",
    ".webp": "image/webp", ".wav": "audio/wav", ".mp3": "audio/mpeg", ".ogg": "audio/ogg", ".flac": "audio/flac",
}  # fmt: skip
# A part of every state of a project.
EXPORTS = {"formats": [{"name": name, "title": each.title} for name, each in FORMATS.items()]}
FILES = Path(__file__).with_name("bundle")
BUNDLE = {"index.html": "text/html", "desk.js": "text/javascript", "licences.txt": "text/plain"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; frame-ancestors"
)


def project_routes(project: ProjectView) -> Starlette:
    """The application of one project on this machine: screens, originals and exports."""
    return application(screens(lambda request: project, ANSWERS | OWN_ANSWERS, ACTIONS | OWN_ACTIONS))


def screens(
    project_of: Callable[[Request], ProjectView], answers: Mapping[str, Answer], actions: Mapping[str, Action]
) -> list[Route]:
    """The routes of the page and of the Space.

    Args:
        project_of: returns the project of a request.
        answers: answers to GET, by path.
        actions: answers to POST, which return a state or JSON.
    """

    def respond_with(answer: Answer) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:  # in a thread
            found = answer(project_of(request), request)
            if isinstance(found, bytes):
                return Response(found, media_type="application/octet-stream", headers=NOT_KEPT)
            return found if isinstance(found, Response) else _json(found)

        return respond

    def act_with(action: Action) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            return _json(await run_in_threadpool(action, project_of(request), await _body(request)))

        return respond

    async def state(request: Request) -> Response:
        """The groups; with ``since`` as soon as they differ from then, or after a while."""
        since, project = request.query_params.get("since"), project_of(request)
        for _ in range(round(WAITS_S / LOOKS_EVERY_S)) if since else ():
            if project.closing or await request.is_disconnected():
                break
            if await run_in_threadpool(project.refresh) != since:
                break
            await asyncio.sleep(LOOKS_EVERY_S)
        return _json(await run_in_threadpool(project.summary) | EXPORTS)

    return [
        Route("/", bundle),
        Route("/{name}", bundle, methods=["GET"]),
        Route("/api/state", state),
        *(Route(path, respond_with(answer)) for path, answer in answers.items()),
        *(Route(path, act_with(action), methods=["POST"]) for path, action in actions.items()),
    ]


def application(routes: Sequence[BaseRoute]) -> Starlette:
    """Answers by routes; errors of the package become answers with their message."""
    app = Starlette(routes=routes, exception_handlers={PromptCCDError: _refused})
    app.router.redirect_slashes = False
    return app


async def bundle(request: Request) -> Response:
    """A file of the page."""
    name = request.path_params.get("name", "index.html")
    if name == "favicon.ico":  # browsers always ask for an icon
        return Response(status_code=204)
    if name not in BUNDLE:
        raise HTTPException(404, "There is no such page here.")
    return FileResponse(FILES / name, media_type=BUNDLE[name], headers={"cache-control": "no-cache"})


async def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 409)


def _json(value: Any) -> Response:
    return Response(json.dumps(value), media_type="application/json", headers=NOT_KEPT)


# Targets of an address


def _numbers(asked: Request, name: str) -> list[int]:
    """Numbers that an address gives, such as ``3,17`` or pairs such as ``3-17,5-9``."""
    text = asked.query_params.get(name, "")
    if not re.fullmatch(r"[0-9,-]*", text):
        raise HTTPException(404, "There is no such photograph.")
    return [int(each) for each in re.findall(r"\d{1,9}", text)]


def _rows(project: ProjectView, asked: Request, name: str, most: int = MOST_EXAMPLES) -> list[int]:
    """Photographs that an address names."""
    rows = _numbers(asked, name)
    if len(rows) > most:
        raise RegistryError(f"These are {len(rows)} photographs: select at most {most}.")
    if any(row >= len(project.photos.keys) for row in rows):
        raise HTTPException(404, "There are no such photographs.")
    return rows


def _row(project: ProjectView, asked: Request) -> int:
    row: int = asked.path_params["row"]
    if row >= len(project.photos.keys) or not _is_current(project, asked):
        raise HTTPException(404, "There is no such photograph.")
    return row


def _is_current(project: ProjectView, asked: Request) -> bool:
    return asked.path_params.get("generation") in (None, project.photos.generation)


def _questions(project: ProjectView, asked: Request) -> list[dict[str, int]]:
    """Which photographs may be of one group; without pairs of ``skip``."""
    rows = _rows(project, asked, "skip")
    return project.questions([*zip(rows[::2], rows[1::2], strict=False)])


def _like_these(project: ProjectView, asked: Request) -> dict[str, Any]:
    if not (rows := _rows(project, asked, "rows")):
        raise HTTPException(404, "There is no such photograph.")
    return project.like_these(rows, within=next(iter(_numbers(asked, "within")), None))


def rows_of(project: ProjectView) -> list[AssignmentRow]:
    """A row of every photograph, in the order of the files."""
    with project.lock:
        registry, photos = project.copy(), project.photos
    return project_rows(registry, photos)


def _picture(project: ProjectView, asked: Request) -> Response:
    side, row = asked.path_params["side"], _row(project, asked)
    content = project.photos.picture(row, side) if side in SIDES else None
    if content is None:
        raise HTTPException(404, "This photograph is not where it was.")
    return Response(content, media_type=media_type(content), headers={"cache-control": FOREVER})


def _pictures(project: ProjectView, asked: Request) -> Response:
    """Small pictures of several photographs, each behind its length, as soon as it is made; never empty."""
    side, rows = asked.path_params["side"], _rows(project, asked, "rows", MOST_AT_ONCE)
    if not rows or side not in SIDES[:2] or not _is_current(project, asked):
        raise HTTPException(404, "There are no such photographs.")
    step = len(rows) if side == SIDES[0] else 1  # larger pictures may have to be made first

    async def packed() -> AsyncIterator[bytes]:
        for start in range(0, len(rows), step):
            made = await run_in_threadpool(project.photos.pictures, rows[start : start + step], side)
            yield b"".join(len(each).to_bytes(4, "little") + each for each in made)

    return StreamingResponse(packed(), 200, NOT_KEPT, "application/octet-stream")


ANSWERS: dict[str, Answer] = {
    "/api/columns": lambda project, _: project.columns().packed(),
    "/api/map": lambda project, _: project.layout().astype("<f4").tobytes(),
    "/api/about": lambda project, _: project.about(),
    "/api/changed": lambda project, _: project.changed(),
    "/api/names": lambda project, asked: project.photos.names[(start := sum(_numbers(asked, "from"))) : start + 500],
    "/api/search": lambda project, asked: project.photos.found(asked.query_params.get("q", "")[:200]),
    "/api/alike": _like_these,
    "/api/check": lambda project, asked: project.screen(_rows(project, asked, "skip")),
    "/api/halves/{category:int}": lambda project, asked: project.halves(asked.path_params["category"]),
    "/api/why/{row:int}": lambda project, asked: project.why(_row(project, asked)),
    "/api/right": lambda project, _: project.right(),
    "/api/questions": _questions,
    "/api/picture/{generation}/{row:int}/{side:int}": _picture,
    "/api/pictures/{generation}/{side:int}": _pictures,
}  # fmt: skip


# Corrections, from values that anybody may have sent


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object that was sent."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES:
            raise HTTPException(413, f"A correction is at most {BODY_BYTES} bytes long.")
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "Expected JSON.") from None
    if not isinstance(asked, dict):
        raise HTTPException(400, "Expected an object.")
    return asked


def _argument(name: str, kind: Kind, value: Any) -> Any:
    words, is_list, types = kind.value
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) != is_list or any(type(each) not in types for each in values):
        raise RegistryError(f"Expected {name!r} to be {words}, got {str(value)[:40]!r}.")
    return value


def _corrected(project: ProjectView, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Make the correction that a window asks for: ``do`` names it; ``blind`` if it answers a random draw.

    An optional argument may be missing or null.
    """
    correction, arguments = str(asked.get("do")), dict[str, Any]()
    if correction not in CORRECTIONS:
        raise RegistryError(f"Expected one of {', '.join(CORRECTIONS)}, got {str(asked)[:80]}.")
    for name, (kind, is_required) in CORRECTIONS[correction].items():
        if asked.get(name) is None and not is_required:
            continue
        arguments[name] = value = _argument(name, kind, asked.get(name))
        if kind in (Kind.IMAGE, Kind.IMAGES):
            keys = project.keys_of(value if kind is Kind.IMAGES else [value], str(asked.get("generation")))
            arguments[name] = keys if kind is Kind.IMAGES else keys[0]

    def correct() -> None:
        with project.blind() if asked.get("blind") is True else nullcontext():
            getattr(project, correction)(**arguments)

    return project.corrected(correct) | EXPORTS


def regrouped(
    project: ProjectView, asked: Mapping[str, Any], find: Callable[[int], object] | None = None
) -> dict[str, Any]:
    """Find another number of groups, by `find` (default: by the project)."""
    count = _argument("count", Kind.ENTRY, asked.get("count"))
    return project.corrected(lambda: (find or project.regroup)(count)) | EXPORTS


# Photographs as files, on a person's own machine alone. A window names rows. Paths come from the project, and files are
# opened with the guard of all pictures: below its folders, through no link that leads out, and only unchanged files.


def _dates(project: ProjectView, _: Request) -> bytes:
    """When every photograph was taken, in seconds by the clock of its camera, float64; NaN if unknown."""
    photos = project.photos
    return np.array([seconds_of(photos.date(key)) for key in photos.keys], "<f8").tobytes()


def _facts(project: ProjectView, asked: Request) -> dict[str, Any]:
    """Where the file of a photograph is, and when it was taken."""
    key = project.photos.keys[_row(project, asked)]
    path = project.photos.path(key)
    return {"path": sound_file(path) or item_name(path) or path, "date": project.photos.date(key)}


def _original(project: ProjectView, asked: Request) -> Response:
    """The unchanged file of a photograph; browsers save formats that they cannot show under its name."""
    row, photos = _row(project, asked), project.photos
    content, name = photos.original(photos.keys[row]), posixpath.basename(photos.names[row])
    if kind := SHOWN.get(posixpath.splitext(name)[1].lower()):
        return Response(content, media_type=kind, headers=NOT_KEPT)  # of no other type, see `server.HEADERS`
    saved = {"content-disposition": f"attachment; filename*=UTF-8''{quote(name)}"}
    return Response(content, media_type="application/octet-stream", headers=NOT_KEPT | saved)


def _exported(project: ProjectView, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Write the groups as they are now; returns the ``place`` of the folder with ``lines``, sentences about it."""

    def on_progress() -> None:
        if project.closing:
            raise RunError("The export was not completed, since the page was closed.")

    kind = _format(str(asked.get("kind")))
    found = FORMATS[kind].write(project.photos, rows_of(project), project.out, on_progress)
    return {"place": str(found.place.absolute()), "photographs": found.photographs, "lines": found.lines()}


def _shown_in_folder(project: ProjectView, asked: Mapping[str, Any]) -> dict[str, str]:
    """Let the file manager of this machine show the file of a photograph, or an exported folder."""
    if "row" in asked:
        (key,) = project.keys_of([_argument("row", Kind.IMAGE, asked["row"])], str(asked.get("generation")))
        path = project.photos.file_of(key)
        if path is None:
            raise RunError("This photograph is no file: it is in an archive or a data set.")
    else:
        path = (project.out / _format(str(asked.get("export")))).absolute()
    if not path.exists() or not systems.has_shown(path):
        raise RunError(f"Nothing on this machine shows folders. It is {path}")
    return {"path": str(path)}


def _format(name: str) -> str:
    if name not in FORMATS:
        raise RegistryError(f"Expected one of {', '.join(FORMATS)}, got {name[:40]!r}.")
    return name


ACTIONS: dict[str, Action] = {"/api/edit": _corrected, "/api/regroup": regrouped}
OWN_ANSWERS: dict[str, Answer] = {
    "/api/dates": _dates,
    "/api/file/{row:int}": _facts,
    "/api/original/{generation}/{row:int}": _original,
}
OWN_ACTIONS: dict[str, Action] = {"/api/export": _exported, "/api/show_in_folder": _shown_in_folder}

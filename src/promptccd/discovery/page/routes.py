"""Routes of the page: pictures, groups and corrections of a project."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType, NoneType
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from promptccd.discovery.exports.formats import FORMATS
from promptccd.discovery.exports.rows import assignments_csv
from promptccd.discovery.page import files as photo_files
from promptccd.discovery.page.files import rows_of
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.photos import SIDES
from promptccd.discovery.project.project import CORRECTIONS, Correction, Kind
from promptccd.errors import PromptCCDError, RegistryError
from promptccd.images.decode import media_type
from promptccd.images.limits import MIB

ProjectOf = Callable[[Request], ProjectView]
Answer = Callable[[ProjectView, Request], Any]

BODY_BYTES = 4 * MIB  # of a correction: 400,000 rows
MOST_AT_ONCE = 64  # pictures in an answer
MOST_EXAMPLES = 1000  # photographs in an address
PAIR, MOST_SKIPPED = re.compile(r"(\d{1,9})-(\d{1,9})"), 500  # questions
WAITS_S, LOOKS_EVERY_S = 20.0, 0.1  # of a window that waits for news
FOREVER = "private, max-age=31536000, immutable"  # its address changes with the photographs
NOT_KEPT = {"cache-control": "no-store"}
BUNDLE = {"index.html": "text/html", "desk.js": "text/javascript", "licences.txt": "text/plain"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; frame-ancestors"
)


def project_routes(project: ProjectView) -> Starlette:
    """The application of one project on this machine: screens, originals and exports."""

    async def exported(request: Request) -> Response:
        """Write an export, which takes a while."""
        kind = str((await _body(request)).get("kind"))
        return _json(await run_in_threadpool(photo_files.export, project, kind))

    async def regroup(request: Request) -> Response:
        """Find another number of groups, which takes a while."""
        count = _argument("count", Kind.ENTRY, (await _body(request)).get("count"))
        return _state(await run_in_threadpool(project.corrected, lambda: project.regroup(count)))

    async def show_in_folder(request: Request) -> Response:
        asked = await _body(request)
        if "row" not in asked:
            return _json(await run_in_threadpool(photo_files.show_export, project, str(asked.get("export"))))
        row = _argument("row", Kind.IMAGE, asked.get("row"))
        project.keys_of([row], str(asked.get("generation")))
        return _json(await run_in_threadpool(photo_files.show_in_folder, project, row))

    answers: dict[str, Answer] = {
        "/api/dates": lambda project, _: photo_files.dates(project),
        "/api/file/{row:int}": lambda project, asked: photo_files.facts(project, _row(project, asked)),
        "/api/original/{generation}/{row:int}": lambda project, asked: photo_files.original(
            project, _row(project, asked)
        ),
    }
    return application(
        [
            *screens(lambda request: project, answers),
            Route("/api/show_in_folder", show_in_folder, methods=["POST"]),
            Route("/api/regroup", regroup, methods=["POST"]),
            Route("/api/export", exported, methods=["POST"]),
        ]
    )


def screens(project_of: ProjectOf, more: Mapping[str, Answer] = MappingProxyType({})) -> list[Route]:
    """The routes of the page and of the Space.

    Args:
        project_of: returns the project of a request.
        more: further answers, by path.
    """

    def respond_with(answer: Answer) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:  # in a thread
            found = answer(project_of(request), request)
            if isinstance(found, bytes):
                return Response(found, media_type="application/octet-stream", headers=NOT_KEPT)
            return found if isinstance(found, Response) else _json(found)

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
        return _state(await run_in_threadpool(project.summary))

    async def edit(request: Request) -> Response:
        return _state(await run_in_threadpool(_corrected, project_of(request), await _body(request)))

    return [
        Route("/", bundle),
        Route("/{name}", bundle, methods=["GET"]),
        Route("/api/state", state),
        Route("/api/edit", edit, methods=["POST"]),
        *(Route(path, respond_with(answer)) for path, answer in (ANSWERS | dict(more)).items()),
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
    return Response(_bundled(name), media_type=BUNDLE[name], headers={"cache-control": "no-cache"})


@cache
def _bundled(name: str) -> bytes:
    return (files("promptccd.discovery.page") / "bundle" / name).read_bytes()


async def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 409)


def _json(value: Any) -> Response:
    return Response(json.dumps(value), media_type="application/json", headers=NOT_KEPT)


def _state(summary: Mapping[str, Any]) -> Response:
    """A summary of a project with the export formats."""
    formats = [{"name": name, "title": each.title} for name, each in FORMATS.items()]
    return _json({**summary, "formats": formats})


# Targets of an address


def _number(asked: Request, name: str) -> int | None:
    text = asked.query_params.get(name)
    return None if text is None else _whole(text)


def _whole(text: str) -> int:
    if not (text.isdecimal() and len(text) < 10):
        raise HTTPException(404, "There is no such photograph.")
    return int(text)


def _rows(project: ProjectView, asked: Request, name: str, most: int = MOST_EXAMPLES) -> list[int]:
    """Photographs that an address names, such as ``3,17``."""
    rows = [_whole(each) for each in asked.query_params.get(name, "").split(",") if each]
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
    """Which photographs may be of one group; without ``skip``, pairs of rows such as ``3-17,5-9``."""
    pairs = PAIR.findall(asked.query_params.get("skip", ""))[-MOST_SKIPPED:]
    skipped = [(int(first), int(second)) for first, second in pairs]
    if any(max(each) >= len(project.photos.keys) for each in skipped):
        raise HTTPException(404, "There are no such photographs.")
    return project.questions(skipped)


def _like_these(project: ProjectView, asked: Request) -> dict[str, Any]:
    if not (rows := _rows(project, asked, "rows")):
        raise HTTPException(404, "There is no such photograph.")
    return project.like_these(rows, within=_number(asked, "within"))


def _table(project: ProjectView, _: Request) -> Response:
    rows = rows_of(project)
    if not project.can_write:  # what leaves a Space has neither place nor time
        rows = [replace(row, path="", date="") for row in rows]
    headers = {"content-disposition": 'attachment; filename="groups.csv"', **NOT_KEPT}
    return Response(assignments_csv(rows), media_type="text/csv", headers=headers)


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


# GET routes: bytes, a response, or what becomes JSON.
ANSWERS: dict[str, Answer] = {
    "/api/columns": lambda project, _: project.columns().packed(),
    "/api/map": lambda project, _: project.layout().astype("<f4").tobytes(),
    "/api/about": lambda project, _: project.about(),
    "/api/changed": lambda project, _: project.changed(),
    "/api/names": lambda project, asked: project.photos.names[(start := _number(asked, "from") or 0) : start + 500],
    "/api/search": lambda project, asked: project.photos.found(asked.query_params.get("q", "")[:200]),
    "/api/alike": _like_these,
    "/api/check": lambda project, asked: project.screen(_rows(project, asked, "skip")),
    "/api/halves/{category:int}": lambda project, asked: project.halves(asked.path_params["category"]),
    "/api/why/{row:int}": lambda project, asked: project.why(_row(project, asked)),
    "/api/right": lambda project, _: project.right(),
    "/api/groups.csv": _table,
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


# JSON types of an argument: in words, whether it is a list, and types. Images are rows.
JSON_KINDS: Mapping[Kind, tuple[str, bool, tuple[type, ...]]] = {
    Kind.CATEGORY: ("the number of a group", False, (int,)),
    Kind.CATEGORY_OR_NONE: ("the number of a group, or null", False, (int, NoneType)),
    Kind.CATEGORIES: ("a list of numbers of groups", True, (int,)),
    Kind.TARGETS: ("a list of numbers of groups, or null", True, (int, NoneType)),
    Kind.IMAGE: ("the number of a photograph", False, (int,)),
    Kind.IMAGES: ("a list of numbers of photographs", True, (int,)),
    Kind.NAME: ("a text", False, (str,)),
    Kind.FLAG: ("true or false", False, (bool,)),
    Kind.ENTRY: ("a whole number", False, (int,)),
}


def _argument(name: str, kind: Kind, value: Any) -> Any:
    words, is_list, types = JSON_KINDS[kind]
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) != is_list or any(type(each) not in types for each in values):
        raise RegistryError(f"Expected {name!r} to be {words}, got {str(value)[:40]!r}.")
    return value


def arguments_of(correction: Correction, asked: Mapping[str, Any], project: ProjectView) -> dict[str, Any]:
    """Arguments of a correction from a JSON object; an optional one may be missing or null.

    Raises:
        RegistryError: a value has another kind, or names photographs that are not there.
    """
    found = dict[str, Any]()
    for name, kind in correction.arguments.items():
        if name not in correction.required and asked.get(name) is None:
            continue
        value = _argument(name, kind, asked.get(name))
        if kind in (Kind.IMAGE, Kind.IMAGES):
            keys = project.keys_of(value if kind == Kind.IMAGES else [value], str(asked.get("generation")))
            value = keys if kind == Kind.IMAGES else keys[0]
        found[name] = value
    return found


def _corrected(project: ProjectView, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Make the correction that a window asks for: ``do`` names it; ``blind`` if it answers a random draw."""
    correction = CORRECTIONS.get(str(asked.get("do")))
    if correction is None:
        raise RegistryError(f"Expected one of {', '.join(CORRECTIONS)}, got {str(asked)[:80]}.")
    arguments = arguments_of(correction, asked, project)
    with project.blind() if asked.get("blind") is True else nullcontext():
        return project.corrected(lambda: correction.function(project, **arguments))

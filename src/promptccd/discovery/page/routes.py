"""What the page asks for, and who may ask: by its own names, from its own pages, with its cookie."""

import asyncio
import hmac
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from promptccd.discovery.exports.formats import FORMATS
from promptccd.discovery.exports.rows import assignments_csv
from promptccd.discovery.page import files as photo_files
from promptccd.discovery.page.export_job import TakeAway, rows_of
from promptccd.discovery.page.site import App, Guard, Message, Receive, Send, Site, cookies, header
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.photos import SIDES, Photos
from promptccd.errors import PromptCCDError, RegistryError
from promptccd.images.decode import media_type
from promptccd.images.limits import MIB
from promptccd.registry import LogEntry

Asked = Mapping[str, Any]

BODY_BYTES = 4 * MIB  # of a correction: 400,000 rows
MOST_AT_ONCE = 64  # pictures in an answer
PAIR, MOST_SKIPPED = re.compile(r"(\d{1,9})-(\d{1,9})"), 500  # questions
MOST_EXAMPLES = 1000
COOKIE_S = 180 * 24 * 3600
WAITS_S, LOOKS_EVERY_S = 20.0, 0.1  # of a window that asks for what is new
FOREVER = "private, max-age=31536000, immutable"  # its address changes with the photographs
NOT_KEPT = {"cache-control": "no-store"}
BUNDLE = {"index.html": "text/html", "desk.js": "text/javascript", "licences.txt": "text/plain"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; frame-ancestors"
)
HEADERS = {
    b"content-security-policy": f"{POLICY} 'none'".encode(),
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
}


class Doorkeeper(Guard):
    """Refuses foreign names, foreign pages, and who has no token.

    The token is in the address that the terminal shows; the page swaps it for a cookie that no script can read, whose
    name must differ between ports: those of one machine share cookies.
    """

    def __init__(self, app: App, site: Site, token: str, cookie: str):
        super().__init__(app, site)
        self._token, self._cookie = token, cookie

    def marks(self, scope: Message) -> Mapping[bytes, bytes]:
        """See `Guard.marks`."""
        return HEADERS

    async def answer(self, scope: Message, receive: Receive, send: Send) -> None:
        """See `Guard.answer`."""
        opens = scope["method"] == "GET" and scope["path"] == "/"
        self._site.require_own(scope, from_elsewhere=opens)
        if scope["method"] == "POST" and not header(scope, b"origin"):
            raise HTTPException(403, "A correction says which page it comes from.")
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if opens and self._is_token(given):
            swapped = RedirectResponse("/", 303, NOT_KEPT)
            swapped.set_cookie(
                self._cookie, self._token, COOKIE_S, httponly=True, samesite="strict", path="/"
            )  # as long as bookmarks last: the token stays with the project
            return await swapped(scope, receive, send)
        if not any(map(self._is_token, cookies(scope, self._cookie))):
            raise HTTPException(401, "Open the address that promptccd open has printed: it ends in a token.")
        await self._app(scope, receive, send)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def build_routes(bench: ProjectView, token: str, cookie: str) -> App:
    """The application of a project, for a server on loopback; who has the token may look and correct."""
    take_away = TakeAway(bench)

    def table(request: Request) -> Response:
        headers = {"content-disposition": 'attachment; filename="groups.csv"', **NOT_KEPT}
        return Response(assignments_csv(rows_of(bench)), media_type="text/csv", headers=headers)

    async def export(request: Request) -> Response:
        """How far the export is; a POST begins one, or cancels it."""
        if request.method == "POST":
            asked = await _sent(request)
            if asked.get("kind") is None:
                await run_in_threadpool(take_away.stop)
            else:
                await run_in_threadpool(take_away.start, str(asked["kind"]))
        return _json(take_away.progress)

    async def regroup(request: Request) -> Response:
        """Make so many groups, which takes a while."""
        return _state(await run_in_threadpool(bench.regrouped, _number(await _sent(request), "count")))

    async def show_in_folder(request: Request) -> Response:
        asked = await _sent(request)
        row = _number(asked, "row")
        bench.keys_of([row], str(asked.get("generation")))
        return _json(await run_in_threadpool(photo_files.show_in_folder, bench, row))

    def of_row(tell: Callable[[ProjectView, int], Any]) -> Callable[[Request], Any]:
        return lambda request: tell(bench, _row(bench.photos, request))

    routes = [
        *screens(lambda request: bench),
        Route("/api/groups.csv", table),
        Route("/api/dates", lambda request: _binary(photo_files.dates(bench))),
        Route("/api/folders", lambda request: _json(photo_files.folders(bench))),
        Route("/api/skipped", lambda request: _json(photo_files.skipped(bench))),
        Route("/api/file/{row:int}", of_row(lambda bench, row: _json(photo_files.facts(bench, row)))),
        Route("/api/original/{generation}/{row:int}", of_row(photo_files.original)),
        Route("/api/show_in_folder", show_in_folder, methods=["POST"]),
        Route("/api/regroup", regroup, methods=["POST"]),
        Route("/api/export", export, methods=["GET", "POST"]),
    ]
    return Doorkeeper(application(routes), Site.of_machine(), token, cookie)


def screens(bench_of: Callable[[Request], ProjectView]) -> list[Route]:
    """What every shell of the page asks for; `bench_of` says which project a request is about."""

    def answered(make: Callable[[ProjectView, Request], Response]) -> Callable[[Request], Response]:
        return lambda request: make(bench_of(request), request)  # starlette calls it in a thread

    def as_json(tell: Callable[[ProjectView, Request], Any]) -> Callable[[Request], Response]:
        return answered(lambda bench, request: _json(tell(bench, request)))

    async def state(request: Request) -> Response:
        """The groups; with ``since`` once they are others than then, or after a while."""
        since, bench = request.query_params.get("since"), bench_of(request)
        for _ in range(round(WAITS_S / LOOKS_EVERY_S)) if since else ():
            if bench.closing or await request.is_disconnected():
                break
            if await run_in_threadpool(bench.refresh) != since:
                break
            await asyncio.sleep(LOOKS_EVERY_S)
        return _state(await run_in_threadpool(bench.summary))

    async def edit(request: Request) -> Response:
        asked, bench = await _sent(request), bench_of(request)
        if not isinstance(do := asked.get("do"), str) or do not in CORRECTIONS:
            raise RegistryError(f"Expected one of {', '.join(CORRECTIONS)}, got {str(asked)[:80]}.")

        def act() -> LogEntry:
            within = None if asked.get("within") is None else _number(asked, "within")
            with bench.blind(within) if asked.get("blind") is True else nullcontext():
                return CORRECTIONS[do](bench, asked)

        return _state(await run_in_threadpool(bench.corrected, act))

    return [
        Route("/", bundle),
        Route("/{name}", bundle, methods=["GET"]),
        Route("/api/state", state),
        Route("/api/columns", answered(lambda bench, _: _binary(bench.columns().packed()))),
        Route("/api/map", answered(lambda bench, _: _binary(bench.layout().astype("<f4").tobytes()))),
        Route("/api/about", as_json(lambda bench, _: bench.about())),
        Route("/api/changed", as_json(lambda bench, _: bench.changed())),
        Route("/api/names", as_json(_names)),
        Route("/api/search", as_json(lambda bench, asked: bench.photos.found(asked.query_params.get("q", "")[:200]))),
        Route("/api/alike", as_json(_like_these)),
        Route("/api/check", as_json(lambda bench, asked: bench.screen(_rows(bench.photos, asked, "skip")))),
        Route("/api/why/{row:int}", as_json(lambda bench, asked: bench.why(_row(bench.photos, asked)))),
        Route("/api/right", as_json(_right)),
        Route("/api/rare", as_json(lambda bench, _: bench.rare())),
        Route("/api/questions", as_json(_questions)),
        Route("/api/picture/{generation}/{row:int}/{side:int}", answered(_picture)),
        Route("/api/pictures/{generation}/{side:int}", answered(_pictures)),
        Route("/api/edit", edit, methods=["POST"]),
    ]  # fmt: skip


def application(routes: Sequence[BaseRoute]) -> Starlette:
    """What answers by routes; what cannot be done is said in the words of whoever refuses it."""
    app = Starlette(routes=routes, exception_handlers={PromptCCDError: _refused})
    app.router.redirect_slashes = False
    return app


async def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 409)


def _json(value: Any) -> Response:
    return Response(json.dumps(value), media_type="application/json", headers=NOT_KEPT)


def _state(summary: Mapping[str, Any]) -> Response:
    """A summary of a project with the export formats."""
    formats = [{"name": name, "title": each.title} for name, each in FORMATS.items()]
    return _json({**summary, "formats": formats})


def _binary(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream", headers=NOT_KEPT)


async def bundle(request: Request) -> Response:
    """A file that the page consists of."""
    name = request.path_params.get("name", "index.html")
    if name == "favicon.ico":  # which browsers ask for unasked
        return Response(status_code=204)
    if name not in BUNDLE:
        raise HTTPException(404, "There is no such page here.")
    return Response(_bundled(name), media_type=BUNDLE[name], headers={"cache-control": "no-cache"})


@cache
def _bundled(name: str) -> bytes:
    return (files("promptccd.discovery.page") / "bundle" / name).read_bytes()


def _names(bench: ProjectView, asked: Request) -> list[str]:
    start = _whole(asked.query_params.get("from", ""))
    return bench.photos.names[start : start + 500]


def _questions(bench: ProjectView, asked: Request) -> list[dict[str, int]]:
    """Which photographs may be of one group; not those of ``skip``, pairs of rows such as ``3-17,5-9``."""
    pairs = PAIR.findall(asked.query_params.get("skip", ""))
    skipped = [(int(first), int(second)) for first, second in pairs[-MOST_SKIPPED:]]
    if any(max(each) >= len(bench.photos.keys) for each in skipped):
        raise HTTPException(404, "There are no such photographs.")
    return bench.questions(skipped)


def _rows(photos: Photos, asked: Request, name: str) -> list[int]:
    """Photographs that an address names, such as ``3,17``."""
    rows = [_whole(each) for each in asked.query_params.get(name, "").split(",") if each]
    if len(rows) > MOST_EXAMPLES:
        raise RegistryError(f"These are {len(rows)} photographs: select at most {MOST_EXAMPLES}.")
    if any(row >= len(photos.keys) for row in rows):
        raise HTTPException(404, "There are no such photographs.")
    return rows


def _like_these(bench: ProjectView, asked: Request) -> dict[str, Any]:
    rows, unlike = (_rows(bench.photos, asked, name) for name in ("rows", "unlike"))
    if not rows:
        raise HTTPException(404, "There is no such photograph.")
    within = asked.query_params.get("within")
    return bench.like_these(rows, unlike, None if within is None else _whole(within))


def _right(bench: ProjectView, asked: Request) -> dict[str, Any]:
    within = asked.query_params.get("within")
    return bench.right(None if within is None else _whole(within))


def _row(photos: Photos, asked: Request) -> int:
    row: int = asked.path_params["row"]
    if row >= len(photos.keys) or asked.path_params.get("generation", photos.generation) != photos.generation:
        raise HTTPException(404, "There is no such photograph.")
    return row


def _picture(bench: ProjectView, asked: Request) -> Response:
    photos, side = bench.photos, asked.path_params["side"]
    if side not in SIDES:
        raise HTTPException(404, "There is no such photograph.")
    content = photos.picture(_row(photos, asked), side)
    if content is None:
        raise HTTPException(404, "This photograph is not where it was.")
    return Response(content, media_type=media_type(content), headers={"cache-control": FOREVER})


def _pictures(bench: ProjectView, asked: Request) -> Response:
    """Small pictures of several photographs, each behind its length, as soon as it is made; none is empty."""
    photos, side = bench.photos, asked.path_params["side"]
    rows = [_whole(each) for each in asked.query_params.get("rows", "").split(",")]
    is_known = asked.path_params["generation"] == photos.generation and max(rows) < len(photos.keys)
    if not is_known or side not in SIDES[:2] or len(rows) > MOST_AT_ONCE:
        raise HTTPException(404, "There are no such photographs.")
    return StreamingResponse(_packed(photos, rows, side), 200, NOT_KEPT, "application/octet-stream")


async def _packed(photos: Photos, rows: list[int], side: int) -> AsyncIterator[bytes]:
    """Those that are kept at once; those that are made one by one, for as long as somebody waits for them."""
    step = len(rows) if side == SIDES[0] else 1
    for start in range(0, len(rows), step):
        made = await run_in_threadpool(photos.pictures, rows[start : start + step], side)
        yield b"".join(len(each).to_bytes(4, "little") + each for each in made)


async def _sent(request: Request) -> dict[str, Any]:
    """The object that was sent.

    Raises:
        HTTPException: it is too long, or none.
    """
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


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0


# What a window may ask to correct, from values that anybody may have sent


def _images(bench: ProjectView, asked: Asked) -> list[str]:
    rows = asked.get("rows")
    if not isinstance(rows, list) or not all(type(row) is int for row in rows):
        raise RegistryError("Expected rows, a list of numbers of photographs.")
    return bench.keys_of(rows, str(asked.get("generation")))


def _move(bench: ProjectView, asked: Asked) -> LogEntry:
    return bench.move(_images(bench, asked), None if asked.get("group") is None else _number(asked, "group"))


def _confirm(bench: ProjectView, asked: Asked) -> LogEntry:
    seen = None if asked.get("seen") is None else _images(bench, {**asked, "rows": asked["seen"]})
    return bench.confirm(_images(bench, asked), seen)


def _sort(bench: ProjectView, asked: Asked) -> LogEntry:
    images, to = _images(bench, asked), asked.get("to")
    if not isinstance(to, list) or len(to) != len(images):
        raise RegistryError("Expected to, a list of the number of a group, or null, for each of the rows.")
    return bench.sort(images, [None if each is None else _number({"group": each}, "group") for each in to])


def _answer(bench: ProjectView, asked: Asked) -> LogEntry:
    images, is_same = _images(bench, asked), asked.get("same")
    if len(set(images)) != 2 or not isinstance(is_same, bool):
        raise RegistryError("Expected two rows, and same to be true or false.")
    return bench.answer(images[0], images[1], same=is_same)


def _number(asked: Asked, name: str) -> int:
    number = asked.get(name)
    if type(number) is not int:
        raise RegistryError(f"Expected {name}, a whole number, got {str(number)[:40]!r}.")
    return number


def _groups(asked: Asked) -> list[int]:
    groups = asked.get("groups")
    if not isinstance(groups, list):
        raise RegistryError("Expected groups, a list of their numbers.")
    return [_number({"group": each}, "group") for each in groups]


def _name(asked: Asked) -> str | None:
    name = asked.get("name")
    if name is not None and not isinstance(name, str):
        raise RegistryError("Expected name to be a text.")
    return name


CORRECTIONS: dict[str, Callable[[ProjectView, Asked], LogEntry]] = {
    "rename": lambda bench, asked: bench.rename(_number(asked, "group"), _name(asked) or ""),
    "merge": lambda bench, asked: bench.merge(_groups(asked), _name(asked)),
    "move": _move,
    "sort": _sort,
    "gather": lambda bench, asked: bench.gather(_images(bench, asked), _name(asked)),
    "confirm": _confirm,
    "answer": _answer,
    "split": lambda bench, asked: bench.split(_number(asked, "group")),
    "set_aside": lambda bench, asked: bench.set_aside(_number(asked, "group")),
    "set_images_aside": lambda bench, asked: bench.set_images_aside(_images(bench, asked)),
    "take_back": lambda bench, asked: bench.take_back(_number(asked, "group")),
    "dissolve": lambda bench, asked: bench.dissolve(
        _number(asked, "group"), to_nearest=asked.get("nearest") is not False
    ),
    "forget": lambda bench, asked: bench.forget(),
    # By the entry that a window has shown, which alone it takes back or does again.
    "undo": lambda bench, asked: bench.undo(_number(asked, "number")),
    "redo": lambda bench, asked: bench.redo(_number(asked, "number")),
}

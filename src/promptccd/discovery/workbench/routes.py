"""What the page asks for, and who may ask: by its own names, from its own pages, with its cookie."""

import asyncio
import hmac
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from promptccd.data.images import media_type
from promptccd.data.limits import MIB
from promptccd.discovery.site import App, Message, Receive, Refusal, Send, Site, cookies, header
from promptccd.discovery.workbench.acts import act_of
from promptccd.discovery.workbench.corrections import Workbench
from promptccd.discovery.workbench.photos import SIDES, Photos
from promptccd.discovery.workbench.take_away import TakeAway, assignment_rows_of
from promptccd.errors import PromptCCDError
from promptccd.experiments.pages import csv_text

BODY_BYTES = 4 * MIB  # of a correction: 400,000 rows
MOST_AT_ONCE = 64  # pictures in an answer
PAIR, MOST_SKIPPED = re.compile(r"(\d{1,9})-(\d{1,9})"), 500  # questions
WAITS_S, LOOKS_EVERY_S = 20.0, 0.1  # of a window that asks for what is new
FOREVER = "private, max-age=31536000, immutable"  # its address changes with the photographs
KINDS = {".html": "text/html", ".js": "text/javascript", ".txt": "text/plain"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; frame-ancestors"
)
HEADERS = {
    "content-security-policy": f"{POLICY} 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Doorkeeper:
    """ASGI application in front of the routes: refuses foreign names, foreign pages, and who has no token.

    The token is in the address that the terminal shows; the page swaps it for a cookie that no script can read.

    Args:
        app: what comes next.
        site: by which names it is asked for.
        token: the secret.
        cookie: name of the cookie; ports of one machine share them.
    """

    def __init__(self, app: App, site: Site, token: str, cookie: str):
        self._app, self._site, self._token, self._cookie = app, site, token, cookie

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse a request or pass it on."""
        if scope["type"] != "http":
            await (self._app(scope, receive, send) if scope["type"] == "lifespan" else _closed(send))
            return
        answer = self._refusal(scope)
        await (self._app if answer is None else answer)(scope, receive, _marked(send))

    def _refusal(self, scope: Message) -> App | None:
        host, origin = header(scope, b"host"), header(scope, b"origin")
        if not self._site.has_host(host):
            return Refusal(421, "This page does not go by that name.").answer()
        if any(name == b"origin" for name, _ in scope["headers"]) and not self._site.has_origin(origin, host):
            return Refusal(403, "Other pages may not ask this one.").answer()
        opens = scope["method"] == "GET" and scope["path"] == "/"
        if not opens and header(scope, b"sec-fetch-site") not in ("", "same-origin", "none"):
            return Refusal(403, "Other pages may not ask this one.").answer()
        if scope["method"] == "POST" and not origin:
            return Refusal(403, "A correction says which page it comes from.").answer()
        return self._without_cookie(scope, opens)

    def _without_cookie(self, scope: Message, opens: bool) -> App | None:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if opens and given and hmac.compare_digest(given.encode(), self._token.encode()):
            swapped = RedirectResponse("/", 303, {"cache-control": "no-store"})
            swapped.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
            return swapped
        tokens = cookies(scope, self._cookie)
        if any(hmac.compare_digest(each.encode(), self._token.encode()) for each in tokens):
            return None
        return Refusal(401, "Open the address that promptccd open has printed: it ends in a token.").answer()


async def _closed(send: Send) -> None:
    await send({"type": "websocket.close", "code": 1008})


def _marked(send: Send) -> Send:
    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return marked


def build_routes(bench: Workbench, token: str, cookie: str = "promptccd_page") -> App:
    """The application of a project, for a server on loopback.

    Args:
        bench: the project.
        token: who has it may look at the photographs and correct their groups.
        cookie: name of the cookie that keeps it.
    """
    written = _Exports(bench)
    routes = [
        *screens(lambda request: bench),
        Route("/api/groups.csv", written.table),
        Route("/api/export", written.export, methods=["GET", "POST"]),
    ]
    return Doorkeeper(application(routes), Site.of_machine(), token, cookie)


def screens(bench_of: Callable[[Request], Workbench]) -> list[Route]:
    """What every shell of the page asks for.

    Args:
        bench_of: the project that a request is about.
    """
    asked = _Answers(bench_of)
    return [
        Route("/", bundle),
        Route("/{name}", bundle, methods=["GET"]),
        Route("/api/state", asked.state),
        Route("/api/columns", asked.columns),
        Route("/api/map", asked.map),
        Route("/api/about", asked.about),
        Route("/api/changed", asked.changed),
        Route("/api/names", asked.names),
        Route("/api/search", asked.search),
        Route("/api/alike/{row:int}", asked.alike),
        Route("/api/why/{row:int}", asked.why),
        Route("/api/questions", asked.questions),
        Route("/api/picture/{generation}/{row:int}/{side:int}", asked.picture),
        Route("/api/pictures/{generation}/{side:int}", asked.pictures),
        Route("/api/edit", asked.edit, methods=["POST"]),
    ]


def application(routes: Sequence[BaseRoute]) -> Starlette:
    """What answers by routes; what cannot be done is said in the words of whoever refuses it."""
    app = Starlette(routes=routes, exception_handlers={PromptCCDError: _refused})
    app.router.redirect_slashes = False
    return app


async def _refused(request: Request, error: Exception) -> Response:
    """What cannot be done, in the words of whoever refuses it; the state has not changed."""
    return JSONResponse({"error": str(error)}, 409)


def _json(value: Any) -> Response:
    return Response(json.dumps(value), media_type="application/json", headers={"cache-control": "no-store"})


async def bundle(request: Request) -> Response:
    """A file that the page consists of."""
    name = request.path_params.get("name", "index.html")
    if name == "favicon.ico":  # which browsers ask for unasked
        return Response(status_code=204)
    kind, found = KINDS.get(name[name.rfind(".") :], ""), _bundled()
    if name not in found or not kind:
        return Response("There is no such page here.", 404)
    return Response(found[name], media_type=kind, headers={"cache-control": "no-cache"})


@cache
def _bundled() -> dict[str, bytes]:
    folder = files("promptccd.discovery.workbench") / "bundle"
    return {each.name: each.read_bytes() for each in folder.iterdir()}


class _Answers:
    """An answer for every route."""

    def __init__(self, bench_of: Callable[[Request], Workbench]):
        self._bench_of = bench_of

    async def state(self, request: Request) -> Response:
        """The groups; with ``since`` once they are others than then, or after a while."""
        since, bench = request.query_params.get("since"), self._bench_of(request)
        for _ in range(round(WAITS_S / LOOKS_EVERY_S)) if since else ():
            if bench.closing or await request.is_disconnected():
                break
            if await run_in_threadpool(bench.refresh) != since:
                break
            await asyncio.sleep(LOOKS_EVERY_S)
        return _json(await run_in_threadpool(bench.summary))

    async def columns(self, request: Request) -> Response:
        found = await run_in_threadpool(self._bench_of(request).columns)
        content = found.group.astype("<i4").tobytes() + found.sure.tobytes() + found.flags.tobytes()
        return Response(content, media_type="application/octet-stream", headers={"cache-control": "no-store"})

    async def map(self, request: Request) -> Response:
        places = await run_in_threadpool(self._bench_of(request).layout)
        return Response(places.astype("<f4").tobytes(), media_type="application/octet-stream")

    async def about(self, request: Request) -> Response:
        return _json(await run_in_threadpool(self._bench_of(request).about))

    async def changed(self, request: Request) -> Response:
        return _json(await run_in_threadpool(self._bench_of(request).changed))

    async def names(self, request: Request) -> Response:
        start = _whole(request.query_params.get("from"))
        return _json(self._bench_of(request).photos.names[start : start + 500])

    async def search(self, request: Request) -> Response:
        words, photos = request.query_params.get("q", "")[:200], self._bench_of(request).photos
        return _json(await run_in_threadpool(photos.found, words))

    async def alike(self, request: Request) -> Response:
        bench = self._bench_of(request)
        return await _of_row(request, bench, bench.alike)

    async def why(self, request: Request) -> Response:
        bench = self._bench_of(request)
        return await _of_row(request, bench, bench.why)

    async def questions(self, request: Request) -> Response:
        """Whether which photographs are of one group; not those of ``skip``, pairs of rows such as ``3-17,5-9``."""
        bench, pairs = self._bench_of(request), PAIR.findall(request.query_params.get("skip", ""))
        skipped = [(int(first), int(second)) for first, second in pairs[-MOST_SKIPPED:]]
        if any(max(each) >= len(bench.photos.keys) for each in skipped):
            return Response("There are no such photographs.", 404)
        return _json(await run_in_threadpool(bench.questions, skipped))

    async def picture(self, request: Request) -> Response:
        row, side = request.path_params["row"], request.path_params["side"]
        photos = self._bench_of(request).photos
        if (
            request.path_params["generation"] != photos.generation
            or row >= len(photos.keys)
            or side not in SIDES
        ):
            return Response("There is no such photograph.", 404)
        content = await run_in_threadpool(photos.picture, row, side)
        if content is None:
            return Response("This photograph is not where it was.", 404)
        return Response(content, media_type=media_type(content), headers={"cache-control": FOREVER})

    async def pictures(self, request: Request) -> Response:
        """Small pictures of several photographs, each behind its length, as soon as it is made; none is empty."""
        photos, side = self._bench_of(request).photos, request.path_params["side"]
        rows = [_whole(each) for each in request.query_params.get("rows", "").split(",")]
        if (
            request.path_params["generation"] != photos.generation
            or side not in SIDES[:2]
            or len(rows) > MOST_AT_ONCE
            or max(rows) >= len(photos.keys)
        ):
            return Response("There are no such photographs.", 404)
        headers = {"cache-control": "no-store"}
        return StreamingResponse(_packed(photos, rows, side), 200, headers, "application/octet-stream")

    async def edit(self, request: Request) -> Response:
        asked, bench = await _asked(request), self._bench_of(request)
        if isinstance(asked, Response):
            return asked
        return _json(await run_in_threadpool(bench.answer, act_of(bench, asked)))


class _Exports:
    """Groups that are written beside the photographs, or given as a table."""

    def __init__(self, bench: Workbench):
        self._bench, self._take_away = bench, TakeAway(bench)

    async def table(self, request: Request) -> Response:
        """Every photograph with the group it is in, as a table."""
        content = await run_in_threadpool(_table_of, self._bench)
        headers = {"content-disposition": 'attachment; filename="groups.csv"', "cache-control": "no-store"}
        return Response(content, media_type="text/csv", headers=headers)

    async def export(self, request: Request) -> Response:
        """How far the export is; begins one, or cancels it."""
        asked = await _asked(request) if request.method == "POST" else None
        if isinstance(asked, Response):
            return asked
        if asked is not None and asked.get("kind") is None:
            await run_in_threadpool(self._take_away.stop)
        elif asked is not None:
            names = asked.get("names") is True
            await run_in_threadpool(self._take_away.start, str(asked["kind"]), names)
        return _json(self._take_away.told())


async def _of_row(request: Request, bench: Workbench, tell: Callable[[int], Any]) -> Response:
    if request.path_params["row"] >= len(bench.photos.keys):
        return Response("There is no such photograph.", 404)
    return _json(await run_in_threadpool(tell, request.path_params["row"]))


async def _packed(photos: Photos, rows: list[int], side: int) -> AsyncIterator[bytes]:
    """Those that are kept at once; those that are made one by one, for as long as somebody waits for them."""
    step = len(rows) if side == SIDES[0] else 1
    for start in range(0, len(rows), step):
        made = await run_in_threadpool(photos.pictures, rows[start : start + step], side)
        yield b"".join(len(each).to_bytes(4, "little") + each for each in made)


async def _asked(request: Request) -> dict[str, Any] | Response:
    """The object that was sent, or why it is none."""
    body = await _body(request)
    if body is None:
        return Response(f"A correction is at most {BODY_BYTES} bytes long.", 413)
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return Response("Expected JSON.", 400)
    return asked if isinstance(asked, dict) else Response("Expected an object.", 400)


async def _body(request: Request) -> bytes | None:
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > BODY_BYTES:
            return None
    return b"".join(parts)


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 10 else 0


def _table_of(bench: Workbench) -> str:
    listed = [
        {
            "file": row.file,
            "group": "" if row.category is None else row.category,
            "name": row.name,
            "sha256": row.sha256,
        }
        for row in assignment_rows_of(bench)
    ]
    return csv_text(["file", "group", "name", "sha256"], listed)

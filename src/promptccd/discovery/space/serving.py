"""What is answered: the page's own requests, of a bounded size, without addresses; and the screens of every visit.

Gradio would answer whoever asks, by whatever name, and reflect their origin; it would fetch whatever address stands
where a file's path is expected, and has routes (files, run history, links to a visitor's state) that the page does not
use: what visitors take away is at the address of their screens.
"""

import asyncio
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route

from promptccd.discovery.page.export_job import rows_of
from promptccd.discovery.page.routes import NOT_KEPT, POLICY, application, bundle, screens
from promptccd.discovery.page.site import App, Guard, Message, Receive, Send, Site, cookies, header
from promptccd.discovery.space.visits import OVER, Visits
from promptccd.disk import parsed_json
from promptccd.images.limits import MIB, IntakeLimits
from promptccd.reports.page import csv_text

BODY_BYTES = MIB  # of a request that is no upload; and of what a form adds to the files
COOKIE = "promptccd_visitor"
PREFIX, SCREENS = "/gradio_api/", "/desk/"
USED = (  # by the page
    "/config", "/static/", "/assets/", "/svelte/", "/favicon.ico", "/theme.css", "/robots.txt", "/manifest.json",
    "/pwa_icon", SCREENS, *(PREFIX + each for each in (
        "queue/", "call/", "run/", "reset", "cancel", "upload", "info", "openapi.json", "heartbeat/", "startup-events",
        "app_id", "theme.css", "login_check", "user",
    )),
)  # fmt: skip
SPOOFABLE = (b"x-forwarded-host", b"x-gradio-server", b"x-forwarded-proto", b"x-forwarded-for", b"forwarded")
ADDRESS = re.compile(r"\s*[A-Za-z0-9]{2,}:")  # a single letter is a drive
ADD_NAME = "; whoever runs it can add the name"
FULL = "The disk of this page is full for the moment: try again in a few minutes."
TABLE, ARCHIVES = "groups.csv", ("images.zip", "model.zip")
TURNS = 8  # answers that are made at once; a photograph may take 100 MB while it is decoded
ANSWER_S = 60.0  # that one of them may take, whoever is slow
SPARE_BYTES = 2**30  # of the disk, that uploads leave free


class RequestGuard(Guard):
    """Refuses what should not be asked of Gradio's application; `limits` are on an upload."""

    def __init__(self, app: App, site: Site, limits: IntakeLimits):
        super().__init__(app, site)
        self._most = limits.max_total_bytes

    async def answer(self, scope: Message, receive: Receive, send: Send) -> None:
        """See `Guard.answer`."""
        is_post = scope["method"] == "POST"
        self._site.require_own(scope, from_elsewhere=not is_post, advice=ADD_NAME)
        if scope["path"] not in ("", "/") and not scope["path"].startswith(USED):
            raise HTTPException(404, "There is no such page here.")
        if is_post and scope["path"] == f"{PREFIX}upload":
            self._require_small(header(scope, b"content-length"))
        elif is_post:
            receive = await _without_addresses(receive)
        scope["headers"] = self._believed(scope)
        await self._app(scope, receive, send)

    def _require_small(self, size: str) -> None:
        """Refuse an upload that is too long, as no body is longer than its head says; Gradio limits each file alone."""
        if not size.isdecimal():
            raise HTTPException(411, "An upload has to say how long it is.")
        if int(size) > self._most + BODY_BYTES:
            raise HTTPException(413, f"This upload is {size} bytes long; the limit is {self._most} in all.")
        if shutil.disk_usage(tempfile.gettempdir()).free < int(size) + SPARE_BYTES:
            raise HTTPException(503, FULL, {"Retry-After": "60"})

    def _believed(self, scope: Message) -> list[tuple[bytes, bytes]]:
        """Headers without those by which whoever asks could pass for somebody else."""
        dropped = (b"x-gradio-server",) if self._site.behind_proxy else SPOOFABLE

        def is_ours(name: bytes, value: bytes) -> bool:
            names_us = name != b"x-forwarded-host" or self._site.has_host(value.decode("latin-1"))
            return name not in dropped and names_us

        return [each for each in scope["headers"] if is_ours(*each)]

    def marks(self, scope: Message) -> Mapping[bytes, bytes]:
        """See `Guard.marks`."""
        route: str = scope["path"]
        # Gradio's own page needs inline scripts.
        policy = POLICY if route.startswith(SCREENS) else "frame-ancestors"
        added = {
            b"content-security-policy": " ".join((policy, "'self'", *self._site.frames)).encode(),
            b"referrer-policy": b"same-origin",
            b"x-content-type-options": b"nosniff",
        }
        if route in ("", "/") and not owner_of(scope):
            # In a Space the page stands in a frame of the Hub.
            kind = "SameSite=None; Secure; Partitioned" if self._site.behind_proxy else "SameSite=Lax"
            added[b"set-cookie"] = f"{COOKIE}={secrets.token_urlsafe(24)}; Path=/; HttpOnly; {kind}".encode()
        return added


def owner_of(scope: Message) -> str:
    """The secret in a browser's cookie, or ``""``."""
    return next(iter(cookies(scope, COOKIE)), "")[:100]


async def _without_addresses(receive: Receive) -> Receive:
    """The body of a request again, if it is short, and JSON in which no file is an address."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise HTTPException(400, "The request broke off.")
        body, more = body + message.get("body", b""), bool(message.get("more_body"))
        if len(body) > BODY_BYTES:
            raise HTTPException(413, f"This request is longer than {BODY_BYTES} bytes: files are uploaded.")
    try:
        waiting = [parsed_json(body)] if body else []
    except ValueError:
        raise HTTPException(400, "Expected JSON.") from None
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict) and ADDRESS.match(str(value.get("path"))):
            raise HTTPException(400, "Addresses are not fetched: download the images and upload them.")
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    again = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return again.pop() if again else await receive()

    return replay


def screens_of(visits: Visits) -> App:
    """What answers the screens of all visits, below their addresses."""
    shown = application(
        [*screens(lambda request: request.scope["visit"].project()), Route("/take/{name}", _taken)]
    )
    turns = asyncio.Semaphore(TURNS)

    async def of_visit(scope: Message, receive: Receive, send: Send) -> None:
        visit = visits.at(scope["path_params"]["address"], owner_of(scope))
        if visit is None:
            raise HTTPException(410, OVER)
        scope["visit"] = visit
        waits = b"since=" in scope["query_string"]  # a window waits for news, though nobody may look at it
        visit.touch(is_click=not waits)
        if waits or "/take/" in scope["path"]:  # a long answer keeps nobody else waiting
            await shown(scope, receive, send)
            return
        async with turns, asyncio.timeout(ANSWER_S):
            await shown(scope, receive, send)

    return application([Route("/{name}", bundle), Mount("/{address}", of_visit)])


def _taken(request: Request) -> Response:
    """The table as it is now, or an archive that was made."""
    visit, name = request.scope["visit"], request.path_params["name"]
    headers = {"content-disposition": f'attachment; filename="{name}"', **NOT_KEPT}
    if name == TABLE:
        rows = [{**asdict(row), "group": row.category} for row in rows_of(visit.project())]
        table = csv_text(["file", "group", "name", "sha256", "picture"], rows)
        return Response(table, media_type="text/csv", headers=headers)
    if name not in ARCHIVES or not (visit.taken / name).is_file():
        raise HTTPException(404, "There is no such file.")
    return FileResponse(visit.taken / name, headers=headers)

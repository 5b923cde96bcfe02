"""What the server lets through, before Gradio sees it: the page's own requests, of a bounded size, without addresses.

Gradio would answer whoever asks, by whatever name, and reflect their origin; it would fetch whatever address stands
where a file's path is expected, and has routes (files, run history, links to a visitor's state) that the page does not
use: what visitors take away is at the address of their screens.
"""

import json
import secrets
import shutil
import tempfile
from typing import Any

from starlette.exceptions import HTTPException

from promptccd.data.limits import MIB, IntakeLimits
from promptccd.discovery.site import App, Message, Receive, Send, Site, cookies, header, refusal
from promptccd.discovery.workbench.routes import POLICY

BODY_BYTES = MIB  # of a request that is no upload; and of what a form adds to the files
COOKIE = "promptccd_visitor"
PREFIX, SCREENS = "/gradio_api/", "/desk/"
PAGE = (  # what the page loads, and the login where a Space offers one
    "/config", "/static/", "/assets/", "/svelte/", "/favicon.ico", "/theme.css", "/robots.txt", "/manifest.json",
    "/pwa_icon", "/login/", "/logout", SCREENS,
)  # fmt: skip
API = (
    "queue/", "call/", "run/", "reset", "cancel", "upload", "info", "openapi.json", "heartbeat/", "startup-events",
    "app_id", "theme.css", "login_check", "user",
)  # fmt: skip
SPOOFABLE = (b"x-forwarded-host", b"x-gradio-server", b"x-forwarded-proto", b"x-forwarded-for", b"forwarded")


class RequestGuard:
    """ASGI application in front of Gradio's that refuses what should not be asked.

    Args:
        app: Gradio's.
        site: the names that are answered to.
        limits: on what a visitor uploads.
        spare_bytes: of the disk, that uploads leave free.
    """

    def __init__(self, app: App, site: Site, limits: IntakeLimits, spare_bytes: int):
        self._app, self._site = app, site
        self._upload_bytes, self._spare_bytes = limits.max_total_bytes + BODY_BYTES, spare_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse a request or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            send = self._marked(scope, send)
            try:
                advice = "; whoever runs it can add the name"
                self._site.require_own(scope, from_elsewhere=scope["method"] != "POST", advice=advice)
                _require_route(scope)
                if scope["method"] == "POST":
                    receive = await self._bounded(scope, receive)
                scope["headers"] = self._believed(scope)
                await self._app(scope, receive, send)
            except HTTPException as why:
                await refusal(why)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})  # which nothing here speaks

    async def _bounded(self, scope: Message, receive: Receive) -> Receive:
        """The body of a request, if it is not too long and names no address as a file."""
        if _route(scope) == f"{PREFIX}upload":
            return self._bounded_upload(scope, receive)
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise HTTPException(400, "The request broke off.")
            body += message.get("body", b"")
            if len(body) > BODY_BYTES:
                raise HTTPException(
                    413, f"This request is longer than {BODY_BYTES} bytes: files are uploaded."
                )
            if not message.get("more_body"):
                break
        _refuse_addresses(body)
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        return replay

    def _bounded_upload(self, scope: Message, receive: Receive) -> Receive:
        """Gradio limits each file, and not how many there are."""
        size = header(scope, b"content-length")
        if not size.isdecimal():
            raise HTTPException(411, "An upload has to say how long it is.")
        if int(size) > self._upload_bytes:
            raise HTTPException(
                413,
                f"This upload is {int(size)} bytes long; the limit is {self._upload_bytes - BODY_BYTES} in all.",
            )
        if shutil.disk_usage(tempfile.gettempdir()).free < int(size) + self._spare_bytes:
            raise HTTPException(
                503,
                "The disk of this page is full for the moment: try again in a few minutes.",
                {"Retry-After": "60"},
            )
        return receive  # no server lets a body be longer than its head says

    def _believed(self, scope: Message) -> list[tuple[bytes, bytes]]:
        """Headers without those by which whoever asks could pass for somebody else."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if not self._site.behind_proxy:
            return [each for each in headers if each[0] not in SPOOFABLE]
        return [
            (name, value)
            for name, value in headers
            if name != b"x-gradio-server"
            and (name != b"x-forwarded-host" or self._site.has_host(value.decode("latin-1")))
        ]

    def _marked(self, scope: Message, send: Send) -> Send:
        """Headers beside every answer; no other origin is ever let in."""
        route = _route(scope)
        # Gradio's own page needs inline scripts.
        policy = POLICY if route.startswith(SCREENS) else "frame-ancestors"
        added = [
            (b"content-security-policy", " ".join((policy, "'self'", *self._site.frames)).encode()),
            (b"referrer-policy", b"same-origin"),
            (b"x-content-type-options", b"nosniff"),
        ]
        if route in ("", "/") and not owner_of(scope):
            # In a Space the page stands in a frame of the Hub.
            kind = "SameSite=None; Secure; Partitioned" if self._site.behind_proxy else "SameSite=Lax"
            cookie = f"{COOKIE}={secrets.token_urlsafe(24)}; Path=/; HttpOnly; {kind}"
            added.append((b"set-cookie", cookie.encode()))

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [each for each in message.get("headers", []) if _may_stay(each[0], added)]
                message = {**message, "headers": kept + added}
            await send(message)

        return marked


def owner_of(scope: Message) -> str:
    """The secret in a browser's cookie, or ``""``."""
    return next(iter(cookies(scope, COOKIE)), "")[:100]


def _route(scope: Message) -> str:
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _require_route(scope: Message) -> None:
    """Refuse what the page does not use."""
    route = _route(scope)
    allowed = route in ("", "/") or route.startswith(PAGE)
    if route.startswith(PREFIX):
        allowed = route.removeprefix(PREFIX).startswith(API)
    if not allowed:
        raise HTTPException(404, "There is no such page here.")


def _may_stay(name: bytes, added: list[tuple[bytes, bytes]]) -> bool:
    """Whether a header of Gradio's goes out: none that lets another origin in, none that ours replace."""
    if name.lower().startswith(b"access-control-"):
        return False
    return name == b"set-cookie" or all(name.lower() != mine for mine, _ in added)


def _refuse_addresses(body: bytes) -> None:
    """Refuse JSON in which a file is an address."""
    try:
        waiting = [json.loads(body)] if body else []
    except (ValueError, RecursionError):
        raise HTTPException(400, "Expected JSON.") from None
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if _is_address(value.get("path")):
                raise HTTPException(400, "Addresses are not fetched: download the images and upload them.")
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _is_address(path: Any) -> bool:
    """Whether a path starts with a scheme, as in ``http:`` and ``file:``."""
    if not isinstance(path, str):
        return False
    scheme, found, _ = path.strip().partition(":")
    return bool(found) and scheme.isalnum() and len(scheme) > 1  # a single letter is a drive

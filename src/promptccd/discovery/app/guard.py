"""What the server lets through, before Gradio sees it: the page's own requests, of a bounded size, without addresses.

Gradio would answer whoever asks, by whatever name, and reflect their origin; it would fetch whatever public address
stands where a file's path is expected, and has routes (run history, links to a visitor's state, recordings) that the
page does not use.
"""

import json
import os
import secrets
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException

from promptccd.data.limits import MIB, IntakeLimits
from promptccd.discovery.app.store import Claim, FullError, PageLimits, Quota, Store
from promptccd.discovery.app.uploads import Uploads
from promptccd.discovery.site import App, Message, Receive, Send, Site, cookies, header, refusal
from promptccd.discovery.workbench.routes import POLICY

BODY_BYTES = MIB  # of a request that is no upload
COOKIE = "promptccd_visitor"
PREFIX, SCREENS = "/gradio_api/", "/desk/"
PAGE = (  # what the page loads, and the login where a Space offers one
    "/config", "/static/", "/assets/", "/svelte/", "/favicon.ico", "/theme.css", "/robots.txt", "/manifest.json",
    "/pwa_icon", "/login/", "/logout", SCREENS,
)  # fmt: skip
API = (
    "queue/", "call/", "run/", "reset", "cancel", "upload", "file=", "info", "openapi.json", "heartbeat/",
    "startup-events", "app_id", "theme.css", "login_check", "user",
)  # fmt: skip
SPOOFABLE = (b"x-forwarded-host", b"x-gradio-server", b"x-forwarded-proto", b"x-forwarded-for", b"forwarded")
ADD_NAME = "; whoever runs it can add the name"


class RequestGuard:
    """ASGI application in front of Gradio's that refuses what should not be asked, and takes uploads.

    Limits are `intake` on an upload, and `limits` on all requests together.
    """

    def __init__(self, app: App, site: Site, store: Store, intake: IntakeLimits, limits: PageLimits):
        self._app, self._site, self._store = app, site, store
        self._uploads, self._bodies = Uploads(store, intake), Quota(limits.request_bytes, "requests")
        self._under_way, self._per_address = Counter[str](), limits.per_address

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse a request or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            send = self._marked(scope, send)
            try:
                self._site.require_own(scope, from_elsewhere=scope["method"] != "POST", advice=ADD_NAME)
                self._require_route(scope)
                with self._counted(scope):
                    await self._passed(scope, receive, send)
            except HTTPException as why:
                await refusal(why)(scope, receive, send)
            except FullError as error:
                await refusal(HTTPException(503, str(error), {"Retry-After": "60"}))(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})  # which nothing here speaks

    def _require_route(self, scope: Message) -> None:
        """Refuse what the page does not use, and files of others: nobody learns whether somebody has one."""
        route = _route(scope)
        allowed = route in ("", "/") or route.startswith(PAGE)
        if route.startswith(PREFIX):
            allowed = route.removeprefix(PREFIX).startswith(API)
        if not allowed:
            raise HTTPException(404, "There is no such page here.")
        asked, _, path = route.partition("file=")
        if asked == PREFIX and not self._has(path, owner_of(self._store, scope)):
            raise HTTPException(404, "There is no such file.")

    async def _passed(self, scope: Message, receive: Receive, send: Send) -> None:
        scope["headers"] = self._believed(scope)
        route, is_post, answer = _route(scope), scope["method"] == "POST", self._app
        owner = owner_of(self._store, scope)
        named = parse_qs(scope["query_string"].decode("latin-1")).get("upload_id", [""])[0][:100]
        name = f"{owner} {named}" if named else ""  # nobody follows what somebody else uploads
        if route == f"{PREFIX}upload" and is_post:
            answer = await self._uploads.receive(scope, receive, owner, name)
        elif route == f"{PREFIX}upload_progress":
            answer = await self._uploads.follow(name)
        elif is_post:
            with self._bodies.lent() as claim:
                body = await _read(receive, claim)
            self._require_own_files(body, owner)
            receive = _replayed(body, receive)
        await answer(scope, receive, send)

    def _has(self, path: str, owner: str) -> bool:
        shelf = self._store.find(path, owner)
        try:
            return shelf is not None and stat.S_ISREG(os.lstat(path).st_mode)
        except (OSError, ValueError):  # a name that no file can have
            return False

    def _require_own_files(self, body: bytes, owner: str) -> None:
        """Refuse JSON in which a file is an address, or was not uploaded by who asks."""
        try:
            waiting = [json.loads(body)] if body else []
        except (ValueError, RecursionError):
            raise HTTPException(400, "Expected JSON.") from None
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                path = value.get("path")
                if _is_address(path):
                    raise HTTPException(
                        400, "Addresses are not fetched: download the images and upload them."
                    )
                if isinstance(path, str) and not self._has(path, owner):
                    raise HTTPException(
                        400, "That file was not uploaded here, or is deleted again: upload it."
                    )
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value

    @contextmanager
    def _counted(self, scope: Message) -> Iterator[None]:
        """Count what an address has under way, and refuse too much."""
        address = self._address(scope)
        if address and self._under_way[address] >= self._per_address:
            raise FullError("Your address has too many requests under way here: try again in a minute.")
        self._under_way[address] += 1
        try:
            yield
        finally:
            self._under_way -= Counter([address])  # which drops those that have none

    def _address(self, scope: Message) -> str:
        """Whose request it is; ``""`` for this machine. A proxy is believed in a Space alone."""
        named = header(scope, b"x-forwarded-for").partition(",")[0].strip() if self._site.behind_proxy else ""
        address = named or (scope.get("client") or ("", 0))[0]
        try:
            return "" if ip_address(address).is_loopback else address
        except ValueError:
            return ""

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
        if route in ("", "/") and not _cookie(scope):
            added.append((b"set-cookie", self._new_cookie().encode()))
        if route.startswith(f"{PREFIX}file="):
            added.append((b"cache-control", b"private, no-store"))

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [each for each in message.get("headers", []) if _may_stay(each[0], added)]
                message = {**message, "headers": kept + added}
            await send(message)

        return marked

    def _new_cookie(self) -> str:
        """A secret of the browser; in a Space the page stands in a frame of the Hub."""
        kind = "SameSite=None; Secure; Partitioned" if self._site.behind_proxy else "SameSite=Lax"
        return f"{COOKIE}={secrets.token_urlsafe(24)}; Path=/; HttpOnly; {kind}"


def owner_of(store: Store, scope: Message) -> str:
    """Whose request it is, by the cookie."""
    return store.owner(_cookie(scope))


def _route(scope: Message) -> str:
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _cookie(scope: Message) -> str:
    return next(iter(cookies(scope, COOKIE)), "")[:100]


def _may_stay(name: bytes, added: list[tuple[bytes, bytes]]) -> bool:
    """Whether a header of Gradio's goes out: none that lets another origin in, none that ours replace."""
    if name.lower().startswith(b"access-control-"):
        return False
    return name == b"set-cookie" or all(name.lower() != mine for mine, _ in added)


async def _read(receive: Receive, claim: Claim) -> bytes:
    """The body of a request, unless it is too long or breaks off."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise HTTPException(400, "The request broke off.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_BYTES:
            raise HTTPException(413, f"This request is longer than {BODY_BYTES} bytes: files are uploaded.")
        claim.resize(size)
        if not message.get("more_body"):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _is_address(path: Any) -> bool:
    """Whether a path starts with a scheme, as in ``http:`` and ``file:``."""
    if not isinstance(path, str):
        return False
    scheme, found, _ = path.strip().partition(":")
    return bool(found) and scheme.isalnum() and len(scheme) > 1  # a single letter is a drive

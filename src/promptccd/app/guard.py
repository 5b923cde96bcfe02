"""What the server lets through, before Gradio sees it: the page's own requests, of a bounded size, without addresses.

Gradio would fetch whatever public address stands where a file's path is expected, keeps no limit on an upload as a
whole, and has routes (run history, links to a visitor's state, recordings) that the page does not use.
"""

import atexit
import json
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder, is_in_or_equal
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

from promptccd.data.limits import MIB, IntakeLimits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

BODY_BYTES = MIB  # of a request that is no upload
ENVELOPE_BYTES = MIB  # what the multipart form adds to the files of an upload
MOST_PAGES = 1000  # that Gradio remembers, at about half a megabyte each; it drops the one unused the longest
ABANDONED_S = 900.0  # after that nobody still uploads into a file
PREFIX = "/gradio_api/"
PAGE = (  # what the page loads, and the login where a Space offers one
    "/config", "/static/", "/assets/", "/svelte/", "/favicon.ico", "/theme.css", "/robots.txt", "/manifest.json",
    "/pwa_icon", "/login/", "/logout",
)  # fmt: skip
API = (
    "queue/", "call/", "run/", "reset", "cancel", "upload", "file=", "info", "openapi.json", "heartbeat/",
    "startup-events", "app_id", "theme.css", "login_check", "user",
)  # fmt: skip


def launch_guarded(limits: IntakeLimits) -> dict[str, Any]:
    """Options for ``launch`` that make the server keep to limits and to the routes of the page."""
    return {
        "allowed_paths": [],
        "max_file_size": limits.max_total_bytes,  # a zip may be as large as all files together
        "run_history": False,
        "enable_monitoring": False,
        "state_session_capacity": MOST_PAGES,
        "app_kwargs": {"middleware": [Middleware(RequestGuard, limits=limits)]},
    }


def keep_uploads_private() -> None:
    """Let Gradio keep uploads where no other user of this machine can look, and nothing is left behind.

    Nothing happens where ``GRADIO_TEMP_DIR`` names a folder already.
    """
    if not os.environ.get("GRADIO_TEMP_DIR"):
        folder = tempfile.mkdtemp(prefix="promptccd-uploads-")  # mode 0700
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["GRADIO_TEMP_DIR"] = folder


def forget_page(request: gr.Request) -> Callable[[], None]:
    """What makes Gradio forget what a page shows: it keeps the last value of every component, pictures included.

    Args:
        request: of that page.

    Returns:
        To be called when the visit is over.
    """
    holder, session = request.request.app.state_holder, request.session_hash

    def forget() -> None:
        with holder.lock:
            holder.session_data.pop(session, None)
            holder.time_last_used.pop(session, None)

    return forget


@dataclass(frozen=True)
class Refusal:
    """An answer in place of the one that was asked for."""

    status: int
    text: str


class RequestGuard:
    """ASGI middleware that answers what should not be asked.

    Args:
        app: what comes next.
        limits: of which `max_total_bytes` bounds an upload.
    """

    def __init__(self, app: App, limits: IntakeLimits):
        self._app, self._limits = app, limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse a request or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._of_route(scope)
        is_upload = scope.get("method") == "POST" and _route(scope) == f"{PREFIX}upload"
        if refusal is None and scope.get("method") == "POST" and not is_upload:
            body, refusal = await _read(receive)
            receive = _replayed(body, receive)
            refusal = refusal or _of_body(body)
        if refusal is not None:
            await PlainTextResponse(refusal.text, refusal.status)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if is_upload:
                remove_abandoned(Path(get_upload_folder()))

    def _of_route(self, scope: Message) -> Refusal | None:
        if scope["type"] != "http":
            return Refusal(404, "Only HTTP is spoken here.")
        route = _route(scope)
        allowed = route in ("", "/") or route.startswith(PAGE)
        if route.startswith(PREFIX):
            allowed = route.removeprefix(PREFIX).startswith(API)
        if not allowed:
            return Refusal(404, "There is no such page here.")
        if _is_address(route.partition("file=")[2]):
            return Refusal(403, "Addresses are not fetched: download the images and upload them.")
        return self._of_length(scope) if route == f"{PREFIX}upload" else None

    def _of_length(self, scope: Message) -> Refusal | None:
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        if len(lengths) != 1 or not lengths[0].isdigit():
            return Refusal(411, "An upload must say how long it is.")
        if int(lengths[0]) > self._limits.max_total_bytes + ENVELOPE_BYTES:
            return Refusal(
                413,
                f"This upload has {int(lengths[0])} bytes; the limit is {self._limits.max_total_bytes} in all. Give "
                "fewer images at a time.",
            )
        return None


def remove_abandoned(folder: Path, older_than_s: float = ABANDONED_S) -> None:
    """Delete what uploads that broke off have left directly in Gradio's folder; finished ones lie deeper."""
    latest = time.time() - older_than_s
    try:
        found = [Path(item.path) for item in os.scandir(folder) if item.is_file(follow_symlinks=False)]
        for path in found:
            if path.lstat().st_mtime < latest:
                path.unlink(missing_ok=True)
    except FileNotFoundError:
        return  # by another upload's end


def _route(scope: Message) -> str:
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


async def _read(receive: Receive) -> tuple[bytes, Refusal | None]:
    """The body of a request, as far as it may be long."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"", Refusal(400, "The request broke off.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_BYTES:
            return b"", Refusal(413, f"This request is longer than {BODY_BYTES} bytes: files are uploaded.")
        if not message.get("more_body"):
            return b"".join(parts), None


def _replayed(body: bytes, receive: Receive) -> Receive:
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _of_body(body: bytes) -> Refusal | None:
    """Refuse JSON in which a file is an address, or one that was not uploaded."""
    try:
        waiting = [json.loads(body)] if body else []
    except (ValueError, RecursionError):
        return Refusal(400, "Expected JSON.")
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            path = value.get("path")
            if _is_address(path):
                return Refusal(400, "Addresses are not fetched: download the images and upload them.")
            if isinstance(path, str) and not _is_upload(path):
                return Refusal(400, "That file was not uploaded here: upload it.")
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return None


def _is_upload(path: str) -> bool:
    try:
        return bool(is_in_or_equal(path, get_upload_folder()))
    except (OSError, ValueError):  # a name that no file can have
        return False


def _is_address(path: Any) -> bool:
    """Whether a path starts with a scheme, as in ``http:`` and ``file:``."""
    if not isinstance(path, str):
        return False
    scheme, found, _ = path.strip().partition(":")
    return bool(found) and scheme.isalnum() and len(scheme) > 1  # a single letter is a drive

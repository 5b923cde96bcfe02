"""The names that a page answers to, and the pages that may ask it; the others learn nothing.

A web page can point its own name to the address of this machine and then read what answers there ("DNS rebinding").
Its requests still carry its name, so requests for a foreign name are refused. Nobody can rebind an address.
"""

import errno
import ipaddress
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

from promptccd import systems
from promptccd.errors import RunError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def header(scope: Message, name: bytes) -> str:
    """The value of a header that occurs once, or ``""``; names are in lower case."""
    found = [value for key, value in scope["headers"] if key == name]
    return found[0].decode("latin-1") if len(found) == 1 else ""


def cookies(scope: Message, name: str) -> list[str]:
    """The values that a browser sent for a cookie."""
    sent = [part.strip().partition("=") for part in header(scope, b"cookie").split(";")]
    return [value for each, _, value in sent if each == name]


SPACE_FRAMES = ("https://huggingface.co", "https://*.hf.space")


@dataclass(frozen=True)
class Site:
    """The requests that are answered.

    Attributes:
        names: host names, in lower case, without a port.
        any_address: whether any IP address stands for this machine, and not only those of loopback.
        behind_proxy: whether to believe a proxy on the visitor's address and on the name.
        frames: origins that may show the page in a frame.
    """

    names: frozenset[str]
    any_address: bool = False
    behind_proxy: bool = False
    frames: tuple[str, ...] = ()

    @classmethod
    def of_machine(cls, listen: str = "127.0.0.1", names: Iterable[str] = ()) -> "Site":
        """A page on one's own machine, which may have further names, or a proxy in front of it that has.

        If it listens beyond loopback, browsers may ask by any address of the machine.
        """
        address = _address(listen.strip("[]"))
        everywhere = listen != "localhost" and (address is None or not address.is_loopback)
        own = {"localhost", *names, *([listen] if address is None else [])}
        return cls(frozenset(name.lower() for name in own), any_address=everywhere)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> "Site":
        """The Space that this process runs in, or else this machine; ``PROMPTCCD_HOSTS`` adds names."""
        space, more = (environment.get(name, "") for name in ("SPACE_HOST", "PROMPTCCD_HOSTS"))
        names = {name.strip().lower() for name in f"{space},{more}".split(",")} - {""}
        if space:  # behind the proxies of the Hub, whose health checks ask by address
            own = frozenset({"localhost", *names})
            return cls(own, any_address=True, behind_proxy=True, frames=SPACE_FRAMES)
        return cls.of_machine(environment.get("GRADIO_SERVER_NAME", "127.0.0.1"), names)

    def require_own(self, scope: Message, *, from_elsewhere: bool, advice: str = "") -> None:
        """Turn away who calls this page by another name, or asks from another page.

        Args:
            scope: of the request.
            from_elsewhere: whether a browser may say that another page led here.
            advice: what to do about a name that is not ours.

        Raises:
            HTTPException: it is turned away.
        """
        host = header(scope, b"host")
        if not self.has_host(host):
            raise HTTPException(421, f"This page does not go by that name{advice}.")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            raise HTTPException(405, "Only GET, HEAD and POST are answered here.")
        has_origin = any(name == b"origin" for name, _ in scope["headers"])
        is_foreign = has_origin and not self.has_origin(header(scope, b"origin"), host)
        comes_from = header(scope, b"sec-fetch-site")
        if is_foreign or (not from_elsewhere and comes_from not in ("", "same-origin", "none")):
            raise HTTPException(403, "Other pages may not ask this one.")

    def has_host(self, host: str) -> bool:
        """Whether a ``Host`` header names this site. Any port will do: a tunnel may have changed it."""
        name = _without_port(host.lower())
        address = _address(name.strip("[]"))
        if address is not None:
            return address.is_loopback or self.any_address
        return name in self.names

    def has_origin(self, origin: str, host: str) -> bool:
        """Whether an ``Origin`` header is that of this site, given a ``Host`` header that names it."""
        scheme, _, place = origin.lower().partition("://")
        if scheme not in ("http", "https"):
            return False
        return place == host.lower() or (self.behind_proxy and scheme == "https" and place in self.names)


class Guard(ABC):
    """ASGI application in front of another: it refuses what should not be asked, and marks every answer."""

    def __init__(self, app: App, site: Site):
        self._app, self._site = app, site

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse a request or pass it on."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})  # which nothing here speaks
        marks = self.marks(scope)

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = [(name.lower(), value) for name, value in message.get("headers", [])]
                kept = [(n, v) for n, v in sent if n not in marks and not n.startswith(b"access-control-")]
                message = {**message, "headers": [*kept, *marks.items()]}
            await send(message)

        try:
            await self.answer(scope, receive, marked)
        except HTTPException as why:
            await PlainTextResponse(why.detail, why.status_code, why.headers)(scope, receive, marked)

    @abstractmethod
    async def answer(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or raise an `HTTPException`."""

    @abstractmethod
    def marks(self, scope: Message) -> Mapping[bytes, bytes]:
        """Headers of every answer to a request, in place of the application's; no other origin is ever let in."""


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


FIRST_PORT, PORTS = 7860, 100
_STARTS_WITHIN_S = 60.0


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens; by default on the first free port from 7860 on.

    Raises:
        OSError: it cannot listen there.
    """
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in [port] if port is not None else range(FIRST_PORT, FIRST_PORT + PORTS):
        # Name the protocol: otherwise asyncio does not set TCP_NODELAY, and every answer waits 40 ms.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            systems.bind_alone(listening, (host, number))
            listening.listen(2048)
            return listening
        except OSError as error:
            listening.close()
            if port is not None or error.errno not in (errno.EADDRINUSE, errno.EACCES):  # Windows keeps some
                raise
    raise OSError(errno.EADDRINUSE, f"ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} are all in use")


class ServingThread:
    """Serves an application on a listening socket.

    Args:
        app: the application; it must check by itself who asks.
        listening: the socket; `close` closes it.
        ends_within_s: seconds after which `close` cuts open connections.
        options: of uvicorn.
    """

    def __init__(self, app: Any, listening: socket.socket, ends_within_s: int, **options: Any):
        config = uvicorn.Config(
            app, ws="none", log_level="error", access_log=False, proxy_headers=False, server_header=False,
            timeout_graceful_shutdown=ends_within_s, **options,
        )  # fmt: skip
        self._server, self._socket, self._ends_within_s = uvicorn.Server(config), listening, ends_within_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="page", daemon=True)

    def start(self) -> None:
        """Return once it answers.

        Raises:
            RunError: the application did not start.
        """
        self._thread.start()
        deadline = time.monotonic() + _STARTS_WITHIN_S
        while not self._server.started:
            if self._ended.is_set() or time.monotonic() > deadline:
                raise RunError("The server of the page did not start: run the same command again.")
            time.sleep(0.005)

    def wait(self) -> None:
        """Wait until it ends by itself, or for Ctrl-C."""
        # Not `join`: after an interrupted one, Python 3.11 reports the thread as ended.
        while not self._ended.wait(0.5):
            pass

    def close(self) -> None:
        """End it."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._ended.wait(self._ends_within_s + 10)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._ended.set()

"""Serving a page: which requests are answered, and the server of one project on this machine.

A web page can point its own name to the address of this machine and then read the answers ("DNS rebinding"). Such
requests carry the foreign name as their host, so requests with a foreign host are refused.
"""

import errno
import hmac
import ipaddress
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from promptccd import systems
from promptccd.discovery.page.routes import NOT_KEPT, POLICY, project_routes
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.record import PAGE, PROJECT
from promptccd.disk import make_inside, open_to_change, read_file
from promptccd.errors import PromptCCDError, RunError
from promptccd.locks import FolderLock

ADDRESS = "address.json"
_MOST_BYTES = 1000  # of an address
TOKEN_BYTES, TOKEN_LENGTH = 24, 32  # in base64
COOKIE_S = 180 * 24 * 3600  # as long as bookmarks last: the token stays with the project
_PRELOADS_AFTER_S, _WAKES_EVERY_S = 2.0, 0.5
FIRST_PORT, PORTS = 7860, 100
_ENDS_WITHIN_S = 1
MOST_OPEN = 512  # connections; further connections get a 503 response
SPACE_FRAMES = ("https://huggingface.co", "https://*.hf.space")
HEADERS = {
    "content-security-policy": f"{POLICY} 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True)
class Site:
    """The host names and origins of a page.

    Attributes:
        names: host names, in lower case, without a port.
        any_address: whether any IP address stands for this machine, and not only loopback addresses.
        behind_proxy: whether the page is in a Space, behind the proxies of the Hub.
    """

    names: frozenset[str]
    any_address: bool = False
    behind_proxy: bool = False

    @classmethod
    def of_machine(cls, listen: str = "127.0.0.1", names: Iterable[str] = ()) -> "Site":
        """A page on this machine, which may have further names.

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
        if space:  # the Hub checks by address whether the Space is alive
            return cls(frozenset({"localhost", *names}), any_address=True, behind_proxy=True)
        return cls.of_machine(environment.get("GRADIO_SERVER_NAME", "127.0.0.1"), names)

    def refusal(self, request: Request) -> Response | None:
        """Why a request is refused: its host is not ours, or it comes from another page; `None` if it is not."""
        host, sender = request.headers.get("host", ""), request.headers.get("sec-fetch-site", "none")
        if not all(map(self.has_host, [host, *request.headers.getlist("x-forwarded-host")])):
            return PlainTextResponse("Unknown host name; promptccd demo --name adds one.", 421)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("Only GET, HEAD and POST are allowed here.", 405)
        is_foreign = not all(self.has_origin(each, host) for each in request.headers.getlist("origin"))
        is_link = request.method == "GET" and request.scope["path"] in ("", "/")  # another page may lead here
        if is_foreign or (sender not in ("same-origin", "none") and not is_link):
            return PlainTextResponse("Requests from other pages are refused.", 403)
        return None

    def has_host(self, host: str) -> bool:
        """Whether a ``Host`` header names this site. Any port will do: a tunnel may have changed it."""
        name, colon, port = host.lower().rpartition(":")
        name = name if colon and port.isdigit() else host.lower()
        address = _address(name.strip("[]"))
        return name in self.names if address is None else address.is_loopback or self.any_address

    def has_origin(self, origin: str, host: str) -> bool:
        """Whether an ``Origin`` header is that of this site, given a ``Host`` header that names it."""
        scheme, _, place = origin.lower().partition("://")
        if self.behind_proxy and scheme == "https" and place in self.names:
            return True
        return scheme in ("http", "https") and place == host.lower()


class TokenAuth:
    """Refuses requests without the token of the page.

    The token is in the address that the terminal shows. The page exchanges it for a cookie that no script can read. Its
    name contains the port, because the ports of one machine share cookies.
    """

    def __init__(self, token: str, cookie: str):
        self._token, self._cookie = token, cookie

    def refusal(self, request: Request) -> Response | None:
        """The response to a request without the cookie, or `None`."""
        if request.method == "POST" and "origin" not in request.headers:
            return PlainTextResponse("A correction has to name its origin.", 403)
        is_start = request.method == "GET" and request.scope["path"] == "/"
        if is_start and self._is_token(request.query_params.get("token", "")):
            swapped = RedirectResponse("/", 303, NOT_KEPT)
            swapped.set_cookie(
                self._cookie, self._token, COOKIE_S, httponly=True, samesite="strict", path="/"
            )
            return swapped
        if self._is_token(request.cookies.get(self._cookie, "")):
            return None
        return PlainTextResponse("Open the address that promptccd open has printed: it ends in a token.", 401)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


class RequestFilter:
    """ASGI application in front of another: it refuses requests, and adds headers to every answer.

    Args:
        app: answers the requests that no check refuses.
        checks: each returns the answer to a request that it refuses, `None` otherwise; the first one decides.
        headers: of every answer to a request, in place of the application's. No other origin is ever let in.
    """

    def __init__(
        self,
        app: ASGIApp,
        checks: Sequence[Callable[[Request], Response | None]],
        headers: Callable[[Request], Mapping[str, str]] = lambda request: HEADERS,
    ):
        self.app, self._checks, self._headers = app, checks, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request or pass it on."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})  # which nothing here uses
        request = Request(scope)
        added = self._headers(request)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name in [each for each in headers if each.startswith("access-control-")]:
                    del headers[name]
                headers.update(added)
            await send(message)

        refused = next((each for check in self._checks if (each := check(request)) is not None), None)
        await (refused or self.app)(scope, receive, send_with_headers)


class ServingThread:
    """Serves an application on a listening socket.

    Args:
        app: the application; it has to check by itself who asks.
        listening: the socket; `close` closes it.
        host: that it listens on.

    Attributes:
        url: its address.
    """

    def __init__(self, app: ASGIApp, listening: socket.socket, host: str = "127.0.0.1"):
        shown = "localhost" if host in ("0.0.0.0", "::") else host
        self.url = f"http://{shown}:{listening.getsockname()[1]}/"
        config = uvicorn.Config(
            app, http="h11", ws="none", lifespan="on", log_level="error", access_log=False, proxy_headers=False,
            server_header=False, limit_concurrency=MOST_OPEN, timeout_graceful_shutdown=_ENDS_WITHIN_S,
        )  # fmt: skip
        self._server, self._socket = uvicorn.Server(config), listening
        run = partial(self._server.run, sockets=[listening])
        self._thread = threading.Thread(target=run, name="page", daemon=True)

    def start(self) -> None:
        """Return once it answers.

        Raises:
            RunError: the application did not start.
        """
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RunError("The server of the page did not start: run the same command again.")
            time.sleep(0.005)

    def wait(self) -> None:
        """Wait until it ends by itself, or for Ctrl-C."""
        while self._thread.is_alive():
            time.sleep(_WAKES_EVERY_S)

    def close(self) -> None:
        """End it."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(_ENDS_WITHIN_S + 10)
        self._socket.close()


class OpenPage(ServingThread):
    """The page of a project; one process serves it, and any number of windows show it.

    It is at `url`, which contains the token. By default that is where the project was the last time, so that old
    windows and bookmarks find it again; where that port is in use, the first free one from 7860 on.

    Raises:
        RegistryError: there is no project, or it is damaged.
        RunError: another process serves it.
        DiskError: the project cannot be written.
        OSError: it cannot listen there.
    """

    def __init__(self, out: Path, port: int | None = None):
        self.project = ProjectView(out)
        self._lock = FolderLock(make_inside(out / PROJECT, PAGE))
        address = out / PROJECT / PAGE / ADDRESS
        token, last_port = _last_address(address) or (secrets.token_urlsafe(TOKEN_BYTES), None)
        listening = listen("127.0.0.1", port, last_port)
        auth = TokenAuth(token, f"promptccd_page_{listening.getsockname()[1]}")
        app = RequestFilter(project_routes(self.project), [Site.of_machine().refusal, auth.refusal])
        super().__init__(app, listening)
        self.url += f"?token={token}"
        _write_address(address, self.url)

    def wait(self) -> None:
        """Until it ends by itself, or Ctrl-C; features are read meanwhile."""
        time.sleep(_PRELOADS_AFTER_S)  # the first pictures before all else
        with suppress(PromptCCDError):  # the correction that needs them reports it
            self.project.features()  # so that the first move need not read all features
        super().wait()

    def close(self) -> None:
        """End it; all corrections are on the disk already. A second call does nothing."""
        if self.project.closing:
            return
        self.project.closing = True
        super().close()
        self.project.photos.close()
        self._lock.close()


def address_of(out: Path) -> str | None:
    """Where the page of a project is, if a process serves it.

    Raises:
        RunError: another computer serves it.
    """
    folder = out / PROJECT / PAGE
    if not (folder / ADDRESS).exists():
        return None
    try:
        FolderLock(folder).close()  # its server has ended
    except RunError:
        found = json.loads(read_file(folder / ADDRESS, _MOST_BYTES))
        if found.get("host") != socket.gethostname():
            raise RunError(
                f"{out} is open in a page on another computer, {found.get('host')!r}. Close the page there first."
            ) from None
        return str(found["url"])
    return None


def listen(host: str, port: int | None, last: int | None = None) -> socket.socket:
    """A socket that listens; by default on the port of the last time, or the first free one from 7860 on.

    Raises:
        OSError: it cannot listen there.
    """
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    usual = range(FIRST_PORT, FIRST_PORT + PORTS)
    for number in [port] if port is not None else usual if last is None else [last, *usual]:
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


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _last_address(path: Path) -> tuple[str, int | None] | None:
    """Token and port of the last server; `None` if this user did not write them here.

    Otherwise the sender of a project could choose the token. An unpacked or copied file differs from the file
    that it names; a file of another person has another owner or wider permissions.
    """
    with suppress(OSError, ValueError, KeyError, TypeError, PromptCCDError):
        seen, found = path.lstat(), json.loads(read_file(path, _MOST_BYTES))
        address = urlsplit(found["url"])
        token = parse_qs(address.query)["token"][0]
        is_own = (found["file"], found["host"]) == (seen.st_ino, socket.gethostname())
        if is_own and systems.is_private(seen) and len(token) >= TOKEN_LENGTH:
            return token, address.port
    return None


def _write_address(path: Path, url: str) -> None:
    """Write the address where only this user can read it."""
    path.unlink(missing_ok=True)
    descriptor = open_to_change(path)
    try:
        systems.make_private(descriptor)
        found = {"url": url, "host": socket.gethostname(), "file": os.fstat(descriptor).st_ino}
        os.write(descriptor, json.dumps(found).encode())
    finally:
        os.close(descriptor)

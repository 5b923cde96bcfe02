"""Serving a page: which requests are answered, and the server of one project on this machine.

A web page can point its own name to the address of this machine and then read the answers ("DNS rebinding"). Such
requests carry the foreign name as their host, so requests with a foreign host are refused.
"""

import errno
import hashlib
import hmac
import ipaddress
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
from promptccd.disk import make_folder, make_inside, write_file
from promptccd.errors import DiskError, PromptCCDError, RunError
from promptccd.locks import FolderLock, owner_of

TOKEN_BYTES = 24
COOKIE_S = 180 * 24 * 3600  # as long as bookmarks last: a project keeps its token
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


Check = Callable[[Request], Response | None]  # the answer to a request that it refuses


def token_check(token: str, cookie: str) -> Check:
    """Refuses requests without the token of the page.

    The token is in the address that the terminal shows. The page exchanges it for a cookie that no script can read. Its
    name contains the port, because the ports of one machine share cookies.
    """

    def refusal(request: Request) -> Response | None:
        if request.method == "POST" and "origin" not in request.headers:
            return PlainTextResponse("A correction has to name its origin.", 403)
        given = request.query_params.get("token", ""), request.cookies.get(cookie, "")
        in_address, in_cookie = (hmac.compare_digest(each.encode(), token.encode()) for each in given)
        if in_address and request.method == "GET" and request.scope["path"] == "/":
            swapped = RedirectResponse("/", 303, NOT_KEPT)
            swapped.set_cookie(cookie, token, COOKIE_S, httponly=True, samesite="strict")
            return swapped
        if in_cookie:
            return None
        return PlainTextResponse("Open the address that promptccd open has printed: it ends in a token.", 401)

    return refusal


@dataclass(frozen=True)
class RequestFilter:
    """ASGI application in front of another: it refuses requests, and adds headers to every answer.

    Attributes:
        app: answers the requests that no check refuses.
        checks: each returns the answer to a request that it refuses, `None` otherwise; the first one decides.
        headers: of every answer to a request, in place of the application's. No other origin is ever let in.
    """

    app: ASGIApp
    checks: Sequence[Check]
    headers: Callable[[Request], Mapping[str, str]] = lambda request: HEADERS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request or pass it on."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        request = Request(scope)  # which refuses all but HTTP
        added = self.headers(request)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name in [each for each in headers if each.startswith("access-control-")]:
                    del headers[name]
                headers.update(added)
            await send(message)

        refused = next((each for check in self.checks if (each := check(request)) is not None), None)
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
            app, http="h11", ws="none", lifespan="on", log_level="error", proxy_headers=False, server_header=False,
            limit_concurrency=MOST_OPEN, timeout_graceful_shutdown=_ENDS_WITHIN_S,
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
        last = urlsplit(_last_address(out)[0])
        (token,) = parse_qs(last.query).get("token") or [secrets.token_urlsafe(TOKEN_BYTES)]
        listening = listen("127.0.0.1", port, last.port)
        check = token_check(token, f"promptccd_page_{listening.getsockname()[1]}")
        app = RequestFilter(project_routes(self.project), [Site.of_machine().refusal, check])
        super().__init__(app, listening)
        self.url += f"?token={token}"
        with suppress(OSError, DiskError):  # a home that cannot be written: the next server is elsewhere
            make_folder(_address_file(out).parent).chmod(0o700)
            write_file(_address_file(out), f"{self.url}\n{owner_of(out / PROJECT / PAGE)}")

    def wait(self) -> None:
        """Until it ends by itself, or Ctrl-C; features are read meanwhile."""
        time.sleep(_PRELOADS_AFTER_S)  # the first pictures before all else
        with suppress(PromptCCDError):  # the correction that needs them reports it
            features = self.project.features()  # so that the first move need not read all features
            with self.project.lock:
                self.project.rows_by_id(features.row_of)
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
        RunError: another computer or another person serves it.
    """
    folder = out / PROJECT / PAGE
    if not folder.is_dir():
        return None
    try:
        FolderLock(folder).close()
    except RunError:
        url, owner = _last_address(out)
        if owner != owner_of(folder):
            raise
        return url
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


def _address_file(out: Path) -> Path:
    """The address of the last server, by computer and project, in the home of this user.

    It is not in the project, whose sender could choose the token.
    """
    name = hashlib.sha256(f"{socket.gethostname()} {os.path.realpath(out)}".encode()).hexdigest()
    return Path(os.path.expanduser("~/.cache/promptccd/pages"), name)


def _last_address(out: Path) -> tuple[str, str]:
    """Address and owner of the last server of this user, both empty if there was none."""
    with suppress(OSError, ValueError):
        url, owner = _address_file(out).read_text(encoding="utf-8").split("\n")
        return url, owner
    return "", ""

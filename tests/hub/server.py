"""A Hugging Face Hub in memory, for the real clients to speak to over a loopback socket.

`Hub` keeps repositories and a log of every request; a plan says which request meets which
`Fault`. The answers carry what huggingface_hub, transformers and datasets read of the real Hub's.
"""

import json
import os
import socket
import struct
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import datasets.config
import huggingface_hub.constants
import huggingface_hub.hf_api
import transformers.utils.hub

from tests.hub.routes import LFS_SUFFIXES, ROUTES, Account, Blob, Commit, Refusal, Reply, Repo, Request

TAKEN_OUT = ("hf_", "huggingface", "hugging_face", "transformers_", "http_proxy", "https_proxy", "all_proxy")
"""Variables of the environment, by how they begin, that would lead a client elsewhere."""


@dataclass(frozen=True)
class Fault:
    """What befalls one request; several things may."""

    # `before`: the connection is reset with the body unread; `after`: processed, but never answered. Clients see a
    # ReadError or RemoteProtocolError in the first case, a RemoteProtocolError in the second.
    die: Literal["", "before", "after"] = ""
    cut: bool = False  # half of the answer's body is sent, then the connection ends
    silent: bool = False  # read and never answered, until the Hub is closed
    status: int = 0  # answered with this status instead of being processed
    retry_after: int | None = None
    words: str = "planned"  # beside such a status: in the header that the client reads, and in the body
    body: bytes | None = None  # of such an answer instead: a gateway's page, or what the Hub says of metadata
    kind: str = "text/html"  # content type of that body
    headers: tuple[tuple[str, str], ...] = ()  # further ones of such an answer
    clipped: bool = False  # half of the answer's body is all of it: JSON that ends in the middle
    without: tuple[str, ...] = ()  # headers that something in between does not pass on
    race: "Callable[[Hub], object] | None" = None  # called just before, e.g. to commit something else

    def reply(self) -> Reply:
        """The answer with its status."""
        wait = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.body is not None:
            return Reply(self.status, self.body, {"Content-Type": self.kind, **wait, **dict(self.headers)})
        more_headers = {} if self.words == "planned" else {"X-Error-Message": self.words}
        return Reply.json({"error": self.words}, self.status, **wait, **more_headers)


BAD_GATEWAY = Fault(status=502, body=b"<html><head><title>502</title></head><h1>502 Bad Gateway</h1></html>")
PORTAL = Fault(
    status=200, body=b"<!DOCTYPE html><html><body>Please log in to <b>Hotel WLAN</b></body></html>"
)


def refused_metadata(*reasons: str) -> Fault:
    """How the Hub answers a card whose metadata it does not take."""
    body = {"errors": [{"message": reason} for reason in reasons], "warnings": []}
    return Fault(status=400, body=json.dumps(body).encode(), kind="application/json")


class Hub:
    """Use as a context manager; `url` is the endpoint.

    Attributes:
        accounts: Who a token belongs to.
        repos: Repositories by (kind, id), the kind being model, dataset or space.
        log: Every request so far.
        errors: Tracebacks of the Hub's own mistakes; a test should find none.
    """

    token, read_token, stranger_token = "hf_write", "hf_read", "hf_stranger"

    def __init__(self) -> None:
        self.accounts = {
            self.token: Account("user", organizations=("lab",)),
            self.read_token: Account("user", role="read", organizations=("lab",)),
            self.stranger_token: Account("stranger"),
        }
        self.repos: dict[tuple[str, str], Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.tickets: dict[str, str] = {}
        self.log: list[Request] = []
        self.errors: list[str] = []
        self.lock = threading.RLock()
        self.stopping = threading.Event()
        self._count = 0
        self._plans: list[tuple[Callable[[Request], bool], Fault, list[float]]] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    # For tests ------------------------------------------------------------------------------------------

    def plan(self, where: int | Callable[[Request], bool], fault: Fault, times: float = 1) -> None:
        """Let requests meet a fault.

        Args:
            where: k for the k-th request from now on (the next is 1), or a predicate of the request's
                number, method, path, query and headers; its body is not read yet.
            fault: What happens.
            times: How many requests that satisfy the predicate meet it; `math.inf` for all.
        """
        if isinstance(where, int):
            number = self._count + where
            self._plans.append((lambda request: request.number == number, fault, [1]))
        else:
            self._plans.append((where, fault, [times]))

    def clear_plans(self) -> None:
        self._plans.clear()

    def files(self, repo_id: str, kind: str = "model") -> dict[str, bytes]:
        """What is in the files of a repository now."""
        return {path: blob.data for path, blob in self.repo(repo_id, kind).at("main").files.items()}

    def requests(self, method: str = "", fragment: str = "") -> list[Request]:
        """The part of the log with this method and this fragment in the path."""
        return [
            request for request in self.log if request.method.startswith(method) and fragment in request.path
        ]

    def repo(self, repo_id: str, kind: str = "model") -> Repo:
        return self.repos[kind, repo_id]

    def add(
        self,
        repo_id: str,
        files: Mapping[str, bytes] | Path,
        kind: str = "model",
        title: str = "Somebody else",
        private: bool = False,
    ) -> Commit:
        """Commit files, or a folder of them, past all clients; the repository is made where needed."""
        if isinstance(files, Path):
            found = [path for path in files.rglob("*") if path.is_file()]
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in found}
        with self.lock:
            repo = self.repos.get((kind, repo_id)) or self.create(kind, repo_id, private)
            blobs = {name: Blob(data, self.goes_by_lfs(name, len(data))) for name, data in files.items()}
            self.objects |= {blob.sha256: blob.data for blob in blobs.values() if blob.lfs}
            return repo.commit({**repo.at("main").files, **blobs}, title)

    def environment(self, cache: Path, token: str | None = token) -> dict[str, str]:
        """Variables of a subprocess whose clients use this Hub and keep everything below `cache`."""
        kept = {name: value for name, value in os.environ.items() if not name.lower().startswith(TAKEN_OUT)}
        ours = {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(cache),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",  # otherwise every LFS upload asks for a Xet token
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
            "SSL_CERT_FILE": "",  # a new client reads no authorities of the web for a Hub that speaks plainly
            "SSL_CERT_DIR": str(cache),
            "OMP_NUM_THREADS": "1",
        }
        return kept | ours | ({"HF_TOKEN": token} if token else {})

    def client_settings(self, home: Path) -> list[tuple[Any, str, object]]:
        """Where, under which name, what has to stand so that clients that are imported already use this Hub.

        They keep what they fetch in `home`.
        """
        constants = {
            "ENDPOINT": self.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": self.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_URL_HOSTS": huggingface_hub.constants.HF_URL_HOSTS | {"127.0.0.1"},
            "HF_HOME": str(home),
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_ASSETS_CACHE": str(home / "assets"),
            "HF_TOKEN_PATH": str(home / "token"),
            "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
        }
        urls = self.url + "/datasets/{repo_id}/resolve/{revision}/{path}"
        return [
            *((huggingface_hub.constants, name, value) for name, value in constants.items()),
            (huggingface_hub.hf_api.api, "endpoint", self.url),
            (transformers.utils.hub, "_hf_api", None),  # a client it keeps
            (datasets.config, "HF_ENDPOINT", self.url),
            (datasets.config, "HUB_DATASETS_URL", urls),
            (datasets.config, "HF_HUB_OFFLINE", False),
            # Where rows are looked for that were kept.
            (datasets.config, "HF_DATASETS_CACHE", home / "datasets"),
        ]

    # For the routes -------------------------------------------------------------------------------------

    def create(self, kind: str, repo_id: str, private: bool) -> Repo:
        repo = self.repos[kind, repo_id] = Repo(kind, repo_id, private)
        patterns = "".join(f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LFS_SUFFIXES)
        repo.commit({".gitattributes": Blob(patterns.encode(), lfs=False)}, "initial commit")
        return repo

    def goes_by_lfs(self, path: str, size: int) -> bool:
        return path.endswith(LFS_SUFFIXES) or size >= 10_000_000

    def account(self, request: Request) -> Account | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token and token not in self.accounts:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return self.accounts.get(token)

    def writer(self, request: Request, repo_id: str) -> Account:
        account = self.account(request)
        if account is None:
            raise Refusal(401, "Invalid username or password.")
        if account.role != "write" or not account.owns(repo_id):
            raise Refusal(403, f"The {account.role} token of {account.name} may not write {repo_id}")
        return account

    def open(self, request: Request, kind: str | None, repo_id: str, write: bool = False) -> Repo:
        account = self.account(request)
        repo = self.repos.get(((kind or "model").removesuffix("s"), repo_id))
        if repo is None or (repo.private and not (account and account.owns(repo_id))):
            raise Refusal(404 if account else 401, "Repository not found", "RepoNotFound")
        if write:
            self.writer(request, repo_id)
        return repo

    def register(self, request: Request) -> Fault:
        with self.lock:
            self._count += 1
            request.number = self._count
            self.log.append(request)
            for applies, fault, left in self._plans:
                if left[0] > 0 and applies(request):
                    left[0] -= 1
                    return fault
        return Fault()

    def answer(self, request: Request) -> Reply:
        method = "GET" if request.method == "HEAD" else request.method
        try:
            for wanted, pattern, handler in ROUTES:
                if wanted == method and (match := pattern.fullmatch(request.path)):
                    groups = {name: value and unquote(value) for name, value in match.groupdict().items()}
                    with self.lock:
                        return handler(self, request, **groups)
            raise Refusal(404, f"No route for {request.method} {request.path}")
        except Refusal as refusal:
            return refusal.reply
        except Exception:
            self.errors.append(f"{request.method} {request.path}\n{traceback.format_exc()}")
            return Reply.json({"error": self.errors[-1]}, 500)


class _Server(ThreadingHTTPServer):
    hub: Hub
    daemon_threads = True
    block_on_close = False


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def serve(self) -> None:
        hub, url = self.server.hub, urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(0, self.command, url.path, dict(parse_qsl(url.query)), headers)
        fault = hub.register(request)
        self.close_connection = True
        if fault.die == "before":
            return self.reset()
        request.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request.received = len(request.body)
        if request.received < int(self.headers.get("Content-Length", 0)):  # its sender has died
            return None
        if fault.race:
            fault.race(hub)
        if fault.silent:
            hub.stopping.wait()
            return self.reset()
        reply = fault.reply() if fault.status else hub.answer(request)
        if fault.clipped:
            reply.body = reply.body[: len(reply.body) // 2]
        for name in fault.without:
            reply.headers.pop(name, None)
        request.body = b""
        if fault.die != "after":
            request.status = reply.status
            self.send(reply, fault.cut)
        return None

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = serve

    def send(self, reply: Reply, cut: bool) -> None:
        self.send_response(reply.status)
        usual = {"Content-Length": str(len(reply.body)), "Connection": "close"}
        for name, value in (usual | reply.headers).items():
            self.send_header(name, value)
        try:
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body[: len(reply.body) // 2] if cut else reply.body)
        except OSError:
            pass  # the client has gone

    def reset(self) -> None:
        """Close with RST, as a host does whose process died with bytes unread."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Quiet: the Hub has its own log."""

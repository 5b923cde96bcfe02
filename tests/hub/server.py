"""A Hugging Face Hub in memory, for the real clients to speak to over a loopback socket.

`Hub` keeps repositories and a log of every request; a plan says which request meets which
`Fault`. The answers carry what huggingface_hub, transformers and datasets read of the real Hub's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import struct
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import datasets.config
import huggingface_hub.constants
import huggingface_hub.hf_api
import transformers.utils.hub
import yaml

LFS_SUFFIXES = (".safetensors", ".parquet", ".arrow", ".bin", ".npz", ".zip", ".png", ".jpg")


@dataclass
class Request:
    """One line of the log."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""  # dropped once the request is processed
    received: int = 0

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, content: object, status: int = 200, **headers: str) -> Reply:
        return cls(status, json.dumps(content).encode(), {"Content-Type": "application/json", **headers})


class Refusal(Exception):
    """An answer of 400 or above."""

    def __init__(self, status: int, message: str, code: str = "", **headers: str) -> None:
        headers |= {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.reply = Reply.json({"error": message}, status, **headers)


@dataclass(frozen=True)
class Account:
    """Who stands behind a token."""

    name: str
    role: str = "write"
    organizations: tuple[str, ...] = ()

    def owns(self, repo_id: str) -> bool:
        return repo_id.split("/")[0] in (self.name, *self.organizations)


@dataclass(frozen=True)
class Blob:
    """Contents of a file, kept in git or by LFS."""

    data: bytes
    lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def git_oid(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_oid

    def describe(self) -> dict[str, Any]:
        lfs = {"oid": self.sha256, "size": len(self.data), "pointerSize": 134}
        return {"oid": self.git_oid, "size": len(self.data)} | ({"lfs": lfs} if self.lfs else {})


@dataclass(frozen=True)
class Commit:
    sha: str
    title: str
    date: str
    files: dict[str, Blob]


@dataclass
class Repo:
    kind: str
    repo_id: str
    private: bool = False
    history: list[Commit] = field(default_factory=list)  # newest first; the last created the repository
    tags: dict[str, Commit] = field(default_factory=dict)
    variables: dict[str, dict[str, str]] = field(default_factory=dict)  # of a Space, by their keys

    def at(self, revision: str) -> Commit:
        if found := {"main": self.history[0], **self.tags}.get(revision):
            return found
        for commit in self.history:
            if re.fullmatch("[0-9a-f]{7,40}", revision) and commit.sha.startswith(revision):
                return commit
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def commit(self, files: dict[str, Blob], title: str) -> Commit:
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        named = f"{self.kind} {self.repo_id} {len(self.history)} {title} {date}"
        self.history.insert(0, Commit(hashlib.sha1(named.encode()).hexdigest(), title, date, files))
        return self.history[0]


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
    race: Callable[[Hub], object] | None = None  # called just before, e.g. to commit something else

    def reply(self) -> Reply:
        """The answer with its status."""
        wait = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.body is not None:
            return Reply(self.status, self.body, {"Content-Type": self.kind, **wait, **dict(self.headers)})
        more_headers = {} if self.words == "planned" else {"X-Error-Message": self.words}
        return Reply.json({"error": self.words}, self.status, **wait, **more_headers)


PORTAL = Fault(
    status=200, body=b"<!DOCTYPE html><html><body>Please log in to <b>Hotel WLAN</b></body></html>"
)


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
        self.log: list[Request] = []
        self.errors: list[str] = []
        self.lock = threading.RLock()
        self.stopping = threading.Event()
        self._plans: list[tuple[Callable[[Request], Any], Fault, list[float]]] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    # For tests ------------------------------------------------------------------------------------------

    def plan(self, where: Callable[[Request], Any], fault: Fault, times: float = 1) -> None:
        """Let requests meet a fault.

        Args:
            where: a predicate of a request that is the last of the log by now; its body is not read yet.
            fault: What happens.
            times: How many requests that satisfy the predicate meet it; `math.inf` for all.
        """
        self._plans.append((where, fault, [times]))

    def clear_plans(self) -> None:
        self._plans.clear()

    def files(self, repo_id: str, kind: str = "model") -> dict[str, bytes]:
        """What is in the files of a repository now."""
        return {path: blob.data for path, blob in self.repo(repo_id, kind).at("main").files.items()}

    def sent(self) -> list[tuple[str, bytes]]:
        """Every object, and every file of every commit, by name."""
        commits = [commit for repo in self.repos.values() for commit in repo.history]
        files = [(name, blob.data) for commit in commits for name, blob in commit.files.items()]
        return [*self.objects.items(), *files]

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

    def url_of(self, kind: str, repo_id: str) -> str:
        return f"{self.url}/{'' if kind == 'model' else kind + 's/'}{repo_id}"

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


# Requests --------------------------------------------------------------------------------------------------

Route = Callable[..., Reply]
ROUTES: list[tuple[str, re.Pattern[str], Route]] = []

ID = r"(?P<repo_id>(?:[^/]+/)?[^/]+)"
REPO = rf"/api/(?P<kind>models|datasets|spaces)/{ID}"
GIT = rf"/(?:(?P<kind>datasets|spaces)/)?{ID}"


def route(method: str, pattern: str) -> Callable[[Route], Route]:
    """Register the answer to a method and path; the pattern's groups arrive unquoted, by name."""

    def register(function: Route) -> Route:
        ROUTES.append((method, re.compile(pattern), function))
        return function

    return register


@route("GET", "/api/whoami-v2")
def who_am_i(hub: Hub, request: Request) -> Reply:
    account = hub.account(request)
    if account is None:
        raise Refusal(401, "Invalid username or password.")
    return Reply.json({"type": "user", "name": account.name})


@route("POST", "/api/validate-yaml")
def validate_yaml(hub: Hub, request: Request) -> Reply:
    """Metadata of every card that is sent can be read, or the test fails."""
    matter = re.match(r"---\s*\n(.*?)\n---", request.json()["content"], re.DOTALL)
    assert isinstance((yaml.safe_load(matter[1]) if matter else None) or {}, dict)
    return Reply.json({"errors": [], "warnings": []})


# Repositories -------------------------------------------------------------------------------------------


@route("POST", "/api/repos/create")
def create_repo(hub: Hub, request: Request) -> Reply:
    wanted = request.json()
    kind, owner = wanted.get("type") or "model", wanted.get("organization")
    account = hub.account(request)
    repo_id = f"{owner or (account.name if account else '')}/{wanted['name']}"
    hub.writer(request, repo_id)
    if kind == "space" and "sdk" not in wanted:
        raise Refusal(400, "A Space is made with an sdk")
    url = hub.url_of(kind, repo_id)
    if (kind, repo_id) in hub.repos:
        return Reply.json({"error": "You already created this repo", "url": url}, 409)
    private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
    hub.create(kind, repo_id, private)
    return Reply.json({"url": url, "name": repo_id})


@route("GET", REPO + r"(?:/revision/(?P<revision>[^/]+))?")
def repo_info(hub: Hub, request: Request, kind: str, repo_id: str, revision: str | None) -> Reply:
    repo = hub.open(request, kind, repo_id)
    commit = repo.at(revision or "main")
    siblings = [{"rfilename": path} for path in sorted(commit.files)]
    facts = {"id": repo_id, "sha": commit.sha, "lastModified": commit.date, "private": repo.private}
    return Reply.json({**facts, "gated": False, "tags": [], "siblings": siblings})


@route("GET", r"/api/spaces/(?P<repo_id>[^/]+/[^/]+)/variables")
def variables(hub: Hub, request: Request, repo_id: str) -> Reply:
    return Reply.json(hub.open(request, "space", repo_id, write=True).variables)


@route("POST", r"/api/spaces/(?P<repo_id>[^/]+/[^/]+)/variables")
def set_variable(hub: Hub, request: Request, repo_id: str) -> Reply:
    repo, wanted = hub.open(request, "space", repo_id, write=True), request.json()
    repo.variables[wanted["key"]] = wanted
    return Reply.json(repo.variables)


# Reading ------------------------------------------------------------------------------------------------


@route("GET", GIT + r"/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
def resolve(hub: Hub, request: Request, kind: str | None, repo_id: str, revision: str, path: str) -> Reply:
    commit = hub.open(request, kind, repo_id).at(revision)
    if path not in commit.files:
        raise Refusal(404, "Entry not found", "EntryNotFound", **{"X-Repo-Commit": commit.sha})
    blob = commit.files[path]
    headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{blob.etag}"', "Accept-Ranges": "bytes"}
    headers["Content-Type"] = "application/octet-stream"
    if blob.lfs:
        headers |= {"X-Linked-Etag": f'"{blob.etag}"', "X-Linked-Size": str(len(blob.data))}
    rest = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))  # of a download that was cut short
    if rest is None:
        return Reply(200, blob.data, headers)
    first, size = int(rest[1]), len(blob.data)
    if first >= size:
        raise Refusal(416, "Range not satisfiable", **{"Content-Range": f"bytes */{size}"})
    return Reply(206, blob.data[first:], headers | {"Content-Range": f"bytes {first}-{size - 1}/{size}"})


@route("GET", REPO + r"/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?")
def tree(hub: Hub, request: Request, kind: str, repo_id: str, revision: str, path: str | None) -> Reply:
    commit = hub.open(request, kind, repo_id).at(revision)
    recursive = request.query.get("recursive", "").lower() == "true"
    prefix = f"{path}/" if path else ""
    below = [name.removeprefix(prefix).split("/") for name in commit.files if name.startswith(prefix)]
    if not below:
        raise Refusal(404, f"{path} does not exist", "EntryNotFound")
    depths = {
        prefix + "/".join(parts[:depth])
        for parts in below
        for depth in range(1, (len(parts) if recursive else 1) + 1)
    }
    entries = []
    for name in sorted(depths):
        told = {"type": "directory", "oid": hashlib.sha1(name.encode()).hexdigest(), "size": 0}
        if blob := commit.files.get(name):
            told = {"type": "file", **blob.describe()}
        entries.append({"path": name, **told})
    return Reply.json(entries)


# Writing ------------------------------------------------------------------------------------------------


@route("POST", REPO + r"/preupload/(?P<revision>[^/]+)")
def preupload(hub: Hub, request: Request, kind: str, repo_id: str, revision: str) -> Reply:
    known = hub.open(request, kind, repo_id, write=True).at(revision).files
    answers = []
    for file in request.json()["files"]:
        path = file["path"]
        mode = "lfs" if hub.goes_by_lfs(path, file["size"]) else "regular"
        oid = known[path].etag if path in known else None
        answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return Reply.json({"files": answers})


@route("POST", GIT + r"\.git/info/lfs/objects/batch")
def lfs_batch(hub: Hub, request: Request, kind: str | None, repo_id: str) -> Reply:
    hub.open(request, kind, repo_id, write=True)
    answers = []
    for wanted in request.json()["objects"]:
        answer: dict[str, Any] = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] not in hub.objects:
            upload = {"href": f"{hub.url}/lfs/upload/{wanted['oid']}", "header": {}}
            answer["actions"] = {"upload": upload, "verify": {"href": f"{hub.url}/lfs/verify"}}
        answers.append(answer)
    return Reply.json({"transfer": "basic", "objects": answers})


@route("PUT", r"/lfs/upload/(?P<oid>[^/]+)")
def lfs_upload(hub: Hub, request: Request, oid: str) -> Reply:
    if oid != hashlib.sha256(request.body).hexdigest():
        raise Refusal(400, "What was sent is not what was announced")
    hub.objects[oid] = request.body
    return Reply()


@route("POST", "/lfs/verify")
def lfs_verify(hub: Hub, request: Request) -> Reply:
    wanted = request.json()
    if len(hub.objects.get(wanted["oid"], b"")) != wanted["size"]:
        raise Refusal(404, "No such object")
    return Reply.json({})


@route("POST", REPO + r"/commit/(?P<revision>[^/]+)")
def commit(hub: Hub, request: Request, kind: str, repo_id: str, revision: str) -> Reply:
    repo = hub.open(request, kind, repo_id, write=True)
    lines = [json.loads(line) for line in request.body.splitlines() if line.strip()]
    header, operations = lines[0]["value"], lines[1:]
    head = repo.at(revision)
    if not head.sha.startswith(header.get("parentCommit", head.sha)):
        raise Refusal(412, "A commit has happened since. Please refresh and try again.")
    files = dict(head.files)
    for operation in operations:
        apply(hub, files, operation["key"], operation["value"])
    new = repo.commit(files, header["summary"])
    url = f"{hub.url_of(repo.kind, repo_id)}/commit/{new.sha}"
    return Reply.json({"success": True, "commitOid": new.sha, "commitUrl": url, "hookOutput": ""})


def apply(hub: Hub, files: dict[str, Blob], key: str, value: dict[str, Any]) -> None:
    """Change the files by one line of a commit."""
    path = value["path"]
    if key == "file":
        files[path] = Blob(base64.b64decode(value["content"]), lfs=False)
    elif key == "lfsFile":
        if value["oid"] not in hub.objects:
            raise Refusal(400, f"The LFS object of {path} was never uploaded")
        files[path] = Blob(hub.objects[value["oid"]], lfs=True)
    elif key == "deletedFile":
        del files[path]
    else:
        raise Refusal(400, f"Unknown operation {key}")


# The socket -----------------------------------------------------------------------------------------------


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
        request = Request(self.command, url.path, dict(parse_qsl(url.query)), headers)
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

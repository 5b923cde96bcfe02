"""What the Hub keeps, and the requests that it answers, one function each."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from tests.hub.server import Hub

LFS_SUFFIXES = (".safetensors", ".parquet", ".arrow", ".bin", ".npz", ".zip", ".png", ".jpg")


@dataclass
class Request:
    """One line of the log."""

    number: int
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""  # dropped once the request is processed
    received: int = 0
    status: int = 0  # 0: no answer was sent

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, content: object, status: int = 200, **headers: str) -> Reply:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
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
    parent: Commit | None


@dataclass
class Repo:
    kind: str
    repo_id: str
    private: bool = False
    head: Commit | None = None
    tags: dict[str, Commit] = field(default_factory=dict)
    variables: dict[str, dict[str, str]] = field(default_factory=dict)  # of a Space, by their keys
    count: int = 0

    def history(self) -> list[Commit]:
        """Commits, newest first; the last is the one that created the repository."""
        commits, commit = list[Commit](), self.head
        while commit:
            commits.append(commit)
            commit = commit.parent
        return commits

    def at(self, revision: str) -> Commit:
        named = {"main": self.head, **self.tags}
        if found := named.get(revision):
            return found
        for commit in self.history():
            if re.fullmatch("[0-9a-f]{7,40}", revision) and commit.sha.startswith(revision):
                return commit
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def commit(self, files: dict[str, Blob], title: str) -> Commit:
        self.count += 1
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        sha = hashlib.sha1(f"{self.kind} {self.repo_id} {self.count} {title} {date}".encode()).hexdigest()
        self.head = Commit(sha, title, date, files, self.head)
        return self.head

    def entry(self, commit: Commit, path: str) -> dict[str, Any]:
        """What the Hub tells of a file or folder."""
        if blob := commit.files.get(path):
            return {"type": "file", "path": path, **blob.describe()}
        oid = hashlib.sha1(path.encode()).hexdigest()
        return {"type": "directory", "path": path, "size": 0, "oid": oid}


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
    url = f"{hub.url}/{'' if kind == 'model' else kind + 's/'}{repo_id}"
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
    repo = hub.open(request, kind, repo_id)
    commit = repo.at(revision)
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
    return Reply.json([repo.entry(commit, entry) for entry in sorted(depths)])


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
            ticket = secrets.token_hex(8)
            hub.tickets[ticket] = wanted["oid"]
            upload = {"href": f"{hub.url}/lfs/upload/{ticket}", "header": {}}
            answer["actions"] = {"upload": upload, "verify": {"href": f"{hub.url}/lfs/verify"}}
        answers.append(answer)
    return Reply.json({"transfer": "basic", "objects": answers})


@route("PUT", r"/lfs/upload/(?P<ticket>[^/]+)")
def lfs_upload(hub: Hub, request: Request, ticket: str) -> Reply:
    oid = hub.tickets.get(ticket)
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
    hub.writer(request, repo_id)
    new = repo.commit(files, header["summary"])
    prefix = "" if repo.kind == "model" else f"{repo.kind}s/"
    url = f"{hub.url}/{prefix}{repo_id}/commit/{new.sha}"
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

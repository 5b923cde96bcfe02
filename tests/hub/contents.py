"""What the Hub keeps and says: requests, replies, accounts, repositories."""

import hashlib
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

LFS_SUFFIXES = (".safetensors", ".parquet", ".arrow", ".bin", ".npz", ".zip", ".png", ".jpg")


@dataclass
class Request:
    """One line of the log."""

    number: int
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""
    """Dropped once the request is processed."""
    received: int = 0
    status: int = 0
    """0: no answer was sent."""

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, content: object, status: int = 200, **headers: str) -> "Reply":
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
    def pointer(self) -> bytes:
        size = len(self.data)
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {size}\n".encode()

    @property
    def git_oid(self) -> str:
        content = self.pointer if self.lfs else self.data
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_oid

    def describe(self) -> dict[str, Any]:
        lfs = {"oid": self.sha256, "size": len(self.data), "pointerSize": len(self.pointer)}
        return {"oid": self.git_oid, "size": len(self.data)} | ({"lfs": lfs} if self.lfs else {})


@dataclass(frozen=True)
class Commit:
    sha: str
    title: str
    date: str
    files: dict[str, Blob]
    parent: "Commit | None"


@dataclass
class Repo:
    kind: str
    repo_id: str
    private: bool = False
    branches: dict[str, Commit] = field(default_factory=dict)
    tags: dict[str, Commit] = field(default_factory=dict)
    variables: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of a Space, by their keys."""
    count: int = 0

    def history(self, revision: str = "main") -> list[Commit]:
        """Commits of a revision, newest first; the last is the one that created the repository."""
        commits: list[Commit] = []
        commit: Commit | None = self.at(revision)
        while commit:
            commits.append(commit)
            commit = commit.parent
        return commits

    def at(self, revision: str) -> Commit:
        for names in (self.branches, self.tags):
            if found := names.get(revision):
                return found
        for head in [*self.branches.values(), *self.tags.values()]:
            commit: Commit | None = head
            while commit:
                if re.fullmatch("[0-9a-f]{7,40}", revision) and commit.sha.startswith(revision):
                    return commit
                commit = commit.parent
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def commit(self, files: dict[str, Blob], title: str, branch: str = "main") -> Commit:
        self.count += 1
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        sha = hashlib.sha1(f"{self.kind} {self.repo_id} {self.count} {title} {date}".encode()).hexdigest()
        parent = self.branches.get(branch)
        self.branches[branch] = Commit(sha, title, date, files, parent)
        return self.branches[branch]

    def entry(self, commit: Commit, path: str) -> dict[str, Any]:
        """What the Hub tells of a file or folder."""
        if blob := commit.files.get(path):
            return {"type": "file", "path": path, **blob.describe()}
        oid = hashlib.sha1(path.encode()).hexdigest()
        return {"type": "directory", "path": path, "size": 0, "oid": oid}

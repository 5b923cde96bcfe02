"""Bring a repository of the Hub to a wanted state with one commit, and read it back.

Any request may fail, so a push can be repeated at any time: it compares what is there, sends what differs on top of
the commit that it compared with, and succeeds when sizes and hashes read back equal those of the files.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_session
from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import validate_repo_id
from huggingface_hub.utils.sha import git_hash

from promptccd.errors import ConfigurationError, HubError, PromptCCDError, RunError, one_line
from promptccd.runs.card import CARD, KEPT_METADATA, merge_card
from promptccd.version import __version__

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

ATTEMPTS = 5
FIRST_PAUSE = 1.0  # seconds; doubled after every failure
SILENCE_S = 60.0  # seconds without a byte; the client has no limit of its own
# Statuses after which a repetition may succeed, besides those of a server that failed.
_TEMPORARY = {408, 409, 412, 423, 425, 429}
# Errors that no repetition mends.
_LASTING = (
    LocalTokenNotFoundError, OfflineModeIsEnabled, HFValidationError, FileNotFoundError, PermissionError,
)  # fmt: skip


@dataclass(frozen=True)
class Repository:
    """A repository to push to.

    Attributes:
        name: ``namespace/name``.
        kind: ``model``, ``dataset`` or ``space``.
        private: whether a public repository is refused.
        sdk: of a Space.
        revision: branch to push to, created if missing; `None` for the main branch.
        pull_request: whether to open a pull request instead of a commit.
    """

    name: str
    kind: str
    private: bool
    sdk: str | None = None
    revision: str | None = None
    pull_request: bool = False


@dataclass(frozen=True)
class PushedRepository:
    """The result of a push.

    Attributes:
        repo_id: ``namespace/name``.
        commit: the commit that holds the files; `None` in a dry run of a repository that does not exist.
        sent: paths that were sent, or would be; empty if the repository held them already.
        num_bytes: their size together.
        listing: content, size and visibility in one line.
        pull_request: address of the pull request that was opened.
    """

    repo_id: str
    commit: str | None
    sent: tuple[str, ...]
    num_bytes: int
    listing: str
    pull_request: str | None = field(default=None, kw_only=True)


def client() -> HfApi:
    """A client that names this package and its version in every request."""
    return HfApi(library_name="promptccd", library_version=__version__)


def require_name(name: str, kind: str, remedy: str, *, namespace: bool = True) -> None:
    """Refuse a name that the Hub would refuse, before anything is computed or sent.

    Args:
        name: of a repository.
        kind: ``model``, ``data set`` or ``Space``, for the message.
        remedy: what to do, as a sentence.
        namespace: whether a namespace is required.

    Raises:
        ConfigurationError: it cannot be the name of a repository.
    """
    try:
        validate_repo_id(name)
        if namespace and "/" not in name:
            raise HFValidationError("a name has the form NAMESPACE/NAME.")
    except HFValidationError as error:
        raise ConfigurationError(
            f"{name!r} cannot be the name of a {kind} on the Hub: {one_line(error)} {remedy}"
        ) from error


def push_files(
    repository: Repository,
    contents: Mapping[str, Path | bytes],
    *,
    api: HfApi,
    message: str,
    holds: str,
    replaces: str = "",
    preserved: Sequence[str] = KEPT_METADATA,
    dry_run: bool = False,
) -> PushedRepository:
    """Make a repository hold these files, with at most one commit; other files stay.

    Args:
        repository: created if missing.
        contents: files by path. The card is merged with the card of the repository.
        api: the client.
        message: title of the commit.
        holds: content in words, for the listing that is logged before anything is sent.
        replaces: pattern of other files to delete, such as ``*.parquet``; by default none.
        preserved: keys of the card's metadata that keep the repository's value.
        dry_run: compare only.

    Raises:
        ConfigurationError: it is public and should be private.
        RunError: the repository's card cannot be read.
        HubError: what was read back is not what was sent.
        Exception: of the client; see `retried`.
    """
    name, kind = repository.name, repository.kind
    head, private = ensure_repository(repository, api=api, dry_run=dry_run) or (None, repository.private)
    there = _remote_files(api, repository, head) if head else {}
    wanted = dict(contents)
    if CARD in there and isinstance(card := wanted.get(CARD), bytes):
        wanted[CARD] = merge_card(_remote_card(api, repository, head), card.decode(), preserved).encode()
    files = [CommitOperationAdd(path, data) for path, data in sorted(wanted.items())]
    changed = [file for file in files if not _is_same(file, there)]
    gone = [path for path in there if replaces and fnmatchcase(path, replaces) and path not in wanted]
    size = f"{len(files)} files, {sum(file.upload_info.size for file in files) / 1e6:.1f} MB"
    pushed = PushedRepository(
        name,
        head,
        sent=tuple(file.path_in_repo for file in changed),
        num_bytes=sum(file.upload_info.size for file in changed),
        listing=f"{name} ({kind}, {'private' if private else 'public'}): {size}: {holds}",
    )
    if dry_run or not (changed or gone):
        return pushed
    logger.info("Sending %s.", pushed.listing)
    commit = api.create_commit(
        name,
        [*changed, *map(CommitOperationDelete, gone)],
        commit_message=message,
        repo_type=kind,
        parent_commit=head,
        revision=repository.revision,
        create_pr=repository.pull_request,
    )
    there = _remote_files(api, repository, commit.oid)
    wrong = [file.path_in_repo for file in files if not _is_same(file, there)]
    if wrong or there.keys() & set(gone):
        raise HubError(f"{name} differs from what was sent: {', '.join(wrong or gone)}.")
    return replace(pushed, commit=commit.oid, pull_request=commit.pr_url)


def ensure_repository(
    repository: Repository, *, api: HfApi, dry_run: bool = False
) -> tuple[str | None, bool] | None:
    """The newest commit of a repository, which is created if missing, and whether it is private.

    A dry run that would create it returns `None`.

    Raises:
        ConfigurationError: it is public and should be private.
    """
    name, kind, revision = repository.name, repository.kind, repository.revision
    if not api.repo_exists(name, repo_type=kind):
        if dry_run:
            return None
        api.create_repo(
            name, repo_type=kind, private=repository.private, exist_ok=True, space_sdk=repository.sdk
        )
    if revision and not dry_run:
        api.create_branch(name, branch=revision, repo_type=kind, exist_ok=True)
    elif revision and not api.revision_exists(name, revision, repo_type=kind):
        revision = None  # the branch would start at the main branch
    info = api.repo_info(name, repo_type=kind, revision=revision)
    if repository.private and not info.private:
        raise ConfigurationError(
            f"{name} is public and --private was given, so nothing was sent. Make it private in its settings on the "
            "Hub, or choose another name."
        )
    return info.sha, bool(info.private)


def retried(
    action: Callable[[], Result], later: str = "Run the same command again.", undone: str = "Not pushed"
) -> Result:
    """The result of an action that can be repeated, after at most `ATTEMPTS` attempts.

    Args:
        action: the action.
        later: the command that repeats it, for the message.
        undone: what did not happen, the beginning of the message.

    Raises:
        HubError: all attempts failed, or a repetition would not help.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with bounded_waits(SILENCE_S):
                return action()
        except Exception as error:  # the client passes on whatever an odd answer causes
            if isinstance(error, PromptCCDError) and not isinstance(error, HubError):
                raise
            reason, pause = reason_of(error), FIRST_PAUSE * 2 ** (attempt - 1)
            most = 2 if "Timeout" in type(error).__name__ else ATTEMPTS  # the client has tried several times
            if attempt >= most or not is_temporary(error):
                raise HubError(f"{undone}: {reason}. Nothing local is lost. {later}") from error
            logger.warning("The Hub did not accept a request (%s); next attempt in %.0f s.", reason, pause)
            time.sleep(pause)
    raise AssertionError("the loop returns or raises")


def is_temporary(error: BaseException) -> bool:
    """Whether a repetition may succeed: after a refusal seldom, after no answer or an odd one it may."""
    if (status := _status_of(error)) is not None:
        return status in _TEMPORARY or status >= 500
    return not isinstance(error, _LASTING)


def reason_of(error: BaseException) -> str:
    """The Hub's message with its status, or that of the client, on one line without a full stop."""
    if isinstance(error, json.JSONDecodeError):  # the page of a gateway, or of a network's login
        return f"the answer is no JSON: {one_line(error.doc)}"
    stated = [getattr(each, "server_message", None) for each in (error, error.__cause__)]
    reason, status = one_line(next(filter(None, stated), None) or error).rstrip("."), _status_of(error)
    return reason if status is None else f"{reason} ({status})"


def _status_of(error: BaseException) -> int | None:
    """Status of the answer that an error is about, directly or by its cause; `None` without an answer."""
    answers = [getattr(each, "response", None) for each in (error, error.__cause__)]
    return next((answer.status_code for answer in answers if answer is not None), None)


@contextmanager
def bounded_waits(seconds: float) -> Iterator[None]:
    """Limit how long the Hub's client waits for a byte."""

    def limit(request: Any) -> None:
        given = request.extensions.get("timeout", {})
        kinds = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = {kind: min(given.get(kind) or seconds, seconds) for kind in kinds}

    hooks = get_session().event_hooks["request"]
    hooks.append(limit)
    try:
        yield
    finally:
        hooks.remove(limit)


def _remote_files(api: HfApi, repository: Repository, revision: str) -> dict[str, RepoFile]:
    tree = api.list_repo_tree(repository.name, recursive=True, revision=revision, repo_type=repository.kind)
    return {item.path: item for item in tree if isinstance(item, RepoFile)}


def _remote_card(api: HfApi, repository: Repository, revision: str | None) -> str:
    path = Path(api.hf_hub_download(repository.name, CARD, revision=revision, repo_type=repository.kind))
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RunError(
            f"{CARD} of {repository.name} is not UTF-8: correct it on the Hub, or delete it."
        ) from error


def _is_same(file: CommitOperationAdd, files: Mapping[str, RepoFile]) -> bool:
    """Whether the repository has a file with this content, by its hash: sha256 for LFS, git's otherwise."""
    there = files.get(file.path_in_repo)
    if there is None or there.size != file.upload_info.size:
        return False
    if there.lfs is not None:
        return there.lfs.sha256 == file.upload_info.sha256.hex()
    with file.as_file() as stream:
        return there.blob_id == git_hash(stream.read())

"""Bring a repository of the Hub to a wanted state with one commit, and read it back.

Any request may fail, so a push can be repeated at any time: it compares what is there, sends what differs on top of
the commit that it compared with, and succeeds when sizes and hashes read back equal those of the files.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_session
from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import hf_raise_for_status, parse_ratelimit_headers, validate_repo_id
from huggingface_hub.utils.sha import git_hash

from promptccd.errors import ConfigurationError, HubError, RunError, one_line, shown
from promptccd.runs.card import CARD, KEPT_METADATA, merge_card
from promptccd.version import __version__

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

ATTEMPTS = 5
FIRST_PAUSE = 1.0  # seconds; doubled after every failure
LONGEST_PAUSE = 60.0  # seconds; the Hub may ask for hours
SILENCE_S = 20.0  # seconds without a byte; the client has no limit of its own
COMMIT_SILENCE_S = 120.0  # the Hub answers a commit when all of it is stored
# Statuses after which a repetition may succeed.
_TEMPORARY = {408, 409, 412, 423, 425, 429, 500, 502, 503, 504}
_LOCAL_ERRORS = (LocalTokenNotFoundError, OfflineModeIsEnabled, HFValidationError)


class PublicRepositoryError(HubError):
    """A repository that should be private is public."""


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
        PublicRepositoryError: it is public and should be private.
        RunError: the repository's card cannot be read.
        HubError: what was read back is not what was sent.
        Exception: of the client; see `retried`.
    """
    name, kind = repository.name, repository.kind
    head, private = ensure_repository(repository, api=api, dry_run=dry_run) or (None, repository.private)
    there = _remote_files(api, repository, head) if head else {}
    wanted = dict(contents)
    if CARD in there and isinstance(card := wanted.get(CARD), bytes):
        theirs = _remote_card(api, repository, head, there[CARD])
        wanted[CARD] = merge_card(theirs, card.decode(), preserved).encode()
    files = [CommitOperationAdd(path, data) for path, data in sorted(wanted.items())]
    changed = [file for file in files if not _is_same(file, there)]
    gone = sorted(path for path in there if replaces and fnmatchcase(path, replaces) and path not in wanted)
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
    with bounded_waits(COMMIT_SILENCE_S):
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
        PublicRepositoryError: it is public and should be private.
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
        raise PublicRepositoryError(
            f"{name} is public and --private was given, so nothing was sent. Make it private in its settings on the "
            "Hub, or choose another name."
        )
    return info.sha, bool(info.private)


def own_namespace(api: HfApi) -> str:
    """The user whose token the client has.

    Raises:
        HubError: the Hub does not answer with a name.
    """
    user = api.whoami(cache=True)
    if not isinstance(user, dict) or not isinstance(user.get("name"), str):
        raise HubError(f"the Hub does not name the logged-in user: {shown(user)}")
    return user["name"]


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
            if isinstance(error, PublicRepositoryError) or not (
                isinstance(error, HubError) or _is_of_client(error)
            ):
                raise
            pause = _requested_pause(_response_of(error)) or FIRST_PAUSE * 2 ** (attempt - 1)
            most = 2 if is_silence(error) else ATTEMPTS
            if attempt >= most or pause > LONGEST_PAUSE or not is_temporary(error):
                raise HubError(f"{undone}: {reason_of(error)}. Nothing local is lost. {later}") from error
            logger.warning(
                "The Hub did not accept a request (%s); next attempt in %.0f s.", reason_of(error), pause
            )
            time.sleep(pause)
    raise AssertionError("the loop returns or raises")


def is_temporary(error: Exception) -> bool:
    """Whether a repetition may succeed: after a refusal seldom, after no answer or an odd one it may."""
    response = _response_of(error)
    if response is None:
        is_local_file = isinstance(error, OSError) and error.filename is not None
        return not (is_local_file or isinstance(error, _LOCAL_ERRORS))
    is_upload = response.request.method == "PUT"  # its address is valid for some minutes and is renewed
    return is_upload or response.status_code in _TEMPORARY or response.status_code > 511


def is_silence(error: BaseException) -> bool:
    """Whether no answer came in time."""
    names = {kind.__name__ for kind in type(error).__mro__}  # of Python, and of httpx, which is replaceable
    return not names.isdisjoint(("TimeoutError", "TimeoutException"))


def reason_of(error: Exception) -> str:
    """The Hub's message, or that of the client, on one line without a full stop."""
    response = _response_of(error)
    if response is None:
        if is_silence(error):
            return "no answer came in time"
        if isinstance(error, json.JSONDecodeError):  # a gateway, or a network's page for logging in
            return f"the answer is no JSON: {_words_on(error.doc)}"
        if isinstance(error, LocalTokenNotFoundError):
            return "no user is logged in: run `hf auth login`"
        return _cut(error)
    messages = (getattr(each, "server_message", None) for each in _causes(error))
    try:
        page = _words_on(response.text)
    except RuntimeError:  # a streamed body that was not read
        page = ""
    reason = f"{_cut(next(filter(None, messages), None) or page or error)} ({response.status_code})"
    if response.status_code == 401:
        return f"{reason}: run `hf auth login` with a token that can write"
    pause = _requested_pause(response)
    return f"{reason}; the Hub asks to wait {pause:.0f} s" if pause else reason


def _cut(message: object) -> str:
    return one_line(message).rstrip(".")[:300]


@contextmanager
def bounded_waits(seconds: float) -> Iterator[None]:
    """Limit waits of the Hub's client, which repeats unanswered requests and obeys any request to wait.

    Args:
        seconds: limit of a silence, repetitions included. A request to wait longer than `LONGEST_PAUSE` fails at once.
    """
    hooks, unanswered = get_session().event_hooks, list[float]()

    def limit(request: Any) -> None:
        if request.method != "PUT":  # uploads, several at once, are answered when all bytes are stored
            unanswered.append(time.monotonic())
            if unanswered[-1] - unanswered[0] > seconds:
                raise TimeoutError(f"no answer for {seconds:.0f} s")
        given = request.extensions.get("timeout", {})
        kinds = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = {kind: given.get(kind) or seconds for kind in kinds}

    def refuse(response: Any) -> None:
        unanswered.clear()
        if response.status_code in (429, 503) and (_requested_pause(response) or 0) > LONGEST_PAUSE:
            hf_raise_for_status(response)

    hooks["request"].insert(0, limit)  # the innermost limit applies
    hooks["response"].append(refuse)
    try:
        yield
    finally:
        hooks["request"].remove(limit)
        hooks["response"].remove(refuse)


def _is_of_client(error: BaseException) -> bool:
    """Whether an error was raised inside the Hub's client."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return any(module.partition(".")[0] == "huggingface_hub" for module in modules)


def _requested_pause(response: Any) -> float | None:
    """Seconds that a response asks to wait; `None` without a response, too."""
    if response is None:
        return None
    value = response.headers.get("Retry-After", "")
    if value.isdecimal():
        return float(value)
    limit = parse_ratelimit_headers(response.headers)
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None


def _words_on(page: str) -> str:
    """The words of a page, or of another text, on one line."""
    return " ".join(re.sub("<[^>]*>", " ", page[:10_000]).split())[:300]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised from, or while what was handled."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _response_of(error: BaseException) -> Any:
    """The answer that an error is about, directly or by a cause; `None` without an answer."""
    responses = (getattr(each, "response", None) for each in _causes(error))
    return next((each for each in responses if each is not None), None)


def _remote_files(api: HfApi, repository: Repository, revision: str) -> dict[str, RepoFile]:
    tree = api.list_repo_tree(repository.name, recursive=True, revision=revision, repo_type=repository.kind)
    return {item.path: item for item in tree if isinstance(item, RepoFile)}


def _remote_card(api: HfApi, repository: Repository, revision: str | None, there: RepoFile) -> str:
    """The repository's card, checked against its hash: a person's text must not be lost."""
    path = Path(api.hf_hub_download(repository.name, CARD, revision=revision, repo_type=repository.kind))
    if not _is_same(CommitOperationAdd(CARD, path), {CARD: there}):
        path.resolve().unlink()  # the cache would return the damaged file again
        raise HubError(f"{CARD} of {repository.name} was damaged in transfer")
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

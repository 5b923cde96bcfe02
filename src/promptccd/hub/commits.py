"""Bring a repository of the Hub to a state with one commit, and read it back.

Every request may fail, so a push can begin again at any time: it looks at what is there, sends only what differs, on
top of the very commit it looked at, and trusts it only when sizes and hashes read back are those of the files.
"""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    HFValidationError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import validate_repo_id
from huggingface_hub.utils.sha import git_hash

from promptccd.errors import ConfigurationError, HubError, RunError, one_line, shown
from promptccd.models.hub_answers import (
    LONGEST_WAIT,
    impatient,
    is_of_the_hub,
    is_silence,
    response_of,
    wait_asked_for,
    words_of,
)
from promptccd.runs.model_card import KEPT, merge_card
from promptccd.runs.origin import CARD
from promptccd.storage import sha256_of

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Contents = Mapping[str, Path | bytes]

ATTEMPTS = 5
FIRST_WAIT = 1.0  # seconds; doubled after every failure
PATIENCE = 20.0  # seconds without a byte; the client would wait for ever
PATIENCE_OF_A_COMMIT = 120.0  # which the Hub answers when all of it is in place
# Too slow, a conflict, somebody else's commit, locked, too early, too often; and every 5xx but those that stay.
_AGAIN = {408, 409, 412, 423, 425, 429}
_STAYS = {501, 505, 507, 508, 511}
_PASSES = re.compile(r"concurrent|try again|retry|rate.?limit", re.IGNORECASE)  # in the words of a 403
_STAYS_HERE = (LocalTokenNotFoundError, OfflineModeIsEnabled, HFValidationError)
_KINDS = {"model": "model", "dataset": "data set", "space": "Space"}


def require_name(name: str, kind: str, remedy: str, *, namespace: bool = True) -> None:
    """Refuse a name that the Hub would refuse, before anything is computed or sent.

    Args:
        name: of a repository, with or without its namespace.
        kind: ``model``, ``dataset`` or ``space``.
        remedy: what to do, as a sentence.
        namespace: whether one has to be in it.

    Raises:
        ConfigurationError: it cannot be the name of a repository.
    """
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        problem = one_line(error)
    else:
        if "/" in name or not namespace:
            return
        problem = f"{name!r} does not say whose it is, as NAMESPACE/NAME does."
    raise ConfigurationError(
        f"The Hub takes no {_KINDS[kind]} of that name: {problem} Allowed are 1 to 96 of A to Z, a to z, 0 to 9, "
        f"-, _ and ., with no -- or .. among them, no - or . at either end, and no .git at the end. {remedy}"
    )


class PublicRepositoryError(HubError):
    """Everybody could have seen what was to be private."""


@dataclass(frozen=True)
class Repository:
    """A repository to push to.

    Attributes:
        name: ``namespace/name``.
        kind: ``model``, ``dataset`` or ``space``.
        private: whether it has to be private; if so, a public one is refused.
        sdk: of a Space.
        revision: branch to push to, made if it is not there; `None` for the main one.
        pull_request: whether to open one, for its owner to accept, in place of a commit.
    """

    name: str
    kind: str
    private: bool
    sdk: str | None = None
    revision: str | None = None
    pull_request: bool = False


@dataclass(frozen=True)
class PushedRepository:
    """What became of a repository.

    Attributes:
        repo_id: ``namespace/name``.
        commit: the commit that holds the files now; `None` in a dry run of a repository that is not there.
        sent: paths that were sent, or would be; empty if all of it was there already.
        num_bytes: their size together.
        listing: what the files are, how large, and who can see them, in one line.
        pull_request: address of the one that was opened.
    """

    repo_id: str
    commit: str | None
    sent: tuple[str, ...]
    num_bytes: int
    listing: str
    pull_request: str | None = field(default=None, kw_only=True)


def bring(
    repository: Repository,
    contents: Contents,
    *,
    api: HfApi,
    message: str,
    holds: str,
    replaces: str = "",
    kept: Sequence[str] = KEPT,
    dry_run: bool = False,
) -> PushedRepository:
    """Make a repository hold these files, with at most one commit; other files stay.

    Args:
        repository: made if it is not there.
        contents: files by their paths. The card is merged with one that is there already.
        api: the client.
        message: title of the commit.
        holds: what the files are, in words, for the listing that is logged before anything is sent.
        replaces: pattern of other files to delete, such as ``*.parquet``; nothing is deleted by default.
        kept: keys of the card's metadata that stay as they are there.
        dry_run: only say what would be sent.

    Raises:
        PublicRepositoryError: it is public and should be private.
        RunError: the card that is there cannot be read.
        HubError: what was read back is not what was sent.
        Exception: of the client; see `retried`.
    """
    name, kind = repository.name, repository.kind
    head, private = made(repository, api=api, dry_run=dry_run) or (None, repository.private)
    there = _remote_files(api, repository, head) if head else {}
    wanted = dict(contents)
    if CARD in there and CARD in wanted:
        theirs = _remote_card(api, repository, head, there[CARD])
        wanted[CARD] = merge_card(theirs, _text(wanted[CARD]), kept).encode()
    changed = {path: data for path, data in wanted.items() if not _same(data, there.get(path))}
    gone = [path for path in there if replaces and fnmatchcase(path, replaces) and path not in wanted]
    who = "private" if private else "public"
    amount = f"{len(wanted)} files, {sum(map(_size, wanted.values())) / 1e6:.1f} MB"
    listing = f"{name} ({_KINDS[kind]}, {who}): {amount}: {holds}"
    sent, size = tuple(sorted(changed)), sum(map(_size, changed.values()))
    if dry_run or not (changed or gone):
        return PushedRepository(name, head, sent, size, listing)
    logger.info("Sending %s.", listing)
    with impatient(PATIENCE_OF_A_COMMIT):
        commit = api.create_commit(
            name,
            [CommitOperationAdd(path, data) for path, data in sorted(changed.items())]
            + [CommitOperationDelete(path) for path in sorted(gone)],
            commit_message=message,
            repo_type=kind,
            parent_commit=head,
            revision=repository.revision,
            create_pr=repository.pull_request,
        )
    there = _remote_files(api, repository, commit.oid)
    wrong = [path for path, data in wanted.items() if not _same(data, there.get(path))]
    if wrong or there.keys() & set(gone):
        raise HubError(f"{name} does not read back as it was sent: {', '.join(sorted(wrong) or gone)}.")
    return PushedRepository(name, commit.oid, sent, size, listing, pull_request=commit.pr_url)


def made(repository: Repository, *, api: HfApi, dry_run: bool = False) -> tuple[str | None, bool] | None:
    """The newest commit of a repository, which is made if it is not there, and whether it is private.

    A dry run that would make it returns `None`.

    Raises:
        PublicRepositoryError: it is public and should be private.
    """
    name, kind = repository.name, repository.kind
    exists = api.repo_exists(name, repo_type=kind)
    if not exists:
        if dry_run:
            return None
        api.create_repo(
            name, repo_type=kind, private=repository.private, exist_ok=True, space_sdk=repository.sdk
        )
    if repository.revision and not dry_run:
        api.create_branch(name, branch=repository.revision, repo_type=kind, exist_ok=True)
    try:
        info = api.repo_info(name, repo_type=kind, revision=repository.revision)
    except RevisionNotFoundError:  # in a dry run; the branch would begin at the main one
        info = api.repo_info(name, repo_type=kind)
    if repository.private and not info.private:
        raise PublicRepositoryError(
            f"{name} can be seen by everybody, and this was to be private, so nothing was sent. Make it private in its "
            "settings on the Hub, give another name, or push for everybody to see."
        )
    return info.sha, bool(info.private)


def own_namespace(api: HfApi) -> str:
    """The user whose token the client has.

    Raises:
        HubError: the Hub does not say.
    """
    told = api.whoami(cache=True)
    if not isinstance(told, dict) or not isinstance(told.get("name"), str):
        raise HubError(f"the Hub does not say who is logged in, but {shown(told)}")
    return told["name"]


def retried(
    action: Callable[[], Result], later: str = "Run the same command again.", undone: str = "Not pushed"
) -> Result:
    """The result of an action that may be begun again, after a few failures at most.

    Args:
        action: what to do.
        later: the command that does it later, for the message.
        undone: what was not done then, to begin the message with.

    Raises:
        HubError: it kept failing, or was refused for a reason that does not pass.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with impatient(PATIENCE):
                return action()
        except Exception as error:
            is_theirs = isinstance(error, HubError) or is_of_the_hub(error)
            if not is_theirs or isinstance(error, PublicRepositoryError):
                raise
            reason, pause = reason_of(error), _pause_before(attempt, error)
            if pause is None:
                raise HubError(f"{undone}: {reason} Nothing local is lost. {later}") from error
            logger.warning("The Hub did not take it (%s); again in %.0f s.", reason.rstrip("."), pause)
            time.sleep(pause)
    raise AssertionError("the loop returns or raises")


def _remote_files(api: HfApi, repository: Repository, revision: str) -> dict[str, RepoFile]:
    tree = api.list_repo_tree(repository.name, recursive=True, revision=revision, repo_type=repository.kind)
    return {item.path: item for item in tree if isinstance(item, RepoFile)}


def _remote_card(api: HfApi, repository: Repository, revision: str | None, there: RepoFile) -> str:
    """Words of a person are in it, so half of it is none."""
    path = Path(api.hf_hub_download(repository.name, CARD, revision=revision, repo_type=repository.kind))
    if not _same(path, there):
        path.resolve().unlink()  # in the cache, whole or not, it would be taken for the card again
        raise HubError(f"{CARD} of {repository.name} came otherwise than it lies there")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RunError(
            f"{CARD} of {repository.name} is no text in UTF-8: mend it on the Hub, or delete it."
        ) from error


def _same(data: Path | bytes, there: RepoFile | None) -> bool:
    """Whether a file of the repository holds these bytes, by its hash: sha256 for LFS, git's own otherwise."""
    if there is None or there.size != _size(data):
        return False
    if there.lfs is not None:
        own = hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else sha256_of(data)
        return there.lfs.sha256 == own
    return there.blob_id == git_hash(data if isinstance(data, bytes) else data.read_bytes())


def _text(data: Path | bytes) -> str:
    return data.decode() if isinstance(data, bytes) else data.read_text(encoding="utf-8")


def _size(data: Path | bytes) -> int:
    return len(data) if isinstance(data, bytes) else data.stat().st_size


def _pause_before(attempt: int, error: Exception) -> float | None:
    """Seconds to wait before another attempt; `None` if none would help."""
    if attempt == ATTEMPTS or (is_silence(error) and attempt > 1) or not may_pass(error):
        return None
    response = response_of(error)
    asked = None if response is None else wait_asked_for(response)
    pause = FIRST_WAIT * 2 ** (attempt - 1) if asked is None else asked
    return pause if pause <= LONGEST_WAIT else None


def may_pass(error: Exception) -> bool:
    """Whether the reason may pass by itself: of a refusal it seldom does, of no answer or a strange one it does."""
    response = response_of(error)
    if response is None:
        is_here = isinstance(error, OSError) and error.filename is not None  # of a file on this machine
        return not (is_here or isinstance(error, _STAYS_HERE))
    status = response.status_code
    return (
        status in _AGAIN
        or (status >= 500 and status not in _STAYS)
        or (status == 403 and _PASSES.search(words_of(error)) is not None)
        or response.request.method == "PUT"  # to an address that was lent for some minutes
    )


def reason_of(error: Exception) -> str:
    """The Hub's words, and behind them what to do where that follows from them."""
    response = response_of(error)
    status = None if response is None else response.status_code
    words = words_of(error)
    if isinstance(error, LocalTokenNotFoundError) or status == 401:
        said = f"{words}. " if status else ""
        return f"{said}Nobody is logged in who may: run `hf auth login` with a token that can write."
    asked = None if response is None else wait_asked_for(response)
    return f"{words}; it asks to wait for {asked:.0f} s." if asked else f"{words}."

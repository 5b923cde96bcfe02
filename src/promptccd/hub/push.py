"""Push the stages of a run: one repository a stage, one commit a push, read back afterwards.

Every request may fail. So a push is a procedure that can be begun again at any time: it looks at what is there, sends
only what differs, on top of the very commit it looked at, and believes none of it until sizes and hashes read back
are those of the files.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from huggingface_hub import CommitOperationAdd, HfApi, get_session
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError
from huggingface_hub.hf_api import RepoFile

from promptccd.errors import HubError, PromptCCDError
from promptccd.runs import RunDirectory
from promptccd.runs.model_card import merge_card
from promptccd.training.checkpoints import problems_of

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

ATTEMPTS = 5
FIRST_WAIT = 1.0  # seconds; doubled after every failure
PATIENCE = 120.0  # seconds without a byte; the client by itself waits for ever
_CARD = "README.md"
_AGAIN = {408, 409, 412, 429}  # too slow, a conflict, somebody else's commit, too often: and every 5xx


@dataclass(frozen=True)
class PushedStage:
    """What became of one stage.

    Attributes:
        repo_id: ``namespace/<recipe>-stage<t>``.
        commit: commit the files stand in now; `None` in a dry run.
        sent: paths that were sent, or would be; empty if all of it was there already.
        num_bytes: their size together.
    """

    repo_id: str
    commit: str | None
    sent: tuple[str, ...]
    num_bytes: int


def push_run(
    run: RunDirectory,
    *,
    api: HfApi | None = None,
    namespace: str | None = None,
    stages: Sequence[int] | None = None,
    private: bool = False,
    dry_run: bool = False,
    wait: Callable[[float], None] = time.sleep,
) -> list[PushedStage]:
    """Push finished stages of a run and gather their repositories in a collection.

    Args:
        run: the run.
        api: the client; its token must be allowed to write.
        namespace: user or organisation; none means the one who is logged in.
        stages: which stages; none means all that are finished.
        private: whether repositories that are made here are private.
        dry_run: only say what would be sent.
        wait: sleeps between attempts.

    Raises:
        RunError: a stage is damaged or missing.
        HubError: the Hub could not be reached or refused; the message names the command to run later.
    """
    api = api or HfApi()
    finished = range(run.stages_on_disk())
    wanted = list(finished) if stages is None else list(stages)
    later = _later(run, wanted, namespace, private)
    if not set(wanted) <= set(finished):
        raise HubError(
            f"{run.path} has finished stages {[*finished]}, not {wanted}. Give --stage one of them."
        )
    namespace = namespace or _retried(lambda: _user(api), later, wait)
    pushed = []
    for stage in wanted:
        repo_id = f"{namespace}/{run.name}-stage{stage}"
        options = {"private": private, "dry_run": dry_run}
        pushed.append(push_stage(run.stage(stage), repo_id, api=api, later=later, wait=wait, **options))
    if not dry_run:
        _retried(lambda: _gather(api, run.name, namespace, pushed, private), later, wait)
    return pushed


def pusher(namespace: str | None, private: bool) -> Callable[[RunDirectory, int], None]:
    """What pushes each stage during training: a Hub that fails costs a warning and a command for later.

    Args:
        namespace: user or organisation; none means the one who is logged in.
        private: whether repositories that are made are private.
    """

    def push(run: RunDirectory, stage: int) -> None:
        try:
            (pushed,) = push_run(run, namespace=namespace, stages=[stage], private=private)
            logger.info("Pushed %s.", pushed.repo_id)
        except PromptCCDError as error:
            logger.warning("%s Training goes on.", error)

    return push


def push_stage(
    folder: Path,
    repo_id: str,
    *,
    api: HfApi,
    private: bool = False,
    dry_run: bool = False,
    later: str = "",
    wait: Callable[[float], None] = time.sleep,
) -> PushedStage:
    """Bring one repository to the state of a stage's folder, with at most one commit.

    Args:
        folder: a finished stage.
        repo_id: the repository.
        api: the client.
        private: whether a repository that is made here is private.
        dry_run: only say what would be sent.
        later: the command that does it later, for messages.
        wait: sleeps between attempts.

    Raises:
        HubError: not reachable, refused, or what was read back is not what was sent.
    """
    if problems := problems_of(folder):
        raise HubError(
            f"{folder} is damaged and is not pushed: {'; '.join(problems)}. Train the stage again."
        )
    return _retried(lambda: _push_once(folder, repo_id, api, private, dry_run), later, wait)


def _push_once(folder: Path, repo_id: str, api: HfApi, private: bool, dry_run: bool) -> PushedStage:
    exists = api.repo_exists(repo_id)
    if not exists and not dry_run:
        api.create_repo(repo_id, private=private, exist_ok=True)
    head = api.repo_info(repo_id).sha if exists or not dry_run else None
    there = _remote_files(api, repo_id, head) if head else {}
    contents = _contents(folder, _remote_card(api, repo_id, head) if _CARD in there else None)
    changed = {path: data for path, data in contents.items() if not _same(data, there.get(path))}
    size = sum(_size(data) for data in changed.values())
    sent = tuple(sorted(changed))
    if dry_run or not changed:
        return PushedStage(repo_id, head, sent, size)
    commit = api.create_commit(
        repo_id,
        [CommitOperationAdd(path, data) for path, data in sorted(changed.items())],
        commit_message=f"Stage checkpoint {folder.name}",
        parent_commit=head,
    )
    there = _remote_files(api, repo_id, commit.oid)
    wrong = [path for path, data in contents.items() if not _same(data, there.get(path))]
    if wrong:
        raise HubError(f"{repo_id} does not read back as it was sent: {', '.join(sorted(wrong))}.")
    return PushedStage(repo_id, commit.oid, sent, size)


def _contents(folder: Path, card_there: str | None) -> dict[str, Path | bytes]:
    """Every file of a stage by its path in the repository; of the card, what a person wrote there stays."""
    files = sorted(item for item in folder.rglob("*") if item.is_file())
    contents: dict[str, Path | bytes] = {item.relative_to(folder).as_posix(): item for item in files}
    if card_there is not None and _CARD in contents:
        contents[_CARD] = merge_card(card_there, (folder / _CARD).read_text(encoding="utf-8")).encode()
    return contents


def _remote_files(api: HfApi, repo_id: str, revision: str) -> dict[str, RepoFile]:
    tree = api.list_repo_tree(repo_id, recursive=True, revision=revision)
    return {item.path: item for item in tree if isinstance(item, RepoFile)}


def _remote_card(api: HfApi, repo_id: str, revision: str | None) -> str:
    path = api.hf_hub_download(repo_id, _CARD, revision=revision)
    return Path(path).read_text(encoding="utf-8")


def _same(data: Path | bytes, there: RepoFile | None) -> bool:
    """Whether a file of the repository holds these bytes, by its hash: sha256 for LFS, git's own otherwise."""
    if there is None or there.size != _size(data):
        return False
    if there.lfs is not None:
        return there.lfs.sha256 == _digest(data, hashlib.sha256())
    return there.blob_id == _digest(data, hashlib.sha1(b"blob %d\0" % _size(data), usedforsecurity=False))


def _size(data: Path | bytes) -> int:
    return len(data) if isinstance(data, bytes) else data.stat().st_size


def _digest(data: Path | bytes, digest: "hashlib._Hash") -> str:
    if isinstance(data, bytes):
        digest.update(data)
        return digest.hexdigest()
    with data.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _user(api: HfApi) -> str:
    return str(api.whoami()["name"])


def _gather(api: HfApi, title: str, namespace: str, pushed: Sequence[PushedStage], private: bool) -> None:
    """The run's repositories in one collection, as the Hub's own checklist asks for."""
    collection = api.create_collection(title, namespace=namespace, private=private, exists_ok=True)
    for stage in pushed:
        api.add_collection_item(collection.slug, stage.repo_id, "model", exists_ok=True)


def _retried(action: Callable[[], Result], later: str, wait: Callable[[float], None]) -> Result:
    """The result of an action that may be begun again, after a few failures at most.

    Raises:
        HubError: it went on failing, or was refused for a reason that waiting does not mend.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _impatient():
                return action()
        except Exception as error:
            if not _is_the_hubs(error):
                raise
            reason = _reason(error)
            if attempt == ATTEMPTS or not _worth_another_try(error):
                raise HubError(f"Not pushed: {reason} Nothing local is lost. {later}") from error
            pause = _asked_to_wait(error) or FIRST_WAIT * 2 ** (attempt - 1)
            logger.warning("The Hub did not take it (%s); again in %.0f s.", reason, pause)
            wait(pause)
    raise AssertionError("the loop returns or raises")


@contextmanager
def _impatient() -> Iterator[None]:
    """A Hub that neither answers nor hangs up counts as one that is down."""
    session = get_session()
    before, session.timeout = session.timeout, PATIENCE
    try:
        yield
    finally:
        session.timeout = before


def _is_the_hubs(error: Exception) -> bool:
    """Whether network, Hub or credentials are to blame: clients let the errors of their transport through raw."""
    known = (HfHubHTTPError, LocalTokenNotFoundError, HubError, OSError)
    transport = type(error).__module__.partition(".")[0].startswith("httpx")
    upload = isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception)
    return isinstance(error, known) or transport or upload


def _worth_another_try(error: Exception) -> bool:
    if isinstance(error, LocalTokenNotFoundError):
        return False
    status = _status(error)
    return status is None or status in _AGAIN or status >= 500


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _asked_to_wait(error: Exception) -> float | None:
    """Seconds of a Retry-After header, a minute at most."""
    response = getattr(error, "response", None)
    value = "" if response is None else response.headers.get("Retry-After", "")
    return min(float(value), 60.0) if value.isdigit() else None


def _reason(error: Exception) -> str:
    status = _status(error)
    if isinstance(error, LocalTokenNotFoundError) or status == 401:
        return "nobody is logged in who may (run `hf auth login` with a token that can write)."
    if status == 403:
        return "the token may not write there (a read-only token, or another namespace's)."
    return " ".join(str(error).split())[:200] or type(error).__name__


def _later(run: RunDirectory, stages: Sequence[int], namespace: str | None, private: bool) -> str:
    """The one command that does it later."""
    options = f" --namespace {namespace}" if namespace else ""
    options += f" --stage {stages[0]}" if len(stages) == 1 else ""
    options += " --private" if private else ""
    return f"Later: promptccd push {run.path}{options}"

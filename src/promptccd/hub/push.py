"""Push the stages of a run: one repository and one commit per stage.

Any request may fail, so a push can be repeated at any time: the client sends what differs from the repository, on top
of the commit that was read before.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from promptccd.discovery.project.registry import has_registry, load_registry
from promptccd.disk import own_files, problems_of, require_no_links
from promptccd.errors import ConfigurationError, HubError, PromptCCDError, RunError, one_line
from promptccd.models.checkpoint import bounded_waits
from promptccd.runs import RunDirectory
from promptccd.runs.card import CARD, KEPT_METADATA, card_in_repository, merge_card
from promptccd.runs.folder import ASSIGNMENTS, assignments_in
from promptccd.training.options import TrainingArguments
from promptccd.training.progress import CategoryDiscoveryCallback, RunState, TrainingControl
from promptccd.version import __version__

logger = logging.getLogger(__name__)

SILENCE_S = 60.0  # seconds without a byte


@dataclass(frozen=True)
class PushedRepository:
    """The result of a push.

    Attributes:
        repo_id: ``namespace/name``.
        commit: the commit with the files; `None` in a dry run of a repository that does not exist.
        sent: whether a commit was made; in a dry run it is not known, and false.
        listing: content, size and visibility in one line.
    """

    repo_id: str
    commit: str | None
    sent: bool
    listing: str


def client() -> HfApi:
    """A client that names this package and its version in every request."""
    return HfApi(library_name="promptccd", library_version=__version__)


def require_name(name: str, kind: str, remedy: str, *, namespace: bool = True) -> None:
    """Refuse, with a `ConfigurationError`, a name that the Hub would refuse, before anything is computed or sent."""
    try:
        validate_repo_id(name)
        if namespace and "/" not in name:
            raise HFValidationError("a name has the form NAMESPACE/NAME.")
    except HFValidationError as error:
        raise ConfigurationError(
            f"{name!r} cannot be the name of a {kind} on the Hub: {one_line(error)} {remedy}"
        ) from error


def newest_commit(
    name: str, kind: str, *, api: HfApi, private: bool, sdk: str | None, dry_run: bool
) -> str | None:
    """The newest commit of a repository, which is created if missing; `None` in a dry run that would create it.

    Raises:
        ConfigurationError: it is public and should be private.
    """
    if not api.repo_exists(name, repo_type=kind):
        if dry_run:
            return None
        api.create_repo(name, repo_type=kind, private=private, exist_ok=True, space_sdk=sdk)
    info = api.repo_info(name, repo_type=kind)
    if private and not info.private:
        raise ConfigurationError(
            f"{name} is public and --private was given, so nothing was sent. Make it private in its settings on the "
            "Hub, or choose another name."
        )
    return info.sha


def push_files(
    name: str,
    kind: str,
    contents: Mapping[str, Path | bytes],
    *,
    api: HfApi,
    private: bool,
    message: str,
    holds: str,
    sdk: str | None = None,
    replaces: str = "",
    preserved: Sequence[str] = KEPT_METADATA,
    dry_run: bool,
) -> PushedRepository:
    """Add files to a repository, which is created if missing, with at most one commit; other files stay.

    Args:
        name: ``namespace/name``.
        kind: ``model``, ``dataset`` or ``space``.
        contents: files by path. The card is merged with the card of the repository.
        api: the client; see `hub_errors` for what it raises.
        private: whether a public repository is refused.
        message: title of the commit.
        holds: content in words, for the listing that is logged before anything is sent.
        sdk: of a Space.
        replaces: pattern of other files to delete, such as ``*.parquet``; by default no files.
        preserved: keys of the card's metadata that keep the repository's value.
        dry_run: list only.
    """
    head = newest_commit(name, kind, api=api, private=private, sdk=sdk, dry_run=dry_run)
    there = api.list_repo_files(name, repo_type=kind, revision=head) if head else []
    wanted = dict(contents)
    if CARD in there and isinstance(card := wanted.get(CARD), bytes):
        path = api.hf_hub_download(name, CARD, revision=head, repo_type=kind)
        try:
            theirs = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise RunError(f"{CARD} of {name} is not UTF-8: correct it on the Hub, or delete it.") from error
        wanted[CARD] = merge_card(theirs, card.decode(), preserved).encode()
    files = [CommitOperationAdd(path, data) for path, data in sorted(wanted.items())]
    gone = [path for path in there if replaces and fnmatchcase(path, replaces) and path not in wanted]
    size = f"{len(files)} files, {sum(file.upload_info.size for file in files) / 1e6:.1f} MB"
    listing = f"{name} ({kind}, {'private' if private else 'public'}): {size}: {holds}"
    if dry_run:
        return PushedRepository(name, head, False, listing)
    logger.info("Sending %s.", listing)
    commit = api.create_commit(
        name,
        [*files, *map(CommitOperationDelete, gone)],
        commit_message=message,
        repo_type=kind,
        parent_commit=head,
    )
    return PushedRepository(name, commit.oid, commit.oid != head, listing)


@contextmanager
def hub_errors() -> Iterator[None]:
    """Context of a push, whose failure is a `HubError` that names the reason."""
    try:
        with bounded_waits(SILENCE_S):
            yield
    except PromptCCDError:
        raise
    except Exception as error:  # the client passes on whatever an odd answer causes
        raise HubError(
            f"Not pushed: {reason_of(error)}. Nothing local is lost: run the same command again."
        ) from error


def reason_of(error: BaseException) -> str:
    """The Hub's message with its status, or that of the client, on one line without a full stop."""
    responses = [each for each in (error, error.__cause__) if getattr(each, "response", None) is not None]
    about: Any = responses[0] if responses else error  # an upload names its answer as the cause
    reason = one_line(getattr(about, "server_message", None) or about).rstrip(".")
    return f"{reason} ({about.response.status_code})" if responses else reason


# The stages of a run


def push_run(
    run: RunDirectory,
    *,
    namespace: str | None = None,
    stages: Sequence[int] | None = None,
    private: bool = False,
    dry_run: bool = False,
) -> list[PushedRepository]:
    """Push finished stages of a run.

    Args:
        run: the run.
        namespace: user or organisation (default: the logged-in user).
        stages: which stages (default: all finished stages).
        private: whether the repositories must be private.
        dry_run: list only.

    Raises:
        ConfigurationError: the Hub does not accept the names, or a repository is public and should be private.
        RunError: a stage is damaged or missing.
        HubError: the Hub could not be reached or refused; the message names the command that repeats the push.
    """
    finished = list(range(run.stages_on_disk()))
    wanted = finished if stages is None else list(stages)
    if not set(wanted) <= set(finished):
        raise HubError(f"{run.path} has finished stages {finished}, not {wanted}. Give one as --stage.")
    _require_name(run, namespace, max(wanted, default=0))
    api, pushed = client(), list[PushedRepository]()
    for stage in wanted:
        try:
            pushed.append(_push(run, stage, namespace, private, api=api, dry_run=dry_run))
        except HubError as error:
            if dry_run or not pushed:
                raise
            raise HubError(f"Pushed: {', '.join(each.repo_id for each in pushed)}. {error}") from error
    return pushed


class StagePusher(CategoryDiscoveryCallback):
    """Pushes the finished stages during training; a failure is a warning and never ends the training.

    Stages that could not be pushed are pushed with the next stage, or when the training is resumed.

    Args:
        run: the run to be trained.
        namespace: user or organisation (default: the logged-in user).
        private: whether created repositories are private.

    Raises:
        ConfigurationError: the Hub does not accept the names.
    """

    def __init__(self, run: RunDirectory, namespace: str | None, private: bool):
        _require_name(run, namespace, 0)
        self.run, self.namespace, self.private = run, namespace, private
        self._api, self._done = client(), set[int]()

    def on_stage_end(
        self, args: TrainingArguments, state: RunState, control: TrainingControl, metrics: Mapping[str, float]
    ) -> None:
        """Push the stage and those that failed before; other processes wait for it in the next stage."""
        if state.is_main_process:
            self.push()

    def push(self) -> None:
        """Push the finished stages that are not pushed yet."""
        for stage in sorted(set(range(self.run.num_finished)) - self._done):
            try:
                _push(self.run, stage, self.namespace, self.private, api=self._api)
                self._done.add(stage)
            except PromptCCDError as error:
                logger.warning(
                    "Stage %d is not pushed: %s It is tried again with the next stage, or by promptccd push %s.",
                    stage, one_line(error), self.run.path,
                )  # fmt: skip


def push_stage(folder: Path, name: str, *, api: HfApi, private: bool, dry_run: bool) -> PushedRepository:
    """Bring one repository to the state of a stage's folder, with at most one commit.

    Args:
        folder: a finished stage.
        name: ``namespace/name`` of the repository.
        api: the client.
        private: whether the repository must be private.
        dry_run: list only.

    Raises:
        RunError: it contains links; their targets are not published.
        HubError: the stage is damaged, or the Hub could not be reached or refused.
    """
    require_no_links(folder)
    if problems := problems_of(folder):
        raise HubError(
            f"{folder} is damaged and is not pushed: {'; '.join(problems)}. Train the stage again."
        )
    contents: dict[str, Path | bytes] = {each: folder / each for each in own_files(folder)}
    if CARD in contents:
        try:
            card = (folder / CARD).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise HubError(f"{folder / CARD} is not UTF-8: save it again as UTF-8.") from error
        contents[CARD] = card_in_repository(card, name).encode()
    names = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("category_names", [])
    images = len(assignments_in(folder)["category_ids"]) if (folder / ASSIGNMENTS).exists() else 0
    made = len(load_registry(folder).corrections) if has_registry(folder) else 0
    holds = (
        f"weights, the names of {len(names)} categories, the category ids of {images} images, {made} corrections; "
        "no image"
    )
    with hub_errors():
        return push_files(
            name, "model", contents, api=api, private=private, message=f"Stage checkpoint {folder.name}",
            holds=holds, dry_run=dry_run,
        )  # fmt: skip


def _push(
    run: RunDirectory, stage: int, namespace: str | None, private: bool, *, api: HfApi, dry_run: bool = False
) -> PushedRepository:
    """Push one stage; without a namespace, to the user that the client's token is of."""
    with hub_errors():
        owner = namespace or api.whoami(cache=True)["name"]
    name = f"{owner}/{run.name}-stage{stage}"
    pushed = push_stage(run.stage(stage), name, api=api, private=private, dry_run=dry_run)
    if not dry_run:
        logger.info("%s %s.", "Pushed" if pushed.sent else "Up to date:", name)
    return pushed


def _require_name(run: RunDirectory, namespace: str | None, stage: int) -> None:
    """Refuse a name that the Hub does not accept, before a request is sent."""
    name = f"{namespace or 'somebody'}/{run.name}-stage{stage}"
    require_name(name, "model", "Rename the run's folder, or give another --namespace.")

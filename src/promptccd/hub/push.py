"""Push the stages of a run: one repository and one commit per stage, gathered in a collection."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from huggingface_hub import HfApi

from promptccd.disk import own_files, problems_of, require_no_links
from promptccd.errors import HubError, PromptCCDError, one_line
from promptccd.hub.commits import (
    CARD,
    PushedRepository,
    Repository,
    bring,
    client,
    is_temporary,
    own_namespace,
    require_name,
    retried,
)
from promptccd.runs import RunDirectory
from promptccd.runs.card import EXAMPLES, Source, card_in_repository
from promptccd.runs.folder import ASSIGNMENTS, assignments_in
from promptccd.runs.stage import EXEMPLARS, load_exemplars

logger = logging.getLogger(__name__)


def push_run(
    run: RunDirectory,
    *,
    api: HfApi | None = None,
    namespace: str | None = None,
    stages: Sequence[int] | None = None,
    private: bool = False,
    dry_run: bool = False,
    revision: str | None = None,
    pull_request: bool = False,
) -> list[PushedRepository]:
    """Push finished stages of a run and gather their repositories in a collection.

    Args:
        run: the run.
        api: the client; its token must be allowed to write.
        namespace: user or organisation (default: the logged-in user).
        stages: which stages (default: all finished ones).
        private: whether the repositories must be private.
        dry_run: compare only.
        revision: branch to push to, created if missing.
        pull_request: open a pull request in every repository instead of a commit, and no collection.

    Raises:
        ConfigurationError: the Hub does not accept the names.
        RunError: a stage is damaged or missing.
        HubError: the Hub could not be reached or refused; the message names the command that repeats the push.
    """
    finished = range(run.stages_on_disk())
    wanted = list(finished) if stages is None else list(stages)
    later = _later(run, wanted, namespace, private)
    later += f" --revision {revision}" * bool(revision) + " --pull-request" * pull_request
    if not set(wanted) <= set(finished):
        raise HubError(
            f"{run.path} has finished stages {[*finished]}, not {wanted}. Give --stage one of them."
        )
    for stage in wanted:
        _name_of(run, stage, namespace or "somebody")  # before a request is sent
    api = api or client()
    namespace = namespace or retried(lambda: own_namespace(api), later)
    target = Repository("", "model", private, revision=revision, pull_request=pull_request)
    pushed = list[PushedRepository]()
    for stage in wanted:
        try:
            pushed.append(_push(run, stage, namespace, target, api, dry_run=dry_run, later=later))
        except HubError as error:
            if dry_run or not pushed:
                raise
            raise HubError(f"Pushed: {', '.join(each.repo_id for each in pushed)}. {error}") from error
    if not (dry_run or pull_request):
        _gather(api, run, namespace, pushed, private)
    return pushed


def pusher(
    run: RunDirectory, namespace: str | None, private: bool
) -> Callable[[RunDirectory, Sequence[int]], None]:
    """A function that pushes finished stages during training; a failure is a warning and never ends the training.

    Stages that could not be pushed are pushed with the next stage, or when the training is resumed.

    Args:
        run: the run to be trained.
        namespace: user or organisation (default: the logged-in user).
        private: whether created repositories are private.

    Raises:
        ConfigurationError: the Hub does not accept the names.
    """
    _name_of(run, 0, namespace or "somebody")
    done, api, target = set[int](), client(), Repository("", "model", private)

    def push(run: RunDirectory, finished: Sequence[int]) -> None:
        waiting = [stage for stage in finished if stage not in done]
        for stage in waiting:
            try:
                owner = namespace or retried(lambda: own_namespace(api), "")
                pushed = _push(run, stage, owner, target, api)
            except Exception as error:  # whatever it is, the training continues
                is_expected = isinstance(error, PromptCCDError)
                logger.warning(
                    "Stage %d is not pushed. %s It is tried again with the next stage. %s",
                    stage,
                    one_line(error),
                    _later(run, [stage], namespace, private),
                    exc_info=None if is_expected else error,
                )
                cause = error.__cause__ if isinstance(error, HubError) else None
                if isinstance(cause, Exception) and is_temporary(cause):
                    break  # the Hub is down for the other stages too
                continue
            done.add(stage)
            _gather(api, run, owner, [pushed], private)

    return push


def push_stage(
    folder: Path,
    repository: Repository,
    *,
    api: HfApi,
    dry_run: bool = False,
    later: str = "",
    related: Sequence[str] = (),
    source: Source | None = None,
) -> PushedRepository:
    """Bring one repository to the state of a stage's folder, with at most one commit.

    Args:
        folder: a finished stage.
        repository: the target.
        api: the client.
        dry_run: compare only.
        later: the command that repeats the push, for messages.
        related: links for its card, in Markdown.
        source: the stage that this one is a copy of, if it was not trained here.

    Raises:
        RunError: it holds links; what they point to is not published.
        HubError: the stage is damaged, the Hub could not be reached or refused, or what was read back differs.
    """
    require_no_links(folder)
    if problems := problems_of(folder):
        raise HubError(
            f"{folder} is damaged and is not pushed: {'; '.join(problems)}. Train the stage again."
        )
    contents: dict[str, Path | bytes] = {name: folder / name for name in own_files(folder)}
    if CARD in contents:
        try:
            card = (folder / CARD).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise HubError(f"{folder / CARD} is not UTF-8: save it again as UTF-8.") from error
        contents[CARD] = card_in_repository(card, repository.name, related, source).encode()
    return retried(
        lambda: bring(
            repository, contents, api=api, message=f"Stage checkpoint {folder.name}", holds=_contents_of(folder),
            dry_run=dry_run,
        ),
        later,
    )  # fmt: skip


def _push(
    run: RunDirectory,
    stage: int,
    namespace: str,
    target: Repository,
    api: HfApi,
    *,
    dry_run: bool = False,
    later: str = "",
) -> PushedRepository:
    """Push one stage."""
    name, fetched = _name_of(run, stage, namespace), run.fetched
    before = _name_of(run, stage - 1, namespace) if stage else ""
    pushed = push_stage(
        run.stage(stage),
        replace(target, name=name),
        api=api,
        dry_run=dry_run,
        later=later,
        related=[f"Stage before: [{before.partition('/')[2]}]({api.endpoint}/{before})"] if stage else [],
        source=Source.of(fetched[stage], stage, is_copy=True) if stage in fetched else None,
    )
    if not dry_run:
        logger.info("%s %s.", "Pushed" if pushed.sent else "Up to date:", name)
    return pushed


def _name_of(run: RunDirectory, stage: int, namespace: str) -> str:
    """Repository of a stage.

    Raises:
        ConfigurationError: the Hub does not accept the name.
    """
    name = f"{namespace}/{run.name}-stage{stage}"
    require_name(name, "model", "Rename the run's folder, or give another --namespace.")
    return name


def _contents_of(folder: Path) -> str:
    """What readers of a pushed stage can see."""
    names = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("category_names", [])
    parts = [f"weights, the names of {len(names)} categories"]
    if (folder / ASSIGNMENTS).exists():
        parts.append(f"the category ids of {len(assignments_in(folder)['category_ids'])} images")
    if (folder / EXEMPLARS).exists():
        parts.append(f"the row numbers of {len(load_exemplars(folder).sample_ids)} replayed images")
    pictures = len(list((folder / EXAMPLES).glob("*")))
    return f"{', '.join(parts)}, corrections; {f'{pictures} example images' if pictures else 'no image'}"


def _gather(
    api: HfApi, run: RunDirectory, namespace: str, pushed: Sequence[PushedRepository], private: bool
) -> None:
    """Put repositories into the run's collection; a failure is a warning, because the stages are pushed."""

    def gather() -> None:
        collection = api.create_collection(run.name, namespace=namespace, private=private, exists_ok=True)
        for stage in pushed:
            api.add_collection_item(collection.slug, stage.repo_id, "model", exists_ok=True)

    try:
        retried(gather, _later(run, [], namespace, private), "Pushed, but not added to a collection")
    except HubError as error:
        logger.warning("%s", error)


def _later(run: RunDirectory, stages: Sequence[int], namespace: str | None, private: bool) -> str:
    """The command that repeats a push."""
    options = f" --namespace {namespace}" if namespace else ""
    options += f" --stage {stages[0]}" if len(stages) == 1 else ""
    options += " --private" if private else ""
    return f"Later: promptccd push {run.path}{options}"

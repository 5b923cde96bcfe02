"""Push the stages of a run: one repository a stage, one commit a push, read back afterwards."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from huggingface_hub import HfApi

from promptccd.errors import HubError, PromptCCDError, one_line
from promptccd.hub.client import client
from promptccd.hub.commits import (
    CARD,
    PushedRepository,
    Repository,
    bring,
    may_pass,
    own_namespace,
    reason_of,
    require_name,
    retried,
)
from promptccd.models.hub_answers import impatient, words_of
from promptccd.runs import RunDirectory
from promptccd.runs.card_usage import EXAMPLES, placed
from promptccd.runs.folder import ASSIGNMENTS, assignments_in
from promptccd.runs.origin import Source
from promptccd.runs.stage import EXEMPLARS, load_exemplars
from promptccd.storage import own_files, problems_of, require_no_links

logger = logging.getLogger(__name__)

OPTIONAL = 10.0  # seconds for what a push can do without


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
        namespace: user or organisation; by default the one who is logged in.
        stages: which stages; by default all that are finished.
        private: whether the repositories have to be private.
        dry_run: only say what would be sent.
        revision: branch to push to, made if it is not there.
        pull_request: open one in every repository instead of a commit; they are put into no collection.

    Raises:
        ConfigurationError: the Hub takes no repositories of such names.
        RunError: a stage is damaged or missing.
        HubError: the Hub could not be reached or refused; the message names the command to run later.
    """
    api = api or client()
    finished = range(run.stages_on_disk())
    wanted = list(finished) if stages is None else list(stages)
    later = _later(run, wanted, namespace, private)
    later += f" --revision {revision}" * bool(revision) + " --pull-request" * pull_request
    if not set(wanted) <= set(finished):
        raise HubError(
            f"{run.path} has finished stages {[*finished]}, not {wanted}. Give --stage one of them."
        )
    for stage in wanted:
        # mutant or to and, without operand 1: the first stage below refuses it as well
        # mutant without operand 2: None is as good a name as somebody
        _repository_of(run, stage, namespace or "somebody")  # before anybody is asked
    pushed = list[PushedRepository]()
    namespace = namespace or retried(lambda: own_namespace(api), later)
    target = _Target(api, namespace, private, dry_run, revision, pull_request)
    for stage in wanted:
        try:
            pushed.append(_push(run, stage, target, later))
        except HubError as error:
            if dry_run or not pushed:
                raise
            there = ", ".join(each.repo_id for each in pushed)
            raise HubError(f"{there} {'is' if len(pushed) == 1 else 'are'} there. {error}") from error
    if not (dry_run or pull_request) and (problem := _gather(api, run, namespace, pushed, private)):
        logger.warning("%s", problem)
    return pushed


@dataclass(frozen=True)
class _Target:
    """Where stages are pushed to, and how; see `push_run`."""

    api: HfApi
    namespace: str
    private: bool
    dry_run: bool = False
    revision: str | None = None
    pull_request: bool = False


def _push(run: RunDirectory, stage: int, target: _Target, later: str) -> PushedRepository:
    """One stage, and a line in the log once it is there."""
    name, fetched = _repository_of(run, stage, target.namespace), run.fetched
    pushed = push_stage(
        run.stage(stage),
        Repository(name, "model", target.private, revision=target.revision, pull_request=target.pull_request),
        api=target.api,
        dry_run=target.dry_run,
        later=later,
        related=partial(_related, run, stage, target),
        source=Source.of(fetched[stage], stage, is_copy=True) if stage in fetched else None,
    )
    if not target.dry_run:
        logger.info("%s %s.", "Pushed" if pushed.sent else "There already:", name)
    return pushed


def _repository_of(run: RunDirectory, stage: int, namespace: str) -> str:
    """What a stage is called on the Hub.

    Raises:
        ConfigurationError: the Hub takes no such name.
    """
    name = f"{namespace}/{run.name}-stage{stage}"
    require_name(
        name, "model", "It is made of a namespace and the name of the run's folder: give another of either."
    )
    return name


def pusher(
    run: RunDirectory, namespace: str | None, private: bool
) -> Callable[[RunDirectory, Sequence[int]], None]:
    """What pushes finished stages during training: a Hub that fails costs a warning and a command for later.

    Stages that the Hub did not take are pushed with the next ones, or when the same training is begun again.

    Args:
        run: the run to be trained.
        namespace: user or organisation; by default the one who is logged in.
        private: whether repositories that are made are private.

    Raises:
        ConfigurationError: the Hub takes no repositories of such names.
    """
    # mutant 0 to 1: the numbers of both stages are one digit long
    _repository_of(run, 0, namespace or "somebody")
    there, said, api = set[int](), set[str](), client()

    def push(run: RunDirectory, finished: Sequence[int]) -> None:
        why = list[str]()
        for stage in (each for each in finished if each not in there):
            try:
                owner = namespace or retried(lambda: own_namespace(api), "")
                pushed = _push(run, stage, _Target(api, owner, private), later="")
                there.add(stage)
                why.append(_gather(api, run, owner, [pushed], private))
            except Exception as error:  # whatever it is, it may not end a training
                cause = error.__cause__ if isinstance(error, HubError) else None
                why.append(reason_of(cause) if isinstance(cause, Exception) else one_line(error))
                if not isinstance(error, PromptCCDError):
                    logger.warning("A mistake of ours in a push.", exc_info=error)
                if isinstance(cause, Exception) and may_pass(cause):
                    break  # the Hub is down, for the others too
        new = " ".join(dict.fromkeys(each for each in why if each and each not in said))
        said.update(why)
        waiting = [stage for stage in finished if stage not in there]
        if waiting:
            logger.warning(
                "Not pushed yet: stage %s. %s Tried again with the next stage. %s Training goes on.",
                ", ".join(map(str, waiting)),
                new or "The reason is as before.",
                _later(run, waiting, namespace, private),
            )
        elif new:
            logger.warning("%s", new)

    return push


def push_stage(
    folder: Path,
    repository: Repository,
    *,
    api: HfApi,
    dry_run: bool = False,
    later: str = "",
    related: Callable[[], Sequence[str]] = tuple,
    source: Source | None = None,
) -> PushedRepository:
    """Bring one repository to the state of a stage's folder, with at most one commit.

    Args:
        folder: a finished stage.
        repository: where it goes.
        api: the client.
        dry_run: only say what would be sent.
        later: the command that does it later, for messages.
        related: makes the links that its card has for what stands beside it.
        source: whose stage this is a copy of, if it was not trained here.

    Raises:
        RunError: it holds links, and what they lead to is not published.
        HubError: the stage is damaged, the Hub could not be reached or refused, or what was read back differs.
    """
    require_no_links(folder)
    if problems := problems_of(folder):
        raise HubError(
            f"{folder} is damaged and is not pushed: {'; '.join(problems)}. Train the stage again."
        )
    files: dict[str, Path | bytes] = {name: folder / name for name in own_files(folder)}
    try:
        card = (folder / CARD).read_text(encoding="utf-8") if CARD in files else ""
    except UnicodeDecodeError as error:
        raise HubError(f"{folder / CARD} is not UTF-8, as the Hub wants it: save it anew as that.") from error
    return retried(
        lambda: bring(
            repository,
            {
                **files,
                **({CARD: placed(card, repository.name, related(), source).encode()} if card else {}),
            },
            api=api,
            message=f"Stage checkpoint {folder.name}",
            holds=_holdings(folder),
            dry_run=dry_run,
        ),
        later,
    )


def _holdings(folder: Path) -> str:
    """What whoever sees a stage learns from it."""
    names = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("category_names", [])
    told = f"weights, the names of {len(names)} categories"
    if (folder / ASSIGNMENTS).exists():
        told += f", the category ids of {len(assignments_in(folder)['category_ids'])} images"
    if (folder / EXEMPLARS).exists():
        told += f", the row numbers of {len(load_exemplars(folder).sample_ids)} images so far"
    pictures = len(list((folder / EXAMPLES).glob("*")))
    shown = f"{pictures} example pictures" if pictures else "no image"
    return f"{told}, and what people corrected; {shown}"


def _related(run: RunDirectory, stage: int, target: _Target) -> list[str]:
    """Links to what stands beside a stage on the Hub; what cannot be asked for is no reason not to push."""
    api, namespace = target.api, target.namespace
    before, own = (_repository_of(run, each, namespace) for each in (stage - 1, stage))

    def collection() -> str | None:
        if target.dry_run or target.pull_request:
            all_of_them = api.list_collections(owner=namespace)
            return next((f"collections/{each.slug}" for each in all_of_them if each.title == run.name), None)
        made = api.create_collection(run.name, namespace=namespace, private=target.private, exists_ok=True)
        return f"collections/{made.slug}"

    asked: dict[str, Callable[[], str | None]] = {
        "Stage before": lambda: before if stage and api.repo_exists(before) else None,
        "All stages": collection,
        "Try it": lambda: next(
            (f"spaces/{each.id}" for each in api.list_spaces(author=namespace, models=own, limit=1)), None
        ),
    }
    links = []
    for what, ask in asked.items():
        try:
            with impatient(OPTIONAL):
                place = ask()
        except Exception as error:
            logger.debug("%s: no link %r on its card (%s).", own, what, words_of(error))
            continue
        label = run.name if what == "All stages" else (place or "").rpartition("/")[2]
        links += [f"{what}: [{label}]({api.endpoint}/{place})"] if place else []
    return links


def _gather(
    api: HfApi, run: RunDirectory, namespace: str, pushed: Sequence[PushedRepository], private: bool
) -> str:
    """Put the run's repositories into one collection, as the Hub's own checklist asks for; why not, if it refuses."""

    def gather() -> None:
        collection = api.create_collection(run.name, namespace=namespace, private=private, exists_ok=True)
        for stage in pushed:
            api.add_collection_item(collection.slug, stage.repo_id, "model", exists_ok=True)

    try:
        retried(gather, _later(run, [], namespace, private), "Pushed, but not gathered in a collection")
    except HubError as error:
        return str(error)
    return ""


def _later(run: RunDirectory, stages: Sequence[int], namespace: str | None, private: bool) -> str:
    """The one command that does it later."""
    options = f" --namespace {namespace}" if namespace else ""
    options += f" --stage {stages[0]}" if len(stages) == 1 else ""
    options += " --private" if private else ""
    return f"Later: promptccd push {run.path}{options}"

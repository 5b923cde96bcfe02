"""Push the stages of a run: one repository and one commit per stage, gathered in a collection."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import HfApi

from promptccd.disk import own_files, problems_of, require_no_links
from promptccd.errors import HubError, PromptCCDError, one_line
from promptccd.hub.commits import (
    CARD,
    PushedRepository,
    Repository,
    client,
    is_temporary,
    push_files,
    require_name,
    retried,
)
from promptccd.runs import RunDirectory
from promptccd.runs.card import EXAMPLES, Source, card_in_repository
from promptccd.runs.folder import ASSIGNMENTS, assignments_in

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
        ConfigurationError: the Hub does not accept the names, or a repository is public and should be private.
        RunError: a stage is damaged or missing.
        HubError: the Hub could not be reached or refused; the message names the command that repeats the push.
    """
    finished = list(range(run.stages_on_disk()))
    wanted = finished if stages is None else list(stages)
    if not set(wanted) <= set(finished):
        raise HubError(f"{run.path} has finished stages {finished}, not {wanted}. Give --stage one of them.")
    target = Repository("", "model", private, revision=revision, pull_request=pull_request)
    push, pushed = _Push(run, namespace, target, api or client(), dry_run), list[PushedRepository]()
    push.require_names(wanted)
    for stage in wanted:
        try:
            pushed.append(push.stage(stage, push.later(wanted)))
        except HubError as error:
            if dry_run or not pushed:
                raise
            raise HubError(f"Pushed: {', '.join(each.repo_id for each in pushed)}. {error}") from error
    if pushed and not (dry_run or pull_request):
        push.gather(pushed)
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
    push, done = _Push(run, namespace, Repository("", "model", private), client()), set[int]()
    push.require_names([0])

    def push_finished(run: RunDirectory, finished: Sequence[int]) -> None:
        for stage in (each for each in finished if each not in done):
            try:
                pushed = push.stage(stage)
            except Exception as error:  # whatever it is, the training continues
                logger.warning(
                    "Stage %d is not pushed. %s It is tried again with the next stage. %s",
                    stage,
                    one_line(error),
                    push.later([stage]),
                    exc_info=None if isinstance(error, PromptCCDError) else error,
                )
                if isinstance(error, HubError) and error.__cause__ and is_temporary(error.__cause__):
                    break  # the Hub is down for the other stages too
                continue
            done.add(stage)
            push.gather([pushed])

    return push_finished


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
        lambda: push_files(
            repository, contents, api=api, message=f"Stage checkpoint {folder.name}", holds=_contents_of(folder),
            dry_run=dry_run,
        ),
        later,
    )  # fmt: skip


@dataclass
class _Push:
    """Stages of a run and where they go; without a namespace, to the user that the client's token is of."""

    run: RunDirectory
    namespace: str | None
    target: Repository
    api: HfApi
    dry_run: bool = False

    def require_names(self, stages: Sequence[int]) -> None:
        """Refuse names that the Hub does not accept, before a request is sent."""
        for stage in stages:
            name = f"{self.namespace or 'somebody'}/{self.run.name}-stage{stage}"
            require_name(name, "model", "Rename the run's folder, or give another --namespace.")

    def stage(self, stage: int, later: str = "") -> PushedRepository:
        """Push one stage."""
        run, fetched = self.run, self.run.fetched
        owner = self.namespace or retried(lambda: self.api.whoami(cache=True)["name"], later)
        name, before = (f"{owner}/{run.name}-stage{each}" for each in (stage, stage - 1))
        link = f"Stage before: [{before.partition('/')[2]}]({self.api.endpoint}/{before})"
        pushed = push_stage(
            run.stage(stage),
            replace(self.target, name=name),
            api=self.api,
            dry_run=self.dry_run,
            later=later,
            related=[link] if stage else [],
            source=Source.of(fetched[stage], stage, is_copy=True) if stage in fetched else None,
        )
        if not self.dry_run:
            logger.info("%s %s.", "Pushed" if pushed.sent else "Up to date:", name)
        return pushed

    def gather(self, pushed: Sequence[PushedRepository]) -> None:
        """Put repositories into the run's collection; a failure is a warning, because the stages are pushed."""
        owner = pushed[0].repo_id.partition("/")[0]

        def gather() -> None:
            collection = self.api.create_collection(
                self.run.name, namespace=owner, private=self.target.private, exists_ok=True
            )
            for stage in pushed:
                self.api.add_collection_item(collection.slug, stage.repo_id, "model", exists_ok=True)

        try:
            retried(gather, self.later([]), "Pushed, but not added to a collection")
        except HubError as error:
            logger.warning("%s", error)

    def later(self, stages: Sequence[int]) -> str:
        """The command that repeats a push."""
        target = self.target
        words = ["Later: promptccd push", self.run.path]
        words += ["--namespace", self.namespace] if self.namespace else []
        words += ["--stage", stages[0]] if len(stages) == 1 else []
        words += ["--private"] if target.private else []
        words += ["--revision", target.revision] if target.revision else []
        words += ["--pull-request"] if target.pull_request else []
        return " ".join(map(str, words))


def _contents_of(folder: Path) -> str:
    """What readers of a pushed stage can see."""
    names = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("category_names", [])
    images = len(assignments_in(folder)["category_ids"]) if (folder / ASSIGNMENTS).exists() else 0
    pictures = len(list((folder / EXAMPLES).glob("*")))
    return (
        f"weights, the names of {len(names)} categories, the category ids of {images} images, corrections; "
        f"{f'{pictures} example images' if pictures else 'no image'}"
    )

"""Push the stages of a run: one repository and one commit per stage."""

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from huggingface_hub import HfApi

from promptccd.disk import own_files, problems_of, require_no_links
from promptccd.errors import HubError, PromptCCDError, one_line
from promptccd.hub.commits import CARD, PushedRepository, client, hub_errors, push_files, require_name
from promptccd.runs import RunDirectory
from promptccd.runs.card import card_in_repository
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
) -> list[PushedRepository]:
    """Push finished stages of a run.

    Args:
        run: the run.
        api: the client; its token must be allowed to write.
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
    api, pushed = api or client(), list[PushedRepository]()
    for stage in wanted:
        try:
            pushed.append(_push(run, stage, namespace, private, api=api, dry_run=dry_run))
        except HubError as error:
            if dry_run or not pushed:
                raise
            raise HubError(f"Pushed: {', '.join(each.repo_id for each in pushed)}. {error}") from error
    return pushed


def pusher(run: RunDirectory, namespace: str | None, private: bool) -> Callable[[], None]:
    """A function that pushes the finished stages during training; a failure is a warning and never ends the training.

    Stages that could not be pushed are pushed with the next stage, or when the training is resumed.

    Args:
        run: the run to be trained.
        namespace: user or organisation (default: the logged-in user).
        private: whether created repositories are private.

    Raises:
        ConfigurationError: the Hub does not accept the names.
    """
    _require_name(run, namespace, 0)
    api, done = client(), set[int]()

    def push_finished() -> None:
        for stage in sorted(set(range(run.num_finished)) - done):
            try:
                _push(run, stage, namespace, private, api=api)
                done.add(stage)
            except PromptCCDError as error:
                logger.warning(
                    "Stage %d is not pushed: %s It is tried again with the next stage, or by promptccd push %s.",
                    stage, one_line(error), run.path,
                )  # fmt: skip

    return push_finished


def push_stage(
    folder: Path, name: str, *, api: HfApi, private: bool = False, dry_run: bool = False
) -> PushedRepository:
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
    holds = f"weights, the names of {len(names)} categories, the category ids of {images} images, corrections; no image"
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

"""The page that demos discovery as a Space of the Hub: one commit, with a checkpoint that is named with its own."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.repocard import RepoCard

from promptccd.errors import ConfigurationError, one_line, shown
from promptccd.hub.client import client
from promptccd.hub.commits import (
    CARD,
    Contents,
    PushedRepository,
    Repository,
    bring,
    made,
    own_namespace,
    require_name,
    retried,
)
from promptccd.models import VARIANTS
from promptccd.models.loading import BACKBONES, find_model
from promptccd.models.stored_files import BACKBONE_TYPES
from promptccd.runs import RunDirectory, stage_of
from promptccd.runs.model_card import BEGIN, END
from promptccd.training.recipe import shipped

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).parents[1]
VARIABLE = "PROMPTCCD_MODEL"
_FOLDER, _FILES = "spaces/discovery", ("app.py", "requirements.txt")
_OWNERS = ("title", "emoji", "colorFrom", "colorTo", "pinned", "short_description", "license")
_OF_AN_EMPTY_SPACE = {".gitattributes", CARD}


@dataclass(frozen=True)
class PushedSpace(PushedRepository):
    """What became of a Space.

    Attributes:
        url: its address.
        model: the model it groups with, which its variable ``PROMPTCCD_MODEL`` names.
        model_changed: whether that was set, or would be.
    """

    url: str
    model: str
    model_changed: bool


def push_space(
    name: str,
    model: str,
    *,
    private: bool = False,
    dry_run: bool = False,
    api: HfApi | None = None,
) -> PushedSpace:
    """Put the page on the Hub, or bring the Space that is there to this version and this checkpoint.

    It holds this package as it is installed here, the versions that the tests run on, and the prepared example. The
    checkpoint stays in a repository of its own: the Space names it with its commit, and later pushes there do not
    change the Space.

    Args:
        name: of the Space, with or without a namespace; made if it is not there.
        model: a finished stage or a DINO backbone on the Hub, at its newest commit unless ``@REVISION`` follows; or a
            backbone that comes along.
        private: whether the Space has to be private.
        dry_run: only say what would be sent.
        api: the client; its token must be allowed to write.

    Raises:
        ConfigurationError: the Hub takes no such name, another Space stands there, or it could not work with the model.
        HubError: the Hub cannot be reached or refuses.
    """
    api = api or client()
    require_name(name, "space", "Give NAME or NAMESPACE/NAME.", namespace=False)
    _refuse_folder(model)
    if "/" not in name:
        name = f"{retried(lambda: own_namespace(api))}/{name}"
    repository = Repository(name, "space", private, sdk="gradio")
    chosen = retried(lambda: _checkpoint(model, api))

    def push() -> tuple[PushedRepository, bool]:
        stands = _stands(repository, chosen, api, dry_run)
        # Before the files, so that their first start knows it.
        changed = not stands or _set_model(name, chosen, api, dry_run)
        brought = bring(
            repository,
            _contents(chosen),
            api=api,
            message=f"The page over {chosen.place}",
            holds=f"the page, its package and the prepared example; it groups by {chosen.place}",
            replaces="promptccd/*",
            kept=_OWNERS,
            dry_run=dry_run,
        )
        return brought, changed

    brought, changed = retried(push)
    if chosen.needs_token:
        logger.warning(
            "Not everybody may read %s: give the Space a secret HF_TOKEN that may, in its settings.",
            chosen.name,
        )
    url = f"{api.endpoint}/spaces/{name}"
    return PushedSpace(**vars(brought), url=url, model=chosen.place, model_changed=changed)


@dataclass(frozen=True)
class _Checkpoint:
    """A model that a Space can work with.

    Attributes:
        name: on the Hub, or of a backbone that comes along.
        commit: the one to use; `None` for a backbone that comes along.
        is_private: whether others must not see it.
        needs_token: whether not everybody may read it.
    """

    name: str
    commit: str | None = None
    is_private: bool = False
    needs_token: bool = False

    @property
    def place(self) -> str:
        """As `find_model` takes it."""
        return f"{self.name}@{self.commit}" if self.commit else self.name


def _refuse_folder(model: str) -> None:
    """Refuse a model on this machine, with the command that puts it where a Space can read it."""
    if not Path(os.path.expanduser(model)).is_dir():
        return
    folder = Path(stage_of(Path(os.path.expanduser(model))))
    run, stage = RunDirectory(folder.parent), folder.name.removeprefix("stage")
    first = f"`hf upload NAMESPACE/{folder.absolute().name} {folder}`, then --model NAMESPACE/{folder.absolute().name}"
    if run.begun and stage.isdecimal():
        first = f"`promptccd push {run.path} --stage {stage}`, then --model {run.name}-stage{stage}"
    raise ConfigurationError(f"{model} lies on this machine, where a Space cannot read it. First {first}.")


def _checkpoint(model: str, api: HfApi) -> _Checkpoint:
    """The model at its newest commit, or at the revision behind its name.

    Raises:
        ConfigurationError: there is none, or one that the page cannot use.
    """
    if model in BACKBONES:
        return _Checkpoint(model)
    try:
        found = find_model(model)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"A Space needs a model of the Hub. {one_line(error)}") from error
    place, kind = found.place, found.values.get("model_type")
    if kind not in (*VARIANTS, *BACKBONE_TYPES):
        raise ConfigurationError(
            f"{place} holds a model of type {shown(kind)}: give a finished stage or a DINO backbone, one of "
            f"{', '.join((*VARIANTS, *BACKBONE_TYPES))}."
        )
    info = api.model_info(place)
    return _Checkpoint(
        place, found.options.get("revision") or info.sha, bool(info.private), bool(info.private or info.gated)
    )


def _stands(repository: Repository, chosen: _Checkpoint, api: HfApi, dry_run: bool) -> bool:
    """Whether the Space is there; it is made unless this is a dry run.

    Raises:
        ConfigurationError: it is another Space, or would give a private model away.
    """
    if chosen.is_private and not repository.private:
        raise ConfigurationError(
            f"{chosen.name} is private, and whoever visits a public Space can take its model away: give --private, or "
            "make the model public."
        )
    if made(repository, api=api, dry_run=dry_run) is None:
        return False  # mutant: it is asked whether it is true alone
    others = set(api.list_repo_files(repository.name, repo_type="space")) - _OF_AN_EMPTY_SPACE
    if others and "promptccd/__init__.py" not in others:
        raise ConfigurationError(
            f"{repository.name} is another Space already, which holds {', '.join(sorted(others)[:3])}, so nothing was "
            "sent. Give another name, or delete that Space on the Hub."
        )
    return True


def _set_model(name: str, chosen: _Checkpoint, api: HfApi, dry_run: bool) -> bool:
    """Let the Space work with the checkpoint; returns whether it did not before."""
    known = api.get_space_variables(name).get(VARIABLE)
    changed = known is None or known.value != chosen.place
    if changed and not dry_run:
        api.add_space_variable(name, VARIABLE, chosen.place, description="the model that groups, at a commit")
    return changed


def _contents(chosen: _Checkpoint) -> Contents:
    """Every file of the Space by its path there."""
    folder = shipped(_FOLDER)
    contents: dict[str, Path | bytes] = {name: folder / name for name in _FILES}
    for file in PACKAGE.rglob("*"):
        path = file.relative_to(PACKAGE)
        hidden = any(part.startswith((".", "__pycache__")) for part in path.parts)
        if file.is_file() and not hidden and path.parts[0] not in ("hub_configs", "spaces"):
            contents[f"promptccd/{path.as_posix()}"] = file
    card = RepoCard((folder / CARD).read_text(encoding="utf-8"))
    card.text = f"\n{BEGIN}\n\n{card.text.strip()}\n\n{END}\n"
    card.data["models"] = [chosen.name] if chosen.commit else []
    contents[CARD] = str(card).encode()
    return contents

"""The page of discovery as a Space of the Hub: one commit, over a checkpoint at a fixed commit."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi

from promptccd.errors import ConfigurationError, one_line, shown
from promptccd.hub.commits import (
    CARD,
    Contents,
    PushedRepository,
    Repository,
    bring,
    client,
    created,
    own_namespace,
    require_name,
    retried,
)
from promptccd.hub.metric import SPACE_KEYS, space_card
from promptccd.models import VARIANTS
from promptccd.models.checkpoint import BUNDLED, find_model
from promptccd.models.configuration import BACKBONE_TYPES
from promptccd.runs import RunDirectory, stage_of
from promptccd.training.recipe import shipped

logger = logging.getLogger(__name__)

PACKAGE_FOLDER = Path(__file__).parents[1]
VARIABLE = "PROMPTCCD_MODEL"
_OF_AN_EMPTY_SPACE = {".gitattributes", CARD}


@dataclass(frozen=True)
class PushedSpace(PushedRepository):
    """The result of pushing a Space.

    Attributes:
        url: its address.
        model: the model that groups, which its variable ``PROMPTCCD_MODEL`` names.
        model_changed: whether the variable was set, or would be.
    """

    url: str
    model: str
    model_changed: bool


@dataclass(frozen=True)
class _Checkpoint:
    """A model for a Space.

    Attributes:
        name: repository, or a bundled backbone.
        commit: its commit; `None` for a bundled backbone.
        is_private: whether only some users may read it.
        is_gated: whether reading it needs a token.
    """

    name: str
    commit: str | None = None
    is_private: bool = False
    is_gated: bool = False

    @property
    def place(self) -> str:
        """Name with commit, as `find_model` accepts it."""
        return f"{self.name}@{self.commit}" if self.commit else self.name


def push_space(
    name: str, model: str, *, private: bool = False, dry_run: bool = False, api: HfApi | None = None
) -> PushedSpace:
    """Put the page on the Hub, or bring its Space to this version and this checkpoint.

    The Space holds the installed package, the tested versions and the prepared example. The checkpoint stays in its own
    repository: the Space names its commit, so later pushes there do not change the Space.

    Args:
        name: of the Space, with or without a namespace; created if missing.
        model: a finished stage or a DINO backbone on the Hub (default: its newest commit; ``NAME@REVISION`` for
            another), or a bundled backbone.
        private: whether the Space must be private.
        dry_run: compare only.
        api: the client; its token must be allowed to write.

    Raises:
        ConfigurationError: the Hub does not accept the name, another Space has it, or the model does not fit.
        HubError: the Hub could not be reached or refused.
    """
    api = api or client()
    require_name(name, "Space", "Give NAME or NAMESPACE/NAME.", namespace=False)
    _refuse_folder(model)
    if "/" not in name:
        name = f"{retried(lambda: own_namespace(api))}/{name}"
    repository = Repository(name, "space", private, sdk="gradio")
    checkpoint = retried(lambda: _checkpoint(model, api))
    if checkpoint.is_private and not private:
        raise ConfigurationError(
            f"{checkpoint.name} is private, and visitors of a public Space could copy it: give --private, or make the "
            "model public."
        )

    def push() -> tuple[PushedRepository, bool]:
        exists = created(repository, api=api, dry_run=dry_run) is not None
        if exists:
            _require_same_space(name, api)
        # The variable first, so that the first start of the Space knows it.
        changed = not exists or _set_model(name, checkpoint, api, dry_run)
        pushed = bring(
            repository,
            _contents(checkpoint),
            api=api,
            message=f"The page over {checkpoint.place}",
            holds=f"the page, its package and the prepared example; it groups with {checkpoint.place}",
            replaces="promptccd/*",
            preserved=SPACE_KEYS,
            dry_run=dry_run,
        )
        return pushed, changed

    pushed, changed = retried(push)
    if checkpoint.is_gated:
        logger.warning(
            "%s needs a token: add a secret HF_TOKEN in the settings of the Space.", checkpoint.name
        )
    url = f"{api.endpoint}/spaces/{name}"
    return PushedSpace(**vars(pushed), url=url, model=checkpoint.place, model_changed=changed)


def _refuse_folder(model: str) -> None:
    """Refuse a local model, with the command that puts it on the Hub."""
    if not Path(os.path.expanduser(model)).is_dir():
        return
    folder = Path(stage_of(Path(os.path.expanduser(model))))
    run, stage = RunDirectory(folder.parent), folder.name.removeprefix("stage")
    name = f"NAMESPACE/{folder.absolute().name}"
    first = f"`hf upload {name} {folder}`, then --model {name}"
    if run.begun and stage.isdecimal():
        first = f"`promptccd push {run.path} --stage {stage}`, then --model {run.name}-stage{stage}"
    raise ConfigurationError(f"{model} is a local folder, which a Space cannot read. First {first}.")


def _checkpoint(model: str, api: HfApi) -> _Checkpoint:
    """The model at its newest commit, or at the revision behind its name.

    Raises:
        ConfigurationError: the model does not exist, or the page cannot use it.
    """
    if model in BUNDLED:
        return _Checkpoint(model)
    try:
        found = find_model(model)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"A Space needs a model of the Hub. {one_line(error)}") from error
    place, kind = found.place, found.values.get("model_type")
    if kind not in (*VARIANTS, *BACKBONE_TYPES):
        raise ConfigurationError(
            f"{place} is a model of type {shown(kind)}: give a finished stage or a DINO backbone, one of "
            f"{', '.join((*VARIANTS, *BACKBONE_TYPES))}."
        )
    info = api.model_info(place)
    commit = found.options.get("revision") or info.sha
    return _Checkpoint(place, commit, bool(info.private), bool(info.private or info.gated))


def _require_same_space(name: str, api: HfApi) -> None:
    """Refuse to overwrite a Space with other content."""
    others = set(api.list_repo_files(name, repo_type="space")) - _OF_AN_EMPTY_SPACE
    if others and "promptccd/__init__.py" not in others:
        raise ConfigurationError(
            f"{name} is another Space with {', '.join(sorted(others)[:3])}, so nothing was sent. Give another name, or "
            "delete that Space on the Hub."
        )


def _set_model(name: str, checkpoint: _Checkpoint, api: HfApi, dry_run: bool) -> bool:
    """Set the Space's model; returns whether it was another one."""
    value = api.get_space_variables(name).get(VARIABLE)
    changed = value is None or value.value != checkpoint.place
    if changed and not dry_run:
        api.add_space_variable(
            name, VARIABLE, checkpoint.place, description="the model that groups, at a commit"
        )
    return changed


def _contents(checkpoint: _Checkpoint) -> Contents:
    """Every file of the Space by its path there."""
    folder = shipped("spaces/discovery")
    contents: dict[str, Path | bytes] = {name: folder / name for name in ("app.py", "requirements.txt")}
    for file in PACKAGE_FOLDER.rglob("*"):
        path = file.relative_to(PACKAGE_FOLDER)
        hidden = any(part.startswith((".", "__pycache__")) for part in path.parts)
        if file.is_file() and not hidden and path.parts[0] not in ("hub_configs", "spaces"):
            contents[f"promptccd/{path.as_posix()}"] = file
    card = space_card(folder)
    card.data["models"] = [checkpoint.name] if checkpoint.commit else []
    contents[CARD] = str(card).encode()
    return contents

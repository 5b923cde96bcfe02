"""Spaces of the Hub: the page of discovery over a checkpoint at a fixed commit."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.repocard import RepoCard

from promptccd.errors import ConfigurationError, one_line, shown
from promptccd.hub.push import PushedRepository, client, hub_errors, newest_commit, push_files, require_name
from promptccd.models import VARIANTS
from promptccd.models.checkpoint import BUNDLED, CONFIGURATION, find_model
from promptccd.models.configuration import BACKBONE_TYPES
from promptccd.runs.card import BEGIN, CARD, END
from promptccd.training.recipe import shipped

logger = logging.getLogger(__name__)

VARIABLE = "PROMPTCCD_MODEL"
_PACKAGE = Path(__file__).parents[1]
_CARD_KEYS = ("title", "emoji", "colorFrom", "colorTo", "pinned", "short_description", "license")
_OF_AN_EMPTY_SPACE = {".gitattributes", CARD}


@dataclass(frozen=True)
class PushedSpace(PushedRepository):
    """The result of pushing a Space.

    Attributes:
        url: its address.
        model: the model that groups, which its variable ``PROMPTCCD_MODEL`` names.
    """

    url: str
    model: str


def push_space(
    name: str, model: str, *, private: bool = False, dry_run: bool = False, api: HfApi | None = None
) -> PushedSpace:
    """Put the page on the Hub, or bring its Space to this version and this checkpoint.

    The Space contains the installed package, the tested versions and the prepared example. The checkpoint stays in its
    own repository: the Space names its commit, so later pushes there do not change the Space.

    Args:
        name: of the Space, with or without a namespace; created if missing.
        model: a finished stage or a DINO backbone on the Hub (default: its newest commit; ``NAME@REVISION`` for
            another), or a bundled backbone.
        private: whether the Space must be private.
        dry_run: list only.
        api: the client; its token must be allowed to write.

    Raises:
        ConfigurationError: the Hub does not accept the name, another Space has it, or the model does not fit.
        HubError: the Hub could not be reached or refused.
    """
    api = api or client()
    require_name(name, "Space", "Give NAME or NAMESPACE/NAME.", namespace=False)
    with hub_errors():
        if "/" not in name:
            name = f"{api.whoami(cache=True)['name']}/{name}"
        place = _place_of(model, api, private)
        if newest_commit(name, "space", api=api, private=private, sdk="gradio", dry_run=dry_run) is not None:
            _require_same_space(name, api)
        if not dry_run:  # before the first start of the Space
            value = api.get_space_variables(name).get(VARIABLE)
            if value is None or value.value != place:
                api.add_space_variable(
                    name, VARIABLE, place, description="the model that groups, at a commit"
                )
        pushed = push_files(
            name, "space", _contents(place), api=api, private=private, message=f"The page over {place}",
            holds=f"the page, its package and the prepared example; it groups with {place}", sdk="gradio",
            replaces="promptccd/*", preserved=_CARD_KEYS, dry_run=dry_run,
        )  # fmt: skip
    return PushedSpace(**vars(pushed), url=f"{api.endpoint}/spaces/{name}", model=place)


def _place_of(model: str, api: HfApi, private: bool) -> str:
    """The model with the commit that it has now, or that its name gives; a bundled backbone has no commit.

    Raises:
        ConfigurationError: the model does not exist, the page cannot use it, or a public Space would show it.
    """
    if model in BUNDLED:
        return model
    if Path(os.path.expanduser(model)).is_dir():
        raise ConfigurationError(
            f"{model} is a local folder, which a Space cannot read. First `promptccd push RUN --stage N`, then --model "
            "with the name of that repository."
        )
    try:
        found = find_model(model, (CONFIGURATION,))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"A Space needs a model of the Hub. {one_line(error)}") from error
    name, kind = found.place, found.values.get("model_type")
    if kind not in (*VARIANTS, *BACKBONE_TYPES):
        raise ConfigurationError(
            f"{name} is a model of type {shown(kind)}: give a finished stage or a DINO backbone among "
            f"{', '.join((*VARIANTS, *BACKBONE_TYPES))}."
        )
    info = api.model_info(name)
    if info.private and not private:
        raise ConfigurationError(
            f"{name} is private, and visitors of a public Space could copy it: give --private, or make the model "
            "public."
        )
    if info.private or info.gated:
        logger.warning("%s needs a token: add a secret HF_TOKEN in the settings of the Space.", name)
    return f"{name}@{found.revision or info.sha}"


def _require_same_space(name: str, api: HfApi) -> None:
    """Refuse to overwrite a Space with other content."""
    others = set(api.list_repo_files(name, repo_type="space")) - _OF_AN_EMPTY_SPACE
    if others and "promptccd/__init__.py" not in others:
        raise ConfigurationError(
            f"{name} is another Space with {', '.join(sorted(others)[:3])}, so nothing was sent. Give another name, or "
            "delete that Space on the Hub."
        )


def _contents(place: str) -> dict[str, Path | bytes]:
    """Every file of the Space by its path there."""
    folder = shipped("spaces/discovery")
    contents: dict[str, Path | bytes] = {name: folder / name for name in ("app.py", "requirements.txt")}
    for file in _PACKAGE.rglob("*"):
        path = file.relative_to(_PACKAGE)
        hidden = any(part.startswith((".", "__pycache__")) for part in path.parts)
        if file.is_file() and not hidden and path.parts[0] not in ("hub_configs", "spaces"):
            contents[f"promptccd/{path.as_posix()}"] = file
    card = RepoCard((folder / CARD).read_text(encoding="utf-8"))
    card.text = f"\n{BEGIN}\n\n{card.text.strip()}\n\n{END}\n"  # a person's own text survives a push
    card.data["models"] = [place.partition("@")[0]] if place not in BUNDLED else []
    return {**contents, CARD: str(card).encode()}

"""The metric cACC as a Space of the Hub, from which ``evaluate.load`` reads it."""

from importlib.metadata import version
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.repocard import RepoCard

from promptccd.errors import ConfigurationError
from promptccd.hub.commits import CARD, PushedRepository, Repository, bring, client, require_name, retried
from promptccd.runs.card import BEGIN, END
from promptccd.training.recipe import shipped

SPACE_KEYS = ("title", "emoji", "colorFrom", "colorTo", "pinned", "short_description", "license")


def space_card(folder: Path, **replaced: str) -> RepoCard:
    """The card of a bundled Space, its text between the markers so that a person's own text survives a push.

    Args:
        folder: of the Space.
        replaced: ``old`` and ``new``: a text and its replacement.
    """
    card = RepoCard((folder / CARD).read_text(encoding="utf-8"))
    text = card.text.strip()
    card.text = (
        f"\n{BEGIN}\n\n{text.replace(replaced['old'], replaced['new']) if replaced else text}\n\n{END}\n"
    )
    return card


def push_metric(
    name: str, *, private: bool = False, dry_run: bool = False, api: HfApi | None = None
) -> PushedRepository:
    """Put the metric cACC on the Hub, or bring its Space to this version.

    The commit gets the tag that ``evaluate`` of this environment asks for first, such as ``v0.4.6``.

    Args:
        name: ``namespace/cacc``, because `evaluate` looks for a file with the name of the Space.
        private: whether the Space must be private.
        dry_run: compare only.
        api: the client; its token must be allowed to write.

    Raises:
        ConfigurationError: the Hub does not accept the name, or `evaluate` would not find the metric there.
        HubError: the Hub could not be reached or refused.
    """
    api = api or client()
    require_name(name, "Space", "Give NAMESPACE/cacc.")
    namespace, _, own_name = name.partition("/")
    if own_name != "cacc":
        raise ConfigurationError(
            f"evaluate looks for cacc.py in a Space called cacc: give {namespace}/cacc, not {name}."
        )
    folder = shipped("spaces/cacc")
    card = space_card(folder, old='"./spaces/cacc")  # or the id of this Space', new=f'"{name}")')
    files = {each: folder / each for each in ("cacc.py", "app.py", "requirements.txt")}
    tag = f"v{version('evaluate')}"

    def push() -> PushedRepository:
        pushed = bring(
            Repository(name, "space", private, sdk="gradio"),
            {**files, CARD: str(card).encode()},
            api=api,
            message="Continual clustering accuracy",
            holds=f"the metric cACC, with the tag {tag}",
            preserved=SPACE_KEYS,
            dry_run=dry_run,
        )
        if not dry_run:
            tags = {
                each.name: each.target_commit for each in api.list_repo_refs(name, repo_type="space").tags
            }
            if tag in tags and tags[tag] != pushed.commit:
                api.delete_tag(name, tag=tag, repo_type="space")
            if tags.get(tag) != pushed.commit:
                api.create_tag(name, tag=tag, revision=pushed.commit, repo_type="space")
        return pushed

    return retried(push)

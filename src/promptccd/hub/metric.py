"""The metric as a Space of the Hub, from where ``evaluate.load`` reads it."""

from importlib.metadata import version

from huggingface_hub import HfApi
from huggingface_hub.repocard import RepoCard

from promptccd.errors import ConfigurationError
from promptccd.hub.client import client
from promptccd.hub.commits import CARD, Contents, PushedRepository, Repository, bring, require_name, retried
from promptccd.runs.model_card import BEGIN, END
from promptccd.training.recipe import shipped

_FILES = ("cacc.py", "app.py", "requirements.txt")
_OWNERS = ("title", "emoji", "colorFrom", "colorTo", "pinned", "short_description", "license")


def push_metric(
    name: str, *, private: bool = False, dry_run: bool = False, api: HfApi | None = None
) -> PushedRepository:
    """Put the metric cACC on the Hub, or bring the Space that is there to this version.

    It gets the tag that ``evaluate`` of this environment asks for first, ``v0.4.6`` for one.

    Args:
        name: ``namespace/name`` of the Space; the name has to be ``cacc``, as `evaluate` looks for a file of that name.
        private: whether it has to be private.
        dry_run: only say what would be sent.
        api: the client; its token must be allowed to write.

    Raises:
        ConfigurationError: the Hub takes no such name, or `evaluate` would not find the metric there.
        HubError: the Hub cannot be reached or refuses.
    """
    api = api or client()
    require_name(name, "space", "Give NAMESPACE/cacc.")
    if name.partition("/")[2] != "cacc":
        raise ConfigurationError(
            f"evaluate looks for a file of the name of its Space, and the metric is cacc.py: give "
            f"{name.partition('/')[0]}/cacc, not {name}."
        )
    folder = shipped("spaces/cacc")
    card = RepoCard((folder / CARD).read_text(encoding="utf-8"))
    text = card.text.strip().replace('"./spaces/cacc")  # or the id of this Space', f'"{name}")')
    card.text = f"\n{BEGIN}\n\n{text}\n\n{END}\n"
    contents: Contents = {**{each: folder / each for each in _FILES}, CARD: str(card).encode()}
    tag = f"v{version('evaluate')}"

    def push() -> PushedRepository:
        brought = bring(
            Repository(name, "space", private, sdk="gradio"),
            contents,
            api=api,
            message="Continual clustering accuracy",
            holds=f"the metric cACC, with the tag {tag}",
            kept=_OWNERS,
            dry_run=dry_run,
        )
        if not dry_run:
            tags = {
                each.name: each.target_commit for each in api.list_repo_refs(name, repo_type="space").tags
            }
            if tag in tags and tags[tag] != brought.commit:
                api.delete_tag(name, tag=tag, repo_type="space")
            if tags.get(tag) != brought.commit:
                api.create_tag(name, tag=tag, revision=brought.commit, repo_type="space")
        return brought

    return retried(push)

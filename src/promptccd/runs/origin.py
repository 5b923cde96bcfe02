"""Where a stage's weights come from, and under which licence they may be passed on: one home for cards and checks."""

import os
import re
from dataclasses import dataclass
from typing import Any

import yaml
from huggingface_hub.repocard import RepoCard

from promptccd.errors import one_line, shown
from promptccd.models.loading import BACKBONES, file_of

HUB = "https://huggingface.co"
CARD = "README.md"
LICENCE_KEYS = ("license", "license_name", "license_link")
# What the Hub takes as `license`; every other one is "other", with a name.
_LISTED = """
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
    afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
    cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0
    lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl
    openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license
    fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma
    """
LISTED = frozenset(_LISTED.split())


@dataclass(frozen=True)
class Licence:
    """Under which licence weights may be passed on.

    Attributes:
        id: as the Hub calls it; `None` where nobody has said it.
        name: of one that the Hub has no word for.
        link: to its text.
        reason: where it comes from, or why it is unknown; a part of a sentence.
    """

    id: str | None
    name: str | None = None
    link: str | None = None
    reason: str = ""

    @property
    def metadata(self) -> dict[str, Any]:
        """The keys of a card."""
        given = zip(LICENCE_KEYS, (self.id, self.name, self.link), strict=True)
        return {key: value for key, value in given if value}

    def __str__(self) -> str:
        if self.id is None:
            return (
                f"Under which licence the weights may be passed on is not known: {self.reason}. Ask, and set `license` "
                "at the top of this card."
            )
        name = f"`{self.id}`" if self.name is None else f"`{self.name}`"
        return f"The weights are under {f'[{name}]({self.link})' if self.link else name}, {self.reason}."


OWN = Licence("apache-2.0", reason="for they were made here from nothing")


def licence_of(backbone: str | None) -> Licence:
    """The licence of weights that begin with a backbone: a name on the Hub, a folder, one that comes along, or none."""
    if backbone is None:
        return OWN
    place = os.path.expanduser(BACKBONES.get(backbone, backbone))
    is_here = os.path.isdir(place)
    name = "the backbone in a local folder" if is_here and backbone not in BACKBONES else f"`{backbone}`"
    try:
        path = file_of(place, CARD)
    except Exception as error:  # a dozen kinds, from a missing repository to a dead connection
        return Licence(None, reason=f"the card of {name} could not be read ({one_line(error)[:120]})")
    if path is None:
        return Licence(None, reason=f"{name} has no card")
    with open(path, encoding="utf-8", errors="replace") as file:
        return licence_on(file.read(), name, None if is_here else backbone)


def licence_on(card: str, name: str, repo_id: str | None) -> Licence:
    """The licence that a card names.

    Args:
        card: its text, by anybody.
        name: what the card is of, in words.
        repo_id: its repository, which a link may be relative to; `None` if it lies in a folder.
    """
    try:
        values: dict[str, Any] = RepoCard(card, ignore_metadata_errors=True).data.to_dict()
    except (ValueError, TypeError, yaml.YAMLError):
        values = {}
    listed = values.get("license")
    given = listed[0] if isinstance(listed, list) and len(listed) == 1 else listed
    if not isinstance(given, str) or given.lower() in ("", "unknown"):
        what = "names no licence" if not given else f"says {shown(given)}"
        return Licence(None, reason=f"the card of {name} {what}")
    theirs = _word(values.get("license_name"))
    link = _link(values.get("license_link"), repo_id)
    reason = f"as the card of {name} says, which they began with"
    if given.lower() in LISTED:
        return Licence(given.lower(), reason=reason)
    called = theirs or (None if given.lower() == "other" else _word(given))
    page = f"{HUB}/{repo_id}" if repo_id else None
    return Licence(
        "other", called or f"that-of-{(repo_id or 'the-backbone').replace('/', '-')}", link or page, reason
    )


def _word(value: Any) -> str | None:
    """A name of a licence, as the Hub takes one."""
    plain = (
        re.sub(r"[^a-z0-9.-]+", "-", str(value).lower()).strip("-.")[:96] if isinstance(value, str) else ""
    )
    return plain or None


def _link(value: Any, repo_id: str | None) -> str | None:
    """A link that can be followed from another repository."""
    if not isinstance(value, str) or not value.strip() or re.search(r"[\s()<>\[\]]", value.strip()):
        return None
    link = value.strip()
    if re.match(r"https?://", link):
        return link
    return f"{HUB}/{repo_id}/blob/main/{link.lstrip('./')}" if repo_id and ":" not in link else None


@dataclass(frozen=True)
class Source:
    """A repository that stages were fetched from.

    Attributes:
        repo_id: of the last of these stages; empty for a folder.
        commit: that was fetched.
        stage: its number.
        is_copy: whether it is this very stage, and not the one before what was trained here.
    """

    repo_id: str
    commit: str
    stage: int
    is_copy: bool = False

    @classmethod
    def of(cls, place: str, stage: int, is_copy: bool = False) -> "Source":
        """From ``namespace/name@commit``, as a run records it."""
        repo_id, _, commit = place.partition("@")
        return cls(repo_id, commit, stage, is_copy)

    @classmethod
    def on(cls, card: str) -> "Source | None":
        """What a card says that the stage comes from, or `None`."""
        found = re.search(
            r"^(?P<what>Continued from|A copy of) \[(?P<repo>[\w.-]+/[\w.-]+?-stage(?P<stage>\d{1,9}))\]\(\S+\) at "
            r"commit `(?P<commit>[0-9a-f]{7,64})`",
            card,
            re.MULTILINE,
        )
        if found is None:
            return None
        return cls(found["repo"], found["commit"], int(found["stage"]), found["what"] == "A copy of")

    def __str__(self) -> str:
        place = "a stage that lay in a local folder"
        if self.repo_id:
            address = f"{HUB}/{self.repo_id}/tree/{self.commit}"
            place = f"[{self.repo_id}]({address}) at commit `{self.commit}`"
        if self.is_copy:
            return f"A copy of {place}, which was trained there, not here."
        until = "Stage 0 was" if self.stage == 0 else f"Stages 0 to {self.stage} were"
        return f"Continued from {place}. {until} trained there; settings and log below are of the later ones."

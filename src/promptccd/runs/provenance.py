"""Source and licence of a stage: which weights it continues from, and under which licence they may be distributed."""

import os
import re
from dataclasses import dataclass
from typing import Any

import yaml
from huggingface_hub.repocard import RepoCard

from promptccd.errors import one_line, shown
from promptccd.models.checkpoint import BUNDLED, file_of

HUB = "https://huggingface.co"
CARD = "README.md"
LICENCE_KEYS = ("license", "license_name", "license_link")
# Values that the Hub accepts as `license`; any other licence is "other" with a name.
_HUB_LICENCES = """
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0
    bigcode-openrail-m afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc
    cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0
    cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0
    cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1
    eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c
    ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa
    unlicense zlib pddl lgpl-lr deepfloyd-if-license fair-noncommercial-research-license llama2 llama3 llama3.1
    llama3.2 llama3.3 llama4 grok2-community gemma
    """
HUB_LICENCES = frozenset(_HUB_LICENCES.split())


@dataclass(frozen=True)
class Licence:
    """A licence of weights.

    Attributes:
        id: identifier on the Hub; `None` if unknown.
        name: name of a licence that the Hub does not list.
        link: address of its text.
        reason: why this licence holds, or why it is unknown; a clause.
    """

    id: str | None
    name: str | None = None
    link: str | None = None
    reason: str = ""

    @property
    def metadata(self) -> dict[str, Any]:
        """The licence as keys of a card's metadata."""
        values = zip(LICENCE_KEYS, (self.id, self.name, self.link), strict=True)
        return {key: value for key, value in values if value}

    def __str__(self) -> str:
        if self.id is None:
            return (
                f"The licence of the weights is unknown: {self.reason}. Ask for it, then set `license` at the top of "
                "this card."
            )
        name = f"`{self.name or self.id}`"
        return f"The weights are under {f'[{name}]({self.link})' if self.link else name}, {self.reason}."


OWN = Licence("apache-2.0", reason="because they were trained from scratch")


def licence_of(backbone: str | None) -> Licence:
    """The licence that weights inherit from a backbone.

    Args:
        backbone: repository on the Hub, local folder or bundled backbone; `None` for one pretrained from scratch.
    """
    if backbone is None:
        return OWN
    place = os.path.expanduser(BUNDLED.get(backbone, backbone))
    is_local = os.path.isdir(place)
    name = "the backbone in a local folder" if is_local and backbone not in BUNDLED else f"`{backbone}`"
    try:
        path = file_of(place, CARD)
    except Exception as error:  # a missing repository, a dead connection: a dozen types
        return Licence(None, reason=f"the card of {name} could not be read ({one_line(error)[:120]})")
    if path is None:
        return Licence(None, reason=f"{name} has no card")
    with open(path, encoding="utf-8", errors="replace") as file:
        return licence_on(file.read(), name, None if is_local else backbone)


def licence_on(card: str, name: str, repo_id: str | None) -> Licence:
    """The licence that a card names.

    Args:
        card: text of the card, written by anybody.
        name: what the card describes, in words.
        repo_id: its repository, to resolve a relative link; `None` for a local folder.
    """
    try:
        values: dict[str, Any] = RepoCard(card, ignore_metadata_errors=True).data.to_dict()
    except (ValueError, TypeError, yaml.YAMLError):
        values = {}
    stated = values.get("license")
    stated = stated[0] if isinstance(stated, list) and len(stated) == 1 else stated
    if not isinstance(stated, str) or stated.lower() in ("", "unknown"):
        reason = "names no licence" if not stated else f"states {shown(stated)}"
        return Licence(None, reason=f"the card of {name} {reason}")
    reason = f"as the card of {name} states, from which training started"
    link = _link(values.get("license_link"), repo_id)
    if stated.lower() in HUB_LICENCES:
        return Licence(stated.lower(), reason=reason)
    default = f"licence-of-{(repo_id or 'the-backbone').replace('/', '-')}"
    own_name = _word(values.get("license_name")) or (None if stated.lower() == "other" else _word(stated))
    return Licence("other", own_name or default, link or (f"{HUB}/{repo_id}" if repo_id else None), reason)


def _word(value: Any) -> str | None:
    """A licence name in the characters that the Hub accepts."""
    return (isinstance(value, str) and re.sub(r"[^a-z0-9.-]+", "-", value.lower()).strip("-.")[:96]) or None


def _link(value: Any, repo_id: str | None) -> str | None:
    """An absolute address; `None` if the value is none and cannot become one."""
    if not isinstance(value, str) or not value.strip() or re.search(r"[\s()<>\[\]]", value.strip()):
        return None
    link = value.strip()
    if re.match(r"https?://", link):
        return link
    return f"{HUB}/{repo_id}/blob/main/{link.lstrip('./')}" if repo_id and ":" not in link else None


@dataclass(frozen=True)
class Source:
    """The stage that a stage was copied or continued from.

    Attributes:
        repo_id: its repository; empty for a local folder.
        commit: the fetched commit.
        stage: its number.
        is_copy: whether it is the same stage, not an earlier one that training continued from.
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
        """The source that a card names, or `None`."""
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
        place = "a stage in a local folder"
        if self.repo_id:
            place = f"[{self.repo_id}]({HUB}/{self.repo_id}/tree/{self.commit}) at commit `{self.commit}`"
        if self.is_copy:
            return f"A copy of {place}, which was trained there."
        until = "Stage 0 was" if self.stage == 0 else f"Stages 0 to {self.stage} were"
        return (
            f"Continued from {place}. {until} trained there; settings and log below are of the later stages."
        )

"""How people name a model of the Hub: ``user/x``, ``user/x@revision``, its address, or a bare name of their own."""

import glob
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from huggingface_hub import constants, get_token, is_offline_mode, whoami

from .hub_answers import impatient, words_of

NAMESPACE_VARIABLE = "PROMPTCCD_NAMESPACE"
_PATIENCE = 10.0  # seconds to be told who is logged in, without which there are other ways
_PART = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
_HOSTS = r"(?:(?:https?:/+)?(?:www\.)?(?:huggingface\.co|hf\.co)/+|hf:/+|git@hf\.co:)"
_WRITTEN = re.compile(
    rf"{_HOSTS}?(?:models/(?=[^/@]+/[^/@]+/*(?:@|$)))?(?P<name>(?:(?:datasets|spaces)/(?=[^/@]+/[^/@]))?"
    rf"{_PART}(?:/{_PART})?)"
    r"(?:/(?:tree|commit)/(?P<tree>refs/[a-z]+/[^/?#]+|[^/?#]+)|/(?:blob|resolve|raw)/(?P<file>[^/?#]+)/[^?#]+"
    r"|@(?P<at>[^@?#\s]*[^@?#\s/]))?/*(?:[?#].*)?",
    re.IGNORECASE,
)


def parted(written: str) -> tuple[str, str | None]:
    """The name of a model and the revision behind it, of whatever people type or paste.

    A folder is returned as it is, whatever its name, and so is what cannot be of the Hub. Of data sets and Spaces the
    name begins with ``datasets/`` or ``spaces/``.
    """
    text = written.strip()
    if os.path.isdir(written) or text.startswith((".", "/", "~")):
        return written, None
    if text.startswith(f"{constants.ENDPOINT}/"):
        text = f"hf:/{text.removeprefix(constants.ENDPOINT)}"
    found = _WRITTEN.fullmatch(text)
    if found is None:
        return written, None
    revision = found["at"] or found["tree"] or found["file"]
    return found["name"].removesuffix(".git"), None if revision is None else unquote(revision)


def places_of(name: str, options: Mapping[str, Any], why: list[str]) -> Iterator[str]:
    """Full names that a bare name may have, in order; the Hub is asked who is logged in only for the last of them.

    Args:
        name: without a namespace.
        options: `promptccd.models.loading.HUB_OPTIONS`.
        why: gets a sentence for every place that cannot be named.
    """
    namespace = os.environ.get(NAMESPACE_VARIABLE)
    if namespace:
        yield f"{namespace}/{name}"
    user = _user(options, why)
    if user:
        others = [user]
    else:
        cache = Path(options.get("cache_dir") or constants.HF_HUB_CACHE).expanduser()
        end = f"--{name}"
        folders = sorted(cache.glob(f"models--*{glob.escape(end)}"))
        others = [each.name.removeprefix("models--").removesuffix(end) for each in folders]
        others = [each for each in others if "--" not in each]
    if len(others) > 1:
        why.append(f"The cache has it of {', '.join(others)}: say whose.")
        return
    yield from (f"{each}/{name}" for each in others if each != namespace)


def _user(options: Mapping[str, Any], why: list[str]) -> str | None:
    """Who is logged in."""
    given = options.get("token")
    token = given if isinstance(given, str) else None if given is False else get_token()
    if options.get("local_files_only") or is_offline_mode():
        why.append("Whose it is was not asked, since the Hub is not to be.")
    elif token is None:
        why.append("Nobody is logged in (`hf auth login`).")
    else:
        try:
            with impatient(_PATIENCE):
                return str(whoami(token=token, cache=True)["name"])
        except Exception as error:  # whatever the network or a wrong token makes of it
            why.append(f"The Hub did not say who is logged in: {words_of(error)}.")
    return None

"""What the Hub answers, or a network in front of it: in its own words, and waited for within bounds."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

from huggingface_hub import get_session
from huggingface_hub.utils import hf_raise_for_status, parse_ratelimit_headers

from promptccd.errors import one_line, shown

LONGEST_WAIT = 60.0  # seconds that the Hub may ask to be left alone; its client would obey for hours
_NO_WORDS = re.compile(r"<(script|style|title)\b.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE)


def is_of_the_hub(error: BaseException) -> bool:
    """Whether an error was raised inside the Hub's client: it lets errors of any kind through, of odd answers too."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__", "").partition(".")[0] == "huggingface_hub" for frame in frames)


def response_of(error: BaseException) -> Any:
    """The answer that an error or one of its causes is about; `None` if there was none."""
    answers = (getattr(each, "response", None) for each in _causes(error))
    return next((each for each in answers if each is not None), None)


def is_silence(error: BaseException) -> bool:
    """Whether no answer came in time."""
    kinds = {kind.__name__ for each in _causes(error) for kind in type(each).__mro__}
    return not kinds.isdisjoint(("TimeoutError", "TimeoutException"))  # ours, and of httpx or httpx2


def words_of(error: BaseException) -> str:
    """What the Hub said, else what an answer shows, else what the client says; on one line, without a full stop."""
    causes = list(_causes(error))
    said = next((each.server_message for each in causes if getattr(each, "server_message", None)), None)
    response = response_of(error)
    if response is not None:
        code = str(response.status_code)
        said = _plain(said or _text_of(response)) or response.reason_phrase or f"it answered {code}"
        said = said.rstrip(".")
        return said if code in said else f"{said} ({code})"
    if is_silence(error):
        return "no answer came in time"
    if isinstance(error, json.JSONDecodeError):
        page = ": a gateway, or a network's page for logging in" if "<" in error.doc else ""
        return f"it answered {shown(_plain(error.doc)) if error.doc else 'nothing'}, which is no JSON{page}"
    if isinstance(error, LookupError | TypeError | AttributeError | UnicodeError):
        return f"it answered nothing that a Hub does ({type(error).__name__}: {one_line(error)})"
    return one_line(causes[-1]).rstrip(".")


def wait_asked_for(response: Any) -> float | None:
    """Seconds for which an answer asks to be left alone; `None` if it does not say."""
    value = response.headers.get("Retry-After", "")
    if value.isdecimal():
        return float(value)
    limit = parse_ratelimit_headers(response.headers)
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None


@contextmanager
def impatient(seconds: float) -> Iterator[None]:
    """Bound what the client would wait for ever: silence, and an answer that asks to wait longer than `LONGEST_WAIT`.

    Args:
        seconds: without a byte, after which a request fails, and after which none is begun again.

    Raises:
        Exception: of the client, at once, for what it would otherwise repeat.
    """
    hooks, asked = get_session().event_hooks, list[float]()

    def begin(request: Any) -> None:
        if request.method != "PUT":  # uploads, some at once, are answered when their bytes are there
            asked.append(time.monotonic())
            if asked[-1] - asked[0] > seconds:
                raise TimeoutError(f"no answer for {seconds:.0f} s")
        limits = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {
            each: seconds if limits.get(each) is None else limits[each]
            for each in ("connect", "read", "write", "pool")
        }

    def end(response: Any) -> None:
        asked.clear()
        if response.status_code in (429, 503) and (wait_asked_for(response) or 0) > LONGEST_WAIT:
            hf_raise_for_status(response)

    hooks["request"].insert(0, begin)  # the innermost decides
    hooks["response"].append(end)
    try:
        yield
    finally:
        hooks["request"].remove(begin)
        hooks["response"].remove(end)


def _causes(error: BaseException) -> Iterator[Any]:
    """An error and what it was raised from, the first cause last; a chain may be a circle."""
    cause: BaseException | None = error
    seen = set[int]()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _text_of(response: Any) -> str:
    try:
        return str(response.text)
    except Exception:  # a body that was never read, or is in no encoding
        return ""


def _plain(text: str) -> str:
    """The words of a page, or a text as it is, on one line."""
    begin = text[:10_000].strip()
    words = _NO_WORDS.sub(" ", begin) if begin.startswith("<") else begin
    return one_line(" ".join(words.split())) if words.strip() else ""

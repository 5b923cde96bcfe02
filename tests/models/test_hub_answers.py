"""What an error of the Hub's client says, and how long the client is let wait."""

import json
import time
from collections.abc import Callable

import httpx
import pytest
from huggingface_hub import HfApi, get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import http_backoff

from promptccd.models.hub_answers import (
    impatient,
    is_of_the_hub,
    is_silence,
    response_of,
    wait_asked_for,
    words_of,
)
from tests.hub.conftest import hub, waits  # noqa: F401 - fixtures
from tests.hub.server import BAD_GATEWAY, PORTAL, Fault, Hub


def answer(status: int = 400, text: str = "", **headers: str) -> httpx.Response:
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(
        status, text=text, headers=headers, request=httpx.Request("GET", "https://hub.example")
    )


def raised(by: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:
        by()
    return caught.value


def test_an_error_is_the_hubs_where_it_was_raised_in_its_client(hub: Hub) -> None:  # noqa: F811
    for fault in (BAD_GATEWAY, PORTAL, Fault(status=200, body=b"[]")):
        hub.clear_plans()
        hub.plan(lambda request: True, fault)
        assert is_of_the_hub(raised(lambda: HfApi().create_collection("title", namespace="user")))
    assert not is_of_the_hub(raised(lambda: 1 / 0))
    assert not is_of_the_hub(ValueError("never raised"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HfHubHTTPError("x", response=answer(402), server_message="Pay first."), "Pay first (402)"),
        (HfHubHTTPError("x", response=answer(402), server_message="402: pay first"), "402: pay first"),
        (HfHubHTTPError("x", response=answer(413, "<html><h1>Too\nlarge</h1>")), "Too large (413)"),
        (HfHubHTTPError("x", response=answer(413, "<title>T</title><script>x</script>Big")), "Big (413)"),
        (HfHubHTTPError("x", response=answer(503)), "Service Unavailable (503)"),
        (HfHubHTTPError("x", response=answer(521)), "it answered 521"),
        (HfHubHTTPError("x", response=answer(400), server_message="take <b>"), "take <b> (400)"),
        (HfHubHTTPError("x", response=answer(400, "a\x1b[31mb")), "a\\x1b[31mb (400)"),
        (json.JSONDecodeError("x", "", 0), "it answered nothing, which is no JSON"),
        (json.JSONDecodeError("x", '{"a": ', 0), """it answered '{"a":', which is no JSON"""),
        (
            json.JSONDecodeError("x", "<p>Log in", 0),
            "it answered 'Log in', which is no JSON: a gateway, or a network's page for logging in",
        ),
        *(
            (kind, f"it answered nothing that a Hub does ({type(kind).__name__}: x)")
            for kind in (TypeError("x"), AttributeError("x"), UnicodeError("x"), IndexError("x"))
        ),
        (KeyError("sha"), "it answered nothing that a Hub does (KeyError: 'sha')"),
        (httpx.ReadTimeout("read"), "no answer came in time"),
        (TimeoutError(), "no answer came in time"),
        (httpx.ConnectError("[Errno 111] Connection refused."), "[Errno 111] Connection refused"),
    ],
)
def test_an_error_is_told_in_the_words_of_who_answered(error: Exception, said: str) -> None:
    assert words_of(error) == said
    assert is_silence(error) == (said == "no answer came in time")


def test_a_body_that_was_never_read_is_no_word() -> None:
    unread = httpx.Response(
        503, stream=httpx.ByteStream(b"page"), request=httpx.Request("GET", "https://hub.example")
    )
    assert words_of(HfHubHTTPError("x", response=unread)) == "Service Unavailable (503)"


def test_the_first_cause_speaks() -> None:
    first = HfHubHTTPError("inner", response=answer(403), server_message="Storage is full")
    outer = RuntimeError("Error while uploading")
    outer.__cause__ = first
    assert words_of(outer) == "Storage is full (403)"
    assert response_of(outer) is first.response
    outer.__cause__ = ValueError("refused metadata")
    assert words_of(outer) == "refused metadata"
    assert response_of(outer) is None
    while_handling = AttributeError("no attribute")
    while_handling.__context__ = first
    assert response_of(while_handling) is first.response
    while_handling.__suppress_context__ = True
    assert response_of(while_handling) is None
    outer.__cause__ = outer
    assert words_of(outer) == "Error while uploading"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry_After": "7"}, 7.0),
        ({"Retry_After": "Wed, 21 Oct 2099 07:28:00 GMT"}, None),
        ({"Retry_After": "-1"}, None),
        ({"RateLimit": '"api";r=0;t=55'}, 55.0),
        ({"RateLimit": '"api";r=3;t=55'}, None),
        ({}, None),
    ],
)
def test_how_long_an_answer_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert wait_asked_for(answer(429, **headers)) == seconds


def test_silence_is_waited_for_no_longer_than_was_said_and_not_twice(
    hub: Hub,  # noqa: F811
    waits: list[float],  # noqa: F811
) -> None:
    hub.add("user/repo", {"a": b""})
    hub.plan(lambda request: True, Fault(silent=True), 10)
    began = time.monotonic()
    with impatient(0.3):
        assert is_silence(raised(lambda: list(HfApi().list_repo_tree("user/repo"))))
    assert 0.3 <= time.monotonic() - began < 3
    assert len(hub.log) == 1, "the client would ask six times"
    hub.clear_plans()
    with impatient(0.0001):  # an answer begins the count anew
        get_session().get(f"{hub.url}/api/whoami-v2", timeout=5)
        get_session().get(f"{hub.url}/api/whoami-v2", timeout=5)
    hooks = get_session().event_hooks
    assert len(hooks["request"]) == 1
    assert hooks["response"] == []


@pytest.mark.parametrize(("seconds", "sleeps"), [(60, [61]), (61, [])])
@pytest.mark.parametrize("status", [429, 503])
def test_a_wait_of_more_than_a_minute_is_not_obeyed(
    hub: Hub,  # noqa: F811
    waits: list[float],  # noqa: F811
    status: int,
    seconds: int,
    sleeps: list[float],
) -> None:
    hub.add("user/repo", {"a": b""})
    hub.plan(lambda request: True, Fault(status=status, retry_after=seconds, words="Quota"))

    def asks() -> object:
        return http_backoff("GET", f"{hub.url}/api/models/user/repo", retry_on_status_codes=(status,))

    with impatient(5):
        if sleeps:
            asks()
        else:
            assert words_of(raised(asks)) == f"Quota ({status})"
    assert waits == sleeps


def test_the_inner_patience_counts(hub: Hub) -> None:  # noqa: F811
    with impatient(0.2), impatient(3):
        hub.plan(lambda request: True, Fault(delay=0.5))
        assert HfApi().whoami()["name"] == "user"

"""Host names and origins of a page, and the headers of its answers."""

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from promptccd.discovery.page.server import RequestFilter, Site
from tests.discovery.page.conftest import asked

HOME = Site.of_machine()
NETWORK = Site.of_machine("0.0.0.0", ["Photos.example.org"])
SPACE = Site.of_environment(
    {"SPACE_HOST": "user-space.hf.space, groups.example.org", "PROMPTCCD_HOSTS": "other.example.org"}
)
ADDED = Site.of_environment({"PROMPTCCD_HOSTS": "a.example, B.example"})


@pytest.mark.parametrize(
    ("site", "host", "is_ours"),
    [
        (HOME, "127.0.0.1:7860", True),
        (HOME, "localhost:7860", True),
        (HOME, "LOCALHOST:7860", True),
        (HOME, "[::1]:7860", True),
        (HOME, "localhost:8080", True),  # through a tunnel
        (HOME, "", False),
        (HOME, "evil.example:7860", False),
        (HOME, "localhost.evil.example:7860", False),
        (HOME, "127.0.0.1.evil.example", False),
        (HOME, "evil.example:127.0.0.1", False),
        (HOME, "192.168.1.5:7860", False),
        (HOME, "[2001:db8::1]", False),
        (HOME, "user@localhost", False),
        (HOME, "localhost:7860, evil.example", False),
        (NETWORK, "192.168.1.5:7860", True),
        (NETWORK, "photos.example.org", True),
        (NETWORK, "evil.example", False),
        (Site.of_machine("workstation"), "workstation:7860", True),
        (Site.of_machine("192.168.1.5"), "192.168.1.5:7860", True),
        (SPACE, "user-space.hf.space", True),
        (SPACE, "groups.example.org", True),
        (SPACE, "other.example.org:443", True),
        (SPACE, "10.0.3.7:7860", True),  # what looks whether it is alive
        (SPACE, "evil.hf.space", False),
        (ADDED, "b.example", True),
        (ADDED, "192.168.1.5", False),
        (Site.of_environment({"GRADIO_SERVER_NAME": "0.0.0.0"}), "192.168.1.5", True),
    ],
)
def test_hosts(site: Site, host: str, is_ours: bool) -> None:
    assert site.has_host(host) is is_ours


@pytest.mark.parametrize(
    ("site", "host", "origin", "is_ours"),
    [
        (HOME, "localhost:7860", "http://localhost:7860", True),
        (HOME, "photos.example.org", "https://photos.example.org", True),  # a proxy in front that speaks TLS
        (HOME, "localhost:7860", "http://localhost:3000", False),  # another page of this machine
        (HOME, "localhost:7860", "http://127.0.0.1:7860", False),
        (HOME, "localhost:7860", "null", False),
        (HOME, "localhost:7860", "", False),
        (HOME, "localhost:7860", "file://localhost:7860", False),
        (HOME, "localhost:7860", "https://evil.example", False),
        (SPACE, "user-space.hf.space", "https://user-space.hf.space", True),
        (SPACE, "10.0.3.7:7860", "https://user-space.hf.space", True),  # a proxy keeps the name to itself
        (SPACE, "user-space.hf.space", "https://huggingface.co", False),
        (SPACE, "user-space.hf.space", "https://evil.hf.space", False),
    ],
)
def test_origins(site: Site, host: str, origin: str, is_ours: bool) -> None:
    assert site.has_origin(origin, host) is is_ours


def filtered(app: ASGIApp) -> RequestFilter:
    """Refuses a path, and adds a header to every answer."""

    def refusal(request: Request) -> Response | None:
        if request.url.path != "/refused":
            return None
        return PlainTextResponse("No tea.", 418, {"x-owner": "nobody", "retry-after": "7"})

    return RequestFilter(app, [refusal], lambda request: {"x-owner": request.url.path})


def test_headers_are_added_to_every_answer_and_no_other_origin_is_let_in() -> None:
    sent = {"X-Owner": "the application", "Access-Control-Allow-Origin": "*", "x-kept": "yes"}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("here", headers=sent)(scope, receive, send)

    response, refused = (asked(filtered(app), "GET", path) for path in ("/a", "/refused"))
    assert (response.status_code, response.text) == (200, "here")
    assert response.headers.get_list("x-owner") == ["/a"] and response.headers["x-kept"] == "yes"
    assert "access-control-allow-origin" not in response.headers
    assert (refused.status_code, refused.text, refused.headers["retry-after"]) == (418, "No tea.", "7")
    assert refused.headers.get_list("x-owner") == ["/refused"]

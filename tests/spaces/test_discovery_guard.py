"""The page among strangers: foreign names and foreign pages learn nothing, by whatever route they ask."""

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.testclient import TestClient

from promptccd.discovery.page.server import Site
from tests.kept import kept_text
from tests.messages import TEXT
from tests.spaces.conftest import Server, Visitor

SPACE = "user-space.hf.space"
ROUTES = ("/", "/config", "/gradio_api/upload", "/gradio_api/file=x", "/gradio_api/queue/join")
FOREIGN_ORIGINS = ("http://evil.example", "https://huggingface.co", "http://localhost:3000", "null", "")


@pytest.fixture(scope="module")
def space(server: Server) -> TestClient:
    """The same page as a Space answers, without its proxies."""
    app = server.space.app(Site.of_environment({"SPACE_HOST": SPACE}))
    return TestClient(app, f"http://{SPACE}", client=("10.1.1.1", 1))


def lets_nobody_in(answer: httpx.Response) -> bool:
    return not any(name.lower().startswith("access-control") for name in answer.headers)


def test_the_page_is_what_it_was(server: Server) -> None:
    """What browsers are told of it, and what Gradio was told, a line each: only `Space` and Gradio decide it."""
    config, blocks = httpx.get(f"{server.url}config", trust_env=False).json(), server.space.blocks
    page = "title head show_error footer_links run_history max_file_size pwa analytics_enabled"
    props = "elem_id label value scale min_width variant size equal_height file_count file_types container"
    event = "targets inputs outputs queue api_name show_progress show_progress_on js api_visibility"
    event += " trigger_only_on_success"
    given = bool(config["css"]), blocks.delete_cache, blocks.enable_monitoring, blocks.ssr_mode
    lines: list[Any] = [
        {each: config[each] for each in page.split()},
        [*given, blocks._queue.max_size],
    ]
    for each in config["components"]:
        own_props = {name: each["props"][name] for name in props.split() if name in each["props"]}
        lines.append([each["type"], own_props])
    for each in config["dependencies"]:
        own = blocks.fns[each["id"]]
        lines.append([{name: each[name] for name in event.split()}, own.concurrency_limit])
    text = "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in lines)
    text = text.replace(server.space._model_name(), "<model>")
    assert text == kept_text("space.jsonl", text)


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "PUT"])
def test_no_route_answers_by_a_foreign_name_or_to_a_foreign_page(server: Server, method: str) -> None:
    own = urlsplit(server.url)
    foreign = [({"Host": host}, 421) for host in ("evil.example", f"evil.example:{own.port}")]
    refused = 403 if method in ("GET", "HEAD", "POST") else 405
    foreign += [({"Origin": origin}, refused) for origin in FOREIGN_ORIGINS]
    if method == "POST":  # a browser that sends no origin still says where it comes from
        foreign.append(({"Sec-Fetch-Site": "cross-site"}, 403))
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        for route in ROUTES:
            for headers, status in foreign:
                answer = client.request(method, route, headers=headers)
                assert answer.status_code == status, (route, headers)
                assert lets_nobody_in(answer) and "\n" not in answer.text
        answer = client.request(method, "/config", headers={"Origin": f"http://{own.netloc}"})
        assert answer.status_code == {"GET": 200}.get(method, 405)
        assert lets_nobody_in(answer)


def test_other_ways_of_naming_the_page(server: Server) -> None:
    address = urlsplit(server.url)
    own = f"GET / HTTP/1.1\r\nHost: {address.netloc}\r\n"
    for request, status in (
        (f"GET /config HTTP/1.1\r\nHost: [::1]:{address.port}\r\n\r\n", 200),
        ("GET / HTTP/1.0\r\n\r\n", 421),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        (f"{own}Host: evil.example\r\n\r\n", 400),
        (f"GET http://evil.example/config HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n", 404),
        (f"{own}Origin: http://evil.example\r\nOrigin: x\r\n\r\n", 403),
        (
            "GET /gradio_api/queue/data HTTP/1.1\r\nHost: evil.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
            421,
        ),
    ):
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(request.encode())
            connection.settimeout(10)
            answer = connection.recv(65536)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), (request, answer[:100])
        assert b"evil.example" not in answer
        assert b"access-control" not in answer.lower()
    others = [httpx.get(f"{server.url}{each}", trust_env=False) for each in ("gradio_api/file=x", "docs")]
    assert {(each.status_code, each.text) for each in others} == {(404, TEXT["there-is-no-such-page-here"])}


def test_cookies_are_those_of_a_page_of_ones_own_and_of_a_frame_of_the_hub(
    server: Server, space: TestClient
) -> None:
    assert server.space.blocks.analytics_enabled is False
    own = httpx.get(server.url, trust_env=False).headers["set-cookie"]
    assert "HttpOnly" in own and "SameSite=Lax" in own and "Secure" not in own
    said = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": SPACE}
    shown = space.get("/", headers=said)
    assert shown.status_code == 200
    assert f'"root":"https://{SPACE}' in shown.text
    assert "https://huggingface.co" in shown.headers["content-security-policy"]
    cookie = shown.headers["set-cookie"]
    parts = ("promptccd_visitor", "SameSite=None", "Secure", "Partitioned", "HttpOnly")
    assert all(part in cookie for part in parts)
    again = space.get("/", headers={**said, "Cookie": cookie.partition(";")[0]})
    assert again.status_code == 200
    assert "set-cookie" not in again.headers, "a new one would be a new visit"
    mine = {"Origin": f"https://{SPACE}", "Sec-Fetch-Site": "same-origin"}
    reset = space.post("/gradio_api/reset", json={"event_id": "x"}, headers=mine)
    assert reset.status_code == 200
    assert space.get("/", headers={"Host": "10.0.3.7:7860"}).status_code == 200  # is it alive?
    for headers, status in (
        ({"Host": "evil.example"}, 421),
        ({"X-Forwarded-Host": "evil.example"}, 421),
        ({"Origin": "https://evil.hf.space"}, 403),
        ({"Origin": "null"}, 403),
    ):
        answer = space.get("/config", headers=headers)
        assert answer.status_code == status
        assert lets_nobody_in(answer)


@pytest.mark.fault(45)
def test_an_upload_without_room_is_told_to_come_back(
    space: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptccd.discovery.page.space.SPARE_BYTES", 2**60)
    answer = space.post("/gradio_api/upload", files={"files": ("a.png", b"x")})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "60")


@pytest.mark.fault(43)
def test_who_begins_an_upload_and_does_not_end_it_keeps_nobody_waiting(server: Server) -> None:
    address = urlsplit(server.url)
    head = f"POST /gradio_api/upload HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 1000000\r\n"
    begun: list[socket.socket] = []
    try:
        for _ in range(100):
            begun.append(socket.create_connection((address.hostname, address.port)))
            begun[-1].sendall(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n--b".encode())
        assert httpx.get(f"{server.url}config", trust_env=False, timeout=30).status_code == 200
    finally:
        for connection in begun:
            connection.close()


def test_the_screens_keep_to_a_strict_policy(visitor: Visitor) -> None:
    page = visitor.get(visitor.base)
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy and page.headers["x-content-type-options"] == "nosniff"
    assert visitor.get(f"{visitor.base}desk.js").content == visitor.get("/desk/desk.js").content

"""The page left alone among strangers: foreign names and pages, half-sent uploads, visitors who fill the disk."""

import asyncio
import contextlib
import json
import os
import re
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from promptccd.data.limits import MIB
from tests.discovery.app.half_sent import in_background, send_half, wait_for
from tests.spaces.conftest import LIMITS, pictures
from tests.spaces.visitor import Visitor, as_file

pytest.importorskip("gradio", reason="the app needs gradio: pip install 'promptccd[space]'")

from promptccd.discovery.app import Page, PageLimits, Site, build_app
from promptccd.discovery.app.guard import COOKIE, RequestGuard
from promptccd.discovery.app.server import PageServer
from promptccd.discovery.app.store import Patience

REAL = os.environ.get("PROMPTCCD_REAL_TIMES") == "1"  # the figures of the Space: half a minute
SMALL = PageLimits(
    disk_bytes=64 * MIB,
    request_bytes=2 * MIB,
    untaken_s=2.0,
    patience=Patience() if REAL else Patience(request_s=1.0, upload_s=30.0, unread_s=3.0),
)
SPACE = "user-space.hf.space"
FOREIGN_ORIGINS = ("http://evil.example", "https://huggingface.co", "http://localhost:3000", "null", "")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Path) -> Iterator[Page]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("uploads")))
        made = build_app(str(backbone_folder), limits=LIMITS, page_limits=SMALL)
        yield made
        made.close()


@pytest.fixture(scope="module")
def server(page: Page) -> Iterator[PageServer]:
    served = page.serve(Site.of_machine())
    yield served
    served.close()


@pytest.fixture(scope="module")
def url(server: PageServer) -> str:
    return server.url


@pytest.fixture(scope="module")
def space(page: Page, server: PageServer) -> RequestGuard:
    """The same page as a Space answers, without its proxies."""
    inside = server._server.config.app._app
    return RequestGuard(inside, Site.of_space(SPACE), page.visits.store, LIMITS, SMALL)


@pytest.fixture(scope="module")
def routes(space: RequestGuard) -> list[str]:
    """Every path that the page has, as its own list of routes says."""
    found, waiting = set(), [("", space._app)]
    while waiting:
        before, app = waiting.pop()
        for route in app.routes:
            path = before + (getattr(route, "path", "") or "").rstrip("/")
            inner = getattr(route, "original_router", getattr(route, "app", None))
            if hasattr(inner, "routes"):
                waiting.append((path, inner))
            else:
                found.add(re.sub(r"{[^}]*}", "x", path) or "/")
    return sorted(found)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """In a thread of its own: a browser of another test may have a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def asked(app: RequestGuard, method: str, path: str, client: str = "10.1.1.1", **options) -> httpx.Response:
    """What the Space answers to its proxy."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{SPACE}") as session:
            return await session.request(method, path, **options)

    return run(ask())


def lets_nobody_in(answer: httpx.Response) -> bool:
    return not any(name.lower().startswith("access-control") for name in answer.headers)


def test_the_list_of_routes_is_whole(routes: list[str]) -> None:
    assert {"/", "/config", "/gradio_api/upload", "/gradio_api/file=x", "/gradio_api/queue/join"} <= set(
        routes
    )
    assert len(routes) > 50


@pytest.mark.slow
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "PUT"])
def test_no_route_answers_by_a_foreign_name_or_to_a_foreign_page(
    url: str, routes: list[str], method: str
) -> None:
    own = urlsplit(url).netloc
    preflight = {"Access-Control-Request-Method": "POST"} if method == "OPTIONS" else {}
    refused = 0
    with httpx.Client(base_url=url, trust_env=False) as client:
        for route in routes:
            for host in ("evil.example", f"evil.example:{urlsplit(url).port}"):
                answer = client.request(method, route, headers={"Host": host, **preflight})
                assert answer.status_code == 421, route
                assert lets_nobody_in(answer)
                assert "\n" not in answer.text
            for origin in FOREIGN_ORIGINS:
                answer = client.request(method, route, headers={"Origin": origin, **preflight})
                assert answer.status_code == (403 if method in ("GET", "HEAD", "POST") else 405), route
                assert lets_nobody_in(answer)
                assert "\n" not in answer.text
            refused += 2 + len(FOREIGN_ORIGINS)
            if method == "POST":  # a browser that sends no origin still says where it comes from
                answer = client.post(route, headers={"Sec-Fetch-Site": "cross-site"})
                assert answer.status_code == 403
        answer = client.request(method, "/config", headers={"Origin": f"http://{own}", **preflight})
        assert answer.status_code == {"GET": 200, "HEAD": 405, "POST": 405}.get(method, 405)
        assert lets_nobody_in(answer)
    assert refused > 350


def test_other_ways_of_naming_the_page(url: str) -> None:
    address = urlsplit(url)
    for request, status in (
        (f"GET / HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n", 200),
        (f"GET / HTTP/1.1\r\nHost: [::1]:{address.port}\r\n\r\n", 200),
        ("GET / HTTP/1.0\r\n\r\n", 421),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        (f"GET / HTTP/1.1\r\nHost: {address.netloc}\r\nHost: evil.example\r\n\r\n", 400),
        (f"GET http://evil.example/config HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n", 404),
        (
            "GET /gradio_api/queue/data HTTP/1.1\r\nHost: evil.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
            421,
        ),
        (
            f"GET / HTTP/1.1\r\nHost: {address.netloc}\r\nOrigin: http://evil.example\r\nOrigin: x\r\n\r\n",
            403,
        ),
    ):
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(request.encode())
            connection.settimeout(10)
            answer = b""
            while b"\r\n\r\n" not in answer or (status == 200 and b"window.gradio_config" not in answer):
                part = connection.recv(65536)
                if not part:
                    break
                answer += part
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), (request, answer[:100])
        assert b"evil.example" not in answer
        assert b"access-control" not in answer.lower()


def test_a_page_of_ones_own_believes_no_proxy(url: str) -> None:
    forged = {
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Proto": "https",
        "X-Gradio-Server": "http://evil.example",
    }
    assert httpx.get(f"{url}config", headers=forged).json()["root"] == url.rstrip("/")


def test_a_browser_that_moves_about_the_page_is_served(url: str) -> None:
    own = f"http://{urlsplit(url).netloc}"
    with httpx.Client(base_url=url, trust_env=False) as client:
        first = client.get(
            "/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        )  # a link
        assert first.status_code == 200
        assert "SameSite=Lax" in first.headers["set-cookie"]
        assert "HttpOnly" in first.headers["set-cookie"]
        assert first.headers["content-security-policy"] == "frame-ancestors 'self'"
        again = client.get("/")
        assert "set-cookie" not in again.headers  # what was uploaded stays one's own
        mine = {"Origin": own, "Sec-Fetch-Site": "same-origin"}
        assert client.post("/gradio_api/reset", json={"event_id": "x"}, headers=mine).status_code == 200


def test_a_space_stands_in_a_frame_of_the_hub(space: RequestGuard) -> None:
    shown = asked(
        space, "GET", "/", headers={"X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil.example"}
    )
    assert shown.status_code == 200
    assert f'"root":"https://{SPACE}' in shown.text
    assert "evil.example" not in shown.text
    assert "https://huggingface.co" in shown.headers["content-security-policy"]
    cookie = shown.headers["set-cookie"]
    assert all(part in cookie for part in (COOKIE, "SameSite=None", "Secure", "Partitioned", "HttpOnly"))
    mine = {"Origin": f"https://{SPACE}", "Sec-Fetch-Site": "same-origin"}
    assert asked(space, "POST", "/gradio_api/reset", json={"event_id": "x"}, headers=mine).status_code == 200
    assert asked(space, "GET", "/", headers={"Host": "10.0.3.7:7860"}).status_code == 200  # is it alive?


def test_a_space_refuses_foreign_names_and_pages(space: RequestGuard, routes: list[str]) -> None:
    for route in routes:
        for headers, status in (
            ({"Host": "evil.example"}, 421),
            ({"Origin": "https://evil.hf.space"}, 403),
            ({"Origin": "null"}, 403),
        ):
            answer = asked(space, "GET", route, headers=headers)
            assert answer.status_code == status, route
            assert lets_nobody_in(answer)


def test_nothing_but_http_is_spoken(space: RequestGuard) -> None:
    sent = []

    async def send(message: dict) -> None:
        sent.append(message)

    run(space({"type": "websocket", "path": "/", "headers": []}, None, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.fault(45)
def test_one_address_does_not_have_all_requests(page: Page, space: RequestGuard) -> None:
    """A proxy says whose they are; without one its word counts for nothing."""
    going_on = 0

    async def app(scope, receive, send) -> None:
        nonlocal going_on
        going_on += 1
        await scope["state"]["over"].wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def come(site: Site, named: str, client: str) -> list[int]:
        nonlocal going_on
        over, going_on = asyncio.Event(), 0
        guard = RequestGuard(app, site, page.visits.store, LIMITS, PageLimits(per_address=5))

        async def with_state(scope, receive, send) -> None:
            await guard({**scope, "state": {"over": over}}, receive, send)

        transport = httpx.ASGITransport(with_state, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{SPACE}") as session:
            headers = [{"X-Forwarded-For": f"{named}{number}, 10.9.9.9"} for number in range(8)]
            tasks = [asyncio.create_task(session.get("/config", headers=each)) for each in headers]
            while going_on + sum(task.done() for task in tasks) < 8:
                await asyncio.sleep(0.01)
            over.set()
            return sorted(answer.status_code for answer in await asyncio.gather(*tasks))

    space_site, own = Site.of_space(SPACE), Site.of_machine(names=[SPACE])
    one_visitor = run(come(space_site, "203.0.113.1, ", "10.0.0.1"))
    assert one_visitor == [200] * 5 + [503] * 3
    assert run(come(space_site, "203.0.113.", "10.0.0.1")) == [200] * 8  # eight visitors
    who_says_eight = run(come(own, "203.0.113.", "203.0.113.99"))
    assert who_says_eight == [200] * 5 + [503] * 3
    assert run(come(own, "", "127.0.0.1")) == [200] * 8


@pytest.mark.slow
@pytest.mark.fault(43)
def test_four_hundred_half_sent_uploads_are_closed_and_a_visit_goes_on(page: Page, url: str) -> None:
    within = 30.0  # seconds, on a machine that is busy otherwise
    address = urlsplit(url)
    quota = page.visits.store.quota
    before = quota.used
    requests = [send_half(address.hostname, address.port, number) for number in range(400)]
    watching = in_background(requests, every_s=SMALL.patience.request_s / 10, most_s=within + 10)
    started = time.monotonic()
    with Visitor(url) as visitor:
        assert visitor.call("read", [visitor.upload(pictures()), ""]).went_well
        assert visitor.call("find_groups", []).went_well
        visitor.click("pc-forget")
    served_after = time.monotonic() - started
    watching.join()
    took = [each.closed_after for each in requests if each.closed_after is not None]
    assert len(took) == 400, {each.kind for each in requests if each.closed_after is None}
    assert max(took) < within
    wait_for(lambda: quota.used <= before)
    if REAL:
        print(f"\n400 half-sent at the page: closed after {min(took):.1f} to {max(took):.1f} s")
        print(f"a whole visit meanwhile took {served_after:.1f} s")


@pytest.mark.slow
@pytest.mark.fault(45)
def test_fifty_visitors_do_not_fill_the_disk(page: Page, url: str) -> None:
    """Most of them open no visit; what they lay down is never more than the quota, and goes when nobody takes it."""
    store, done = page.visits.store, threading.Event()
    largest = [0, 0]

    def look() -> None:
        while not done.is_set():
            largest[0] = max(largest[0], bytes_below(Path(os.environ["GRADIO_TEMP_DIR"])))
            largest[1] = max(largest[1], store.quota.used)
            time.sleep(0.005)

    def come(number: int) -> Counter:
        told: Counter = Counter()
        with Visitor(url, keeps_cookies=number % 3 > 0, config=config) as visitor:
            for _ in range(3):
                files = [("files", (f"{n}.png", secrets.token_bytes(400_000))) for n in range(4)]
                answer = visitor.post("/gradio_api/upload", files=files)
                told[answer.status_code] += 1
                if answer.status_code == 503:
                    assert "This page is full: it holds 64 MiB of files" in answer.text
                    assert answer.headers["retry-after"] == "60"
                elif number % 4 == 1:
                    visitor.call("read", [[as_file(path) for path in answer.json()], ""])
            if number % 4 == 1:
                visitor.click("pc-forget")
        return told

    with Visitor(url) as first:
        config = first.config
    watching = threading.Thread(target=look)
    watching.start()
    with ThreadPoolExecutor(50) as pool:
        told = sum(pool.map(come, range(50)), Counter())
    wait_for(lambda: store.quota.used == 0)
    done.set()
    watching.join()
    assert set(told) == {200, 503}, told  # some are told that it is full
    assert max(largest) <= SMALL.disk_bytes
    assert largest[0] > SMALL.disk_bytes // 2  # they tried
    assert list(store.root.iterdir()) == []
    print(f"\n{told}; most on disk {largest[0] / MIB:.1f} MiB, most claimed {largest[1] / MIB:.1f} of 64 MiB")
    with Visitor(url) as late:
        assert late.call("read", [late.upload(pictures()), ""]).went_well
        late.click("pc-forget")


@pytest.mark.fault(45)
def test_requests_that_are_read_share_a_bounded_memory(url: str) -> None:
    address = urlsplit(url)
    head = f"POST /gradio_api/queue/join HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 900000\r\n\r\n"
    held = [socket.create_connection((address.hostname, address.port)) for _ in range(2)]
    for connection in held:
        connection.sendall(head.encode() + b"x" * 899_000)
    time.sleep(0.3)
    answer = httpx.post(f"{url}gradio_api/queue/join", content=b'"' + b"x" * 900_000 + b'"')
    assert answer.status_code == 503
    assert "2 MiB of requests" in answer.text
    for connection in held:
        connection.close()
    wait_for(lambda: httpx.post(f"{url}gradio_api/queue/join", content=b"{" * 900_000).status_code == 400)


@pytest.mark.slow
def test_an_upload_can_be_followed_by_who_sends_it(url: str) -> None:
    def follow(cookies: dict[str, str]) -> list[dict]:
        answer = httpx.get(f"{url}gradio_api/upload_progress?upload_id=mine", cookies=cookies, timeout=20)
        lines = answer.text.splitlines() if answer.status_code == 200 else []
        return [json.loads(line.removeprefix("data: ")) for line in lines if line]

    def slowly() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="files"; filename="private name.png"\r\n\r\n'
        for _ in range(10):
            yield bytes(20_000)
            time.sleep(0.1)
        yield b"\r\n--b--\r\n"

    size = sum(map(len, [b"".join(slowly())]))
    mine, theirs = {COOKIE: "a" * 32}, {COOKIE: "b" * 32}
    headers = {"Content-Type": "multipart/form-data; boundary=b", "Content-Length": str(size)}
    with ThreadPoolExecutor(3) as pool:
        sent = pool.submit(
            httpx.post,
            f"{url}gradio_api/upload?upload_id=mine",
            content=slowly(),
            headers=headers,
            cookies=mine,
        )
        own, other = pool.submit(follow, mine), pool.submit(follow, theirs)
        assert sent.result().status_code == 200
        assert own.result()[-1] == {"msg": "done"}
        assert {news.get("orig_name") for news in own.result()[:-1]} == {"private name.png"}
        assert other.result() == []
    assert follow(mine) == [{"msg": "done"}]  # who asks when it is over


def bytes_below(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total

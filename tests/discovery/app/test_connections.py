"""A server on loopback, and clients who keep it waiting: each is closed in time, and the others are served."""

import asyncio
import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import pytest

pytest.importorskip("gradio", reason="the page needs gradio: pip install -c constraints.txt gradio")

from promptccd.discovery.app.server import PageServer, most_connections
from promptccd.discovery.app.store import PageLimits, Patience
from promptccd.discovery.site import App, Message, Receive, Send
from tests.discovery.app.half_sent import HalfSent, in_background, send_half, wait_for

QUICK = Patience(request_s=1.0, slowest=16 * 1024, upload_s=5.0, unread_s=1.5)
REAL = os.environ.get("PROMPTCCD_REAL_TIMES") == "1"  # the figures of the Space: half a minute


async def echo(scope: Message, receive: Receive, send: Send) -> None:
    """Reads all of a body and says how long it was; streams for as long as it is asked to."""
    if scope["type"] == "lifespan":
        for answer in ("lifespan.startup.complete", "lifespan.shutdown.complete"):
            await receive()
            await send({"type": answer})
        return
    size, more = 0, scope["method"] == "POST" and scope["path"] != "/no/such/page"
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return
        size, more = size + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    if scope["path"] == "/stream":
        await stream(int(scope["query_string"] or b"20"), send)
    elif scope["path"] == "/flood":
        for _ in range(1000):
            await send({"type": "http.response.body", "body": bytes(2**20), "more_body": True})
    await send({"type": "http.response.body", "body": str(size).encode()})


async def stream(tenths: int, send: Send) -> None:
    for _ in range(tenths):
        await send({"type": "http.response.body", "body": b".", "more_body": True})
        await asyncio.sleep(0.1)


@contextmanager
def served(app: App = echo, **limits: object) -> Iterator[tuple[str, int, PageServer]]:
    server = PageServer(app, limits=PageLimits(**{"patience": QUICK, **limits}))
    server.start()
    address = urlsplit(server.url)
    try:
        yield address.hostname, address.port, server
    finally:
        server.close()


def get(host: str, port: int, path: str = "/", timeout: float = 10) -> int:
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    connection.request("GET", path)
    try:
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def answered_meanwhile(host: str, port: int, watching: threading.Thread) -> list[float]:
    """How long somebody else waited for each of their requests."""
    waited = []
    while watching.is_alive():
        started = time.monotonic()
        assert get(host, port) == 200
        waited.append(time.monotonic() - started)
        time.sleep(0.1)
    return waited


@pytest.mark.fault(43)
def test_four_hundred_half_sent_requests_are_closed_and_somebody_else_is_served() -> None:
    patience, within = Patience() if REAL else QUICK, 30.0  # seconds, on a machine that is busy otherwise
    with served(patience=patience) as (host, port, _):
        requests = [send_half(host, port, number) for number in range(400)]
        watching = in_background(requests, every_s=patience.request_s / 10, most_s=within + 5)
        waited = answered_meanwhile(host, port, watching)
        watching.join()
        took = [each.closed_after for each in requests if each.closed_after is not None]
        assert len(took) == 400, {each.kind for each in requests if each.closed_after is None}
        assert max(took) < within
        assert max(waited) < within / 2
        silent = [each for each in requests if "dripping" not in each.kind]
        assert all(b"408 Request Timeout" in each.answer for each in silent), "each is told why"
        if REAL:
            print(f"\n400 half-sent: closed after {min(took):.1f} to {max(took):.1f} s")
            print(f"{len(waited)} requests meanwhile: at most {max(waited):.2f} s")


@pytest.mark.slow
@pytest.mark.fault(43)
def test_who_is_slow_but_steady_is_waited_for() -> None:
    def steadily(seconds: float, rate: int) -> Iterator[bytes]:
        for _ in range(round(seconds * 10)):
            yield bytes(rate // 10)
            time.sleep(0.1)

    with served() as (host, port, _):
        address = f"http://{host}:{port}/"
        answer = httpx.post(address, content=steadily(2.5, 4 * QUICK.slowest))
        assert answer.text == str(25 * (4 * QUICK.slowest // 10))
        for seconds, rate, least, most in (
            (12.0, 4 * QUICK.slowest, 4.5, 11.0),  # steady, but for longer than an upload may take
            (12.0, QUICK.slowest // 4, 1.0, 4.5),  # never silent, but slower than the slowest
        ):
            started = time.monotonic()
            with pytest.raises(httpx.HTTPError):  # as far as the answer gets through: 408
                httpx.post(address, content=steadily(seconds, rate)).raise_for_status()
            assert least < time.monotonic() - started < most


def test_answers_do_not_wait_for_the_network() -> None:
    with served() as (host, port, _), httpx.Client(base_url=f"http://{host}:{port}") as client:
        client.get("/")
        started = time.monotonic()
        for _ in range(50):
            client.get("/")
        assert time.monotonic() - started < 50 * 0.03  # 40 ms each, were they sent in two parts and held back


@pytest.mark.slow
def test_what_is_answered_may_take_longer() -> None:
    with served() as (host, port, _):
        text = httpx.get(f"http://{host}:{port}/stream?40").text
        assert text == "." * 40 + "0"


@pytest.mark.fault(43)
def test_who_does_not_read_the_answer_is_closed() -> None:
    with served() as (host, port, server), socket.create_connection((host, port)) as connection:
        connection.sendall(f"GET /flood HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        wait_for(lambda: open_connections(server) == 1)
        wait_for(lambda: open_connections(server) == 0)
        assert get(host, port) == 200


@pytest.mark.slow
def test_a_full_server_gives_up_who_keeps_it_waiting_and_nobody_else() -> None:
    with served(connections=6) as (host, port, server):
        streaming = [threading.Thread(target=get, args=(host, port, "/stream?15")) for _ in range(3)]
        for thread in streaming:
            thread.start()
        wait_for(lambda: open_connections(server) == 3)
        halves: list[HalfSent] = [send_half(host, port, 1) for _ in range(3)]
        wait_for(lambda: open_connections(server) == 6)
        assert get(host, port) == 200  # in the place of a half-sent one
        watching = in_background(halves, every_s=1, most_s=0.5)
        watching.join()
        assert sum(b"503 Service Unavailable" in half.answer for half in halves) == 1
        more = [threading.Thread(target=get, args=(host, port, "/stream?15")) for _ in range(3)]
        for thread in more:
            thread.start()
        wait_for(lambda: len(server._server.server_state.tasks) == 6)
        assert get(host, port) == 503  # all others are being answered
        for thread in [*streaming, *more]:
            thread.join()
        assert get(host, port) == 200
        for half in halves:
            half.connection.close()


def test_no_more_connections_than_files_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed, most in ((1024, 256), (10**6, 512), (256, 64), (2, 1)):
        monkeypatch.setattr("resource.getrlimit", lambda _, allowed=allowed: (allowed, allowed))
        assert most_connections(512) == most


def test_a_port_that_is_taken() -> None:
    with served() as (host, port, _):
        with pytest.raises(OSError, match="in use"):
            PageServer(echo, host, port, limits=PageLimits())
        with served() as (_, other, _):
            assert other != port


def open_connections(server: PageServer) -> int:
    return len(server._server.server_state.connections)


def test_ctrl_c_ends_it_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 says of a thread whose join was interrupted that it has ended; its socket was closed under it."""
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background
    with served() as (host, port, server):
        press = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        press.start()
        with pytest.raises(KeyboardInterrupt):
            server.wait()
        assert get(host, port) == 200  # until it is closed
    signal.signal(signal.SIGINT, before)
    time.sleep(0.3)
    assert not failed

"""Requests that never come to their end, as somebody sends them who wants a server to wait."""

import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

GET, POST = "GET / HTTP/1.1", "POST /gradio_api/upload HTTP/1.1"
FORM = '--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
LONG = "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000\r\n"


def wait_for(test: Callable[[], bool], most_s: float = 60) -> None:
    """Until it is so, for a while."""
    deadline = time.monotonic() + most_s
    while not test():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@dataclass
class HalfSent:
    """One of them.

    Attributes:
        connection: to the server.
        kind: what is missing.
        drips: sent a byte at a time afterwards; nothing is sent if it is empty.
        started: in seconds of the monotonic clock.
        closed_after: seconds; none while it is open.
        answer: what the server said at last.
    """

    connection: socket.socket
    kind: str
    drips: bytes = b""
    started: float = field(default_factory=time.monotonic)
    closed_after: float | None = None
    answer: bytes = b""


def send_half(host: str, port: int, number: int) -> HalfSent:
    """A request of one of seven kinds, by its number."""
    name = f"Host: {host}:{port}\r\n"
    head, early = f"{POST}\r\n{name}{LONG}\r\n", f"POST /no/such/page HTTP/1.1\r\n{name}{LONG}\r\n"
    kinds = [
        ("nothing", "", b""),
        ("half a head", f"{GET}\r\n{name}X-Slow: ", b""),
        ("a head, dripping", f"{GET}\r\n{name}X-Slow: ", b"x"),
        ("half a body", head + FORM + "x" * 500, b""),
        ("a body, dripping", head + FORM, b"x"),
        ("a body that was answered already, dripping", early, b"x"),
        ("a second request, dripping", f"{GET}\r\n{name}\r\n{GET}\r\n{name}X-Slow: ", b"x"),
    ]
    kind, text, drips = kinds[number % len(kinds)]
    connection = socket.create_connection((host, port), timeout=10)
    connection.sendall(text.encode())
    connection.setblocking(False)
    return HalfSent(connection, kind, drips)


def watch_until_closed(requests: list[HalfSent], every_s: float, most_s: float) -> None:
    """Drip, and note when each is closed."""
    deadline, next_drip = time.monotonic() + most_s, 0.0
    while time.monotonic() < deadline and any(each.closed_after is None for each in requests):
        waiting = {each.connection: each for each in requests if each.closed_after is None}
        if time.monotonic() >= next_drip:
            next_drip = time.monotonic() + every_s
            for each in [each for each in waiting.values() if each.drips]:
                try:
                    each.connection.send(each.drips)
                except BlockingIOError:
                    pass
                except OSError:
                    each.closed_after = time.monotonic() - each.started
        poller = select.poll()
        numbers = {connection.fileno(): each for connection, each in waiting.items()}
        for number in numbers:
            poller.register(number, select.POLLIN)
        for number, _ in poller.poll(50):
            _read(numbers[number])


def _read(request: HalfSent) -> None:
    try:
        content = request.connection.recv(65536)
    except BlockingIOError:
        return
    except OSError:
        content = b""
    request.answer = (request.answer + content)[-400:]
    if not content and request.closed_after is None:
        request.closed_after = time.monotonic() - request.started


def in_background(requests: list[HalfSent], every_s: float, most_s: float) -> threading.Thread:
    """Watch them in a thread."""
    thread = threading.Thread(target=watch_until_closed, args=(requests, every_s, most_s))
    thread.start()
    return thread

"""A web server on this machine, with what pictures are asked for on the web."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Web:
    """Pages by path; a page of text is where it has moved to, a number is a status, and a float so many seconds.

    Of two the second is where the first says that it is.
    """

    pages: dict[str, bytes | str | int | float | tuple[bytes, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def web() -> Iterator[Web]:
    site = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(self.path)
            page = site.pages.get(self.path.partition("?")[0], 404)
            status = 302 if isinstance(page, str) else page if type(page) is int else 200
            page, place = page if isinstance(page, tuple) else (page, page)
            self.send_response(status)
            if isinstance(place, str):
                self.send_header("Location", place)
            self.end_headers()
            with suppress(OSError):  # whoever asked has hung up
                if isinstance(page, bytes):
                    self.wfile.write(page)
                for _ in range(round(20 * page) if isinstance(page, float) else 0):
                    self.wfile.write(b".")  # never silent for long
                    time.sleep(0.05)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield site
    server.shutdown()
    thread.join()
    server.server_close()

"""A web server on this machine, with what pictures are asked for on the web."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Web:
    """Pages by path; a page of text is the path that it has moved to."""

    pages: dict[str, bytes | str] = field(default_factory=dict)
    url: str = ""


@pytest.fixture
def web() -> Iterator[Web]:
    site = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = site.pages.get(self.path.partition("?")[0])
            self.send_response(404 if page is None else 302 if isinstance(page, str) else 200)
            if isinstance(page, str):
                self.send_header("Location", page)
            self.end_headers()
            if isinstance(page, bytes):
                self.wfile.write(page)

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

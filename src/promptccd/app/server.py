"""A page on a port: a server in a thread that can be left alone."""

import errno
import functools
import socket
import threading
import time
from typing import Any

import uvicorn

from promptccd.app.asgi import App
from promptccd.app.connections import PatientProtocol, most_connections
from promptccd.app.limits import PageLimits

FIRST_PORT, PORTS = 7860, 100
STARTS_WITHIN_S = 60.0
ENDS_WITHIN_S = 2  # then streams that nobody ends are cut


class PageServer:
    """Serves an application until it is closed.

    Args:
        app: what answers; it should look at whoever asks first.
        host: address to listen on.
        port: none means the first free one from 7860 on.
        limits: of which those on connections hold here.

    Attributes:
        url: where it is.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, app: App, host: str = "127.0.0.1", port: int | None = None, *, limits: PageLimits):
        self._socket = _listen(host.strip("[]"), port)
        shown = "localhost" if host in ("0.0.0.0", "::") else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}/"
        protocol: Any = functools.partial(
            PatientProtocol, patience=limits.patience, most=most_connections(limits.connections)
        )
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="on",
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=ENDS_WITHIN_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="page", daemon=True
        )

    def start(self) -> None:
        """Return once it answers.

        Raises:
            RuntimeError: the application did not start; its log says why.
        """
        self._thread.start()
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("The server of the page did not start.")
            time.sleep(0.01)

    def wait(self) -> None:
        """Until it ends by itself, or Ctrl-C."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """End it; connections that are open are cut."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(ENDS_WITHIN_S + 10)
        self._socket.close()


def _listen(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in [port] if port is not None else range(FIRST_PORT, FIRST_PORT + PORTS):
        # With its protocol, or asyncio does not know it for TCP, and every answer waits 40 ms for an acknowledgement.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, number))
            listening.listen(2048)
            return listening
        except OSError as error:
            listening.close()
            if port is not None or error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} are all in use")

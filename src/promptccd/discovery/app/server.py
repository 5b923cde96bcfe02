"""A page on a port: a server in a thread that can be left alone."""

import asyncio
import atexit
import functools
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import gradio as gr
import h11
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from promptccd.discovery.app.guard import SCREENS, RequestGuard
from promptccd.discovery.app.screens import screens_of
from promptccd.discovery.app.store import PageLimits, Patience
from promptccd.discovery.app.visits import Visits
from promptccd.discovery.site import App, ServingThread, Site, listen

FILES_PER_CONNECTION = 4  # that this process may open
LATE = b"The request did not arrive in time: try again."
BUSY = b"As many connections as can be are open: try again in a minute."


def most_connections(wanted: int) -> int:
    """As many as wanted, or as many as leave this process files to open."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, allowed // FILES_PER_CONNECTION))


class PatientProtocol(H11Protocol):
    """HTTP of uvicorn with limits on time and number.

    Seconds are counted in ticks in which this process was ready to read: its own delays count against nobody. One
    connection more than `most` takes the place of the one whose request is the latest; if all others are being
    answered, it is closed.
    """

    def __init__(self, *, patience: Patience, most: int, **values: Any):
        super().__init__(**values)
        self._patience, self._most = patience, most
        self._tick_s = min(1.0, patience.request_s / 10)
        self._ticking: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._phase: tuple[Any, Any] = (None, None)
        self._waited = self._silent = 0.0
        self._received = 0

    @property
    def awaits_request(self) -> bool:
        """Whether a request, or the rest of one, has still to come."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing()

    @property
    def behind(self) -> float:
        """Seconds by which what has come of a request is late."""
        return self._waited - self._received / self._patience.slowest

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it, if there is or can be room."""
        others = cast("set[PatientProtocol]", self.connections)
        is_full = len(others) >= self._most
        latest = max((each for each in others if each.awaits_request), key=attrgetter("behind"), default=None)
        super().connection_made(transport)
        if is_full and latest is not None:
            latest.end(b"503 Service Unavailable", BUSY)
        elif is_full:
            self.end(b"503 Service Unavailable", BUSY)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Go on reading."""
        self._silent = 0.0
        if self.conn.their_state is h11.SEND_BODY:
            self._received += len(data)
        super().data_received(data)

    def handle_events(self) -> None:
        """Do what the bytes so far ask for."""
        super().handle_events()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        for timer in filter(None, (self._ticking, self._unread)):
            timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Somebody does not read what they asked for."""
        super().pause_writing()
        self._unread = self.loop.call_later(self._patience.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        """They went on."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def end(self, status: bytes, text: bytes) -> None:
        """Close the connection; who waits for an answer gets this one."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            head = b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            self.transport.write(
                b"HTTP/1.1 " + status + b"\r\n" + head + b"content-length: %d\r\n\r\n" % len(text) + text
            )
        self.connections.discard(self)
        self.transport.close()
        self.loop.call_later(self._tick_s, self.transport.abort)  # whoever does not read it does not keep it

    def _watch(self) -> None:
        phase = (self.cycle, self.conn.their_state)
        if phase != self._phase:
            self._phase, self._waited, self._silent, self._received = phase, 0.0, 0.0, 0
        if self._ticking is None and self.awaits_request:
            self._ticking = self.loop.call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        if self.awaits_request and not self.flow.read_paused:
            self._waited += self._tick_s
            self._silent += self._tick_s
            if self._is_late():
                self.end(b"408 Request Timeout", LATE)
                return
        self._watch()

    def _is_late(self) -> bool:
        patience = self._patience
        if self.conn.their_state is h11.IDLE:
            return self._waited >= patience.request_s
        return max(self._silent, self.behind) >= patience.request_s or self._waited >= patience.upload_s


SCRIPT = f'<script type="module" src="{SCREENS[1:]}desk.js"></script>'  # of the element that shows groups
FOLDER = "GRADIO_TEMP_DIR"  # Gradio serves files below it, and nothing else


def keep_files_private() -> Path:
    """The folder that ``GRADIO_TEMP_DIR`` names, or a new one that only this user can read and that goes at the end."""
    if not os.environ.get(FOLDER):
        folder = tempfile.mkdtemp(prefix="promptccd-uploads-")  # mode 0700
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[FOLDER] = folder
    return Path(os.environ[FOLDER])


def guarded(
    blocks: gr.Blocks, look: Mapping[str, Any], site: Site, visits: Visits, limits: PageLimits
) -> App:
    """What answers a site's requests to a page; `look` is how it looks, as options of Gradio."""
    host, store = FastAPI(docs_url=None, redoc_url=None, openapi_url=None), visits.store
    host.mount(SCREENS.rstrip("/"), screens_of(visits))
    blocks.state_session_capacity = limits.pages
    blocks.has_launched = True  # so that Gradio checks where a file lies that it is to serve
    app = gr.mount_gradio_app(
        host, blocks, path="/", head=SCRIPT, **look,
        run_history=False, enable_monitoring=False, ssr_mode=False, show_error=False, pwa=False,
        allowed_paths=[], max_file_size=visits.limits.max_total_bytes,  # a zip may be as large as all files
    )  # fmt: skip
    return RequestGuard(app, site, store, visits.limits, limits)


def forget_page(request: gr.Request) -> Callable[[], None]:
    """What makes Gradio forget a page: it keeps the last value of every component, pictures included."""
    holder, session = request.request.app.state_holder, request.session_hash

    def forget() -> None:
        with holder.lock:
            holder.session_data.pop(session, None)
            holder.time_last_used.pop(session, None)

    return forget


ENDS_WITHIN_S = 2  # then streams that nobody ends are cut


class PageServer(ServingThread):
    """Serves an application at `url`, within limits on connections; the application checks who asks.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, app: App, host: str = "127.0.0.1", port: int | None = None, *, limits: PageLimits):
        listening = listen(host, port)
        shown = "localhost" if host in ("0.0.0.0", "::") else host
        self.url = f"http://{shown}:{listening.getsockname()[1]}/"
        protocol: Any = functools.partial(
            PatientProtocol, patience=limits.patience, most=most_connections(limits.connections)
        )
        super().__init__(app, listening, ENDS_WITHIN_S, http=protocol, lifespan="on")

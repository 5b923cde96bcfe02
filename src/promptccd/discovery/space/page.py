"""The page: the screens of `open` over a project of the visitor's own, and beside them what makes one."""

import atexit
import html
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI

from promptccd.discovery.page.site import ServingThread, Site, listen
from promptccd.discovery.space.grouping import Grouping, called
from promptccd.discovery.space.serving import SCREENS, RequestGuard, owner_of, screens_of
from promptccd.discovery.space.visits import Together, Visit, Visits
from promptccd.errors import InterruptedRunError, PromptCCDError
from promptccd.images.decode import Status
from promptccd.images.limits import IntakeLimits
from promptccd.models.checkpoint import split_revision
from promptccd.reports.page import templates_of

logger = logging.getLogger(__name__)

TITLE = "What is in these photographs?"
FOLDER = "GRADIO_TEMP_DIR"  # where Gradio writes uploads
MOST_WAITING = 32  # requests in the queue; more are asked to come back
MESSAGE_S = 15  # that an error stays in view
UNTAKEN_S = 600  # until an upload is deleted that no visit has taken
MOST_OPEN = 512  # connections; more are told so
ENDS_WITHIN_S = 2  # then streams that nobody ends are cut
CONTENT_HASH = re.compile(r"\b[0-9a-f]{64}\b")
PROGRESS = gr.Progress()  # Gradio gives every call one of its own in its place
QUIET: Mapping[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
MODEL: Mapping[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}  # one at a time
SCRIPT = f'<script type="module" src="{SCREENS[1:]}desk.js"></script>'  # of the element that shows groups
DOWNLOAD = "() => document.querySelector('#pc-links a[download$=zip]')?.click()"
THEME = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"])  # nothing is fetched
_PARTS = templates_of("promptccd.discovery.page").get_template("parts.html.jinja").module


@dataclass(frozen=True)
class Space:
    """The page: what it consists of, everybody who is here, and what is done for them."""

    blocks: gr.Blocks
    visits: Visits
    grouping: Grouping

    def serve(self, site: Site, host: str = "127.0.0.1", port: int | None = None) -> "SpaceServer":
        """Serve the page to a site's visitors, by default on the first free port from 7860 on; it answers already."""
        server = SpaceServer(self, site, host, port)
        server.start()
        return server

    def close(self) -> None:
        """End all visits and delete all files, but leave the server running."""
        self.blocks.close(verbose=False)
        self.visits.close()


class SpaceServer(ServingThread):
    """Serves a page at `url`."""

    def __init__(self, space: Space, site: Site, host: str, port: int | None):
        listening = listen(host, port)
        shown = "localhost" if host in ("0.0.0.0", "::") else host
        self.url = f"http://{shown}:{listening.getsockname()[1]}/"
        outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        outer.mount(SCREENS.rstrip("/"), screens_of(space.visits))
        space.blocks.has_launched = True  # so that Gradio checks where a file lies that it is to take
        limits = space.grouping.limits
        css = (files("promptccd.discovery.page") / "templates/space.css").read_text(encoding="utf-8")
        app = gr.mount_gradio_app(
            outer, space.blocks, path="/", head=SCRIPT, theme=THEME, css=css, footer_links=[],
            run_history=False, enable_monitoring=False, ssr_mode=False, show_error=False, pwa=False,
            allowed_paths=[], max_file_size=limits.max_total_bytes,  # a zip may be as large as all files
        )  # fmt: skip
        guard = RequestGuard(app, site, limits)
        super().__init__(
            guard, listening, ENDS_WITHIN_S, http="h11", lifespan="on", limit_concurrency=MOST_OPEN
        )


def build_space(place: str, *, limits: IntakeLimits | None = None, together: Together | None = None) -> Space:
    """The page over a model, a folder or a name on the Hub, loaded when needed; with limits on each and all."""
    if not os.environ.get(FOLDER):
        private = tempfile.mkdtemp(prefix="promptccd-")  # mode 0700
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        os.environ[FOLDER] = os.path.join(private, "uploads")
    uploads, together = Path(os.environ[FOLDER]), together or Together()
    uploads.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Beside that folder, below which Gradio takes every file for an upload of whoever names it.
    visits = Visits(together, uploads.parent)
    grouping = Grouping(place, limits or IntakeLimits.for_visitors(), together.work_s)
    return Space(_Page(visits, grouping).blocks, visits, grouping)


class _Page:
    """The parts of the page, and what happens when somebody uses them."""

    def __init__(self, visits: Visits, grouping: Grouping):
        self._visits, self._grouping = visits, grouping
        with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(60, UNTAKEN_S)) as self.blocks:
            gr.HTML(_part("head", TITLE), elem_id="pc-head")
            self._links = gr.HTML(elem_id="pc-links", render=False)
            with gr.Row(elem_id="pc-page"):
                with gr.Column(scale=5, min_width=320):
                    self._desk = gr.HTML(elem_id="pc-desk")
                with gr.Column(scale=1, min_width=270, elem_id="pc-own"):
                    self._own()
                    self._take_away()
            gr.HTML(_foot(grouping.place))
            self.blocks.load(self._enter, None, [self._desk, self._links], queue=False, **QUIET)
            self.blocks.unload(self._leave)
        self.blocks.queue(max_size=MOST_WAITING)

    def _own(self) -> None:
        gr.HTML(_part("own", self._grouping.limits))
        upload = gr.UploadButton("Choose photographs", file_count="multiple", file_types=["image", ".zip"])
        number = gr.Number(0, label="How many groups", info="0: as many as there seem to be.", precision=0)
        with gr.Row(equal_height=True):
            find = gr.Button("Find groups", variant="primary", min_width=120)
            cancel = gr.Button("Cancel", visible=False, min_width=90, elem_id="pc-cancel")
        self._status = gr.HTML(elem_id="pc-status")
        upload.upload(self._take_in, upload, self._status, api_name="take_in", concurrency_limit=2)
        shown = [self._status, self._desk, self._links]
        begun = find.click(lambda: gr.Button(visible=True), None, cancel, queue=False, **QUIET)
        self._work = {**MODEL, "show_progress_on": self._status}
        found = begun.then(self._find, number, shown, api_name="find_groups", **self._work)
        for ended in (found.success, found.failure):
            ended(lambda: gr.Button(visible=False), None, cancel, queue=False, **QUIET)
        cancel.click(self._cancel, None, None, queue=False, **QUIET)

    def _take_away(self) -> None:
        gr.HTML("<h2>Take it away</h2>")
        self._links.render()
        for name, words, make in (
            ("images", "Photographs by group (zip)", self._grouping.images),
            ("model", "Model with these groups (zip)", self._grouping.model),
        ):
            button, work = gr.Button(words, size="sm"), self._making(make)
            made = button.click(work, None, self._links, api_name=name, **self._work)
            made.success(None, js=DOWNLOAD, api_visibility="private")
        forget = gr.Button("Forget my data", size="sm")
        gr.HTML(_part("end", round(self._visits.together.lifetime_s / 60)))
        gone = forget.click(self._forget, None, None, queue=False, api_name="forget", show_progress="hidden")
        # Whatever is still shown of the photographs goes with the page.
        gone.success(None, js="() => location.reload()", api_visibility="private")

    @contextmanager
    def _at(self, request: gr.Request) -> Iterator[Visit]:
        """The visit of who asks; errors are shown in their browser, and bugs of ours go into the log."""
        visit = None
        try:
            visit = self._visits.of(request.session_hash or "")
            yield visit
        except Exception as error:
            title, text = "Please note", _in_their_words(str(error), visit)
            if isinstance(error, InterruptedRunError):
                title, text = "Stopped", "As you asked. “Find groups” goes on from there."
            elif not isinstance(error, PromptCCDError):
                logger.error("Unexpected error in the page.", exc_info=error)
                text = "Something went wrong on our side. Your photographs and groups are as they were: try again."
            raise gr.Error(text, duration=MESSAGE_S, title=title, print_exception=False) from error

    def _enter(self, request: gr.Request) -> tuple[str, str]:
        try:
            visit = self._visits.enter(request.session_hash or "", owner_of(request.request.scope))
        except PromptCCDError as full:
            return _part("full", str(full)), ""
        return _screens(visit)

    def _leave(self, request: gr.Request) -> None:
        self._visits.leave(request.session_hash or "")

    def _take_in(self, uploads: list[str] | None, request: gr.Request) -> str:
        with self._at(request) as visit:
            return _part("took_in", *self._grouping.take_in(visit, uploads or []))

    def _find(self, count: float, request: gr.Request, progress: gr.Progress = PROGRESS) -> tuple[str, ...]:
        with self._at(request) as visit:
            done = self._grouping.find(visit, int(count or 0) or None, progress)
            skipped = [(row.file, row.note) for row in done.rows if row.status == Status.SKIPPED.value]
            return _part("found", done.report, done.estimate, skipped), *_screens(visit)

    def _making(self, make: Callable[[Visit], Path]) -> Callable[..., str]:
        def made(request: gr.Request) -> str:
            with self._at(request) as visit:
                return _part("downloads", f"{SCREENS[1:]}{visit.address}/", make(visit).name)

        return made

    def _cancel(self, request: gr.Request) -> None:
        with self._at(request) as visit:
            if visit.cancel is not None:
                visit.cancel()

    def _forget(self, request: gr.Request) -> None:
        with self._at(request) as visit:
            self._visits.forget(visit)


def _in_their_words(text: str, visit: Visit | None) -> str:
    """A message, escaped, that calls photographs by their names and says nothing of where they lie."""
    names = {}
    if visit is not None:
        for place in (visit.photos, visit.groups, visit.folder):
            text = text.replace(str(place), "your photographs")
        if visit.shown is not None:
            names = dict(zip(visit.shown.photos.keys, visit.shown.photos.names, strict=True))
    return html.escape(CONTENT_HASH.sub(lambda found: names.get(found[0], found[0]), text), quote=False)


def _part(name: str, *values: object) -> str:
    """A part of the page from the templates; every value is escaped."""
    return str(getattr(_PARTS, name)(*values))


def _screens(visit: Visit) -> tuple[str, str]:
    """The screens, and what can be downloaded now."""
    base = f"{SCREENS[1:]}{visit.address}/"
    return _part("screens", base, visit.project(), visit.is_grouped), _part("downloads", base, "")


def _foot(place: str, environment: Mapping[str, str] = os.environ) -> str:
    """The model, with links to the paper and to the cards of the model and of this Space."""
    name, commit = split_revision(place)
    card = f"https://huggingface.co/{name}" if "/" in name and not Path(name).is_dir() else ""
    return _part("foot", called(place), card, commit, environment.get("SPACE_ID"))

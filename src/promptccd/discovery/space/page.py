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

from promptccd.data.images import Status
from promptccd.data.limits import MIB, IntakeLimits
from promptccd.discovery.discover import DiscoveryResult
from promptccd.discovery.site import ServingThread, Site, listen
from promptccd.discovery.space.grouping import Grouping, Tell, called, is_remote
from promptccd.discovery.space.guard import SCREENS, RequestGuard, owner_of
from promptccd.discovery.space.screens import TABLE, screens_of
from promptccd.discovery.space.visits import Together, Visit, Visits
from promptccd.errors import DataError, InterruptedRunError, PromptCCDError
from promptccd.hub.space import parted

logger = logging.getLogger(__name__)

TITLE = "What is in these photographs?"
HUB, PAPER = "https://huggingface.co", "https://arxiv.org/abs/2407.19001"
ALBUM = "https://data.caltech.edu/records/mzrjq-6wc02"
MOST_WAITING = 32  # requests in the queue; more are asked to come back
MOST_LISTED = 100  # files that were skipped; the table has all
MESSAGE_S = 15  # that an error stays in view
UNTAKEN_S = 600  # until an upload is deleted that no visit has taken
ENDS_WITHIN_S = 2  # then streams that nobody ends are cut
CONTENT_HASH = re.compile(r"\b[0-9a-f]{64}\b")
FOLDER = "GRADIO_TEMP_DIR"  # where Gradio writes uploads
QUICK: Mapping[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": 8}
# Whatever runs the model waits for its turn.
MODEL: Mapping[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
THEME = gr.themes.Default(  # fonts of the reader's own system: nothing is fetched from elsewhere
    primary_hue="blue", neutral_hue="slate", font=["system-ui", "sans-serif"],
    font_mono=["ui-monospace", "monospace"], radius_size="lg",
).set(  # enough contrast for small text, in both themes
    button_primary_background_fill="*primary_700", button_primary_background_fill_hover="*primary_800",
    button_primary_background_fill_dark="*primary_700", button_primary_background_fill_hover_dark="*primary_600",
    body_text_color_subdued="*neutral_600", body_text_color_subdued_dark="*neutral_300",
    block_info_text_color="*neutral_600", block_info_text_color_dark="*neutral_300",
    block_label_text_color="*neutral_700", block_title_text_color="*neutral_700",
)  # fmt: skip
_PROGRESS = gr.Progress()  # Gradio gives each call one of its own in its place
SCRIPT = f'<script type="module" src="{SCREENS[1:]}desk.js"></script>'  # of the element that shows groups


@dataclass(frozen=True)
class Space:
    """The page: what it consists of, everybody who is here, and what is done for them."""

    blocks: gr.Blocks
    visits: Visits
    grouping: Grouping

    def serve(self, site: Site, host: str = "127.0.0.1", port: int | None = None) -> "SpaceServer":
        """Serve the page to a site's visitors, by default on the first free port from 7860 on; it answers already.

        Raises:
            OSError: it cannot listen there.
        """
        server = SpaceServer(self, site, host, port)
        server.start()
        return server

    def close(self) -> None:
        """End all visits and delete all files, but leave the server running."""
        self.blocks.close(verbose=False)
        self.visits.close()


class SpaceServer(ServingThread):
    """Serves a page at `url`.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, space: Space, site: Site, host: str, port: int | None):
        listening = listen(host, port)
        shown = "localhost" if host in ("0.0.0.0", "::") else host
        self.url = f"http://{shown}:{listening.getsockname()[1]}/"
        outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        outer.mount(SCREENS.rstrip("/"), screens_of(space.visits))
        space.blocks.has_launched = True  # so that Gradio checks where a file lies that it is to take
        css = (files("promptccd.discovery.space") / "space.css").read_text(encoding="utf-8")
        app = gr.mount_gradio_app(
            outer, space.blocks, path="/", head=SCRIPT, theme=THEME, css=css, footer_links=[],
            run_history=False, enable_monitoring=False, ssr_mode=False, show_error=False, pwa=False,
            allowed_paths=[], max_file_size=space.grouping.limits.max_total_bytes,  # a zip may be as large as all files
        )  # fmt: skip
        together = space.visits.together
        guard = RequestGuard(app, site, space.grouping.limits, together.spare_bytes)
        super().__init__(
            guard, listening, ENDS_WITHIN_S, http="h11", lifespan="on", limit_concurrency=together.connections
        )


def build_space(place: str, *, limits: IntakeLimits | None = None, together: Together | None = None) -> Space:
    """The page, to be served with `Space.serve`.

    Args:
        place: the model that groups, a folder or a name on the Hub; it is loaded when it is first needed.
        limits: on what a visitor brings; by default those for strangers.
        together: on all visitors together; by default the usual ones.
    """
    if not os.environ.get(FOLDER):
        private = tempfile.mkdtemp(prefix="promptccd-")  # mode 0700
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        os.environ[FOLDER] = os.path.join(private, "uploads")
    uploads, together = Path(os.environ[FOLDER]), together or Together()
    uploads.mkdir(mode=0o700, parents=True, exist_ok=True)
    visits = Visits(
        together, uploads.parent
    )  # Gradio takes every file below its own folder for an upload of who asks
    grouping = Grouping(place, limits or IntakeLimits.for_visitors(), together.work_s)
    return Space(_Page(visits, grouping).blocks, visits, grouping)


class _Page:
    """The parts of the page, and what happens when somebody uses them."""

    def __init__(self, visits: Visits, grouping: Grouping):
        self._visits, self._grouping = visits, grouping
        with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(60, UNTAKEN_S)) as self.blocks:
            gr.HTML(_HEAD, elem_id="pc-head")
            self._links = gr.HTML(elem_id="pc-links", render=False)
            with gr.Row(elem_id="pc-page"):
                with gr.Column(scale=5, min_width=320):
                    self._desk = gr.HTML(elem_id="pc-desk")
                with gr.Column(scale=1, min_width=270, elem_id="pc-own"):
                    self._own()
                    self._take_away()
            gr.HTML(_foot(grouping.place))
            self.blocks.load(self._enter, None, [self._desk, self._links], queue=False, **QUICK)
            self.blocks.unload(self._leave)
        self.blocks.queue(max_size=MOST_WAITING)

    def _own(self) -> None:
        limits = self._grouping.limits
        gr.HTML(
            f"<h2>Your own photographs</h2><p>Up to {limits.max_files} of {limits.max_file_bytes // MIB} MB each, or "
            f"zip archives; {limits.max_total_bytes // MIB} MB in all. Nobody else sees them.</p>"
        )
        upload = gr.UploadButton(
            "Choose photographs", file_count="multiple", file_types=["image", ".zip"], elem_id="pc-upload"
        )
        number = gr.Number(
            0,
            label="How many groups",
            info="0: as many as there seem to be.",
            precision=0,
            elem_id="pc-number",
        )
        with gr.Row(equal_height=True):
            find = gr.Button("Find groups", variant="primary", min_width=120, elem_id="pc-find")
            cancel = gr.Button("Cancel", visible=False, min_width=90, elem_id="pc-cancel")
        self._status = gr.HTML(elem_id="pc-status")
        upload.upload(self._take_in, upload, self._status, api_name="take_in", concurrency_limit=2)
        begun = find.click(lambda: gr.Button(visible=True), None, cancel, **QUICK)
        found = begun.then(
            self._find, number, [self._status, self._desk, self._links], api_name="find_groups", **MODEL
        )
        found.then(lambda: gr.Button(visible=False), None, cancel, **QUICK)
        cancel.click(self._cancel, None, None, queue=False, api_visibility="private", show_progress="hidden")

    def _take_away(self) -> None:
        gr.HTML("<h2>Take it away</h2>")
        self._links.render()
        images = gr.Button("Photographs by group (zip)", size="sm", elem_id="pc-images")
        model = gr.Button("Model with these groups (zip)", size="sm", elem_id="pc-model")
        for button, make in ((images, self._grouping.images), (model, self._grouping.model)):
            made = button.click(self._making(make), None, self._links, api_name=button.elem_id[3:], **MODEL)
            fetch = "() => document.querySelector('#pc-links a[download$=zip]')?.click()"
            made.success(None, js=fetch, api_visibility="private")
        if os.environ.get("OAUTH_CLIENT_ID"):
            self._offer_push()
        forget = gr.Button("Forget my data", size="sm", elem_id="pc-forget")
        minutes = round(self._visits.together.lifetime_s / 60)
        gr.HTML(
            f"<p>Without it they are deleted when you close the page, or {minutes} minutes after your last click. "
            "Nothing is learned from them.</p>"
        )
        gone = forget.click(self._forget, None, None, api_name="forget", show_progress="hidden", queue=False)
        # Whatever is still shown of the photographs goes with the page.
        gone.success(None, js="() => location.reload()", api_visibility="private")

    def _offer_push(self) -> None:
        """Push as a data set under the visitor's own login; only where the Space has one to offer."""
        gr.LoginButton()
        name = gr.Textbox(label="Name of the data set", placeholder="my-groups", max_length=96)
        button = gr.Button("Push as a private data set", size="sm")

        def push(
            name: str, request: gr.Request, token: gr.OAuthToken | None, profile: gr.OAuthProfile | None
        ) -> str:
            with self._at(request) as visit:
                if token is None or profile is None:
                    raise DataError("You are not logged in: log in with the button above first.")
                target = f"{profile.username}/{(name or '').strip() or 'discovered-groups'}"
                self._grouping.push(visit, target, token.token, private=True)
                return f"<p>Pushed: {_link(f'{HUB}/datasets/{target}', target)}</p>"

        button.click(push, name, self._status, api_visibility="private", **MODEL)

    @contextmanager
    def _at(self, request: gr.Request) -> Iterator[Visit]:
        """The visit of who asks; errors are shown in their browser, escaped, and bugs of ours go into the log.

        Raises:
            gr.Error: in place of any other exception.
        """
        visit = None
        try:
            visit = self._visits.of(request.session_hash or "")
            yield visit
        except InterruptedRunError as stopped:
            raise gr.Error(
                str(stopped), duration=MESSAGE_S, title="Stopped", print_exception=False
            ) from stopped
        except Exception as error:
            text = _in_their_words(str(error), visit)
            if not isinstance(error, PromptCCDError):
                logger.error("Unexpected error in the page.", exc_info=error)
                text = "Something went wrong on our side. Your photographs and groups are as they were: try again."
            raise gr.Error(
                html.escape(text, quote=False), duration=MESSAGE_S, print_exception=False
            ) from error

    def _enter(self, request: gr.Request) -> tuple[str, str]:
        try:
            visit = self._visits.enter(request.session_hash or "", owner_of(request.request.scope))
        except PromptCCDError as full:
            return f'<p class="pc-full" role="status">{html.escape(str(full))}</p>', ""
        return _screens(visit), _links(visit)

    def _leave(self, request: gr.Request) -> None:
        self._visits.leave(request.session_hash or "")

    def _take_in(self, uploads: list[str] | None, request: gr.Request) -> str:
        with self._at(request) as visit:
            came, left_out = self._grouping.take_in(visit, uploads or [])
            return f"<p>{came} more: press “Find groups”.</p>{_listed('left out', left_out)}"

    def _find(
        self, count: float | None, request: gr.Request, progress: gr.Progress = _PROGRESS
    ) -> tuple[str, str, str]:
        with self._at(request) as visit:
            result = self._grouping.find(visit, int(count or 0) or None, _telling(progress))
            return _report(result), _screens(visit), _links(visit)

    def _making(self, make: Callable[[Visit, Tell], Path]) -> Callable[..., str]:
        def made(request: gr.Request, progress: gr.Progress = _PROGRESS) -> str:
            with self._at(request) as visit:
                return _links(visit, make(visit, _telling(progress)).name)

        return made

    def _cancel(self, request: gr.Request) -> None:
        with self._at(request) as visit:
            if visit.cancel is not None:
                visit.cancel()

    def _forget(self, request: gr.Request) -> None:
        with self._at(request) as visit:
            self._visits.forget(visit)


def _telling(progress: gr.Progress) -> Tell:
    def tell(done: int, total: int, label: str) -> None:
        progress((done, total), desc=label.capitalize())

    return tell


def _in_their_words(text: str, visit: Visit | None) -> str:
    """A message that calls photographs by their names, and says nothing of where they lie."""
    if visit is None:
        return text
    for place in (visit.photos, visit.groups, visit.folder):
        text = text.replace(str(place), "your photographs")
    names = dict(zip(visit.shown.photos.keys, visit.shown.photos.names, strict=True)) if visit.shown else {}
    return CONTENT_HASH.sub(lambda found: names.get(found[0], found[0]), text)


_HEAD = (
    f"<h1>{TITLE}</h1><p><strong>Click a grey name and type what it is.</strong> "
    '<span class="pc-more">The groups were found by likeness alone: drag, merge and split what is wrong.</span> '
    '<a href="#pc-own">Use your own</a></p>'
)


def _screens(visit: Visit) -> str:
    project = visit.project()
    stage = project.registry.stage
    credit = "" if visit.is_grouped else _CREDIT
    view = ' view="changed"' if stage > 0 else ""
    base = f"{SCREENS[1:]}{visit.address}/"
    return f'<promptccd-desk base="{base}" data-stage="{project.photos.generation}"{view}></promptccd-desk>{credit}'


def _links(visit: Visit, archive: str = "") -> str:
    """What can be downloaded now."""
    offers = {TABLE: "Table of files and groups (CSV)", **({archive: f"Ready: {archive}"} if archive else {})}
    base = f"{SCREENS[1:]}{visit.address}/take/"
    return "".join(
        f'<p><a href="{base}{name}" download="{name}">{text}</a></p>' for name, text in offers.items()
    )


def _report(result: DiscoveryResult) -> str:
    """What became of the files."""
    report = result.report
    skipped = [(row.file, row.note) for row in result.rows if row.status == Status.SKIPPED.value]
    copies = f", {report.duplicates} of them twice" if report.duplicates else ""
    return (
        f"<p>{report.used} of {report.found} files are in groups{copies}; about {html.escape(str(result.estimate))} "
        f"groups.</p>{_listed('skipped', skipped)}"
    )


def _listed(what: str, left: list[tuple[str, str]]) -> str:
    if not left:
        return ""
    items = "".join(f"<li>{html.escape(name)}: {html.escape(why)}</li>" for name, why in left[:MOST_LISTED])
    return f"<details><summary>{len(left)} {what}, with the reason</summary><ul>{items}</ul></details>"


def _link(url: str, text: str) -> str:
    return f'<a href="{html.escape(url)}" target="_blank" rel="noopener noreferrer">{html.escape(text)}</a>'


_CREDIT = (
    f'<p class="pc-credit">Example photographs: {_link(ALBUM, "Caltech-101")} by Li, Andreeto, Ranzato and Perona, '
    f"{_link('https://creativecommons.org/licenses/by/4.0/', 'CC BY 4.0')}</p>"
)


def _foot(place: str, environment: Mapping[str, str] = os.environ) -> str:
    """The model, with links to the paper and to the cards of the model and of this Space."""
    (name, commit), space = parted(place), environment.get("SPACE_ID")
    model = _link(f"{HUB}/{name}", called(place)) if is_remote(place) else html.escape(called(place))
    about = [
        f"Your photographs are grouped by {model}{html.escape(f' at {commit[:8]}') if commit else ''}",
        _link(PAPER, "Paper"),
    ]
    if space:
        about.append(_link(f"{HUB}/spaces/{space}/blob/main/README.md", "About this page"))
    return f'<p class="pc-credit">{" · ".join(about)}</p>'

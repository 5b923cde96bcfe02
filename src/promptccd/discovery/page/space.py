"""The Space: the screens of `open`, and with them Gradio's buttons for uploads, grouping and downloads.

It needs ``promptccd[space]``. Every visitor has a private project; see `visits`.
"""

import atexit
import contextlib
import copy
import html
import logging
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when Gradio is imported

import gradio as gr
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from promptccd import systems
from promptccd.data.names import display_name
from promptccd.discovery.categories import registry_of
from promptccd.discovery.checkpoint import save_checkpoint
from promptccd.discovery.discover import discover
from promptccd.discovery.embedding import load_embedder
from promptccd.discovery.exports.formats import FORMATS
from promptccd.discovery.intake.reading import find_source
from promptccd.discovery.page.files import rows_of
from promptccd.discovery.page.routes import NOT_KEPT, POLICY, application, bundle, screens
from promptccd.discovery.page.server import SPACE_FRAMES, RequestFilter, ServingThread, Site, listen
from promptccd.discovery.page.visits import ENDED, SiteLimits, Visit, Visits
from promptccd.discovery.session import DiscoverySession
from promptccd.disk import EXPORTED
from promptccd.errors import DataError, InterruptedRunError, PromptCCDError
from promptccd.images.decode import Status
from promptccd.images.limits import MIB, ByteBudget, IntakeLimits, SkippedFileError
from promptccd.models.checkpoint import split_revision
from promptccd.reports.page import templates_of
from promptccd.training.devices import device_named
from promptccd.training.progress import StopRequest

__all__ = ["Site", "SiteLimits", "Space"]

logger = logging.getLogger(__name__)

TITLE = "What is in these photographs?"
FOLDER = "GRADIO_TEMP_DIR"  # where Gradio writes uploads
SCREENS, API = "/desk/", "/gradio_api/"
COOKIE = "promptccd_visitor"
MOST_WAITING = 32  # requests in the queue; later requests are refused with a message
MESSAGE_S = 15  # that an error stays in view
UNTAKEN_S = 600  # until an upload is deleted that no visit received
SPARE_BYTES = 2**30  # of the disk, that uploads leave free
FULL_DISK = "The disk of this page is full for the moment: try again in a few minutes."
USED = (  # routes of the page; Gradio's other routes serve files, fetch addresses, or show the state of sessions
    "/config", "/static/", "/assets/", "/svelte/", "/favicon.ico", "/theme.css", "/robots.txt", "/manifest.json",
    "/pwa_icon", SCREENS, *(API + each for each in (
        "queue/", "call/", "run/", "reset", "cancel", "upload", "info", "openapi.json", "heartbeat/", "startup-events",
        "app_id", "theme.css", "login_check", "user",
    )),
)  # fmt: skip
PROGRESS = gr.Progress()  # Gradio replaces it by a new object in every call
QUIET: Mapping[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
MODEL: Mapping[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}  # for all visitors
SCRIPT = f'<script type="module" src="{SCREENS[1:]}desk.js"></script>'  # of the element that shows groups
DOWNLOAD = "() => document.querySelector('#pc-links a[download$=zip]')?.click()"
THEME = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"])  # nothing is fetched
_PARTS = templates_of("promptccd.discovery.page").get_template("parts.html.jinja").module


class _Progress(StopRequest):
    """Shows the progress of work, and ends it when the visitor cancels it or the time is over."""

    def __init__(self, show: Callable[..., object], most_s: float):
        super().__init__()
        self._show, self._most_s, self._until = show, most_s, time.monotonic() + most_s

    def progress(self, items: Iterable[Any], total: int, label: str) -> Iterator[Any]:
        """Go through items, unless the work was cancelled (`InterruptedRunError`) or takes too long (`DataError`)."""
        for done, item in enumerate(items):
            if self.received:
                raise self.error("by the visitor")
            if time.monotonic() > self._until:
                raise DataError(
                    f"This took longer than {self._most_s / 60:.0f} min: give fewer images at a time."
                )
            self._show((done, total), desc=label.capitalize())
            yield item


class Space:
    """The page over a model: its parts, and the handlers of its parts.

    Args:
        place: the model, a folder or a name on the Hub; it is loaded when it is first needed.
        limits: on the photographs of one visitor.
        site_limits: on all visitors together.

    Attributes:
        blocks: the parts, of Gradio.
        visits: the visitors.
    """

    def __init__(
        self, place: str, *, limits: IntakeLimits | None = None, site_limits: SiteLimits | None = None
    ):
        self.place, self.limits = place, limits or IntakeLimits.for_visitors()
        self.visits = Visits(site_limits or SiteLimits(), _uploads().parent)
        self._shared: DiscoverySession | None = None
        with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(60, UNTAKEN_S)) as self.blocks:
            gr.HTML(_part("head", TITLE), elem_id="pc-head")
            with gr.Row(elem_id="pc-page"):
                with gr.Column(scale=5, min_width=320):
                    desk = gr.HTML(elem_id="pc-desk")
                with gr.Column(scale=1, min_width=270, elem_id="pc-own"):
                    gr.HTML(_part("own", self.limits))
                    upload = gr.UploadButton(
                        "Choose photographs",
                        variant="primary",
                        file_count="multiple",
                        file_types=["image", ".zip"],
                    )
                    cancel = gr.Button("Cancel", visible=False, min_width=90, elem_id="pc-cancel")
                    status = gr.HTML(elem_id="pc-status")
                    with gr.Row(equal_height=True):
                        count = gr.Number(
                            label="Number of groups", placeholder="automatic", precision=0, min_width=120
                        )
                        find = gr.Button("Group again", size="sm", min_width=90)
                    gr.HTML("<h2>Export</h2>")
                    links = gr.HTML(elem_id="pc-links")
                    images = gr.Button("Photographs by group (zip)", size="sm")
                    model = gr.Button("Model with these groups (zip)", size="sm")
                    forget = gr.Button("Forget my data", size="sm")
                    gr.HTML(_part("end", round(self.visits.limits.lifetime_s / 60)))
            gr.HTML(self._foot())
            self.blocks.load(self._enter, None, [desk, links], **QUIET)
            self.blocks.unload(self._leave)
            for each in (upload, count):
                each.async_move_resource_to_block_cache = _stored
            came = upload.upload(self._receive, upload, status, api_name="take_in", concurrency_limit=2)
            work = {**MODEL, "show_progress_on": status}
            for begin, api in (
                (came.success, {"api_visibility": "private"}),
                (find.click, {"api_name": "find_groups"}),
            ):
                begun = begin(lambda: gr.Button(visible=True), None, cancel, **QUIET)
                found = begun.then(self._find, count, [status, desk, links], **api, **work)
                for ended in (found.success, found.failure):
                    ended(lambda: gr.Button(visible=False), None, cancel, **QUIET)
            cancel.click(self._cancel, None, None, **QUIET)
            for button, name, make in ((images, "images", self._images), (model, "model", self._model)):
                made = button.click(make, None, links, api_name=name, **work)
                made.success(None, js=DOWNLOAD, api_visibility="private")
            gone = forget.click(
                self._forget, None, None, queue=False, api_name="forget", show_progress="hidden"
            )
            # The photographs that are still shown go with the page.
            gone.success(None, js="() => location.reload()", api_visibility="private")
        self.blocks.queue(max_size=MOST_WAITING)

    def serve(self, site: Site, host: str = "127.0.0.1", port: int | None = None) -> ServingThread:
        """Serve the page to a site's visitors, by default on the first free port from 7860 on; it answers already."""
        server = ServingThread(self.app(site), listen(host, port), host)
        server.start()
        return server

    def close(self) -> None:
        """End all visits and delete all files, but leave the server running."""
        self.blocks.close(verbose=False)
        self.visits.close()

    def app(self, site: Site) -> RequestFilter:
        """The application: Gradio and the screens of all visits, behind the filter of requests."""
        outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        outer.mount(SCREENS.rstrip("/"), self._screens())
        self.blocks.has_launched = True  # Gradio then checks that a file is an upload
        css = (files("promptccd.discovery.page") / "templates/space.css").read_text(encoding="utf-8")
        app = gr.mount_gradio_app(
            outer, self.blocks, path="/", head=SCRIPT, theme=THEME, css=css, footer_links=[], run_history=False,
            enable_monitoring=False, ssr_mode=False, show_error=False, pwa=False, allowed_paths=[],
            max_file_size=self.limits.max_total_bytes,  # a zip may be as large as all files
        )  # fmt: skip

        def headers(request: Request) -> dict[str, str]:
            path, frames = request.scope["path"], SPACE_FRAMES if site.behind_proxy else ()
            policy = POLICY if path.startswith(SCREENS) else "frame-ancestors"  # Gradio needs inline scripts
            added = {
                "content-security-policy": " ".join((policy, "'self'", *frames)),
                "referrer-policy": "same-origin",
                "x-content-type-options": "nosniff",
            }
            if path in ("", "/") and COOKIE not in request.cookies:
                # In a Space the page is in a frame of the Hub.
                kind = "SameSite=None; Secure; Partitioned" if site.behind_proxy else "SameSite=Lax"
                added["set-cookie"] = f"{COOKIE}={secrets.token_urlsafe(24)}; Path=/; HttpOnly; {kind}"
            return added

        return RequestFilter(app, [site.refusal, self._refusal], headers)

    def _refusal(self, request: Request) -> Response | None:
        """The answer to a request for another route, or that is too large; else `None`."""
        path, size = request.scope["path"], request.headers.get("content-length", "")
        most = MIB + (self.limits.max_total_bytes if path == f"{API}upload" else 0)
        if path not in ("", "/") and not path.startswith(USED):
            return PlainTextResponse("There is no such page here.", 404)
        if request.method != "POST":
            return None
        if not size.isdecimal():  # Gradio limits each file of an upload alone, and other requests not at all
            return PlainTextResponse("A request has to say how long it is.", 411)
        if int(size) > most:
            return PlainTextResponse(f"This request is {size} bytes long; the limit is {most}.", 413)
        if path == f"{API}upload" and shutil.disk_usage(_uploads()).free < int(size) + SPARE_BYTES:
            return PlainTextResponse(FULL_DISK, 503, {"Retry-After": "60"})
        return None

    def _screens(self) -> ASGIApp:
        """Answers for the screens of all visits, below their addresses."""
        routes = [*screens(lambda request: request.scope["visit"].project), Route("/take/{name}", _archive)]
        shown = application(routes)

        async def of_visit(scope: Scope, receive: Receive, send: Send) -> None:
            visit = self.visits.at(scope["path_params"]["address"], Request(scope).cookies.get(COOKIE, ""))
            if visit is None:
                raise HTTPException(410, ENDED)
            # A hidden window also waits for news.
            visit.touch(is_click=b"since=" not in scope["query_string"])
            await shown({**scope, "visit": visit}, receive, send)

        return application([Route("/{name}", bundle), Mount("/{address}", of_visit)])

    # Actions of visitors

    @contextlib.contextmanager
    def _visit(self, request: gr.Request) -> Iterator[Visit]:
        """The visit of a request. Errors are shown in the visitor's browser; unexpected ones are logged, too."""
        folder = ""
        try:
            visit = self.visits.of(request.session_hash or "")
            folder = str(visit.folder)
            yield visit
        except Exception as error:
            title, text = "Please note", str(error)
            if isinstance(error, InterruptedRunError):
                title, text = "Stopped", "As you asked. “Group again” resumes there."
            elif not isinstance(error, PromptCCDError):
                logger.error("Unexpected error in the page.", exc_info=error)
                text = "Something went wrong on our side. Your photographs and groups are as they were: try again."
            if folder:  # nothing shown contains a path of this machine
                text = re.sub(rf"{re.escape(folder)}(/photos|/groups)?", "your photographs", text)
            text = html.escape(text, quote=False)
            raise gr.Error(text, duration=MESSAGE_S, title=title, print_exception=False) from error

    def _enter(self, request: gr.Request) -> tuple[str, str]:
        try:
            visit = self.visits.enter(request.session_hash or "", request.cookies.get(COOKIE, ""))
        except PromptCCDError as full:
            return _part("full", str(full)), ""
        return _shown(visit)

    def _leave(self, request: gr.Request) -> None:
        self.visits.leave(request.session_hash or "")

    def _receive(self, uploads: list[str] | None, request: gr.Request) -> str:
        """Move uploads to a visitor's photographs, all or nothing, archives unpacked."""
        left_out = list[tuple[str, str]]()
        with (
            self._visit(request) as visit,
            visit.working(),
            tempfile.TemporaryDirectory(dir=visit.folder) as arriving,
        ):
            try:
                budget, before = ByteBudget(self.limits, "What you gave"), list(visit.photos.glob("*"))
                budget.spend(sum(each.stat().st_size for each in before))
                names = {each.name for each in before}
                with contextlib.closing(find_source(uploads or [])) as source:
                    for entry in source.entries(self.limits):
                        try:
                            if entry.reason:
                                raise SkippedFileError(entry.reason)
                            name = _file_name(entry.name)
                            name = f"{len(names)} {name}" if name in names else name
                            Path(arriving, name).write_bytes(source.read(entry, budget))
                            names.add(name)
                        except SkippedFileError as skipped:
                            left_out.append((entry.name, str(skipped)))
            finally:
                for upload in uploads or []:
                    Path(upload).unlink(missing_ok=True)
            self.limits.require_files(len(names), "This visit")
            came = list(Path(arriving).iterdir())
            if not came:
                raise DataError(f"No image came: {left_out[0][1] if left_out else 'choose some'}.")
            visit.photos.mkdir(exist_ok=True)
            for path in came:
                systems.rename(path, visit.photos / path.name)
            visit.left_out = left_out
            return _part("took_in", len(came), left_out)

    def _find(
        self, count: float | None, request: gr.Request, progress: gr.Progress = PROGRESS
    ) -> tuple[str, ...]:
        """Group a visitor's photographs: corrections stay, new photographs are a new stage."""
        with self._visit(request) as visit:
            if not visit.is_own:
                raise DataError("No photographs yet: choose some first.")
            stop = _Progress(progress, self.visits.limits.work_s)
            with visit.working(stop), self._session() as session:
                done = discover(
                    session, visit.photos, visit.groups, num_categories=int(count or 0) or None, stop=stop
                )
                visit.renew()
            skipped = [(row.file, row.note) for row in done.rows if row.status == Status.SKIPPED.value]
            return _part("found", done.report, done.estimate, [*visit.left_out, *skipped]), *_shown(visit)

    def _images(self, request: gr.Request) -> str:
        """A zip archive of a visitor's photographs, a folder for each group, without metadata."""
        with self._visit(request) as visit, visit.working():
            project = visit.project
            made = FORMATS["publish"].write(project.photos, rows_of(project), _emptied(visit.taken))
            (made.place / EXPORTED).unlink()  # our own list of its files
            return _zipped(visit, made.place, "images")

    def _model(self, request: gr.Request) -> str:
        """A zip archive of the model with a visitor's categories and corrections."""
        with self._visit(request) as visit:
            if not visit.is_grouped:
                raise DataError("Choose photographs of your own first: the example needs no model.")
            stop = _Progress(lambda *done, **what: None, self.visits.limits.work_s)
            with visit.working(stop), self._session() as session:
                discover(session, visit.photos, visit.groups, stop=stop)  # resumes, corrections included
                return _zipped(visit, save_checkpoint(session, _emptied(visit.taken) / "model"), "model")

    def _cancel(self, request: gr.Request) -> None:
        with self._visit(request) as visit:
            visit.cancel()

    def _forget(self, request: gr.Request) -> None:
        with self._visit(request) as visit:
            self.visits.end(visit)

    # The model

    @contextlib.contextmanager
    def _session(self) -> Iterator[DiscoverySession]:
        """A session whose model has its own categories and configuration, over the weights that all share."""
        shared = self._shared = self._shared or self._load()
        tensors = [*shared.model.parameters(), *shared.model.buffers()]
        model = copy.deepcopy(shared.model, {id(tensor): tensor for tensor in tensors})
        # Two workers, because visitors wait for the same cores; small batches, so that Cancel takes effect soon.
        session = DiscoverySession(
            model, shared.view, shared.registry.copy(), limits=self.limits, workers=2, batch_size=8
        )
        try:
            yield session
        finally:
            session.seen.close()  # Windows deletes no open file, and visitors may leave at any time

    def _load(self) -> DiscoverySession:
        try:
            model, view = load_embedder(self.place)
            model.config.name_or_path = self._called()
            model = model.eval().to(device_named(None))
            return DiscoverySession(model, view, registry_of(model, self.place))
        except PromptCCDError as error:  # which may name folders of this machine
            logger.error("Nothing can be grouped: %s", error)
            raise PromptCCDError("The model of this page cannot be loaded: its log says why.") from error

    def _called(self) -> str:
        """The name of the model; visitors are not shown the path of a folder."""
        name, _ = split_revision(self.place)
        return Path(name).absolute().name if Path(name).is_dir() else name

    def _foot(self, environment: Mapping[str, str] = os.environ) -> str:
        """The model, with links to the paper and to the cards of the model and of this Space."""
        name, commit = split_revision(self.place)
        card = f"https://huggingface.co/{name}" if "/" in name and not Path(name).is_dir() else ""
        return _part("foot", self._called(), card, commit, environment.get("SPACE_ID"))


def _uploads() -> Path:
    """The folder where Gradio writes uploads, for this process alone by default."""
    if not os.environ.get(FOLDER):
        private = tempfile.mkdtemp(prefix="promptccd-")  # mode 0700
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        os.environ[FOLDER] = os.path.join(private, "uploads")
    uploads = Path(os.path.realpath(os.environ[FOLDER]))
    uploads.mkdir(mode=0o700, parents=True, exist_ok=True)
    return uploads


async def _stored(path: str | Path | None) -> str | None:
    """The path of a file that a visitor named, which Gradio has found among the uploads; it would fetch an address."""
    if path is not None and "://" in str(path):
        raise gr.Error(
            "Addresses are not fetched: download the images and upload them.", print_exception=False
        )
    return None if path is None else str(path)


def _archive(request: Request) -> Response:
    """An archive that was made. Gradio's own download button would serve it to everybody who knows the path."""
    path = request.scope["visit"].taken / request.path_params["name"]
    if path.name not in ("images.zip", "model.zip") or not path.is_file():
        raise HTTPException(404, "There is no such file.")
    return FileResponse(path, filename=path.name, headers=NOT_KEPT)


def _part(name: str, *values: object) -> str:
    """A part of the page from the templates; every value is escaped."""
    return str(getattr(_PARTS, name)(*values))


def _base(visit: Visit) -> str:
    return f"{SCREENS[1:]}{visit.address}/"


def _shown(visit: Visit) -> tuple[str, str]:
    """The screens, and the links to downloads."""
    return _part("screens", _base(visit), visit.project, visit.is_grouped), _part(
        "downloads", _base(visit), ""
    )


def _file_name(name: str) -> str:
    """A safe file name, from a name that a stranger may have chosen; its suffix gives the type."""
    return re.sub(r"[/\\]+", " - ", display_name(name)).encode()[-150:].decode(errors="ignore")


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _zipped(visit: Visit, folder: Path, name: str) -> str:
    """Make a zip archive of a folder; returns the links to downloads."""
    target = Path(shutil.make_archive(str(visit.taken / name), "zip", folder))
    shutil.rmtree(folder)
    return _part("downloads", _base(visit), target.name)

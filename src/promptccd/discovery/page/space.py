"""The Space: the screens of `open`, and with them Gradio's buttons for uploads, grouping and downloads.

It needs ``promptccd[space]``. Every visitor has a private project; see `visits`.
"""

import asyncio
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
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when Gradio is imported

import gradio as gr
from fastapi import FastAPI
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from promptccd import systems
from promptccd.data.names import display_name
from promptccd.discovery.checkpoint import save_checkpoint
from promptccd.discovery.discover import discover
from promptccd.discovery.embedding import load_embedder, registry_of
from promptccd.discovery.exports.formats import FORMATS
from promptccd.discovery.exports.rows import assignments_csv
from promptccd.discovery.intake.reading import find_source
from promptccd.discovery.page.routes import (
    ACTIONS,
    ANSWERS,
    NOT_KEPT,
    POLICY,
    application,
    bundle,
    regrouped,
    rows_of,
    screens,
)
from promptccd.discovery.page.server import SPACE_FRAMES, RequestFilter, ServingThread, Site, listen
from promptccd.discovery.page.visits import ENDED, Visit, Visits
from promptccd.discovery.project import ProjectView
from promptccd.discovery.session import DiscoverySession
from promptccd.disk import EXPORTED
from promptccd.errors import DataError, InterruptedRunError, PromptCCDError
from promptccd.images.decode import Status
from promptccd.images.limits import MIB, ByteBudget, IntakeLimits, SkippedFileError
from promptccd.models.checkpoint import split_revision
from promptccd.reports.page import templates_of
from promptccd.training.devices import device_named
from promptccd.training.progress import StopRequest

__all__ = ["Site", "Space"]

logger = logging.getLogger(__name__)

TITLE = "What is in these photographs?"
FOLDER = "GRADIO_TEMP_DIR"  # where Gradio writes uploads
SCREENS, API = "/desk/", "/gradio_api/"
ARCHIVES = ("images.zip", "model.zip")
COOKIE = "promptccd_visitor"
MOST_WAITING = 32  # requests in the queue; later requests are refused with a message
MESSAGE_S = 15  # that an error stays in view
WORK_S = 300.0  # that one grouping or download may last, since other visitors wait
UNTAKEN_S = 3600  # until an upload is deleted that no visit received; many wait in the queue
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
SCRIPT = f'<script type="module" src="{SCREENS[1:]}desk.js"></script>'  # of the element that shows groups
THEME = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"])  # nothing is fetched
_PARTS = templates_of("promptccd.discovery.page").get_template("parts.html.jinja").module


class _Progress(StopRequest):
    """Shows the progress of work, and ends it when the visitor cancels it or the time is over."""

    def __init__(self, show: Callable[..., object] = lambda *done, **what: None):
        super().__init__()
        self._show, self._until = show, time.monotonic() + WORK_S

    def progress(self, items: Iterable[Any], total: int, label: str) -> Iterator[Any]:
        """Go through items, unless the work was cancelled (`InterruptedRunError`) or takes too long (`DataError`)."""
        for done, item in enumerate(items):
            if self.received:
                raise self.error("by the visitor")
            if time.monotonic() > self._until:
                raise DataError(f"This took longer than {WORK_S / 60:.0f} min: give fewer images at a time.")
            self._show((done, total), desc=label.capitalize())
            yield item


class Space:
    """The page over a model: its parts, and the handlers of its parts.

    Args:
        place: the model, a folder or a name on the Hub; it is loaded when it is first needed.
        limits: on the photographs of one visitor.
        visits: limits on all visitors together, see `Visits`.

    Attributes:
        blocks: the parts, of Gradio.
        visits: the visitors.
    """

    def __init__(self, place: str, *, limits: IntakeLimits | None = None, **visits: Any):
        self.place, self.limits = place, limits or IntakeLimits.for_visitors()
        self.visits = Visits(_uploads().parent, **visits)
        self._shared: DiscoverySession | None = None
        self._archives = asyncio.Semaphore(1)  # one is made at a time, as one grouping
        with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(60, UNTAKEN_S)) as self.blocks:
            gr.HTML(_part("head", TITLE), elem_id="pc-head")
            with gr.Row(elem_id="pc-page"):
                with gr.Column(scale=5, min_width=320):
                    desk = gr.HTML(elem_id="pc-desk")
                with gr.Column(scale=1, min_width=270, elem_id="pc-own"):
                    gr.HTML(_part("own", self.limits))
                    kinds: dict[str, Any] = {"file_count": "multiple", "file_types": ["image", ".zip"]}
                    upload = gr.UploadButton("Choose photographs", variant="primary", **kinds)
                    status = gr.HTML(elem_id="pc-status")
                    with gr.Row(equal_height=True):
                        again = gr.Button("Group again", size="sm", min_width=90)
                        cancel = gr.Button("Cancel", size="sm", min_width=70)
                    gr.HTML("<h2>Export</h2>")
                    links = gr.HTML()
                    forget = gr.Button("Forget my data", size="sm")
                    gr.HTML(_part("end", round(self.visits.away_s / 60)))
            gr.HTML(self._foot())
            shown = [desk, links]
            self.blocks.load(self._enter, None, shown, **QUIET)
            upload.async_move_resource_to_block_cache = _stored
            work = {"concurrency_id": "model", "concurrency_limit": 1, "show_progress_on": status}
            upload.upload(self._group, upload, [status, *shown], api_name="group", **work)
            again.click(self._group_again, None, [status, *shown], api_name="group_again", **work)
            cancel.click(self._cancel, None, None, **QUIET)
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
        outer = FastAPI()
        outer.mount(SCREENS.rstrip("/"), self._screens())
        self.blocks.has_launched = True  # Gradio then checks that a file is an upload
        css = (files("promptccd.discovery.page") / "templates/space.css").read_text(encoding="utf-8")
        app = gr.mount_gradio_app(
            outer, self.blocks, path="/", head=SCRIPT, theme=THEME, css=css, footer_links=[], run_history=False,
            enable_monitoring=False, ssr_mode=False, show_error=False, pwa=False,
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
        actions, answers = ACTIONS | {"/api/regroup": self._regrouped}, ANSWERS | {"/api/groups.csv": _table}
        routes = screens(lambda request: request.scope["visit"].project, answers, actions)
        shown = application([*routes, Route("/take/{name}", self._archive)])
        shown.add_exception_handler(PromptCCDError, _refused)

        async def of_visit(scope: Scope, receive: Receive, send: Send) -> None:
            visit = self.visits.at(scope["path_params"]["address"], Request(scope).cookies.get(COOKIE, ""))
            if visit is None:
                raise HTTPException(410, ENDED)
            await shown({**scope, "visit": visit}, receive, send)

        return application([Route("/{name}", bundle), Mount("/{address}", of_visit)])

    # Actions of visitors

    def _enter(self, request: gr.Request) -> tuple[str, str]:
        try:
            return _shown(self.visits.enter(*_owner(request)))
        except PromptCCDError as full:
            return _part("full", str(full)), ""

    def _group(
        self, uploads: list[str] | None, request: gr.Request, progress: gr.Progress = PROGRESS
    ) -> tuple[str, ...]:
        """Add uploads to the photographs and group all: corrections stay, new photographs are a new stage."""
        stop = _Progress(progress)
        try:
            with self._visit_of(request) as visit, visit.working(stop):
                left_out = self._add(uploads, visit) if uploads is not None else []
                if not visit.photos.exists():
                    raise DataError("No photographs yet: choose some first.")
                with self._session() as session:
                    done = discover(session, visit.photos, visit.groups, stop=stop)
                    visit.renew()
                skipped = [(row.file, row.note) for row in done.rows if row.status == Status.SKIPPED.value]
                return _part("found", done.report, done.estimate, [*left_out, *skipped]), *_shown(visit)
        finally:
            for upload in uploads or ():
                Path(upload).unlink(missing_ok=True)

    def _group_again(self, request: gr.Request, progress: gr.Progress = PROGRESS) -> tuple[str, ...]:
        return self._group(None, request, progress)

    def _regrouped(self, project: ProjectView, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Find another number of groups; a trained model has to find its groups again."""

        def find(count: int) -> None:
            with self._session() as session:
                photos = project.out.with_name("photos")
                discover(session, photos, project.out, num_categories=count, stop=_Progress())

        return regrouped(project, asked, find if project.about()["method"] else None)

    def _add(self, uploads: list[str], visit: Visit) -> list[tuple[str, str]]:
        """Move uploads to the photographs, all or nothing, archives unpacked; files left out, with the reason."""
        left_out, names = list[tuple[str, str]](), {each.name for each in visit.photos.glob("*")}
        with tempfile.TemporaryDirectory(dir=visit.folder) as arriving:
            budget = ByteBudget(self.limits, "What you gave")
            budget.spend(sum(each.stat().st_size for each in visit.photos.glob("*")))
            with contextlib.closing(find_source(uploads)) as source:
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
            self.limits.require_files(len(names), "This visit")
            came = list(Path(arriving).iterdir())
            if not came:
                raise DataError(f"No image came: {left_out[0][1] if left_out else 'choose some'}.")
            visit.photos.mkdir(exist_ok=True)
            for path in came:
                systems.rename(path, visit.photos / path.name)
        return left_out

    def _cancel(self, request: gr.Request) -> None:
        with self._visit_of(request) as visit:
            visit.cancel()

    def _forget(self, request: gr.Request) -> None:
        with self._visit_of(request) as visit:
            self.visits.end(visit)

    @contextlib.contextmanager
    def _visit_of(self, request: gr.Request) -> Iterator[Visit]:
        """The visit of a browser. Errors are shown there; unexpected ones are logged, too."""
        visit = self.visits.of(*_owner(request))
        try:
            if visit is None:
                raise PromptCCDError(ENDED)
            yield visit
        except Exception as error:
            title, text = "Please note", str(error)
            if isinstance(error, InterruptedRunError):
                title, text = "Stopped", "As you asked. “Group again” resumes there."
            elif not isinstance(error, PromptCCDError):
                logger.error("Unexpected error in the page.", exc_info=error)
                text = "Something went wrong on our side. Your photographs and groups are as they were: try again."
            text = html.escape(text if visit is None else _without_paths(text, visit), quote=False)
            raise gr.Error(text, duration=MESSAGE_S, title=title, print_exception=False) from error

    async def _archive(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ARCHIVES:
            raise HTTPException(404, "There is no such file.")
        async with self._archives:
            made = await run_in_threadpool(self._make_archive, request.scope["visit"], name)
        sent = BackgroundTask(Path(made).unlink, missing_ok=True)
        return FileResponse(made, filename=name, headers=NOT_KEPT, background=sent)

    def _make_archive(self, visit: Visit, name: str) -> str:
        """Make a zip archive: the photographs in a folder for each group, or the model with the categories."""
        stop = _Progress()
        with visit.working(stop), tempfile.TemporaryDirectory(dir=visit.folder) as place:
            if name == "images.zip":  # without metadata
                rows = rows_of(visit.project)
                folder = FORMATS["publish"].write(visit.project.photos, rows, Path(place)).place
                (folder / EXPORTED).unlink()  # our own list of its files
            elif visit.is_grouped:
                with self._session() as session:
                    discover(session, visit.photos, visit.groups, stop=stop)  # resumes, corrections included
                    folder = save_checkpoint(session, Path(place, "model"))
            else:
                raise DataError("Choose photographs of your own first: the example needs no model.")
            return shutil.make_archive(str(visit.folder / secrets.token_hex(8)), "zip", folder)

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
            model.config.name_or_path = self._model_name()
            model = model.eval().to(device_named(None))
            return DiscoverySession(model, view, registry_of(model, self.place))
        except PromptCCDError as error:  # which may name folders of this machine
            logger.error("Nothing can be grouped: %s", error)
            raise PromptCCDError("The model of this page cannot be loaded: its log says why.") from error

    def _model_name(self) -> str:
        """The name of the model; visitors are not shown the path of a folder."""
        name, _ = split_revision(self.place)
        return Path(name).absolute().name if Path(name).is_dir() else name

    def _foot(self, environment: Mapping[str, str] = os.environ) -> str:
        """The model, with links to the paper and to the cards of the model and of this Space."""
        name, commit = split_revision(self.place)
        card = f"https://huggingface.co/{name}" if "/" in name and not Path(name).is_dir() else ""
        return _part("foot", self._model_name(), card, commit, environment.get("SPACE_ID"))


def _owner(request: gr.Request) -> tuple[str, str]:
    """The secret in the cookie of a browser, and its session; a script without either owns no visit."""
    return request.cookies.get(COOKIE, ""), str(request.session_hash or secrets.token_hex(16))


def _table(project: ProjectView, _: Request) -> Response:
    """A row of every photograph, without place and time."""
    rows = [replace(row, path="", date="") for row in rows_of(project)]
    headers = {"content-disposition": 'attachment; filename="groups.csv"', **NOT_KEPT}
    return Response(assignments_csv(rows), media_type="text/csv", headers=headers)


def _without_paths(text: str, visit: Visit) -> str:
    """An error without paths of this machine, for a visitor."""
    return re.sub(rf"{re.escape(str(visit.folder))}(/photos|/groups)?", "your photographs", text)


async def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": _without_paths(str(error), request.scope["visit"])}, 409)


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


def _part(name: str, *values: object) -> str:
    """A part of the page from the templates; every value is escaped."""
    return str(getattr(_PARTS, name)(*values))


def _shown(visit: Visit) -> tuple[str, str]:
    """The screens, and the links to downloads."""
    base = f"{SCREENS[1:]}{visit.address}/"
    return _part("screens", base, visit.project, visit.is_grouped), _part("downloads", base, visit.is_grouped)


def _file_name(name: str) -> str:
    """A safe file name, from a name that a stranger may have chosen; its suffix gives the type."""
    return re.sub(r"[/\\]+", " - ", display_name(name)).encode()[-150:].decode(errors="ignore")

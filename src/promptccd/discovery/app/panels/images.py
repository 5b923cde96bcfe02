"""Images in: upload or name them, see what was read before anything runs, then find groups."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import gradio as gr

from promptccd.data.images import Status
from promptccd.data.limits import MIB
from promptccd.data.sources import ImageSource
from promptccd.data.stage_images import Progress
from promptccd.discovery.app.desk import (
    MODEL,
    Desk,
    Panel,
    Step,
    StoppedError,
    Updates,
    errors_shown,
    render,
    watched,
)
from promptccd.discovery.app.guard import COOKIE
from promptccd.discovery.app.screens import group_in, read_into
from promptccd.discovery.app.server import forget_page
from promptccd.discovery.app.visits import Visit, VisitOverError, Visits
from promptccd.errors import DataError

MOST_LISTED = 100  # files in a list of the report; the CSV has all
MOST_S = 300.0  # seconds that one piece of work may take


class ImagesPanel:
    """Upload, report, and the button that starts the work."""

    def __init__(self, desk: Desk):
        self._desk, limits = desk, desk.visits.limits
        mib, mib_all = limits.max_file_bytes // MIB, limits.max_total_bytes // MIB
        gr.HTML(render("images_intro.html.jinja", limits=limits, mib=mib, mib_all=mib_all))
        self.upload = gr.File(
            label="Images or zip archives", file_count="multiple", file_types=["image", ".zip"],
            type="filepath", height=220, elem_id="pc-upload",
        )  # fmt: skip
        with gr.Accordion("Or a data set of the Hugging Face Hub", open=False):
            self.hub_name = gr.Textbox(
                label="Name of the data set", placeholder="namespace/name", max_lines=1, max_length=200,
                info="Its training split; one column must hold images.",
            )  # fmt: skip
        with gr.Row(elem_classes="pc-actions"):
            self.find = gr.Button("Find groups", variant="primary", elem_id="pc-find")
            self.cancel = gr.Button("Cancel", visible=False, elem_id="pc-cancel")
        self.status = gr.HTML(elem_id="pc-status")
        self.report = gr.HTML(elem_id="pc-report")
        self.outputs = [self.report, self.find, self.status, self.cancel, self.upload, self.hub_name]

    def connect(self, tabs: gr.Tabs, after: Sequence[Panel]) -> None:
        """Wire the buttons; groups are shown in the other panels afterwards."""
        self._tabs, self._after, desk = tabs, after, self._desk
        reading = self.find.click(
            self._read,
            [desk.visit_id, self.upload, self.hub_name],
            [desk.visit_id, *self.outputs],
            api_name="read",
            concurrency_limit=2,
            show_progress="hidden",
        )
        outputs = [*self.outputs, tabs, *(each for panel in after for each in panel.outputs)]
        finding = reading.success(self._find, desk.visit_id, outputs, api_name="find_groups", **MODEL)
        finding.success(
            None,
            js="() => document.querySelector('#pc-desk')?.scrollIntoView()",
            api_visibility="private",
        )
        self.cancel.click(
            self._stop, desk.visit_id, None, queue=False, api_visibility="private", show_progress="hidden"
        )

    def show(self, visit: Visit) -> Updates:
        """The report of the newest images."""
        return {self.report: _report(visit)}

    def _read(
        self, visit_id: str, files: list[str] | None, hub_name: str, request: gr.Request
    ) -> Iterator[Updates]:
        yield {self.status: _progress("Opening the model and the files")}
        with errors_shown():
            visit = _visit(self._desk, visit_id, request)
        yield {self._desk.visit_id: visit.id, self.cancel: gr.Button(visible=True)}

        def work(progress: Progress) -> None:
            if files or hub_name or not is_waiting(visit):
                read_into(visit, _source(self._desk.visits, visit, files, hub_name), progress)

        yield from self._worked(
            visit, work, lambda: {self.upload: None, self.hub_name: ""} | self.show(visit)
        )

    def _find(self, visit_id: str) -> Iterator[Updates]:
        with errors_shown():
            visit = self._desk.visit(visit_id)
        if not is_waiting(visit):  # reading them was cancelled, or they are grouped
            yield {self.status: ""}
            return
        yield {self.cancel: gr.Button(visible=True), self.status: _progress("Waiting for the model")}

        def shown() -> Updates:
            updates: Updates = {self._tabs: gr.Tabs(selected="groups")} | self.show(visit)
            for panel in self._after:
                updates |= panel.show(visit)
            return updates

        yield from self._worked(visit, lambda progress: group_in(visit, progress), shown)

    def _worked(
        self, visit: Visit, work: Callable[[Progress], None], shown: Callable[[], Updates]
    ) -> Iterator[Updates]:
        """Do work that takes long, show how far it is, and in the end what has become of it."""

        def held(progress: Progress) -> None:
            with visit.lock:
                work(progress)

        problem, updates = None, {self.status: "", self.cancel: gr.Button(visible=False)}
        visit.busy = True
        try:
            with errors_shown(visit.session):
                with closing(watched(held, visit.stop, MOST_S)) as steps:
                    for step in steps:
                        yield {self.status: _progress(step.text, step)}
                with visit.lock:
                    updates |= shown()
        except (StoppedError, gr.Error) as error:
            problem = error
        finally:
            visit.busy = False
            visit.touch()
        yield updates
        if isinstance(problem, StoppedError):
            gr.Info(str(problem))
        elif problem is not None:
            raise problem

    def _stop(self, visit_id: str) -> None:
        with errors_shown():
            self._desk.visits.get(visit_id).stop.set()


def is_waiting(visit: Visit) -> bool:
    """Whether images were read and not grouped, such as when that was cancelled."""
    return bool(visit.session.stages) and visit.session.current.features is None


def _visit(desk: Desk, visit_id: str, request: gr.Request) -> Visit:
    """The visitor's visit, or a new one for who comes first or comes back late."""
    if visit_id:
        try:
            return desk.visit(visit_id)
        except VisitOverError:
            pass
    owner = desk.visits.store.owner(request.request.cookies.get(COOKIE))
    visit = desk.visits.open(owner)
    visit.at_end.append(forget_page(request))
    return visit


def _source(visits: Visits, visit: Visit, files: list[str] | None, hub_name: str) -> ImageSource | list[Path]:
    """What the visitor gave; uploads are put into the private folder.

    Raises:
        DataError: nothing, or too much.
    """
    name = (hub_name or "").strip()
    if files and name:
        raise DataError("Both files and a data set were given: clear one of them.")
    if name:
        return visits.fetch(name)
    if not files:
        raise DataError("No images yet: choose some files, or name a data set of the Hub.")
    return visit.take(files)


def _progress(text: str, step: Step | None = None) -> str:
    return render("progress.html.jinja", step=step, text=text)


def _report(visit: Visit) -> str:
    stage = visit.session.current
    intake, files = stage.intake, stage.intake.files
    copies = [(file.name, intake.original(file).name) for file in files if file.duplicate_of is not None]
    return render(
        "intake.html.jinja",
        report=intake.report(),
        stage=stage.stage,
        grouped=not is_waiting(visit),
        again=stage.stage <= visit.session.registry.stage,
        first=visit.session.registry.stage <= 0 and not visit.session.registry.active,
        skipped=[(f.name, f.verdict.note) for f in files if f.verdict.status is Status.SKIPPED][:MOST_LISTED],
        copies=copies[:MOST_LISTED],
        near=[(files[a].name, files[b].name) for a, b in intake.near_duplicates.items()][:MOST_LISTED],
    )

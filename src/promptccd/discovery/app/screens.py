"""The screens of a visit, which are those of `open`: its project, at an address that nobody can guess."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from promptccd.data.sources import ImageSource
from promptccd.data.stage_images import Progress
from promptccd.discovery.app.guard import owner_of
from promptccd.discovery.app.store import Shelf
from promptccd.discovery.app.visits import Visit, VisitOverError, Visits
from promptccd.discovery.checkpoint import save_progress
from promptccd.discovery.project import open_project
from promptccd.discovery.site import App, Message, Receive, Send
from promptccd.discovery.workbench import Workbench
from promptccd.discovery.workbench.photos import CELL_SIDE, Photos
from promptccd.discovery.workbench.routes import application, bundle, screens
from promptccd.errors import DataError
from promptccd.registry import CategoryRegistry

ROOM_OF_EDIT = 512 * 1024  # of a line of the journal, or some of the registry


class VisitPhotos(Photos):
    """Photographs of a visitor, who may have given an archive or a data set: they come from the session.

    The pictures that are made of them are not kept, neither in memory nor on the disk.
    """

    def __init__(self, out: Path, visit: Visit):
        self._session, self._decoding = visit.session, visit.decoding
        held = {key for stage in self._session.stages for key in stage.files}
        super().__init__(out, held.intersection(self._session.registry.images), [])

    def _place(self, key: str) -> tuple[int, str]:
        intake, file = self._session.file_of(key)
        stage = [each.intake for each in self._session.stages].index(intake)
        return stage, f"{file.index:06d}"

    def _name(self, key: str) -> str:
        return self._session.file_of(key)[1].name

    def original(self, key: str) -> bytes:
        """The bytes of what the visitor gave."""
        return self._session.original(key)

    def _medium(self, key: str) -> bytes | None:
        return self._made(key, CELL_SIDE) or self._small(key)

    def _made(self, key: str, side: int) -> bytes | None:
        with self._decoding:
            return super()._made(key, side)


class VisitBench(Workbench):
    """The project of a visit, on a shelf whose room its corrections share."""

    can_write = False  # what is taken away is downloaded

    def __init__(self, visit: Visit, shelf: Shelf):
        self._visit, self._shelf = visit, shelf
        super().__init__(shelf.folder)
        self.title = "Your images"

    def _photos(self) -> Photos:
        self._images = self.registry.images
        return VisitPhotos(self.out, self._visit)

    def about(self) -> dict[str, Any]:
        """What found the groups; the folder they lie in is nobody's business."""
        return {**super().about(), "place": ""}

    def refresh(self) -> str:
        """Nobody else writes there; what a grouping writes meanwhile is for the bench after this one."""
        with self.still:
            return self.journal.mark

    def answer(self, act: Callable[[CategoryRegistry], object]) -> dict[str, Any]:
        """Make a correction, within the room on the disk.

        Raises:
            DataError: the images are being worked on, or this becomes too much for one visitor.
            FullError: the disk of the page is full.
            VisitOverError: the visit is over.
        """
        if self._visit.busy:
            raise DataError("Your images are being worked on: wait until that is done, and correct it then.")
        with self._visit.lock:
            self._shelf.reserve(ROOM_OF_EDIT)
            try:
                return super().answer(act)
            finally:
                self._shelf.settle()


def read_into(visit: Visit, source: ImageSource | Sequence[Path], progress: Progress) -> None:
    """Look at the next images of a visit, whose lock is held.

    Raises:
        DataError: nothing can be read there, or a limit is exceeded.
        FullError: there is no room.
    """
    project = open_project(visit.room().folder)
    visit.take_up().read(source, progress, project)
    visit.weigh()


def group_in(visit: Visit, progress: Progress, num_categories: int | None = None) -> None:
    """Group the newest images of a visit and show them on its screens; its lock is held.

    Raises:
        DataError: there cannot be so many categories, or corrections contradict them.
        FullError: there is no room.
    """
    shelf, session = visit.room(), visit.take_up()
    session.embed(progress, batch_size=8)
    session.group(num_categories)
    session.current.intake.drop_views()
    visit.weigh()
    save_progress(session, shelf.folder, visit.came_with, "images of a visitor")
    shelf.settle()
    before, visit.bench = visit.bench, VisitBench(visit, shelf)
    if before is not None:
        before.closing = True


def screens_of(visits: Visits) -> App:
    """What answers the screens of all visits, below their addresses."""
    shown = application(screens(_bench_of))

    async def of_visit(scope: Message, receive: Receive, send: Send) -> None:
        try:
            visit = visits.at(scope["path_params"]["address"], owner_of(visits.store, scope))
        except VisitOverError as error:
            await PlainTextResponse(str(error), 410)(scope, receive, send)
            return
        scope["visit"] = visit
        if b"since=" in scope["query_string"]:  # a window that waits for news, though nobody may be there
            await shown(scope, receive, send)
            return
        visit.touch()
        async with visit.turns:
            await shown(scope, receive, send)

    return application([Route("/{name}", bundle), Mount("/{address}", of_visit)])


def _bench_of(request: Request) -> Workbench:
    visit: Visit = request.scope["visit"]
    if visit.bench is None:
        raise DataError("Nothing is grouped yet: find groups first.")
    return visit.bench

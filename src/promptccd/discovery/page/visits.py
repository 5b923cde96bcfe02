"""Visitors of the Space: each has a private folder, which is deleted after the visit."""

import json
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from promptccd.discovery.intake.seen import SeenFiles
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.record import PROJECT, has_categories
from promptccd.errors import DataError, PromptCCDError
from promptccd.training.progress import StopRequest

EXAMPLE = Path(os.path.realpath(__file__)).with_name("example")
PHOTOS_HERE = "{photographs}"  # is a placeholder in the example for the folder of its photographs
SHORT_S = 5.0  # of work that cannot be cancelled
ENDED = "This visit is over and its photographs are deleted: load the page again."
FULL = "%d people are here, which is the most: try again in a few minutes, or run promptccd demo on your own machine."


class VisitEndedError(PromptCCDError):
    """The visit has ended, or never existed."""


@dataclass(frozen=True)
class SiteLimits:
    """Limits on all visitors together; limits on the uploads of a visitor are `IntakeLimits`."""

    visits: int = 50  # at once
    lifetime_s: float = 1800.0  # seconds after the last click until a visit ends
    away_s: float = 120.0  # seconds after the last window was closed until it ends
    work_s: float = 300.0  # seconds that one grouping or download may take


@dataclass(eq=False)
class Visit:
    """One visitor's photographs and groups, all of them below `folder`."""

    folder: Path
    owner: str  # the secret in the browser's cookie; "" if it stores no cookie
    address: str = field(default_factory=partial(secrets.token_urlsafe, 24))  # of the screens
    pages: set[str] = field(default_factory=set)  # sessions of Gradio that show this visit
    lock: threading.Lock = field(default_factory=threading.Lock)  # locked while files are written or deleted
    stop: StopRequest | None = None  # of the work in progress
    left_out: list[tuple[str, str]] = field(
        default_factory=list
    )  # files of the newest upload, with the reason
    ended: bool = False
    clicked_at: float = field(default_factory=time.monotonic)
    alive_at: float = field(default_factory=time.monotonic)  # when a window last asked for news
    _project: "VisitProject | None" = None  # empty until the screens need it, and after a grouping

    def __post_init__(self) -> None:
        self.photos, self.groups, self.taken = (self.folder / name for name in ("photos", "groups", "taken"))

    @property
    def is_own(self) -> bool:
        """Whether the visitor gave photographs."""
        return self.photos.exists()

    @property
    def is_grouped(self) -> bool:
        """Whether the visitor's photographs are in groups; before, the screens show the example."""
        return has_categories(self.groups)

    @property
    def project(self) -> "VisitProject":
        """The project on the screens."""
        project = self._project = self._project or VisitProject(self)
        return project

    def touch(self, *, is_click: bool = True) -> None:
        """Note that the visitor did something, or that a window is open."""
        self.alive_at = time.monotonic()
        self.clicked_at = self.alive_at if is_click else self.clicked_at

    def renew(self) -> None:
        """Show the groups that were written since."""
        before, self._project = self._project, None
        if before is not None:
            before.closing = True
            before.photos.close()  # Windows deletes no open file

    @contextmanager
    def working(self, stop: StopRequest | None = None) -> Iterator[None]:
        """Use the files alone, for work that `stop` ends; a `DataError` if other work is in progress."""
        if self.stop is not None or not self.lock.acquire(timeout=SHORT_S):
            raise DataError("Your photographs are being worked on: wait for it, or press “Cancel”.")
        try:
            self.stop = stop
            if self.ended:
                raise VisitEndedError(ENDED)
            yield
        finally:
            self.stop = None
            self.lock.release()

    def cancel(self) -> None:
        """End the work in progress at its next image."""
        if (stop := self.stop) is not None:
            stop.received = 1

    def end(self) -> None:
        """Stop the work in progress and delete everything."""
        self.ended = True
        self.cancel()
        self.renew()
        with self.lock:
            shutil.rmtree(self.folder, ignore_errors=True)


class VisitProject(ProjectView):
    """A visitor's project on the screens, which show nothing of this machine."""

    can_write = False  # exports are downloaded

    def __init__(self, visit: Visit):
        self._visit = visit
        super().__init__(visit.groups if visit.is_grouped else _example(visit.folder))
        self.title = "Your photographs" if visit.is_grouped else "An example"

    def about(self) -> dict[str, Any]:
        """The method that found the groups, without the folder."""
        return {**super().about(), "place": ""}

    def corrected(self, act: Callable[[], object]) -> dict[str, Any]:
        """Make a correction, unless other work on the photographs is in progress."""
        with self._visit.working():
            return super().corrected(act)


def _example(folder: Path) -> Path:
    """A visitor's own copy of the example's project; its photographs stay in the package."""
    out = folder / "example"
    if not out.exists():
        shutil.copytree(EXAMPLE / "project", out / PROJECT)
        where = json.dumps(str(EXAMPLE / "photos"))[1:-1]
        record = out / PROJECT / "project.json"
        record.write_bytes(record.read_bytes().replace(PHOTOS_HERE.encode(), where.encode()))
        with closing(SeenFiles(out / PROJECT)) as seen:
            seen.relocate(PHOTOS_HERE, str(EXAMPLE / "photos"))
    return out


class Visits:
    """All visits, each in a folder below `root`; a timer ends abandoned visits."""

    def __init__(self, limits: SiteLimits, parent: Path):
        self.limits, self._open = limits, dict[str, Visit]()  # by address
        self._folder = tempfile.TemporaryDirectory(prefix="promptccd-visits-", dir=parent)  # mode 0700
        self.root = Path(os.path.realpath(self._folder.name))
        self._lock = threading.Lock()  # of the list; never locked while files are deleted
        self._closed = threading.Event()
        threading.Thread(target=self._run_timer, name="visits", daemon=True).start()

    def enter(self, page: str, owner: str = "") -> Visit:
        """The visit of a browser, or a new visit, shown by a session of Gradio; a `PromptCCDError` if it is full.

        A visitor who only looks at the example makes room for a new visitor.
        """
        leaving = None
        with self._lock:
            found = next((each for each in self._open.values() if owner and each.owner == owner), None)
            if found is None:
                if len(self._open) >= self.limits.visits:
                    idle = [each for each in self._open.values() if not each.is_own]
                    if not idle:
                        raise PromptCCDError(FULL % len(self._open))
                    leaving = self._open.pop(min(idle, key=lambda each: each.clicked_at).address)
                found = Visit(self.root / secrets.token_urlsafe(24), owner)
                found.folder.mkdir(mode=0o700)
                _example(found.folder)
                self._open[found.address] = found
            found.pages.add(page)
            found.touch()
        if leaving is not None:
            leaving.end()
        return found

    def of(self, page: str) -> Visit:
        """The visit that a session of Gradio shows; or a `VisitEndedError`."""
        found = next((each for each in list(self._open.values()) if page in each.pages), None)
        if found is None:
            raise VisitEndedError(ENDED)
        found.touch()
        return found

    def at(self, address: str, owner: str) -> Visit | None:
        """The visit whose screens are at an address, if any; a browser with a cookie sees its own alone."""
        found = self._open.get(address)
        return found if found is not None and found.owner in ("", owner) else None

    def leave(self, page: str) -> None:
        """Note that a page was closed. A phone closes it whenever it sleeps, so the visit lasts `away_s` longer."""
        for each in list(self._open.values()):
            if page in each.pages:
                each.touch(is_click=False)
                each.pages.discard(page)

    def end(self, visit: Visit) -> None:
        """End a visit: its work is stopped, and all of its files are deleted."""
        if self._open.pop(visit.address, None) is not None:
            visit.end()

    def close(self) -> None:
        """End all visits."""
        self._closed.set()
        for visit in list(self._open.values()):
            self.end(visit)
        self._folder.cleanup()

    def _run_timer(self) -> None:
        limits = self.limits
        while not self._closed.wait(min(10.0, limits.away_s / 4, limits.lifetime_s / 4)):
            now = time.monotonic()
            for each in list(self._open.values()):
                is_away = not each.pages and now - each.alive_at > limits.away_s
                if is_away or now - each.clicked_at > limits.lifetime_s:
                    self.end(each)

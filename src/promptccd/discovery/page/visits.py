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
from pathlib import Path
from typing import Any

from promptccd.discovery.intake.seen import SeenFiles
from promptccd.discovery.project import ProjectView, has_registry
from promptccd.discovery.project.record import PROJECT
from promptccd.errors import DataError, PromptCCDError
from promptccd.training.progress import StopRequest

EXAMPLE = Path(os.path.realpath(__file__)).with_name("example")
PHOTOS_HERE = "{photographs}"  # is a placeholder in the example for the folder of its photographs
SHORT_S = 5.0  # of work that cannot be cancelled
ENDED = "This visit is over and its photographs are deleted: load the page again."
FULL = "%d people are here, which is the most: try again in a few minutes, or run promptccd demo on your own machine."


class Visit:
    """One visitor's photographs and groups, all of them below `folder`.

    Args:
        folder: is made.
        cookie: the secret in the browser's cookie; "" if it stores no cookie.
        session: of Gradio, which stands for a browser without a cookie.

    Attributes:
        owner: cookie and session.
        address: of the screens.
        example: a project of its own, until photographs are in groups.
        seen_at: when a window last asked for anything.
    """

    def __init__(self, folder: Path, cookie: str, session: str):
        self.owner = (cookie, "" if cookie else session)
        self.address, self.seen_at = secrets.token_urlsafe(24), time.monotonic()
        self.folder, self.photos, self.groups = folder, folder / "photos", folder / "groups"
        self._lock = threading.Lock()  # locked while files are written or deleted
        self._stop: StopRequest | None = None  # of the work in progress
        self._has_ended = False
        self._project: VisitProject | None = None  # empty until the screens need it, and after a grouping
        folder.mkdir(mode=0o700)
        self.example = _example(folder)

    @property
    def is_grouped(self) -> bool:
        """Whether the visitor's photographs are in groups; before, the screens show the example."""
        return has_registry(self.groups / PROJECT)

    @property
    def project(self) -> "VisitProject":
        """The project on the screens."""
        project = self._project = self._project or VisitProject(self)
        return project

    def seen(self) -> "Visit":
        """The same, which is open for a while again."""
        self.seen_at = time.monotonic()
        return self

    def renew(self) -> None:
        """Show the groups that were written since."""
        before, self._project = self._project, None
        if before is not None:
            before.closing = True
            before.photos.close()  # Windows deletes no open file

    @contextmanager
    def working(self, stop: StopRequest | None = None) -> Iterator[None]:
        """Use the files alone, for work that `stop` ends; a `DataError` if other work is in progress."""
        if self._stop is not None or not self._lock.acquire(timeout=SHORT_S):
            raise DataError("Your photographs are being worked on: wait for it, or press “Cancel”.")
        try:
            self._stop = stop
            if self._has_ended:
                raise PromptCCDError(ENDED)
            yield
        finally:
            self._stop = None
            self._lock.release()

    def cancel(self) -> None:
        """End the work in progress at its next image."""
        if (stop := self._stop) is not None:
            stop.received = 1

    def end(self) -> None:
        """Stop the work in progress and delete everything."""
        self._has_ended = True
        self.cancel()
        self.renew()
        with self._lock:
            shutil.rmtree(self.folder, ignore_errors=True)


class VisitProject(ProjectView):
    """A visitor's project on the screens, which show nothing of this machine."""

    can_write = False  # exports are downloaded

    def __init__(self, visit: Visit):
        self._visit = visit
        super().__init__(visit.groups if visit.is_grouped else visit.example)
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
    shutil.copytree(EXAMPLE / "project", out / PROJECT)
    where = json.dumps(str(EXAMPLE / "photos"))[1:-1]
    record = out / PROJECT / "project.json"
    record.write_bytes(record.read_bytes().replace(PHOTOS_HERE.encode(), where.encode()))
    with closing(SeenFiles(out / PROJECT)) as seen:
        seen.relocate(PHOTOS_HERE, str(EXAMPLE / "photos"))
    return out


class Visits:
    """All visits, each in a folder of its own; a visit whose windows are closed is ended.

    Args:
        parent: folder in which a private folder is made.
        most: at most so many visits at once.
        away_s: seconds after a window last asked for anything until its visit ends.

    Attributes:
        root: contains the folders of the visits.
    """

    def __init__(self, parent: Path, most: int = 100, away_s: float = 600.0):
        self.most, self.away_s, self._open = most, away_s, dict[str, Visit]()  # by address
        self._folder = tempfile.TemporaryDirectory(prefix="promptccd-visits-", dir=parent)  # mode 0700
        self.root = Path(os.path.realpath(self._folder.name))
        self._lock, self._closed = threading.Lock(), threading.Event()
        threading.Thread(target=self._run_timer, name="visits", daemon=True).start()

    def enter(self, cookie: str, session: str) -> Visit:
        """The visit of a browser, or a new visit; a `PromptCCDError` if there are too many."""
        with self._lock:
            if (found := self.of(cookie, session)) is None:
                if len(self._open) >= self.most:
                    raise PromptCCDError(FULL % len(self._open))
                found = Visit(self.root / secrets.token_urlsafe(24), cookie, session)
                self._open[found.address] = found
        return found

    def of(self, cookie: str, session: str) -> Visit | None:
        """The visit of a browser, by its cookie, or without one by its session."""
        owner = (cookie, "" if cookie else session)
        return next((each.seen() for each in list(self._open.values()) if each.owner == owner), None)

    def at(self, address: str, cookie: str) -> Visit | None:
        """The visit whose screens are at an address, if any; a browser with a cookie sees its own alone."""
        found = self._open.get(address)
        return found.seen() if found is not None and found.owner[0] in ("", cookie) else None

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
        while not self._closed.wait(min(10.0, self.away_s / 4)):
            for visit in list(self._open.values()):
                if time.monotonic() - visit.seen_at > self.away_s:
                    self.end(visit)

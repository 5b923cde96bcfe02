"""Who is here: for every visitor a folder of their own, which is deleted when they leave."""

import contextlib
import hmac
import json
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from promptccd.discovery.intake.seen import SeenFiles
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.folder import PROJECT
from promptccd.discovery.project.record import has_categories
from promptccd.errors import DataError, PromptCCDError

EXAMPLE = Path(os.path.realpath(__file__)).parents[1] / "page" / "example"
PHOTOS_HERE = "{photographs}"  # stands in the example for the folder of its photographs
SHORT_S = 5.0  # that work takes at most which cannot be cancelled
OVER = "This visit is over and its photographs are deleted: load the page again."
FULL = "%d people are here, which is the most: try again in a few minutes, or run promptccd demo on your own machine."


class VisitOverError(PromptCCDError):
    """The visit was forgotten, or there never was one."""


@dataclass(frozen=True)
class Together:
    """Limits on all visitors together; those on what one of them brings are `IntakeLimits`."""

    visits: int = 50  # at once
    lifetime_s: float = 1800.0  # seconds after the last click until a visit is forgotten
    away_s: float = 120.0  # seconds after the last window was closed until it is forgotten
    work_s: float = 300.0  # seconds that one piece of work may take


@dataclass(eq=False)
class Visit:
    """One visitor's photographs and groups, all of them below `folder`."""

    folder: Path
    owner: str  # the secret in their browser's cookie; "" if it keeps none
    address: str = field(default_factory=partial(secrets.token_urlsafe, 24))  # of their screens
    pages: set[str] = field(default_factory=set)  # of Gradio, that show this visit
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while files are written or deleted
    cancel: Callable[[], None] | None = None  # ends the work that is going on
    over: bool = False  # whether it was forgotten
    seen_at: float = field(default_factory=time.monotonic)  # when they last did something
    alive_at: float = field(default_factory=time.monotonic)  # when a window last asked for news
    shown: "VisitProject | None" = None  # on the screens; none until it is needed, or after a grouping

    def __post_init__(self) -> None:
        self.photos, self.groups, self.taken = (self.folder / name for name in ("photos", "groups", "taken"))

    @property
    def is_own(self) -> bool:
        """Whether they gave photographs."""
        return self.photos.exists()

    @property
    def is_grouped(self) -> bool:
        """Whether photographs of theirs are in groups; before, the screens show the example."""
        return has_categories(self.groups)

    def touch(self, *, is_click: bool = True) -> None:
        """Note that they did something, or that a window is open."""
        self.alive_at = time.monotonic()
        self.seen_at = self.alive_at if is_click else self.seen_at

    def project(self) -> "VisitProject":
        """What the screens show."""
        shown = self.shown = self.shown or VisitProject(self)
        return shown

    def renew(self) -> None:
        """Show what was written since."""
        before, self.shown = self.shown, None
        if before is not None:
            before.closing = True

    @contextmanager
    def held(self, cancel: Callable[[], None] | None = None) -> Iterator[None]:
        """Have the files for oneself, for work that `cancel` ends; a `DataError` if something is going on already."""
        if self.cancel is not None or not self.lock.acquire(timeout=SHORT_S):
            raise DataError("Your photographs are being worked on: wait for it, or press “Cancel”.")
        try:
            self.cancel = cancel
            if self.over:
                raise VisitOverError(OVER)
            yield
        finally:
            self.cancel = None
            self.lock.release()

    def end(self) -> None:
        """Stop what is going on and delete everything."""
        self.over = True
        if (cancel := self.cancel) is not None:
            cancel()
        self.renew()
        with self.lock:
            shutil.rmtree(self.folder, ignore_errors=True)


class VisitProject(ProjectView):
    """A visitor's project on the screens, which say nothing of this machine."""

    can_write = False  # what is taken away is downloaded

    def __init__(self, visit: Visit):
        self._visit = visit
        super().__init__(visit.groups if visit.is_grouped else _example(visit.folder))
        self.title = "Your photographs" if visit.is_grouped else "An example"

    def about(self) -> dict[str, Any]:
        """What found the groups; where they lie is nobody's business."""
        return {**super().about(), "place": ""}

    def corrected(self, act: Callable[[], object]) -> dict[str, Any]:
        """Make a correction, if the photographs are not being worked on."""
        with self._visit.held():
            return super().corrected(act)


def _example(folder: Path) -> Path:
    """A visitor's own copy of the project of the example; the photographs stay where the package is."""
    out = folder / "example"
    if not out.exists():
        shutil.copytree(EXAMPLE / "project", out / PROJECT)
        where = json.dumps(str(EXAMPLE / "photos"))[1:-1]
        record = out / PROJECT / "project.json"
        record.write_bytes(record.read_bytes().replace(PHOTOS_HERE.encode(), where.encode()))
        with contextlib.closing(SeenFiles(out / PROJECT)) as seen:
            seen.relocate(PHOTOS_HERE, str(EXAMPLE / "photos"))
    return out


class Visits:
    """All visits, in a folder below `parent` that goes with them; a thread forgets whoever does not come back."""

    def __init__(self, together: Together, parent: Path | None = None):
        self.together = together
        self._folder = tempfile.TemporaryDirectory(prefix="promptccd-visits-", dir=parent)  # mode 0700
        self.root = Path(os.path.realpath(self._folder.name))
        self._open: list[Visit] = []
        self._lock = threading.Lock()  # of the list; never held while files are deleted
        self._closed = threading.Event()
        every_s = min(10.0, together.away_s / 4, together.lifetime_s / 4)
        threading.Thread(target=self._keep_sweeping, args=(every_s,), name="visits", daemon=True).start()

    def enter(self, page: str, owner: str = "") -> Visit:
        """The visit of a browser, or a new one for who has none, shown by `page` of Gradio; an error if it is full.

        Whoever looks at the example and did nothing for the longest time makes room.
        """
        self.sweep()
        leaving = None
        with self._lock:
            found = next((each for each in self._open if owner and each.owner == owner), None)
            if found is None:
                if len(self._open) >= self.together.visits:
                    idle = [each for each in self._open if not each.is_own]
                    if not idle:
                        raise PromptCCDError(FULL % len(self._open))
                    leaving = min(idle, key=lambda each: each.seen_at)
                    self._open.remove(leaving)
                found = Visit(self.root / secrets.token_urlsafe(24), owner)
                found.folder.mkdir(mode=0o700)
                found.project()  # the copy of the example is whole before anybody asks for it
                self._open.append(found)
            found.pages.add(page)
            found.touch()
        if leaving is not None:
            leaving.end()
        return found

    def of(self, page: str) -> Visit:
        """The visit that a page of Gradio shows; asking is a sign of life; a `VisitOverError` if there is none."""
        for each in list(self._open):
            if page in each.pages and not self._is_stale(each):
                each.touch()
                return each
        raise VisitOverError(OVER)

    def at(self, address: str, owner: str) -> Visit | None:
        """The visit whose screens are at an address, if any; a browser that keeps cookies sees its own alone."""
        for each in list(self._open):
            is_it = hmac.compare_digest(each.address.encode(), address.encode())
            is_theirs = not each.owner or hmac.compare_digest(each.owner.encode(), owner.encode())
            if is_it and is_theirs and not self._is_stale(each):
                return each
        return None

    def leave(self, page: str) -> None:
        """Note that a page was closed. A phone closes it whenever it sleeps, so the visit waits for `away_s`."""
        for each in list(self._open):
            if page in each.pages:
                each.touch(is_click=False)
                each.pages.discard(page)

    def forget(self, visit: Visit) -> None:
        """End a visit, if it is not over: its work is stopped, and everything of it is deleted."""
        with self._lock:
            if visit not in self._open:
                return
            self._open.remove(visit)
        visit.end()

    def sweep(self) -> None:
        """Forget visits that nobody came back to."""
        for visit in filter(self._is_stale, list(self._open)):
            self.forget(visit)

    def close(self) -> None:
        """End all visits."""
        self._closed.set()
        for visit in list(self._open):
            self.forget(visit)
        self._folder.cleanup()

    def _is_stale(self, visit: Visit) -> bool:
        now, limits = time.monotonic(), self.together
        is_away = not visit.pages and now - visit.alive_at > limits.away_s
        return is_away or now - visit.seen_at > limits.lifetime_s

    def _keep_sweeping(self, every_s: float) -> None:
        while not self._closed.wait(every_s):
            self.sweep()

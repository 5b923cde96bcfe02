"""Who is here: for every visitor a folder of their own, which is deleted when they leave."""

import hmac
import json
import logging
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
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from promptccd.discovery.project import Project, ProjectView
from promptccd.discovery.project.folder import PROJECT
from promptccd.errors import DataError, PromptCCDError
from promptccd.registry import LogEntry

logger = logging.getLogger(__name__)

EXAMPLE = files("promptccd.discovery.space") / "example"
SHORT_S = 5.0  # that work takes at most which cannot be cancelled
PHOTOS_HERE = "{photographs}"  # stands in the example for the folder of its photographs


class VisitOverError(PromptCCDError):
    """The visit was forgotten, or there never was one."""


@dataclass(frozen=True)
class Together:
    """Limits on all visitors together; those on what one of them brings are `IntakeLimits`.

    Attributes:
        visits: at once.
        lifetime_s: seconds after the last click until a visit is forgotten.
        away_s: seconds after the last window was closed until it is forgotten.
        work_s: seconds that one piece of work may take.
        connections: open at once.
        spare_bytes: of the disk, that uploads leave free.
    """

    visits: int = 50
    lifetime_s: float = 1800.0
    away_s: float = 120.0
    work_s: float = 300.0
    connections: int = 512
    spare_bytes: int = 2**30


@dataclass(eq=False)
class Visit:
    """One visitor's photographs and groups.

    Attributes:
        folder: holds everything of theirs.
        owner: the secret in their browser's cookie; ``""`` if it keeps none.
        address: of their screens; nobody can guess it.
        pages: the pages of Gradio that show this visit.
        lock: held while files are written or deleted.
        cancel: ends the work that is going on; `None` if there is none.
        over: whether it was forgotten.
        seen_at: when they last did something, in seconds of the monotonic clock.
        alive_at: when a window last asked for news.
        shown: what the screens show; `None` until it is needed, or after a grouping.
    """

    folder: Path
    owner: str
    address: str = field(default_factory=partial(secrets.token_urlsafe, 24))
    pages: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    cancel: Callable[[], None] | None = None
    over: bool = False
    seen_at: float = field(default_factory=time.monotonic)
    alive_at: float = field(default_factory=time.monotonic)
    shown: "VisitProject | None" = None

    @property
    def photos(self) -> Path:
        """The photographs that they gave."""
        return self.folder / "photos"

    @property
    def groups(self) -> Path:
        """The results of the discovery in them."""
        return self.folder / "groups"

    @property
    def taken(self) -> Path:
        """What they can download."""
        return self.folder / "taken"

    @property
    def is_grouped(self) -> bool:
        """Whether photographs of theirs are in groups; before, the screens show the example."""
        return (self.groups / PROJECT / "registry.json").exists()

    @property
    def is_own(self) -> bool:
        """Whether they gave photographs."""
        return self.photos.exists()

    def touch(self) -> None:
        """Note a sign of life."""
        self.seen_at = self.alive_at = time.monotonic()

    def alive(self) -> None:
        """Note that a window is open."""
        self.alive_at = time.monotonic()

    def project(self) -> "VisitProject":
        """What the screens show."""
        shown = self.shown
        if shown is None:
            self.shown = shown = VisitProject(self)
        return shown

    def renew(self) -> None:
        """Show what was written since."""
        before, self.shown = self.shown, None
        if before is not None:
            before.closing = True

    @contextmanager
    def held(self, cancel: Callable[[], None] | None = None) -> Iterator[None]:
        """Have the files for oneself, for work that `cancel` ends.

        Raises:
            DataError: something is going on there already.
            VisitOverError: the visit is over.
        """
        if self.cancel is not None or not self.lock.acquire(timeout=SHORT_S):
            raise DataError("Your photographs are being worked on: wait for it, or press “Cancel”.")
        try:
            self.cancel = cancel
            if self.over:
                raise VisitOverError(
                    "This visit is over and its photographs are deleted: load the page again."
                )
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

    def answer(self, act: Callable[[Project], LogEntry]) -> dict[str, Any]:
        """Make a correction.

        Raises:
            DataError: the photographs are being worked on.
        """
        with self._visit.held():
            return super().answer(act)


def _example(folder: Path) -> Path:
    """A visitor's own copy of the project of the example; the photographs stay where the package is."""
    out = folder / "example"
    if not out.exists():
        with as_file(EXAMPLE) as packed:
            shutil.copytree(packed / "project", out / PROJECT)
            where = json.dumps(os.path.realpath(packed / "photos"))[1:-1]
        for path in (out / PROJECT / "files.jsonl", out / PROJECT / "project.json"):
            path.write_text(path.read_text(encoding="utf-8").replace(PHOTOS_HERE, where), encoding="utf-8")
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
        every_s = max(0.05, min(10.0, together.away_s / 4, together.lifetime_s / 4))
        threading.Thread(target=self._keep_sweeping, args=(every_s,), name="visits", daemon=True).start()

    def enter(self, page: str, owner: str = "") -> Visit:
        """The visit of a browser, or a new one for who has none; `page` is the name of their page of Gradio.

        Raises:
            PromptCCDError: as many people as can be here are here already.
        """
        self.sweep()
        leaving = None
        with self._lock:
            found = next((each for each in self._open if owner and each.owner == owner), None)
            if found is None:
                if len(self._open) >= self.together.visits:
                    leaving = self._idlest()
                    self._open.remove(leaving)
                found = Visit(self.root / secrets.token_urlsafe(24), owner)
                found.folder.mkdir(mode=0o700)
                self._open.append(found)
            found.pages.add(page)
            found.touch()
        if leaving is not None:
            leaving.end()
        return found

    def _idlest(self) -> Visit:
        """Who looks at the example and came longest ago: they make room for others.

        Raises:
            PromptCCDError: there is nobody.
        """
        idle = [each for each in self._open if not each.is_own]
        if not idle:
            raise PromptCCDError(
                f"{self.together.visits} people are here, which is the most at once: try again in a few minutes, or "
                "run promptccd demo on your own machine."
            )
        return min(idle, key=lambda each: each.seen_at)

    def of(self, page: str) -> Visit:
        """The visit that a page of Gradio shows; asking for it is a sign of life.

        Raises:
            VisitOverError: there is none.
        """
        found = next((each for each in list(self._open) if page in each.pages), None)
        if found is None or self._is_stale(found):
            raise self._over()
        found.touch()
        return found

    def at(self, address: str, owner: str) -> Visit:
        """The visit whose screens are at an address; a browser that keeps cookies sees its own alone.

        Raises:
            VisitOverError: there is none, or it is somebody else's.
        """
        for each in list(self._open):
            is_it = hmac.compare_digest(each.address.encode(), address.encode())
            is_theirs = not each.owner or hmac.compare_digest(each.owner.encode(), owner.encode())
            if is_it and is_theirs and not self._is_stale(each):
                return each
        raise self._over()

    def leave(self, page: str) -> None:
        """Note that a page was closed. A phone closes it whenever it sleeps, so the visit waits for `away_s`."""
        for each in list(self._open):
            if page in each.pages:
                each.alive_at = time.monotonic()
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
        for visit in list(self._open):
            if self._is_stale(visit):
                logger.info("A visit is over: nobody came back to it.")
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

    def _over(self) -> VisitOverError:
        minutes = round(self.together.lifetime_s / 60)
        return VisitOverError(
            f"This visit is over and its photographs are deleted, as they are {minutes} minutes after the last click: "
            "load the page again."
        )

    def _keep_sweeping(self, every_s: float) -> None:
        while not self._closed.wait(every_s):
            self.sweep()

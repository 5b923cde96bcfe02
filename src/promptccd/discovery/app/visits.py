"""Who is visiting: a private session and folder each, over one model whose weights all of them share."""

import asyncio
import copy
import hmac
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from promptccd.data.image_rows import DatasetSource
from promptccd.data.limits import MIB, IntakeLimits
from promptccd.discovery.app.store import ANYBODY, Claim, FullError, PageLimits, Quota, Shelf, Store, Sweeper
from promptccd.discovery.categories import registry_of
from promptccd.discovery.embedding import load_embedder
from promptccd.discovery.project import FEATURES, FeatureCache, open_project
from promptccd.discovery.session import DiscoverySession
from promptccd.discovery.workbench import Workbench
from promptccd.errors import DataError, PromptCCDError
from promptccd.hub.space import fetched, parted
from promptccd.models.loading import BACKBONES

logger = logging.getLogger(__name__)

_TURNS = 4  # of 40 threads that all visitors share
_DECODED_AT_ONCE = 2  # photographs of all visitors for their screens; each may take 100 MB
_WORKERS = 2  # images of one visitor that are decoded at once; others wait for the same cores


def is_remote(place: str) -> bool:
    """Whether a model is one of the Hub."""
    name, _ = parted(place)
    return name not in BACKBONES and not Path(name).is_dir()


def called(place: str) -> str:
    """What people call a model: visitors need not know where it lies."""
    name, _ = parted(place)
    return name if is_remote(place) else Path(name).absolute().name


def _load(place: str) -> DiscoverySession:
    """A session of a finished stage or a bare backbone, which all visitors begin with.

    Raises:
        PromptCCDError: it cannot be loaded, for a reason that is logged and not shown.
    """
    try:
        folder = fetched(place)
        model, view = load_embedder(folder)
        model.config.name_or_path = called(place)
        return DiscoverySession(model.eval(), view, registry_of(model, folder))
    except PromptCCDError as error:  # which may name folders of this machine
        logger.error("No visit can begin: %s", error)
        raise PromptCCDError(
            "The model of this page cannot be loaded. Whoever runs the page finds the reason in its log; try again "
            "later."
        ) from error


def _own(shared: DiscoverySession, limits: IntakeLimits) -> DiscoverySession:
    """A session whose model has modules, categories and configuration of its own, over the same weights."""
    tensors = [*shared.model.parameters(), *shared.model.buffers()]
    model = copy.deepcopy(shared.model, {id(tensor): tensor for tensor in tensors})
    return DiscoverySession(model, shared.view, shared.registry.copy(), limits=limits, workers=_WORKERS)


class VisitOverError(PromptCCDError):
    """A visit was forgotten or has timed out."""


class VisitLock:
    """Held while a session is read or changed; it cannot be taken any more once the visit is over."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._over = False

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._over:
            self._lock.release()
            raise VisitOverError("This visit is over and its images are deleted: give the images again.")

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def end(self) -> None:
        """Wait for whoever holds it; nobody gets it afterwards."""
        with self._lock:
            self._over = True


COPIES = 2  # of a data set of the Hub: as it is downloaded, and as it is read
PROJECT_BYTES = 128 * MIB  # of a visit's project, its corrections included
BYTES_PER_FILE = 32 * 1024  # of an image in it: thumbnail, features, and what is said of it
UPLOADS_KEPT = 4  # times the limit of one upload: what a visit of several stages may lay down in all


@dataclass(eq=False)
class Visit:
    """One person's images and groups.

    Attributes:
        session: theirs, with a registry and categories of its own; only weights are shared.
        store: of all files.
        owner: whose files it takes, see `Store.owner`.
        memory: bytes of what is kept of their images in memory.
        decoding: held while a photograph is decoded; all visitors share it.
        id: whoever knows it is that person.
        address: of their screens.
        lock: held while the session is read or changed.
        stop: set to leave what takes long.
        busy: whether something is done that takes long.
        turns: answers of the screens that are made at once.
        project: what the screens show and correct, on the disk; `None` before the first images.
        bench: the same, for the screens; `None` before the first groups.
        came_with: hash of the categories that the model came with.
        seen_at: when they last did something, in seconds of the monotonic clock.
        uploads: what `take` took; deleted with the last visit that took it.
        brought: bytes of all uploads so far.
        prepared: what they can download now.
        at_end: called when the visit is over, for what is kept of it elsewhere.
    """

    session: DiscoverySession
    store: Store
    owner: str
    memory: Claim
    decoding: threading.Semaphore
    id: str = field(default_factory=partial(secrets.token_urlsafe, 24))
    address: str = field(default_factory=partial(secrets.token_urlsafe, 24))
    lock: VisitLock = field(default_factory=VisitLock)
    stop: threading.Event = field(default_factory=threading.Event)
    busy: bool = False
    turns: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, _TURNS))
    project: Shelf | None = None
    bench: Workbench | None = None
    seen_at: float = field(default_factory=time.monotonic)
    uploads: set[Shelf] = field(default_factory=set)
    brought: int = 0
    prepared: Shelf | None = None
    came_with: str = field(init=False)
    at_end: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.came_with = self.session.registry.state_hash()

    def touch(self) -> None:
        """Note a sign of life."""
        self.seen_at = time.monotonic()

    def take(self, files: Sequence[str | os.PathLike[str]]) -> list[Path]:
        """Keep uploads for as long as the visit lasts; returns their files.

        Raises:
            DataError: there are too many, they are too large together, or one is gone.
        """
        limits = self.session.limits
        limits.require_files(len(files), "The list of uploads")
        found = {Path(file): self.store.find(os.fspath(file), self.owner) for file in files}
        try:
            arriving = sum(path.stat().st_size for path in found)
        except OSError as error:
            raise DataError(
                f"An upload is not there any more ({error.strerror}): upload the files again."
            ) from error
        if self.brought + arriving > UPLOADS_KEPT * limits.max_total_bytes:
            raise DataError(
                f"The uploads of this visit would come to {self.brought + arriving} bytes; the limit is "
                f"{UPLOADS_KEPT * limits.max_total_bytes}. Take your results away, forget the images and start again."
            )
        for shelf in set(found.values()) - self.uploads:
            if shelf is None or not self.store.hold(shelf):
                raise DataError("An upload is not there any more: upload the files again.")
            self.uploads.add(shelf)
        self.brought += arriving
        return list(found)

    def weigh(self) -> None:
        """Count what is kept of the images in memory.

        Raises:
            FullError: it is too much for the page; the newest images are let go.
        """
        try:
            self.memory.resize(self.session.bytes_in_memory)
        except FullError:
            self.session.stages.pop().intake.close()
            raise

    def room(self) -> Shelf:
        """The project's shelf, with room for what one more reading and grouping leave there.

        Raises:
            DataError: it would become too much for one visitor.
            FullError: there is no room.
        """
        if self.project is None:
            self.project = self.store.shelf(self.owner, most=PROJECT_BYTES)
            self.session.cache = FeatureCache(open_project(self.project.folder) / FEATURES)
        self.project.settle()
        self.project.reserve(BYTES_PER_FILE * self.session.limits.max_files)
        return self.project

    def take_up(self) -> DiscoverySession:
        """The session, with the categories as they were corrected on its screens."""
        if self.bench is not None:
            self.session.registry = self.bench.registry.copy()
        return self.session

    def prepare(self) -> Shelf:
        """An empty place for files to take, in place of the one before.

        Raises:
            FullError: there is no room.
        """
        if self.prepared is not None:
            self.store.drop(self.prepared)
            self.prepared = None
        self.prepared = self.store.shelf(self.owner, most=self.store.quota.total // 2)
        return self.prepared


class Visits:
    """Opens and closes visits over one model; those nobody returns to are forgotten by a timer.

    The model is loaded at the first visit. `limits` are on what a visitor brings, those `together` on all visitors.
    """

    def __init__(self, place: str, store: Store, limits: IntakeLimits, together: PageLimits):
        self.place, self.store, self.limits = place, store, limits
        self.lifetime_s, self._most = together.lifetime_s, together.visits
        self.memory = Quota(together.memory_bytes, "images in memory")
        self._hub = Quota(store.quota.total, "data sets of the Hub", "Download it and upload the images")
        self._fetched: dict[str, Claim] = {}
        self._fetching = threading.Lock()
        self._shared: DiscoverySession | None = None
        self._loading, self._decoding = threading.Lock(), threading.BoundedSemaphore(_DECODED_AT_ONCE)
        self._open: dict[str, Visit] = {}
        self._lock = threading.Lock()  # of `_open`; never held while a visit is waited for
        self._sweeper = Sweeper(self.sweep)

    def open(self, owner: str = ANYBODY) -> Visit:
        """A new visit, which may take the files of an owner.

        Raises:
            PromptCCDError: as many people as can be here are here already, or the model cannot be loaded, for a
                reason that is logged.
        """
        self.sweep()
        self._make_room()
        with self._loading:
            self._shared = self._shared or _load(self.place)
        with self._lock:
            if len(self._open) >= self._most:
                raise PromptCCDError(
                    f"{self._most} people are here, which is the most at once: try again in a few minutes, or run "
                    "promptccd demo on your own machine."
                )
            session, memory = _own(self._shared, self.limits), self.memory.claim()
            visit = Visit(session, self.store, owner, memory, self._decoding)
            self._open[visit.id] = visit
        self._sweeper.wake(self.lifetime_s)
        return visit

    def get(self, visit_id: str) -> Visit:
        """An open visit; asking for it is a sign of life.

        Raises:
            VisitOverError: there is none of that id, or it was not asked for in a long time.
        """
        found = self._open.get(visit_id) if isinstance(visit_id, str) else None
        if found is None or self._is_stale(found):
            raise self._over()
        found.touch()
        return found

    def at(self, address: str, owner: str) -> Visit:
        """The visit whose screens are at an address; this is no sign of life.

        Raises:
            VisitOverError: there is none, or it is somebody else's.
        """
        for visit in list(self._open.values()):
            is_it = hmac.compare_digest(visit.address.encode(), address.encode())
            if is_it and visit.owner in (owner, ANYBODY) and not self._is_stale(visit):
                return visit
        raise self._over()

    def _over(self) -> VisitOverError:
        return VisitOverError(
            f"This visit is over and its images are deleted, as they are {round(self.lifetime_s / 60)} minutes after "
            "the last click: give the images again."
        )

    def fetch(self, name: str) -> DatasetSource:
        """A data set of the Hub. It stays on this machine's disk, so all of them share a quota.

        Raises:
            DataError: there is no such data set, or it is too large.
            FullError: the quota is used up.
        """
        with self._fetching:
            if name in self._fetched:
                return DatasetSource.from_hub(name, self.limits)
            with self._hub.lent() as claim:
                claim.resize(COPIES * self.limits.max_total_bytes)
                source = DatasetSource.from_hub(name, self.limits)
            self._fetched[name] = self._hub.claim(COPIES * source.bytes_on_disk)
            return source

    def forget(self, visit_id: str) -> None:
        """End a visit, if there is one: its work is stopped, its files and features are deleted."""
        with self._lock:
            found = self._open.pop(visit_id, None)
            if found is None:
                return
        found.stop.set()
        if found.bench is not None:
            found.bench.closing = True
        found.lock.end()
        found.session.forget()
        found.memory.resize(0)
        for shelf in [*found.uploads, *filter(None, [found.prepared, found.project])]:
            self.store.drop(shelf)
        if found.owner != ANYBODY:
            self.store.clear(found.owner)  # what they uploaded and never gave
        for clear in found.at_end:
            clear()

    def sweep(self) -> float | None:
        """Forget visits that nobody came back to in `lifetime_s`; returns in how many seconds the next may be over."""
        for visit in list(self._open.values()):
            if self._is_stale(visit):
                logger.info("A visit is over: no sign of life for %.0f s.", self.lifetime_s)
                self.forget(visit.id)
        seen = [visit.seen_at for visit in list(self._open.values())]
        return max(0.0, min(seen) + self.lifetime_s - time.monotonic()) if seen else None

    def close(self) -> None:
        """End all visits."""
        self._sweeper.close()
        for visit_id in list(self._open):
            self.forget(visit_id)

    def _is_stale(self, visit: Visit) -> bool:
        return visit.seen_at + self.lifetime_s < time.monotonic()

    def _make_room(self) -> None:
        """When all places are taken, end the oldest visit that never had an image, if there is one."""
        idle = [visit for visit in list(self._open.values()) if not visit.session.stages]
        if idle and len(self._open) >= self._most:
            self.forget(min(idle, key=lambda visit: visit.seen_at).id)

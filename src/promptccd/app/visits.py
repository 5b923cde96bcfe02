"""Who is visiting: a private session and folder each, over one model whose weights all of them share."""

import contextlib
import logging
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from promptccd.app.shared_model import SharedModel
from promptccd.app.visit_lock import VisitLock, VisitOverError
from promptccd.data.limits import IntakeLimits
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import DataError, PromptCCDError

logger = logging.getLogger(__name__)

UPLOADS_KEPT = 4  # times the limit of one upload: what a visit of several stages may lay down in all


@dataclass(eq=False)
class Visit:
    """One person's images and groups.

    Attributes:
        id: random; whoever knows it is that person.
        session: theirs, with a registry and categories of its own; only weights are shared.
        folder: their files, for the user of this process alone; removed with the visit.
        lock: held while the session is read or changed.
        stop: set to leave what takes long.
        busy: whether something is done that takes long.
        asked: pairs of images that were asked about in this stage.
        opened: the category that is looked at; none shows all of them.
        reasons: why an image is where it is, as it was last asked.
        seen_at: when they last did something, in seconds of the monotonic clock.
        taken: other copies of their files, such as those that downloads are served from; deleted with the visit.
        uploads: where the server keeps what `take` took, with the number each file had then; likewise.
        at_end: called when the visit is over, for what is kept of it elsewhere.
    """

    id: str
    session: DiscoverySession
    folder: Path
    lock: VisitLock = field(default_factory=VisitLock)
    stop: threading.Event = field(default_factory=threading.Event)
    busy: bool = False
    asked: set[tuple[str, str]] = field(default_factory=set)
    opened: int | None = None
    reasons: str = ""
    seen_at: float = field(default_factory=time.monotonic)
    taken: set[Path] = field(default_factory=set)
    uploads: dict[Path, int] = field(default_factory=dict)
    at_end: list[Callable[[], None]] = field(default_factory=list)

    def touch(self) -> None:
        """They did something."""
        self.seen_at = time.monotonic()

    def still_has(self, upload: Path) -> bool:
        """Whether an upload that was taken is the same file now, and not an equal one of somebody else."""
        return upload.exists() and upload.stat().st_ino == self.uploads[upload]

    def take(self, files: Sequence[str | os.PathLike[str]]) -> list[Path]:
        """Put uploads into the private folder, under their own last names.

        The server keeps equal uploads of two people as one file, so it is linked, not moved: what one person takes
        is still there for the other. It is deleted with the visit, unless another visit took it, too; who uploaded
        the same just before and has not taken it yet is asked to upload it again.

        Raises:
            DataError: there are too many, too much in all, or one is gone.
        """
        limits = self.session.limits
        limits.require_files(len(files), "The list of uploads")
        sources = [Path(file) for file in files]
        try:
            found = {source: source.stat() for source in sources}
            arriving = sum(found[source].st_size for source in sources)
            kept = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
            if kept + arriving > UPLOADS_KEPT * limits.max_total_bytes:
                raise DataError(
                    f"The uploads of this visit would come to {kept + arriving} bytes; the limit is "
                    f"{UPLOADS_KEPT * limits.max_total_bytes}. Take your results away, forget the images and "
                    "start again."
                )
            target = self.folder / f"upload-{secrets.token_hex(4)}"
            placed = []
            for number, source in enumerate(sources):
                place = target / str(number) / source.name
                place.parent.mkdir(parents=True)
                _link(source, place)
                placed.append(place)
        except OSError as error:
            raise DataError(
                f"An upload is not there any more ({error.strerror}): upload the files again."
            ) from error
        self.uploads |= {source: each.st_ino for source, each in found.items()}
        return placed


class Visits:
    """Opens and closes visits; those nobody returns to are forgotten by a timer.

    Args:
        place: the model, loaded once, at the first visit.
        folder: where private folders go; none means the system's temporary folder.
        limits: on what a visitor brings.
        lifetime_s: seconds without a sign of life until a visit is forgotten.
        most: visits at once.
    """

    def __init__(
        self,
        place: str,
        folder: Path | None = None,
        *,
        limits: IntakeLimits,
        lifetime_s: float = 1800,
        most: int = 50,
    ):
        self.place, self.limits, self.lifetime_s, self.most = place, limits, lifetime_s, most
        self._parent = folder
        self._root: tempfile.TemporaryDirectory[str] | None = (
            None  # goes when this object or the process does
        )
        self._model: SharedModel | None = None
        self._loading = threading.Lock()
        self._open: dict[str, Visit] = {}
        self._lock = threading.Lock()  # of the two below and `_open`; never held while a visit is waited for
        self._timer: threading.Timer | None = None

    def __len__(self) -> int:
        return len(self._open)

    def open(self) -> Visit:
        """A new visit.

        Raises:
            PromptCCDError: as many people as can be here are here already, or the model cannot be loaded, for a
                reason that is logged.
        """
        self._make_room()
        model = self._shared_model()
        with self._lock:
            self._require_room()
            if self._root is None:
                if self._parent is not None:
                    self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._root = tempfile.TemporaryDirectory(prefix="promptccd-visits-", dir=self._parent)
            visit = Visit(
                secrets.token_urlsafe(24),
                model.session(self.limits),
                Path(tempfile.mkdtemp(dir=self._root.name)),  # mkdtemp: mode 0700
            )
            self._open[visit.id] = visit
            self._set_timer()
        return visit

    def get(self, visit_id: str) -> Visit:
        """An open visit; asking for it is a sign of life.

        Raises:
            VisitOverError: there is none of that id, or it was not asked for in a long time.
        """
        found = self._open.get(visit_id) if isinstance(visit_id, str) else None
        if found is None or self._is_stale(found):
            raise VisitOverError(
                f"This visit is over and its images are deleted, as they are {round(self.lifetime_s / 60)} minutes "
                "after the last click: give the images again."
            )
        found.touch()
        return found

    def forget(self, visit_id: str) -> None:
        """End a visit: what it is doing is stopped, its files and features are deleted. Nothing if there is none."""
        with self._lock:
            found = self._open.pop(visit_id, None)
            if found is None:
                return
            others = {path for visit in self._open.values() for path in visit.uploads}
        found.stop.set()
        found.lock.end()
        found.session.forget()
        for path in found.taken | {path for path in found.uploads.keys() - others if found.still_has(path)}:
            _remove(path)
        shutil.rmtree(found.folder, ignore_errors=True)
        for clear in found.at_end:
            clear()

    def sweep(self) -> None:
        """Forget visits that nobody came back to in `lifetime_s`."""
        for visit in list(self._open.values()):
            if self._is_stale(visit):
                logger.info("A visit is over: no sign of life for %.0f s.", self.lifetime_s)
                self.forget(visit.id)

    def close(self) -> None:
        """End all visits."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        for visit_id in list(self._open):
            self.forget(visit_id)

    def _is_stale(self, visit: Visit) -> bool:
        return visit.seen_at + self.lifetime_s < time.monotonic()

    def _make_room(self) -> None:
        """When all places are taken, end the oldest visit that never had an image, if there is one."""
        self.sweep()
        if len(self._open) < self.most:
            return
        idle = [visit for visit in list(self._open.values()) if not visit.session.stages]
        if idle:
            self.forget(min(idle, key=lambda visit: visit.seen_at).id)

    def _require_room(self) -> None:
        if len(self._open) >= self.most:
            raise PromptCCDError(
                f"{self.most} people are here, which is the most at once: try again in a few minutes, or run "
                "promptccd demo on your own machine."
            )

    def _shared_model(self) -> SharedModel:
        with self._loading:
            if self._model is None:
                self._model = SharedModel.load(self.place)
            return self._model

    def _set_timer(self) -> None:
        """Look again when the next visit may be over; `_lock` is held."""
        if self._timer is not None or not self._open:
            return
        first = min(visit.seen_at for visit in self._open.values()) + self.lifetime_s - time.monotonic()
        self._timer = threading.Timer(max(first, 0) + 0.1, self._timed)
        self._timer.daemon = True
        self._timer.start()

    def _timed(self) -> None:
        self.sweep()
        with self._lock:
            self._timer = None
            self._set_timer()


def _link(source: Path, place: Path) -> None:
    try:
        os.link(source, place, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, place, follow_symlinks=False)


def _remove(served: Path) -> None:
    """Delete a file of the server's and its folder, whose name tells what the file held."""
    served.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # another file is in it
        served.parent.rmdir()

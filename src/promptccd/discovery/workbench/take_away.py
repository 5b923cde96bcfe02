"""Groups to take away: written into the folder of the results while the page goes on."""

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from promptccd.discovery.exports import EXPORTS, AssignmentRow
from promptccd.discovery.workbench.columns import NOWHERE
from promptccd.discovery.workbench.corrections import Workbench
from promptccd.discovery.workbench.photos import Photos
from promptccd.errors import PromptCCDError, RegistryError

logger = logging.getLogger(__name__)

KINDS = tuple(name for name in EXPORTS if name != "csv")  # that is an answer of its own


@dataclass
class Progress:
    """How far an export is.

    Attributes:
        kind: one of `KINDS`.
        done: photographs that are written.
        count: all of them.
        place: the folder, once it is there.
        problem: why it will not be there.
    """

    kind: str
    done: int
    count: int
    place: str = ""
    problem: str = ""


class _StoppedError(PromptCCDError):
    """Nobody wants it any more."""


class TakeAway:
    """One export at a time, in a thread of its own.

    Args:
        bench: whose groups.
    """

    def __init__(self, bench: Workbench):
        self._bench, self._stopped = bench, threading.Event()
        self._progress: Progress | None = None
        self._thread: threading.Thread | None = None

    def told(self) -> dict[str, Any] | None:
        """How far the newest one is; `None` if there was none."""
        return None if self._progress is None else asdict(self._progress)

    def start(self, kind: str, file_names: bool) -> None:
        """Begin to write the groups as they are now.

        Raises:
            RegistryError: there is no such export, or one is being written.
        """
        if kind not in KINDS:
            raise RegistryError(f"Expected one of {', '.join(KINDS)}, got {kind[:40]!r}.")
        if self._thread is not None and self._thread.is_alive():
            raise RegistryError("Something is being written already: wait for it, or cancel it.")
        rows = assignment_rows_of(self._bench)
        self._progress = Progress(kind, 0, sum(row.category is not None for row in rows))
        self._stopped.clear()
        self._thread = threading.Thread(
            target=self._write, args=(kind, rows, file_names), name="take away", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Write no more; what is not whole goes."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _write(self, kind: str, rows: list[AssignmentRow], file_names: bool) -> None:
        assert self._progress is not None
        try:
            originals = _Counted(
                self._bench.photos, self._progress, lambda: self._stopped.is_set() or self._bench.closing
            )
            self._progress.place = str(EXPORTS[kind](originals, rows, self._bench.out, file_names).absolute())
        except _StoppedError:
            self._progress = None
        except PromptCCDError as error:
            logger.warning("%s", error)
            self._progress.problem = str(error)


class _Counted:
    """Photographs, counted as they are asked for."""

    def __init__(self, photos: Photos, progress: Progress, is_stopped: Callable[[], bool]):
        self._photos, self._progress, self._is_stopped = photos, progress, is_stopped

    def original(self, key: str) -> bytes:
        """As that of the photographs."""
        if self._is_stopped():
            raise _StoppedError("It was cancelled.")
        self._progress.done += 1
        return self._photos.original(key)


def assignment_rows_of(bench: Workbench) -> list[AssignmentRow]:
    """A row of every photograph, in the order of the files."""
    with bench.still():
        registry, photos, group = bench.registry, bench.photos, bench.columns().group.tolist()
        standing = {each.id: bench.standing(each) for each in registry.categories.values()}
        return [
            AssignmentRow(
                file=name,
                sha256=key,
                category=home if home != NOWHERE else None,
                name=registry.categories[home].name if home != NOWHERE else "",
                known=standing[home] if home != NOWHERE else "",
                confidence=registry.confidences.get(key),
                distance=None,
                stage=registry.images[key],
                status="used",
                note="",
            )
            for name, key, home in zip(photos.names, photos.keys, group, strict=True)
        ]

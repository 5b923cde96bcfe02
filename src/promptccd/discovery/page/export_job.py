"""Groups to take away: written into the folder of the results while the page goes on."""

import logging
import threading
from typing import Any

from promptccd.discovery.exports.formats import FORMATS
from promptccd.discovery.exports.rows import AssignmentRow, project_rows
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.photos import Photos
from promptccd.errors import PromptCCDError, RegistryError

logger = logging.getLogger(__name__)


class _StoppedError(PromptCCDError):
    """Nobody wants it any more."""


class TakeAway:
    """One export of a project at a time, in a thread of its own.

    Attributes:
        progress: of the newest export: its ``kind``, how many photographs are ``done`` of the ``count``, and in the end
            the ``place`` of the folder and what is ``told`` of it, a sentence each, or the ``problem``; `None` if there
            was none, or it was cancelled.
    """

    def __init__(self, bench: ProjectView):
        self._bench, self._stopped = bench, threading.Event()
        self.progress: dict[str, Any] | None = None
        self._thread: threading.Thread | None = None

    def start(self, kind: str) -> None:
        """Begin to write the groups as they are now.

        Raises:
            RegistryError: there is no such export, or one is being written.
        """
        if kind not in FORMATS:
            raise RegistryError(f"Expected one of {', '.join(FORMATS)}, got {kind[:40]!r}.")
        if self._thread is not None and self._thread.is_alive():
            raise RegistryError("Something is being written already: wait for it, or cancel it.")
        rows, photos = rows_of(self._bench), self._bench.photos
        count = sum(row.category is not None for row in rows)
        self.progress = {"kind": kind, "done": 0, "count": count, "place": "", "told": [], "problem": ""}
        self._stopped.clear()
        self._thread = threading.Thread(
            target=self._write, args=(self.progress, rows, photos), name="take away", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Write no more; what is there stays, and the next export goes on from it."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _write(self, progress: dict[str, Any], rows: list[AssignmentRow], photos: Photos) -> None:
        def tick() -> None:
            if self._stopped.is_set() or self._bench.closing:
                raise _StoppedError("It was cancelled.")
            progress["done"] = min(progress["done"] + 1, progress["count"])  # of copies there are more

        try:
            found = FORMATS[progress["kind"]].write(photos, rows, self._bench.out, tick)
            progress["told"] = found.lines()
            progress["place"] = str(found.place.absolute())
        except _StoppedError:
            self.progress = None
        except PromptCCDError as error:
            logger.warning("%s", error)
            progress["problem"] = str(error)
        except Exception as error:  # the page waits until it hears of a place or of a problem
            logger.exception("Unexpected error while groups were written.")
            progress["problem"] = (
                f"It was not written whole: {type(error).__name__}. Your groups are as they were; the terminal says "
                "more."
            )


def rows_of(bench: ProjectView) -> list[AssignmentRow]:
    """A row of every photograph, in the order of the files."""
    with bench.still:
        registry, photos = bench.registry.copy(), bench.photos
    return project_rows(registry, photos)

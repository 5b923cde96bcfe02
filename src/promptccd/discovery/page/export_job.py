"""An export that the page starts: it is written in a thread of its own while corrections continue."""

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
    """A person cancelled the export."""


class ExportJob:
    """One export of a project at a time.

    Attributes:
        progress: of the newest export: its ``kind``, how many photographs are ``done`` of the ``count``, and at the end
            the ``place`` of the folder with ``told``, sentences about it, or the ``problem``; `None` if there was no
            export, or it was cancelled.
    """

    def __init__(self, project: ProjectView):
        self._project, self._stopped = project, threading.Event()
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
            raise RegistryError("Another export is being written: wait for it, or cancel it.")
        rows, photos = rows_of(self._project), self._project.photos
        count = sum(row.category is not None for row in rows)
        self.progress = {"kind": kind, "done": 0, "count": count, "place": "", "told": [], "problem": ""}
        self._stopped.clear()
        arguments = self.progress, rows, photos
        self._thread = threading.Thread(target=self._write, args=arguments, name="export", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cancel the export; the next one resumes from what is written."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _write(self, progress: dict[str, Any], rows: list[AssignmentRow], photos: Photos) -> None:
        def on_progress() -> None:
            if self._stopped.is_set() or self._project.closing:
                raise _StoppedError("The export was cancelled.")
            progress["done"] = min(progress["done"] + 1, progress["count"])  # of copies there are more

        try:
            found = FORMATS[progress["kind"]].write(photos, rows, self._project.out, on_progress)
            progress["told"] = found.lines()
            progress["place"] = str(found.place.absolute())
        except _StoppedError:
            self.progress = None
        except PromptCCDError as error:
            logger.warning("%s", error)
            progress["problem"] = str(error)
        except Exception as error:  # the page asks until there is a place or a problem
            logger.exception("Unexpected error in an export.")
            progress["problem"] = (
                f"It was not written whole: {type(error).__name__}. Your groups are as they were; the terminal says "
                "more."
            )


def rows_of(project: ProjectView) -> list[AssignmentRow]:
    """A row of every photograph, in the order of the files."""
    with project.still:
        registry, photos = project.registry.copy(), project.photos
    return project_rows(registry, photos)

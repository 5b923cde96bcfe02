"""Groups to take away: written into the folder of the results while the page goes on."""

import logging
import threading
from typing import Any

from promptccd.data.images import Decoding
from promptccd.discovery.exports import EXPORTS, AssignmentRow
from promptccd.discovery.project import ProjectView
from promptccd.discovery.project.columns import NOWHERE
from promptccd.errors import PromptCCDError, RegistryError

logger = logging.getLogger(__name__)

KINDS = tuple(name for name in EXPORTS if name != "csv")  # that is an answer of its own


class _StoppedError(PromptCCDError):
    """Nobody wants it any more."""


class TakeAway:
    """One export of a project at a time, in a thread of its own.

    Attributes:
        progress: of the newest export: its ``kind``, how many photographs are ``done`` of the ``count``, and in the end
            the ``place`` of the folder or the ``problem``; `None` if there was none, or it was cancelled.
    """

    def __init__(self, bench: ProjectView):
        self._bench, self._stopped = bench, threading.Event()
        self.progress: dict[str, Any] | None = None
        self._thread: threading.Thread | None = None

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
        count = sum(row.category is not None for row in rows)
        self.progress = {"kind": kind, "done": 0, "count": count, "place": "", "problem": ""}
        self._stopped.clear()
        self._thread = threading.Thread(
            target=self._write, args=(self.progress, rows, file_names), name="take away", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Write no more; what is not whole goes."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def decoding(self) -> Decoding:
        """How the photographs become pixels."""
        return self._bench.photos.decoding

    def original(self, key: str) -> bytes:
        """The bytes of a photograph, for the export, which ends here if it was cancelled."""
        if self._stopped.is_set() or self._bench.closing or self.progress is None:
            raise _StoppedError("It was cancelled.")
        self.progress["done"] += 1
        return self._bench.photos.original(key)

    def _write(self, progress: dict[str, Any], rows: list[AssignmentRow], file_names: bool) -> None:
        try:
            place = EXPORTS[progress["kind"]](self, rows, self._bench.out, file_names)
            progress["place"] = str(place.absolute())
        except _StoppedError:
            self.progress = None
        except PromptCCDError as error:
            logger.warning("%s", error)
            progress["problem"] = str(error)
        except Exception as error:  # the page waits until it hears of a place or of a problem
            logger.exception("Unexpected error while groups were written.")
            progress["problem"] = (
                f"Nothing was written: {type(error).__name__}. Your groups are as they were; the terminal says more."
            )


def assignment_rows_of(bench: ProjectView) -> list[AssignmentRow]:
    """A row of every photograph, in the order of the files."""
    with bench.still:
        registry, photos, group = bench.registry, bench.photos, bench.columns().group.tolist()
        standing = {each.id: each.standing(registry.stage) for each in registry.categories.values()}
        return [
            AssignmentRow(
                file=name,
                sha256=photos.content_hash(key),
                picture=key,
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

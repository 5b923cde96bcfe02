"""A lock that ends with the visit it protects."""

import threading
from types import TracebackType

from promptccd.errors import PromptCCDError


class VisitOverError(PromptCCDError):
    """A visit was forgotten or has timed out."""


class VisitLock:
    """Held while a session is read or changed; it cannot be taken any more once the visit is over."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._over = False

    def __enter__(self) -> None:
        """Wait for it.

        Raises:
            VisitOverError: the visit is over.
        """
        self._lock.acquire()
        if self._over:
            self._lock.release()
            raise VisitOverError("This visit is over and its images are deleted: give the images again.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def end(self) -> None:
        """Wait for whoever holds it; nobody gets it afterwards."""
        with self._lock:
            self._over = True

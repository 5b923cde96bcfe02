"""A number of bytes that all visitors share: claimed before they are used, given back when they are gone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from promptccd.data.limits import MIB
from promptccd.errors import PromptCCDError


class FullError(PromptCCDError):
    """What visitors share is used up for the moment."""


class Quota:
    """Never gives out more than there is.

    Args:
        total: bytes.
        what: they are of, for the message.
        advice: what to do when they are used up.
    """

    def __init__(self, total: int, what: str, advice: str = "Try again in a few minutes"):
        self.total, self._what, self._advice = total, what, advice
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes that are claimed."""
        return self._used

    def claim(self, size: int = 0) -> "Claim":
        """A part of it.

        Raises:
            FullError: so much is not left.
        """
        claim = Claim(self)
        claim.resize(size)
        return claim

    @contextmanager
    def lent(self) -> "Iterator[Claim]":
        """A claim that is given back at the end."""
        claim = Claim(self)
        try:
            yield claim
        finally:
            claim.resize(0)

    def _change(self, by: int) -> None:
        with self._lock:
            if by > 0 and self._used + by > self.total:
                raise FullError(
                    f"This page is full: it holds {self.total // MIB} MiB of {self._what} for all "
                    f"visitors together. {self._advice}, or run promptccd demo on your own machine."
                )
            self._used += by


class Claim:
    """What somebody has of a quota.

    Attributes:
        size: bytes.
    """

    def __init__(self, quota: Quota):
        self._quota, self.size = quota, 0

    def resize(self, size: int) -> None:
        """Have more or less.

        Raises:
            FullError: so much is not left; nothing changed.
        """
        self._quota._change(size - self.size)
        self.size = size

"""A number of bytes that all visitors share: claimed before they are used, given back when they are gone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from promptccd.data.limits import MIB
from promptccd.errors import PromptCCDError


@dataclass(frozen=True)
class Patience:
    """How long is waited for a request.

    Attributes:
        request_s: seconds until the head of a request is there; until a body goes on after it paused; and by how much
            a body may fall behind `slowest`.
        slowest: bytes a second that a body has to bring on the average.
        upload_s: seconds until a body is complete, however steadily it arrives.
        unread_s: seconds until somebody reads on who is sent an answer.
    """

    request_s: float = 15.0
    slowest: int = 16 * 1024
    upload_s: float = 900.0
    unread_s: float = 30.0


@dataclass(frozen=True)
class PageLimits:
    """Limits on all visitors together; those on what one of them brings are `IntakeLimits`.

    Attributes:
        disk_bytes: of all files that visitors bring, keep and take away, half of an upload included.
        memory_bytes: of what is kept of their images in memory.
        request_bytes: of requests, other than uploads, that are being read.
        visits: at once.
        pages: that Gradio remembers, at about half a megabyte each; it drops the one unused the longest.
        connections: open at once.
        per_address: requests that one address may have under way; this machine itself is not counted.
        untaken_s: seconds until an upload is deleted that no visit has taken.
        patience: with slow requests.
    """

    disk_bytes: int = 4096 * MIB
    memory_bytes: int = 2048 * MIB
    request_bytes: int = 64 * MIB
    visits: int = 50
    pages: int = 256
    connections: int = 512
    per_address: int = 128
    untaken_s: float = 600.0
    patience: Patience = Patience()


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

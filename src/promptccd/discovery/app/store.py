"""Where the files of visitors lie: each under an address that nobody can guess, all within a quota."""

import contextlib
import hashlib
import hmac
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from promptccd.data.limits import MIB
from promptccd.errors import DataError, PromptCCDError


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
        lifetime_s: seconds without a sign of life until a visit is forgotten.
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
    lifetime_s: float = 1800.0
    pages: int = 256
    connections: int = 512
    per_address: int = 256
    untaken_s: float = 600.0
    patience: Patience = Patience()


class Sweeper:
    """Calls a function in time to remove what nobody came back to; nothing runs while nothing waits.

    Args:
        sweep: removes it; returns in how many seconds it should be called again, `None` if nothing waits.
    """

    def __init__(self, sweep: Callable[[], float | None]):
        self._sweep, self._lock = sweep, threading.Lock()
        self._timer: threading.Timer | None = None

    def wake(self, within_s: float) -> None:
        """Call it then, unless it will be called anyway."""
        with self._lock:
            if self._timer is None:
                self._timer = threading.Timer(within_s + 0.1, self._run)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Do not call it until somebody asks again."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _run(self) -> None:
        with self._lock:
            self._timer = None
        within_s = self._sweep()
        if within_s is not None:
            self.wake(within_s)


class FullError(PromptCCDError):
    """What visitors share is used up for the moment."""


class Quota:
    """Bytes that all visitors share, of which no more is given out than there is.

    Args:
        total: bytes.
        what: what they are bytes of, for the message.
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
            FullError: too little is left.
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
    """Bytes that somebody has of a quota: `size`."""

    def __init__(self, quota: Quota):
        self._quota, self.size = quota, 0

    def resize(self, size: int) -> None:
        """Have more or less.

        Raises:
            FullError: too little is left; nothing changed.
        """
        self._quota._change(size - self.size)
        self.size = size


BLOCK = 4096  # what the smallest file takes, and a folder
EMPTY_S = 60.0  # old is what nobody is about to write into
SPARE = 256 * MIB  # of the disk itself, left to others
ANYBODY = "anybody"  # owner of what came from a browser that keeps no cookie: its address is the only key


@dataclass(eq=False)
class Shelf:
    """A folder of one visitor, whose bytes are counted.

    Attributes:
        folder: private, with a random name.
        owner: see `Store.owner`.
        claim: on the quota.
        most: bytes that may lie on it; by default those of the quota.
        holders: how many need it now, such as the visits that took it.
        left_at: when the last of them left it, in seconds of the monotonic clock.
    """

    folder: Path
    owner: str
    claim: Claim
    most: int | None = None
    holders: int = 1
    left_at: float = 0.0

    def reserve(self, size: int) -> None:
        """Make sure that so many bytes more can be written.

        Raises:
            DataError: this is too much for one visitor.
            FullError: there is no room.
        """
        if self.most is not None and self.claim.size > self.most:
            raise DataError(
                f"This comes to more than {self.most // MIB} MiB, which is the most for one visitor: take a part "
                "of it, or run promptccd discover on your own machine."
            )
        if shutil.disk_usage(self.folder).free < size + SPARE:
            raise FullError(
                "The disk of this page is full for the moment. Try again in a few minutes, or run promptccd demo on "
                "your own machine."
            )
        self.claim.resize(self.claim.size + size)

    def settle(self) -> None:
        """Give back what was reserved and not written.

        Raises:
            FullError: more was written, and there is no room for it.
        """
        self.claim.resize(size_of(self.folder))


class Store:
    """All shelves, in a folder below `parent` that goes with this object.

    A shelf that nobody has held for `untaken_s` seconds is removed.
    """

    def __init__(self, quota: Quota, parent: Path, *, untaken_s: float = 600.0):
        self.quota, self._parent, self._untaken_s = quota, parent, untaken_s
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix="promptccd-visits-", dir=parent)  # mode 0700
        self.root = Path(os.path.abspath(self._folder.name))
        self._key = secrets.token_bytes(32)
        self._shelves: dict[Path, Shelf] = {}
        self._lock = threading.Lock()  # of the shelves and their holders
        self._sweeper = Sweeper(self.sweep)

    def owner(self, token: str | None) -> str:
        """The name of the folder of whoever has a secret; it does not tell the secret."""
        if not token:
            return ANYBODY
        return hmac.new(self._key, token.encode(errors="replace"), hashlib.sha256).hexdigest()[:32]

    def shelf(self, owner: str, size: int = 0, most: int | None = None) -> Shelf:
        """A new shelf, held by the caller, with room for `size` bytes now and for `most` at any time.

        Raises:
            FullError: there is no room.
        """
        self.sweep()
        claim = self.quota.claim(BLOCK)
        shelf = Shelf(self.root / owner / secrets.token_urlsafe(24), owner, claim, most)
        with self._lock:
            shelf.folder.parent.mkdir(mode=0o700, exist_ok=True)
            shelf.folder.mkdir(mode=0o700)
            self._shelves[shelf.folder] = shelf
        try:
            shelf.reserve(size)
        except FullError:
            self.remove(shelf)
            raise
        return shelf

    def find(self, path: str, owner: str) -> Shelf | None:
        """The shelf that a file lies on, if it is that owner's or anybody's; nothing is asked of the disk."""
        if "\0" in path or not os.path.isabs(path):
            return None
        parts, depth = Path(os.path.normpath(path)).parts, len(self.root.parts)
        if parts[:depth] != self.root.parts or len(parts) < depth + 3 or parts[depth] not in (owner, ANYBODY):
            return None
        return self._shelves.get(self.root.joinpath(*parts[depth : depth + 2]))

    def hold(self, shelf: Shelf) -> bool:
        """Keep a shelf until `drop`; false if it is gone."""
        with self._lock:
            if shelf.folder not in self._shelves:
                return False
            shelf.holders += 1
            return True

    def leave(self, shelf: Shelf) -> None:
        """Hold it no more; it waits a while for somebody else to hold it."""
        with self._lock:
            shelf.holders -= 1
            shelf.left_at = time.monotonic()
        self._sweeper.wake(self._untaken_s)

    def drop(self, shelf: Shelf) -> None:
        """Hold it no more; the last who does removes it."""
        with self._lock:
            shelf.holders -= 1
            is_last = shelf.holders <= 0
        if is_last:
            self.remove(shelf)

    def remove(self, shelf: Shelf) -> None:
        """Delete a shelf with all that lies on it; its bytes are free once they are gone."""
        with self._lock:
            if self._shelves.pop(shelf.folder, None) is None:
                return
        shutil.rmtree(shelf.folder, ignore_errors=True)
        with self._lock, contextlib.suppress(OSError):  # the owner has others
            shelf.folder.parent.rmdir()
        shelf.claim.resize(0)

    def sweep(self) -> float | None:
        """Remove what nobody has held for too long; returns in how many seconds there may be more of it."""
        latest = time.monotonic() - self._untaken_s
        with self._lock:
            left = [each for each in self._shelves.values() if not each.holders]
        for shelf in left:
            if shelf.left_at <= latest:
                self.remove(shelf)
        _remove_empty_files(self._parent)
        return self._untaken_s if left else None

    def clear(self, owner: str) -> None:
        """Remove an owner's shelves that nobody holds."""
        with self._lock:
            left = [each for each in self._shelves.values() if each.owner == owner and not each.holders]
        for shelf in left:
            self.remove(shelf)

    def close(self) -> None:
        """Delete everything."""
        self._sweeper.close()
        for shelf in list(self._shelves.values()):
            self.remove(shelf)
        self._folder.cleanup()


def _remove_empty_files(folder: Path) -> None:
    """Gradio leaves an empty file behind for every file that a page is given."""
    latest = time.time() - EMPTY_S
    for item in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):
            status = item.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and not status.st_size and status.st_mtime < latest:
                os.unlink(item.path)


def size_of(folder: Path) -> int:
    """Bytes that a folder takes on the disk, in whole blocks."""
    total = BLOCK
    for place, folders, files in os.walk(folder):
        total += BLOCK * len(folders)
        for name in files:
            total += blocks(os.lstat(os.path.join(place, name)).st_size)
    return total


def blocks(size: int) -> int:
    """Bytes of a file in whole blocks, one for its name included."""
    return (size + 2 * BLOCK - 1) // BLOCK * BLOCK

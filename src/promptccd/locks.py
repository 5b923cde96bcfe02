"""One writer of a folder at a time, on whichever computer the others run: by a lock of the disk, or else by a lease.

A lock ends with its process, at once. Where a disk has none, or none that other computers see, whoever writes also
keeps a lease: a file that it writes anew every `BEAT_S`. One that was not renewed for `DEAD_S` is over. Nobody compares
clocks: whoever waits looks for that long whether the file changes.
"""

import contextlib
import errno
import hashlib
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from promptccd import system
from promptccd.errors import DiskError, RunError
from promptccd.storage import make_folder, open_to_change, read_file, refuse_links

logger = logging.getLogger(__name__)

LOCK = ".lock"  # and what begins with it
BEAT_S = 10.0
DEAD_S = 120.0  # a process may be held up for long by a full disk or a paused machine
_LOOK_S, _LONGEST_LOOK_S = 0.005, 0.4  # between looks, at first and after a while # mutant: moments
_PROBED_S = 0.3  # `owner_of` has a lock for microseconds, on a full machine for longer, which are waited for
_LEASE = re.compile(r"\.lock-(\d{1,9})")
_OVER = b"over"
_LARGEST = 1000  # bytes of an owner
# Of Slurm, PBS, LSF, SkyPilot; the last is of Grid Engine and of jobs on the Hub.
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "SKYPILOT_TASK_ID", "JOB_ID")


@dataclass(frozen=True)
class Owner:
    """Who writes to a folder.

    Attributes:
        process: its number, or ``unknown`` for a moment.
        host: its computer; empty while that is unknown.
        job: of a scheduler; empty outside of one.
    """

    process: str
    host: str = ""
    job: str = ""

    @classmethod
    def this(cls) -> "Owner":
        """This process."""
        job = next((os.environ[name] for name in _JOBS if os.environ.get(name)), "")
        return cls(str(os.getpid()), socket.gethostname(), job.replace("\n", " ")[:200])

    @classmethod
    def read(cls, content: bytes) -> "Owner":
        """From the first line of a lock or a lease."""
        line = content.decode(errors="replace").partition("\n")[0]
        process, _, place = line.partition(" on ")
        host, _, job = place.partition(", job ")
        return cls(process or "unknown", host, job)

    def __str__(self) -> str:
        """As a lock holds it."""
        return f"{self.process} on {self.host}{f', job {self.job}' if self.job else ''}"

    @property
    def place(self) -> str:
        """Where it is, for a table: the computer first."""
        job = f", job {self.job}" if self.job else ""
        return f"{self.host or 'another computer'} (process {self.process}{job})"

    def told(self, folder: Path) -> RunError:
        """The refusal of somebody else."""
        elsewhere = f" on the computer {self.host!r}" if self.host not in ("", socket.gethostname()) else ""
        job = f" (job {self.job})" if self.job else ""
        return RunError(
            f"Process {self.process}{elsewhere}{job} is writing to {folder}. Wait for it, stop it, or give another "
            "folder."
        )


class FolderLock(contextlib.AbstractContextManager["FolderLock"]):
    """Keeps every other process from writing to a folder until this one ends, or closes it, as a ``with`` block does.

    Args:
        folder: made if it does not exist.
        wait_s: how long to wait for another writer. Whether one that keeps a lease is alive shows within `BEAT_S`, and
            that it is not within `DEAD_S`: for that long, it waits in any case.

    Raises:
        RunError: another process writes there, it is named; or the lock is a link.
        DiskError: nothing can be written there.
    """

    def __init__(self, folder: Path, wait_s: float = 0):
        self._lease: _Lease | None = None
        self._open = [open_to_change(make_folder(folder) / LOCK)]
        until, owner, told = time.monotonic() + max(wait_s, _PROBED_S), Owner.this(), self._open[0]
        try:
            held = self._lock(folder, until)
            if held != told or not system.locks_reach(folder):
                self._lease = _Lease(folder, owner, _machine(held), until)
            os.ftruncate(told, 0)
            system.write_at(told, f"{owner}\n".encode(), 0)
        except BaseException:
            self.close()
            raise

    def _lock(self, folder: Path, until: float) -> int | None:
        """The file that is locked now; `None` where nothing can be."""
        told = self._open[0]
        try:
            _take(told, told, folder, until)
            return told
        except OSError as error:  # a disk without locks, such as many that are shared over a network
            logger.warning(
                "The disk of %s (%s) has no locks (%s): a file .lock-N there says every %.0f s that this process "
                "writes, and others take over when it has not said so for %.0f s.",
                folder, system.file_system_of(folder), error.strerror, BEAT_S, DEAD_S,
            )  # fmt: skip
        with contextlib.suppress(OSError, DiskError):  # no disk of this machine has any
            self._open.append(_own_lock_of(folder))
            _take(self._open[1], told, folder, until)
            return self._open[1]
        return None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others write again; a second call does nothing."""
        if self._lease is not None:
            self._lease.close()
            self._lease = None
        while self._open:
            os.close(self._open.pop())


def owner_of(folder: Path) -> Owner | None:
    """Who writes to a folder; `None` if nobody does, or if nobody may ask.

    One who keeps a lease counts until somebody has looked for long enough, as `owners_of` does.
    """
    told, own = folder / LOCK, -1
    try:
        refuse_links(folder, [LOCK])
        asked = system.open_file(told, os.O_RDWR)
    except (OSError, RunError):
        return None
    try:
        _, lease = _newest(folder)
        try:
            is_free, machine = system.has_locked(asked), _machine(asked)
        except OSError:
            own = _own_lock_of(folder)
            is_free, machine = system.has_locked(own), _machine(own)
        if is_free and (_is_over(lease, machine) or (own < 0 and system.locks_reach(folder))):
            return None
        return Owner.read(system.read_at(asked, _LARGEST, 0) if lease == _OVER else lease)
    except (OSError, RunError, DiskError):
        return None
    finally:
        for each in {asked, own} - {-1}:
            os.close(each)


def owners_of(folders: Iterable[Path]) -> dict[Path, Owner]:
    """Who writes to folders; where somebody keeps a lease, it looks for long enough to see that it is renewed."""
    found = {folder: owner for folder in folders if (owner := owner_of(folder))}
    leases = {folder: _newest(folder) for folder in found}
    leases = {folder: lease for folder, lease in leases.items() if lease[1] != _OVER}
    until = time.monotonic() + 2.5 * BEAT_S
    while leases and time.monotonic() < until:
        time.sleep(min(1.0, BEAT_S / 10))
        leases = {folder: lease for folder, lease in leases.items() if lease == _newest(folder)}
    return {folder: owner for folder, owner in found.items() if folder not in leases}


class _Lease:
    """A file ``.lock-N``, of which the highest counts: whoever makes the next one has the folder.

    A file is made by one process alone, so that of several who see that a lease is over one gets it.
    """

    def __init__(self, folder: Path, owner: Owner, machine: str, until: float):
        self._folder, self._told = folder, f"{owner}\n{machine}\n"
        self._number = self._next(machine, until)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._write(_OVER)

    def _next(self, machine: str, until: float) -> int:
        """The number of our lease, which is made."""
        seen: tuple[int, bytes] | None = None
        since, is_renewed = 0.0, False
        while True:
            number, content = newest = _newest(self._folder)
            is_over = _is_over(content, machine)
            if not is_over and newest != seen:
                if seen is None:
                    logger.info(
                        "%s: %s wrote there; looking for at most %.0f s whether it still does.",
                        self._folder, Owner.read(content), DEAD_S,
                    )  # fmt: skip
                is_renewed, seen, since = seen is not None, newest, time.monotonic()
            if is_over or time.monotonic() - since > DEAD_S:
                if self._made(number + 1):
                    return number + 1
            elif is_renewed and time.monotonic() >= until:
                raise Owner.read(content).told(self._folder)
            else:
                time.sleep(min(0.2, BEAT_S / 10))

    def _made(self, number: int) -> bool:
        self._path = self._folder / f"{LOCK}-{number}"
        try:
            os.close(system.open_file(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        self._write(self._content())
        # Of one that looked before others made theirs, and made its own when they had removed that number.
        is_last = _newest(self._folder)[0] == number
        for each, path in _leases(self._folder):
            if each < number or (each == number and not is_last):
                with contextlib.suppress(OSError):  # somebody else did
                    path.unlink()
        return is_last

    def _content(self) -> bytes:
        return f"{self._told}{time.monotonic_ns()}\n".encode()

    def _write(self, content: bytes) -> None:
        descriptor = system.open_file(self._path, os.O_RDWR)  # anew: others see it when it is closed
        try:
            os.ftruncate(descriptor, system.write_at(descriptor, content, 0))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            try:
                self._write(self._content())
                is_ours = _newest(self._folder)[0] == self._number
            except FileNotFoundError:
                is_ours = False
            except (OSError, RunError) as error:  # the next time may be better, and others wait for long
                logger.warning("%s: not renewed (%s).", self._path, error)
                continue
            if not is_ours:
                logger.error(
                    "%s: this process has not said for long that it writes there, and %s took over: stop one of them.",
                    self._folder, Owner.read(_newest(self._folder)[1]),
                )  # fmt: skip
                return


def _take(lock: int, named: int, folder: Path, until: float) -> None:
    """Wait for a lock; `named` is the file that names its owner."""
    look = _LOOK_S
    while not system.has_locked(lock):
        owner = Owner.read(system.read_at(named, _LARGEST, 0))
        if time.monotonic() >= until:
            raise owner.told(folder)
        if look < _LONGEST_LOOK_S <= 2 * look:
            logger.info("%s: waiting for %s.", folder, owner.place)
        time.sleep(min(look, max(0.0, until - time.monotonic())))
        look = min(2 * look, _LONGEST_LOOK_S)


def _machine(locked: int | None) -> str:
    """What a lease says of the lock beside it: who has that lock now knows that whoever says the same has ended."""
    if locked is None:
        return ""
    found = os.fstat(locked)
    return f"{socket.gethostname()} {system.boot_of()} {found.st_dev} {found.st_ino}"


def _is_over(lease: bytes, machine: str) -> bool:
    """Whether nobody keeps a lease any more, as far as who has the lock beside it knows at once.

    An empty one is just being made, or its maker was killed then.
    """
    return lease == _OVER or (bool(machine) and lease.split(b"\n")[1:2] == [machine.encode()])


def _leases(folder: Path) -> list[tuple[int, Path]]:
    found = ((_LEASE.fullmatch(each.name), each) for each in folder.glob(f"{LOCK}-*"))
    return sorted((int(match[1]), path) for match, path in found if match)


def _newest(folder: Path) -> tuple[int, bytes]:
    """Number and content of the lease that counts; number 0 is over if there is none."""
    for number, path in reversed(_leases(folder)):
        try:
            return number, read_file(path, _LARGEST)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):  # another computer removed it
                raise
    return 0, _OVER


def _own_lock_of(folder: Path) -> int:
    """A file of this user that stands for a folder, to lock instead of it."""
    base = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:24]
    return open_to_change(make_folder(Path(base) / "promptccd-locks") / name)

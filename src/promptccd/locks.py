"""One writer of a folder at a time, on any computer: a lock of the disk, or a lease where locks do not reach others.

`filelock` provides both. A lock ends with its process. A lease is a file that its holder renews every `BEAT_S`; another
process acquires it when it was not renewed for `DEAD_S`.
"""

import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLease, Timeout

from promptccd import systems
from promptccd.disk import make_folder, open_to_change, temporary, write_file
from promptccd.errors import RunError

logger = logging.getLogger(__name__)

LOCK = ".lock"  # and all names that begin with it
OWNER, LEASE = f"{LOCK}-owner", f"{LOCK}-lease"
BEAT_S = 10.0
DEAD_S = 120.0  # a full disk or a paused machine can delay a process for long
_SHORTEST_WAIT_S = 0.3  # `owner_of` holds a free lock for a moment
_QUIET_S = 0.4  # a longer wait is logged
# Of Slurm, PBS, LSF, SkyPilot; the last is of Grid Engine and of jobs on the Hub.
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "SKYPILOT_TASK_ID", "JOB_ID")


class FolderLock(contextlib.AbstractContextManager["FolderLock"]):
    """Keeps other processes from writing to a folder until this one ends, or closes it, as a ``with`` block does.

    Args:
        folder: created if missing.
        wait_s: seconds to wait for another writer. A lease of a process that ended on another computer is waited for
            until `DEAD_S`.

    Raises:
        RunError: another process writes there, the message names it; or the lock is a link.
        DiskError: the folder cannot be written.
    """

    def __init__(self, folder: Path, wait_s: float = 0):
        os.close(open_to_change(make_folder(folder) / LOCK))  # refuses links and disks that cannot be written
        wait_s = max(wait_s, _SHORTEST_WAIT_S)
        try:
            is_seen = systems.locks_reach(folder)
            lock = _file_lock(folder / LOCK) if is_seen else _lease(folder)
            self._lock = _acquired(lock, folder, wait_s)
        except (OSError, NotImplementedError) as error:
            logger.warning(
                "The disk of %s (%s) has no locks (%s). This process renews the file %s there every %.0f s; another "
                "process can acquire it when it was not renewed for %.0f s.",
                folder, systems.file_system_of(folder), error, LEASE, BEAT_S, DEAD_S,
            )  # fmt: skip
            self._lock = _acquired(_lease(folder), folder, wait_s)
        job = next((f", job {os.environ[name]}" for name in _JOBS if os.environ.get(name)), "")
        owner = f"{socket.gethostname()} (process {os.getpid()}{job})"
        if _last_owner(folder) != owner:
            write_file(folder / OWNER, owner)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes write; a second call does nothing."""
        self._lock.release()


def owner_of(folder: Path) -> str | None:
    """The process that writes to a folder, such as ``node7 (process 12, job 38)``; `None` if none is known.

    A lease counts as held until `owners_of` has observed it.
    """
    if not (folder / LOCK).exists():
        return None
    try:
        if (holder := _lease(folder).owner) is not None:
            is_dead = holder.hostname == socket.gethostname() and not systems.is_running(holder.pid)
            return None if is_dead else _last_owner(folder)
        with _file_lock(folder / LOCK).acquire(timeout=0):
            return None
    except Timeout:
        return _last_owner(folder) if _grants_locks(folder) else None
    except (OSError, NotImplementedError):
        return None


def owners_of(folders: Iterable[Path]) -> dict[Path, str]:
    """Processes that write to folders; a lease counts only if its holder renews it while this function observes it."""
    found = {folder: owner for folder in folders if (owner := owner_of(folder))}
    leases = {folder: renewed for folder in found if (renewed := _renewed(folder))}
    until = time.monotonic() + 2.5 * BEAT_S
    while leases and time.monotonic() < until:
        time.sleep(min(1.0, BEAT_S / 10))
        leases = {folder: renewed for folder, renewed in leases.items() if _renewed(folder) == renewed}
    return {folder: owner for folder, owner in found.items() if folder not in leases}


def _acquired(lock: BaseFileLock, folder: Path, wait_s: float) -> BaseFileLock:
    """The lock, once this process has it.

    Raises:
        RunError: another process kept it for longer than `wait_s`.
        OSError: the disk grants no locks.
    """
    is_lease = isinstance(lock, SoftFileLease)
    renewed, until = _renewed(folder), time.monotonic() + wait_s

    def is_renewed() -> bool:  # only a renewal shows that the holder of a lease has not ended
        return time.monotonic() >= until and _renewed(folder) != renewed

    try:
        with contextlib.suppress(Timeout):
            return lock.acquire(timeout=min(wait_s, _QUIET_S)).lock
        if not is_lease and not _grants_locks(folder):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        if is_lease or wait_s > _QUIET_S:
            logger.info("%s: waiting for %s.", folder, _last_owner(folder))
        if is_lease:
            return lock.acquire(timeout=wait_s + 2 * DEAD_S, cancel_check=is_renewed).lock
        return lock.acquire(timeout=max(0.0, until - time.monotonic())).lock
    except Timeout as error:
        raise RunError(
            f"{_last_owner(folder)} is writing to {folder}. Wait for it, stop it, or give another folder."
        ) from error


def _last_owner(folder: Path) -> str:
    """The last process that had the lock of a folder."""
    try:
        return (folder / OWNER).read_text(encoding="utf-8", errors="replace")[:200].partition("\n")[0]
    except OSError:
        return "Another process"


def _file_lock(path: Path) -> BaseFileLock:
    """A lock of the disk, or an error: the soft lock that `filelock` would fall back to outlives a killed process."""
    return FileLock(path, thread_local=False, fallback_to_soft=False)


def _grants_locks(folder: Path) -> bool:
    """Whether a lock can be acquired that no other process knows: some disks refuse each as if another had it."""
    probe = temporary(folder / LOCK)
    try:
        with _file_lock(probe).acquire(timeout=0):
            return True
    except (OSError, NotImplementedError):
        return False
    finally:
        probe.unlink(missing_ok=True)


def _lease(folder: Path) -> SoftFileLease:
    return SoftFileLease(
        folder / LEASE, lease_duration=DEAD_S, heartbeat_interval=BEAT_S, thread_local=False,
        on_compromise=lambda loss: logger.error(
            "%s: this process did not renew its lease for %.0f s, and another process acquired it. Stop one of them.",
            folder, DEAD_S,
        ),
    )  # fmt: skip


def _renewed(folder: Path) -> int | None:
    """When the lease of a folder was renewed, by the clock of its disk; `None` without a lease."""
    try:
        return (folder / LEASE).stat().st_mtime_ns
    except OSError:
        return None

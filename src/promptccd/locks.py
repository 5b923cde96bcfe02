"""One writer of a folder at a time: a lock of the disk, by `filelock`, which ends with its process."""

import contextlib
import logging
import os
import socket
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from promptccd.disk import make_folder, open_to_change, write_file
from promptccd.errors import RunError

logger = logging.getLogger(__name__)

LOCK = ".lock"  # and all names that begin with it
OWNER = f"{LOCK}-owner"
_SHORTEST_WAIT_S = 0.3  # `owner_of` locks a free file for a moment
# Of Slurm, PBS, LSF, SkyPilot; the last is of Grid Engine and of jobs on the Hub.
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "SKYPILOT_TASK_ID", "JOB_ID")
# A lock of the disk, or an error: the soft lock that `filelock` would fall back to outlives a killed process.
_lock_in = partial(FileLock, thread_local=False, fallback_to_soft=False)


class FolderLock(contextlib.AbstractContextManager["FolderLock"]):
    """Keeps other processes from writing to a folder until this one ends, or closes it, as a ``with`` block does.

    On a disk without locks a warning is logged, and nothing keeps another process out.

    Args:
        folder: created if missing.
        wait_s: seconds to wait for another writer.

    Raises:
        RunError: another process writes there, the message names it; or the lock is a link.
        DiskError: the folder cannot be written.
    """

    def __init__(self, folder: Path, wait_s: float = 0):
        self._lock = _lock_in(folder / LOCK)
        try:
            self._lock.acquire(timeout=max(wait_s, _SHORTEST_WAIT_S))
        except Timeout as error:
            raise RunError(
                f"{_last_owner(folder)} is writing to {folder}. Wait for it, stop it, or give another folder."
            ) from error
        except (OSError, NotImplementedError) as error:
            # Refuses links, which `filelock` does not follow, and what cannot be written, such as another user's lock.
            os.close(open_to_change(make_folder(folder) / LOCK))
            logger.warning(
                "The disk of %s has no locks (%s). Run only one command at a time on this folder.",
                folder,
                error,
            )
        job = next((f", job {os.environ[name]}" for name in _JOBS if os.environ.get(name)), "")
        owner = f"{socket.gethostname()} (process {os.getpid()}{job})"
        if _last_owner(folder) != owner:
            write_file(folder / OWNER, owner)

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def close(self) -> None:
        """Let other processes write; a second call does nothing."""
        self._lock.release()


def owner_of(folder: Path) -> str | None:
    """The process that writes to a folder, such as ``node7 (process 12, job 38)``; `None` if unknown."""
    if not (folder / LOCK).exists():
        return None
    try:
        with _lock_in(folder / LOCK).acquire(timeout=0):
            return None
    except Timeout:
        return _last_owner(folder)
    except (OSError, NotImplementedError):
        return None


def _last_owner(folder: Path) -> str:
    """The last process that had the lock of a folder."""
    try:
        return (folder / OWNER).read_text(encoding="utf-8", errors="replace")[:200].partition("\n")[0]
    except OSError:
        return "Another process"

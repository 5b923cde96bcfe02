"""Who is left, for tests that end processes."""

import contextlib
import multiprocessing
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch


def ended(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command, once it has ended, with what it said."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def in_a_fork(work: Callable[[], object]) -> int:
    """Exit code of some work in a forked process, negative where a signal ended it."""

    def alone() -> None:
        torch.set_num_threads(1)  # the first one to ask for the pool that the fork has lost must be alone
        work()

    process = multiprocessing.get_context("fork").Process(target=alone)
    process.start()
    process.join()
    return process.exitcode


def processes_of(session: int) -> list[int]:
    """Processes of a session that are not just waiting to be noticed as dead."""
    found = []
    for number in psutil.pids():
        with contextlib.suppress(OSError):  # it may end meanwhile
            if os.getsid(number) == session and is_running(number):
                found.append(number)
    return found


def eventually(is_so: Callable[[], object], seconds: float = 10.0) -> bool:
    """Whether something is so within some seconds."""
    until = time.monotonic() + seconds
    while not (found := is_so()) and time.monotonic() < until:
        time.sleep(0.02)
    return bool(found)


def is_running(number: int) -> bool:
    """Whether a process is there that is not just waiting to be noticed as dead."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def owner_number(owner: Path) -> int:
    """The process in a file with the owner of a lock; 0 while it is written."""
    found = re.search(r"process (\d+)", owner.read_text())
    return int(found[1]) if found else 0

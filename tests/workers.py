"""Functions at work in forked processes."""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LATE = 90  # the exit code of what took too long


class Worker:
    """A function of a folder at work in a forked process of a group of its own, for some seconds at most."""

    def __init__(self, work: Callable[[Path], int], longest_s: float):
        self.folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        self.due = time.monotonic() + longest_s
        sys.stdout.flush()
        self.process = os.fork()
        if self.process == 0:
            code = 70
            try:
                os.setpgid(0, 0)
                code = work(self.folder)
            finally:
                os._exit(code)

    def ended(self) -> int | None:
        """The exit code, `None` while it runs."""
        done, status = os.waitpid(self.process, os.WNOHANG)
        if not done and time.monotonic() < self.due:
            return None
        with contextlib.suppress(ProcessLookupError):  # what it forked itself may go on without it
            os.killpg(self.process, signal.SIGKILL)
        if not done:
            _, status = os.waitpid(self.process, 0)
        shutil.rmtree(self.folder, ignore_errors=True)
        return LATE if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)

"""Functions at work in processes forked from one that has imported everything but the package."""

import contextlib
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

LATE = -signal.SIGKILL


class Worker:
    """A function at work in a forked process of a group of its own.

    Args:
        work: gets a folder that is removed afterwards; what it returns is the exit code.
        longest_s: after which everything it started is killed.
    """

    def __init__(self, work: Callable[[Path], int], longest_s: float):
        self.folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        self.due = time.monotonic() + longest_s
        self.code: int | None = None
        self.said = ""
        sys.stdout.flush()
        self.process = os.fork()
        if self.process == 0:
            _work(work, self.folder)

    def ended(self) -> int | None:
        """The exit code, `None` while it runs; `LATE` where it, or a test, took too long."""
        if self.code is not None:
            return self.code
        done, status = os.waitpid(self.process, os.WNOHANG)
        late = not done and time.monotonic() > self.due
        if late:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process, signal.SIGKILL)
            _, status = os.waitpid(self.process, 0)
        if done or late:
            self.code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(FileNotFoundError):
                self.said = (self.folder / "said").read_text(errors="replace")[-3000:]
            if "Failed: Timeout" in self.said:
                self.code = LATE
            shutil.rmtree(self.folder, ignore_errors=True)
        return self.code


def _work(work: Callable[[Path], int], folder: Path) -> NoReturn:
    code = 70
    try:
        os.setpgid(0, 0)
        said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT)
        for number in (1, 2):
            os.dup2(said, number)
        code = work(folder)
    finally:
        os._exit(code)


def preload(modules: Sequence[str], package: str) -> None:
    """Import what tests import, so that no process has to again; never what is mutated, tests it or uses it."""
    own = (package, "tests", "test_", "conftest", "__m")
    sys.modules[package] = None  # type: ignore[assignment]  # nobody can import it: what needs it stays out with it
    for name in modules:
        if name not in sys.modules and not name.startswith(own):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    del sys.modules[package]

"""Run the tests that a mutant concerns, in a process forked for it."""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import pytest

from tests.mutants import started
from tests.mutants.lines import Lines
from tests.mutants.mutations import Mutant

LONGEST_RUN_S = 60.0  # of each rank of tests for one mutant, as they ran without it; the rest is left out
LATE = 90  # the exit code of what took too long
NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)
FLAGS = "-q -x --tb=no -p no:cacheprovider -p no:xdist -W ignore -o addopts= -o timeout_func_only=true"


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


def tried(mutant: Mutant, lines: Lines) -> Worker | None:
    """The tests that a mutant concerns, at work; `None` if there are none."""
    project = lines.project
    chosen = [name for rank in lines.concerned(mutant) for name in _in_time(rank, lines.seconds)]

    def work(folder: Path) -> int:
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        (folder / "mistake.py").write_text(text := mutant.applied(), encoding="utf-8")
        os.environ |= {started.MISTAKE: str(folder / "mistake.py"), started.MISTAKEN: str(mutant.path)}
        started.in_all_programs(folder / "started")
        started.put_in(str(mutant.path), text)
        os.chdir(project.root)
        sys.path[:0] = [str(project.root / "src"), str(project.root)]
        flags = [*FLAGS.split(), f"--basetemp={folder / 'tmp'}", f"--timeout={project.patience_s}"]
        files = dict.fromkeys(name.partition("::")[0] for name in chosen)
        plugin = _Chosen(chosen)
        code = int(pytest.main([*flags, *files], plugins=[plugin]))
        return LATE if plugin.is_late else code

    return Worker(work, 6 * LONGEST_RUN_S) if chosen else None


def _in_time(names: Sequence[str], seconds: Mapping[str, float]) -> list[str]:
    spent_s = accumulate(seconds[name] for name in names)
    return [name for name, sum_s in zip(names, spent_s, strict=True) if sum_s < LONGEST_RUN_S]


class _Chosen:
    """Keeps some tests, in their order."""

    def __init__(self, names: Sequence[str]):
        self.rank = {name: rank for rank, name in enumerate(names)}
        self.is_late = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = (item for item in items if item.nodeid in self.rank)
        items[:] = sorted(kept, key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.is_late |= "Failed: Timeout" in report.longreprtext

"""Take each guard out of a copy of the project in turn and run its tests: ``python -m tests.guards [WORD]``.

With a word, only guards whose name or file holds it. Exit code 1 if one was not missed.
"""

import gc
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

from tests.guards import ROOT, Guard, all_guards
from tests.workers import LATE, Worker, preload

WORKERS = 2
COPIED = ("src", "tests", "benchmarks", "hub_configs", "spaces", "pyproject.toml", "README.md", "train.py")
LONGEST_S = 600
ALL_LONGEST_S = 3_600
OWN = ("promptccd", "promptccd_command", "tests", "benchmarks", "conftest")
PASSED, FAILED = 0, 1


def copy_of_project(folder: Path) -> Path:
    """What the tests need, in a folder of its own."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    return folder


def running(project: Path, tests: Sequence[str], modules: Path | None = None) -> Callable[[Path], int]:
    """Work for a forked process: tests of a copy, as if nothing of the project had been imported yet.

    Args:
        project: the copy.
        tests: their names.
        modules: file that gets the names of all that they import.
    """

    def run(folder: Path) -> int:
        os.chdir(project)
        os.environ |= {"PYTHONPATH": str(project / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        # The environment of `make` lies below the root, and stays.
        others = [each for each in sys.path if each and Path(each) not in (ROOT, ROOT / "src")]
        sys.path[:] = [str(project / "src"), str(project), *others]
        for name in [name for name in sys.modules if name.partition(".")[0] in OWN]:
            del sys.modules[name]
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--basetemp", str(folder / "tmp"), *tests])
        if modules is not None:
            modules.write_text(json.dumps(list(sys.modules)))
        return int(code)

    return run


def without_each(guards: Sequence[Guard], copies: Sequence[Path]) -> Iterator[tuple[Guard, Worker]]:
    """Every guard and the worker that ran its tests without it, in the order in which they end."""
    waiting, free = list(reversed(guards)), list(copies)
    at_work: dict[Path, tuple[Guard, str, Worker]] = {}
    while waiting or at_work:
        while waiting and free:
            guard, project = waiting.pop(), free.pop()
            whole = (project / guard.file).read_text(encoding="utf-8")
            (project / guard.file).write_text(guard.removed_from(whole), encoding="utf-8")
            at_work[project] = guard, whole, Worker(running(project, guard.tests), LONGEST_S)
        for project, (guard, whole, worker) in list(at_work.items()):
            if worker.ended() is not None:
                (project / guard.file).write_text(whole, encoding="utf-8")
                del at_work[project]
                free.append(project)
                yield guard, worker
        time.sleep(0.02)


def main(word: str = "") -> int:
    """Print a line for every guard."""
    guards = [guard for guard in all_guards() if word in guard.name or word in guard.file]
    with tempfile.TemporaryDirectory() as scratch:
        copies = [copy_of_project(Path(scratch, str(number))) for number in range(WORKERS)]
        every = sorted({test for guard in guards for test in guard.tests})
        modules = Path(scratch, "modules.json")
        whole = Worker(running(copies[0], every, modules), ALL_LONGEST_S)
        while (code := whole.ended()) is None:
            time.sleep(0.1)
        if code != PASSED:
            print(f"The tests do not pass with all guards in place:\n{whole.said}")
            return 1
        preload(json.loads(modules.read_text()), OWN[0])
        gc.freeze()  # pytest collects garbage over and over as it ends: not through all that was imported
        survived = 0
        for guard, worker in without_each(guards, copies):
            if worker.code not in (PASSED, FAILED, LATE):  # what nothing ends any more is missed, too
                raise RuntimeError(f"Without {guard.name!r} {guard.tests} did not run:\n{worker.said}")
            survived += worker.code == PASSED
            verdict = "SURVIVED" if worker.code == PASSED else "missed  "
            print(f"{verdict} {guard.file}: {guard.name}", flush=True)
    print(f"\n{len(guards) - survived} of {len(guards)} guards are missed by a test.")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))

"""Learn which test runs which line, and run those that a mutant concerns in a process forked for it."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import started
from tests.mutants.mutations import Mutant

LONGEST_RUN_S = 60.0  # of tests for one mutant as they ran without it, cheapest first; the rest is left out
LATE = 90  # the exit code of what took too long
NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)
CHOSEN = "PYTEST_ADDOPTS"  # in the environment: it may choose tests, as by -m "not slow and not moderate"
FLAGS = "-q -x --tb=no -p no:cacheprovider -p no:xdist -W ignore -o addopts= -o timeout_func_only=true"


@dataclass(frozen=True)
class Project:
    """What is mutated and what tests it."""

    root: Path  # it and root/src are where modules are found
    package: str  # its folder
    areas: Mapping[str, Sequence[str]]  # tests by the folder or file of the package that they are for
    slow: Collection[str] = ()  # areas whose slow tests are tried too; else nobody would wait for them
    patience_s: float = 15.0  # how long a test may take with a mutant

    def area_of(self, file: str) -> str:
        """The smallest area that a source file is in; empty if it is in none."""
        below = file.removeprefix(self.package + "/")
        return max((area for area in self.areas if f"{below}/".startswith(area + "/")), key=len, default="")

    def files(self) -> list[str]:
        """Source files of all areas."""
        paths = sorted((self.root / self.package).rglob("*.py"))
        return [file for path in paths if self.area_of(file := path.relative_to(self.root).as_posix())]


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


class Lines:
    """Tests of some areas by the lines they run; what is not known of them yet, or no more, is recorded."""

    def __init__(self, project: Project, areas: Collection[str]):
        self.project = project
        self.areas = {area: self._recorded(area) for area in areas}

    def concerned(self, mutant: Mutant) -> dict[str, float]:
        """Seconds of the tests that run a mutant, cheapest first; where an import runs it, of all the others too."""
        area = self.areas[self.project.area_of(mutant.file)]
        tests, lines = area["tests"], set(mutant.lines)
        is_imported = not lines or not lines.isdisjoint(area["imported"].get(mutant.file, ()))
        runs = {name for name in tests if not lines.isdisjoint(tests[name]["lines"].get(mutant.file, ()))}
        names = [name for name in tests if is_imported or name in runs]
        names.sort(key=lambda name: (name not in runs, tests[name]["seconds"]))
        return {name: tests[name]["seconds"] for name in names}

    def _recorded(self, area: str) -> dict[str, Any]:
        place = self.project.root / ".mutants_cache" / f"{area.replace('/', '-')}-{self._state(area)}.json"
        if not place.exists():
            print(f"Recording which tests run which lines of {area}: once, some minutes", flush=True)
            worker = Worker(lambda folder: _record(self.project, area, place, folder), 3600)
            while worker.ended() is None:
                time.sleep(0.1)
        return json.loads(place.read_text())

    def _state(self, area: str) -> str:
        """A hash of an area and its tests: which lines of it they run does not hang on the rest of the package."""
        which = f"{area in self.project.slow} {os.environ.get(CHOSEN, '')}"
        root, digest = self.project.root, hashlib.sha256(which.encode())
        digest.update(Path(__file__).read_bytes() + Path(started.__file__).read_bytes())
        for top in (f"{self.project.package}/{area}", *self.project.areas[area]):
            for path in sorted((root / top).rglob("*.py")) or [root / top]:
                digest.update(path.read_bytes())
        return digest.hexdigest()[:16]


class Recorder:
    """A pytest plugin that learns which lines of a folder or file are run."""

    def __init__(self, source: Path, folder: Path):
        self.source = str(source) if source.suffix else f"{source}{os.sep}"
        self.seconds = Counter[str]()  # of each test, with the fixtures that it was the first to need
        self.fixtures: dict[str, list[str]] = {}  # of each test
        self.failed: set[str] = set()  # tests that tell nothing
        self._lines = folder / "lines"
        os.environ |= {started.RECORD: str(self._lines), started.SOURCE: self.source, started.TEST: ""}
        started.in_all_programs(folder / "started")
        self._trace = started.Trace()

    def to_dict(self, root: Path) -> dict[str, Any]:
        """As JSON types; lines of a shared fixture are those of each of its tests."""
        run: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for line in self._lines.read_text(encoding="utf-8").splitlines():
            at, file, number = line.rsplit("\t", 2)
            run[at][os.path.relpath(file, root)].add(int(number))
        tests = {}
        for name in self.fixtures.keys() - self.failed:
            parts = [run[at] for at in {name, *self.fixtures[name]} & run.keys()]
            files = {file for part in parts for file in part}
            lines = {file: sorted(set().union(*(part.get(file, ()) for part in parts))) for file in files}
            tests[name] = {"seconds": round(self.seconds[name], 4), "lines": lines}
        imported = {file: sorted(numbers) for file, numbers in run[""].items()}
        return {"tests": tests, "imported": imported}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Lines run are those of this test."""
        self._trace.begin()
        self._trace.runs(item.nodeid)
        self.fixtures[item.nodeid] = getattr(item, "fixturenames", [])
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Lines run are those of the fixture, if others may use what it made."""
        outer, is_shared = os.environ[started.TEST], fixturedef.scope != "function"
        self._trace.runs(fixturedef.argname if is_shared else outer)
        try:
            return (yield)
        finally:
            self._trace.runs(outer)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.outcome != "passed":
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)


def _pytest(project: Project, tests: Sequence[str], folder: Path, plugin: object) -> int:
    os.chdir(project.root)
    sys.path[:0] = [str(project.root / "src"), str(project.root)]
    flags = [*FLAGS.split(), "--basetemp", str(folder / "tmp")]
    return int(pytest.main([*flags, *tests], plugins=[plugin]))


def _record(project: Project, area: str, place: Path, folder: Path) -> int:
    recorder = Recorder(project.root / project.package / area, folder)
    which = [] if CHOSEN in os.environ else ["-m", "" if area in project.slow else "not slow"]
    flags = ["--maxfail=1000", f"--timeout={2 * project.patience_s}", *which]
    code = _pytest(project, [*flags, *project.areas[area]], folder, recorder)
    place.parent.mkdir(exist_ok=True)
    (folder / "recorded").write_text(json.dumps(recorder.to_dict(project.root)))
    shutil.move(folder / "recorded", place)
    return code


def tried(mutant: Mutant, lines: Lines) -> Worker | None:
    """The tests that a mutant concerns, at work; `None` if there are none."""
    project, concerned = lines.project, lines.concerned(mutant)
    spent_s = accumulate(concerned.values())
    chosen = [name for name, sum_s in zip(concerned, spent_s, strict=True) if sum_s < LONGEST_RUN_S]

    def work(folder: Path) -> int:
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        (folder / "mistake.py").write_text(text := mutant.applied(), encoding="utf-8")
        os.environ |= {started.MISTAKE: str(folder / "mistake.py"), started.MISTAKEN: str(mutant.path)}
        started.in_all_programs(folder / "started")
        started.put_in(str(mutant.path), text)
        files = dict.fromkeys(name.partition("::")[0] for name in chosen)
        plugin = _Chosen(chosen)
        code = _pytest(project, [f"--timeout={project.patience_s}", *files], folder, plugin)
        return LATE if plugin.is_late else code

    return Worker(work, 4 * LONGEST_RUN_S) if chosen else None


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

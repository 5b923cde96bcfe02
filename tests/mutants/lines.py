"""Learn which test runs which line, as a plugin of pytest, and choose the tests that a mutant concerns.

A fixture that several tests share is recorded under its own name: it concerns all of them. The tracer of coverage was
tried, and was several times slower for tests of commands on Python 3.11.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import started
from tests.mutants.mutations import Mutant

# In the environment: which tests there are to choose from. Without it, those of `make test`.
CHOSEN, QUICK = "PYTEST_ADDOPTS", '-m "not slow and not moderate"'
FOLDER = "MUTANTS_FOLDER"  # in the environment: of the record
LINES = "lines"


@dataclass(frozen=True)
class Project:
    """What is mutated and what tests it."""

    root: Path  # it and root/src are where modules are found
    package: str  # its folder
    whole: Sequence[str] = ()  # tests of whole outputs, which see mistakes everywhere
    patience_s: float = 15.0  # how long a test may take with a mutant

    def files(self) -> list[str]:
        """Source files."""
        return [
            path.relative_to(self.root).as_posix()
            for path in sorted((self.root / self.package).rglob("*.py"))
        ]

    def own(self, file: str) -> list[str]:
        """The folder of tests for a folder of the package; the files of tests beside all folders for a file there."""
        below = Path(file).relative_to(self.package)
        for folder in [*below.parents][:-1]:
            if (self.root / "tests" / folder).exists():
                return [f"tests/{folder.as_posix()}/"]
        return [f"tests/{each.name}" for each in sorted((self.root / "tests").glob("test_*.py"))]

    def near(self, files: Iterable[str]) -> list[str]:
        """Tests of some source files, and of whole outputs."""
        return sorted({each for file in files for each in self.own(file)}.union(self.whole))


class Lines:
    """Tests by the lines they run, recorded once for a state of the project."""

    def __init__(self, project: Project, tests: Sequence[str]):
        self.project = project
        place = project.root / ".mutants_cache" / f"{_state(project, tests)}.json"
        if not place.exists():
            _record(project, tests, place)
        record = json.loads(place.read_text())
        self.seconds: dict[str, float] = record["seconds"]
        self._names, self._lines = list(self.seconds), record["lines"]

    def concerned(self, mutant: Mutant) -> list[list[str]]:
        """Tests that run a mutant, cheapest first: its own, those of whole outputs, and the rest.

        What is run by an import concerns all tests that run anything of the file, its own, and those of whole outputs.
        """
        own, whole = tuple(self.project.own(mutant.file)), tuple(self.project.whole)
        of_file = self._lines.get(mutant.file, {})
        runs = {who for line in mutant.lines for who in of_file.get(str(line), ())}
        if -1 in runs or not mutant.lines:
            runs = {who for each in of_file.values() for who in each}
            runs.update(who for who, name in enumerate(self._names) if name.startswith(own + whole))
        ranks: list[list[str]] = [[], [], []]
        for name in sorted((self._names[who] for who in runs - {-1}), key=self.seconds.__getitem__):
            ranks[0 if name.startswith(own) else 1 if name.startswith(whole) else 2].append(name)
        return ranks


def _state(project: Project, tests: Sequence[str]) -> str:
    """A hash of the source, of the tests, and of which of them are recorded."""
    digest = hashlib.sha256(f"{tests} {os.environ.get(CHOSEN, QUICK)}".encode())
    for top in (project.package, "tests"):
        for path in sorted((project.root / top).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _record(project: Project, tests: Sequence[str], place: Path) -> None:
    print("Recording which tests run which lines: once, some minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="lines-") as name:
        paths = [*map(str, (project.root / "src", project.root)), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            CHOSEN: os.environ.get(CHOSEN, QUICK),
            started.SOURCE: f"{project.root / project.package}{os.sep}",
            FOLDER: name,
        }
        flags = "-qrf --tb=no -p no:cacheprovider -W ignore -o addopts= -n 2 --dist worksteal --maxfail=99"
        command = [sys.executable, "-m", "pytest", "-p", __name__, *flags.split(), *tests]
        command += [f"--basetemp={name}/tmp", f"--timeout={4 * project.patience_s}"]
        # A test that fails says nothing, and is left out.
        subprocess.run(command, cwd=project.root, env=environment, check=False)
        place.parent.mkdir(exist_ok=True)
        (Path(name) / "record").write_text(json.dumps(collected(Path(name), project.root)))
        shutil.move(Path(name) / "record", place)


def pytest_configure(config: pytest.Config) -> None:
    """Record in every process that runs tests: with `xdist`, not in the one that hands them out."""
    if not config.getoption("numprocesses", None):
        config.pluginmanager.register(Recorder(Path(os.environ[FOLDER])))


class Recorder:
    """The record of one process."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.seconds = Counter[str]()  # of each test, with the fixtures that it was the first to need
        self.fixtures: dict[str, list[str]] = {}  # of each test
        self.failed: set[str] = set()  # tests that tell nothing
        # Short names, since each of many lines has one.
        self._ids = defaultdict[str, str](lambda: f"{os.getpid()}-{len(self._ids)}")
        os.environ |= {started.RECORD: str(folder / LINES), started.TEST: ""}
        started.in_all_programs(folder / f"started-{os.getpid()}")
        self._trace = started.Trace()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Lines run are those of this test."""
        self._trace.begin()
        self._trace.runs(self._ids[item.nodeid])
        self.fixtures[item.nodeid] = getattr(item, "fixturenames", [])
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Lines run are those of the fixture, if others may use what it made."""
        outer, is_shared = os.environ[started.TEST], fixturedef.scope != "function"
        self._trace.runs(self._ids[fixturedef.argname] if is_shared else outer)
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
        names = self.fixtures.keys() - self.failed
        tests = {name: [round(self.seconds[name], 4), [name, *self.fixtures[name]]] for name in names}
        ids = {short: name for name, short in self._ids.items()}
        path = self.folder / f"tests-{os.getpid()}.json"
        path.write_text(json.dumps({"tests": tests, "ids": ids}))


def collected(folder: Path, root: Path) -> dict[str, Any]:
    """The records of all processes: seconds by test, and numbers of tests by file and line; -1 is an import."""
    records = [json.loads(path.read_text()) for path in folder.glob("tests-*.json")]
    ids = {short: name for record in records for short, name in record["ids"].items()}
    sharing, seconds = defaultdict[str, list[int]](list), dict[str, float]()
    for record in records:
        for name, (spent, parts) in record["tests"].items():
            for part in parts:
                sharing[part].append(len(seconds))
            seconds[name] = spent
    run: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for line in (folder / LINES).read_text(encoding="utf-8").splitlines():
        short, file, number = line.rsplit("\t", 2)
        run[os.path.relpath(file, root)][number].update(sharing[ids.get(short, "")] if short else [-1])
    lines = {file: {number: sorted(who) for number, who in of.items()} for file, of in run.items()}
    return {"seconds": seconds, "lines": lines}

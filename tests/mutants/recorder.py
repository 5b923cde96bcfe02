"""A pytest plugin that records which test runs which lines of the project, and for how long.

A fixture that several tests share is recorded under its own name: it concerns all of them. The tracer of coverage was
tried, and was several times slower for tests of commands on Python 3.11.
"""

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import started

FOLDER = "MUTANTS_FOLDER"  # in the environment: of the record
LINES = "lines"


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

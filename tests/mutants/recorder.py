"""A pytest plugin that records which test runs which lines of the project, and for how long.

What several tests share, a fixture of a wider scope, is recorded under its own name: it concerns all of them.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.mutants import started

FOLDER = "MUTANTS_FOLDER"  # in the environment: of the record


def pytest_configure(config: pytest.Config) -> None:
    """Record in every process that runs tests: with `xdist`, not in the one that hands them out."""
    if not config.getoption("numprocesses", None):
        config.pluginmanager.register(Recorder(Path(os.environ[FOLDER])))


class Recorder:
    """The record of one process."""

    def __init__(self, folder: Path):
        self.place = folder / f"tests-{os.getpid()}.json"
        self.seconds = Counter[str]()  # of each test, with the fixtures that it was the first to need
        self.fixtures: dict[str, list[str]] = {}  # of each test
        self.failed: set[str] = set()  # tests that tell nothing
        os.environ |= {started.SETTINGS: str(folder / "settings.ini"), started.TEST: ""}
        started.in_all_programs(folder / f"started-{os.getpid()}")
        self.coverage = coverage.Coverage(config_file=os.environ[started.SETTINGS])
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Lines run are those of this test."""
        self.coverage.stop()  # also anew: who recurses until Python gives up is not watched on
        self.coverage.start()
        self._runs(item.nodeid)
        self.fixtures[item.nodeid] = getattr(item, "fixturenames", [])
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Lines run are those of the fixture, if others may use what it made."""
        outer, is_shared = os.environ[started.TEST], fixturedef.scope != "function"
        if is_shared:
            self._runs(fixturedef.argname)
        try:
            return (yield)
        finally:
            if is_shared:
                self._runs(outer)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.outcome != "passed":
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        tests = {
            name: {"seconds": round(self.seconds[name], 4), "fixtures": fixtures}
            for name, fixtures in self.fixtures.items()
            if name not in self.failed
        }
        self.place.write_text(json.dumps(tests))

    def _runs(self, test: str) -> None:
        os.environ[started.TEST] = test  # of programs that it starts
        self.coverage.switch_context(test)

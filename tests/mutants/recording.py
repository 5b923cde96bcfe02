"""Which test runs which line of a part of the package, and for how long."""

import os
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Part:
    """What happened in a test, or in a fixture that several share."""

    seconds: float = 0.0
    lines: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    fixtures: list[str] = field(default_factory=list)


class Recorder:
    """A pytest plugin.

    Args:
        source: the folder, or the file, whose lines are wanted.
    """

    def __init__(self, source: Path):
        self.source = str(source) if source.suffix else f"{source}{os.sep}"
        self.tests: dict[str, Part] = {}  # those that passed
        self.fixtures: dict[str, Part] = defaultdict(Part)  # those wider than a function
        self.modules: list[str] = []  # imported to collect the tests
        self._at = Part()
        # What a test forks has the mutant too: its lines come back through a file that both have open.
        self._from_forks, self._is_fork = tempfile.TemporaryFile(buffering=0), False  # noqa: SIM115
        os.register_at_fork(after_in_child=lambda: setattr(self, "_is_fork", True))

    def to_dict(self, root: Path) -> dict[str, Any]:
        """As JSON types; lines of a shared fixture are those of each of its tests, and its time is shared out."""
        users = Counter(fixture for test in self.tests.values() for fixture in test.fixtures)
        tests = {}
        for name, test in self.tests.items():
            shared = {each: self.fixtures[each] for each in test.fixtures if each in self.fixtures}
            lines: dict[str, set[int]] = defaultdict(set)
            for part in (test, *shared.values()):
                for file, run in part.lines.items():
                    lines[Path(file).relative_to(root).as_posix()] |= run
            seconds = test.seconds + sum(part.seconds / users[each] for each, part in shared.items())
            tests[name] = {
                "seconds": round(seconds, 4),
                "lines": {file: sorted(run) for file, run in lines.items()},
            }
        return {"tests": tests, "modules": self.modules}

    def pytest_collection_finish(self) -> None:
        """Everything is imported: from here on, lines are those of tests."""
        self.modules = sorted(sys.modules)
        threading.settrace(self._trace)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Lines run are those of this test."""
        sys.settrace(self._trace)  # anew: who recurses until Python gives up loses it
        with self._into(Part(fixtures=list(getattr(item, "fixturenames", [])))) as part:
            result = yield
        self.tests.setdefault(item.nodeid, part)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Lines run are those of the fixture, if others may use what it made."""
        if fixturedef.scope == "function":
            return (yield)
        with self._into(self.fixtures[fixturedef.argname]):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tests that do not pass as things are tell nothing."""
        if report.outcome != "passed":
            self.tests[report.nodeid] = Part(seconds=-1)

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        self.tests = {name: part for name, part in self.tests.items() if part.seconds >= 0}

    @contextmanager
    def _into(self, part: Part) -> Iterator[Part]:
        outer, self._at, started = self._at, part, _seconds()
        try:
            yield part
        finally:
            spent = _seconds() - started
            part.seconds += spent
            outer.seconds -= spent
            self._from_forks.seek(0)
            for line in self._from_forks.read().decode().splitlines():
                file, _, number = line.rpartition(":")
                part.lines[file].add(int(number))
            self._from_forks.seek(0)
            self._from_forks.truncate()
            self._at = outer

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self.source) else None

    def _line(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            file, number = frame.f_code.co_filename, frame.f_lineno
            if self._is_fork and number not in self._at.lines[file]:
                self._from_forks.write(f"{file}:{number}\n".encode())
            self._at.lines[file].add(number)
        return self._line


def _seconds() -> float:
    """Of processors, spent here and in processes that ended: what else the machine does makes no test longer."""
    return sum(os.times()[:4])

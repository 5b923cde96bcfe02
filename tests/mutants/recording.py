"""Which test runs which line of the package, and for how long: learnt once and kept."""

import os
import sys
import threading
from collections import defaultdict
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

    Attributes:
        tests: those that passed, by node id.
        fixtures: those wider than a function, by name; tests that use one count what it runs as theirs.
        modules: what was imported to collect the tests.
    """

    def __init__(self, source: Path):
        self.source = str(source) if source.suffix else f"{source}{os.sep}"
        self.tests: dict[str, Part] = {}
        self.fixtures: dict[str, Part] = defaultdict(Part)
        self.modules: list[str] = []
        self._at = Part()

    def to_dict(self, root: Path) -> dict[str, Any]:
        """As JSON types: tests with what their shared fixtures did, files from the root.

        The time of a shared fixture is told apart from the test's own: of many tests only the first waits for it.
        """
        whole = {}
        for name, test in self.tests.items():
            shared = [each for each in test.fixtures if each in self.fixtures]
            parts = [test, *(self.fixtures[each] for each in shared)]
            files = {file for part in parts for file in part.lines}
            lines = {
                str(Path(file).relative_to(root)): sorted(
                    set().union(*(part.lines.get(file, set()) for part in parts))
                )
                for file in files
            }
            waits = {each: round(self.fixtures[each].seconds, 4) for each in shared}
            whole[name] = {"seconds": round(test.seconds, 4), "shared": waits, "lines": lines}
        return {"tests": whole, "modules": self.modules}

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
        """Leave out what did not pass."""
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
            self._at = outer

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self.source) else None

    def _line(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            self._at.lines[frame.f_code.co_filename].add(frame.f_lineno)
        return self._line


def _seconds() -> float:
    """Of processors, spent here and in processes that ended: what else the machine does makes no test longer."""
    return sum(os.times()[:4])

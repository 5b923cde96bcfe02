"""Run the tests that a mutant concerns, in a process forked from one that has imported everything but the package."""

import gc
import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import shutil
import sys
import time
from bisect import bisect
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.mutations import Mutant
from tests.mutants.recording import Recorder
from tests.workers import LATE, Worker, preload

LONGEST_RUN_S = 90.0  # of tests for one mutant as they ran without it, cheapest first; the rest is left out
LONGEST_GUESS_S = 15.0  # the same where no test runs its line, which an import may
LONGEST_TEST_S = 10.0  # longer ones are left out
FLAGS = "-q -x -p no:cacheprovider -p no:xdist -W ignore -o addopts= -o timeout_func_only=true"


@dataclass(frozen=True)
class Project:
    """What is mutated and what tests it.

    Attributes:
        root: folder that the other paths start from; it and ``root/src`` are where modules are found.
        package: folder of the package.
        areas: tests by the part of the package, a folder or a file below `package`, that they are for.
        slow: areas whose tests are tried even where they are marked as slow; else nobody would wait for them.
        patience_s: how long a test may take with a mutant before it is asked how long it takes without.
    """

    root: Path
    package: str
    areas: Mapping[str, Sequence[str]]
    slow: Collection[str] = ()
    patience_s: float = 1.5 * LONGEST_TEST_S

    def area_of(self, file: str) -> str | None:
        """The area that a source file is in."""
        below = file.removeprefix(self.package + "/")
        return next((area for area in self.areas if f"{below}/".startswith(area + "/")), None)

    def files(self) -> list[str]:
        """Source files of all areas."""
        paths = sorted((self.root / self.package).rglob("*.py"))
        files = [path.relative_to(self.root).as_posix() for path in paths]
        return [file for file in files if self.area_of(file)]


class Lines:
    """Tests by the lines they run.

    Args:
        project: the project.
        areas: those whose tests are wanted; what is not known of them yet, or no more, is recorded.
    """

    def __init__(self, project: Project, areas: Sequence[str]):
        self.project = project
        self.tests: dict[str, dict[str, Any]] = {}
        for area in areas:
            recorded = self._recorded(area)
            for name, test in recorded["tests"].items():
                known = self.tests.setdefault(name, test)
                known["lines"] = {**known["lines"], **test["lines"]}
            preload(recorded["modules"], Path(project.package).name)
        gc.freeze()  # pytest collects garbage over and over as it ends: not through all that was imported

    def concerned(self, mutant: Mutant) -> list[str]:
        """Tests that run a mutant, cheapest first.

        For what runs when the file is imported, or in no test, all do: first those of a file that names what the
        mutant's line begins with, such as a default.
        """
        names = self.running(mutant)
        naming = dict.fromkeys(names, True)
        if not mutant.lines or not names:
            names = list(self.tests)
            files = {_file_of(name) for name in names}
            texts = {file: (self.project.root / file).read_text(encoding="utf-8") for file in files}
            naming = {name: mutant.word in texts[_file_of(name)] for name in names}
        short = [name for name in names if self.tests[name]["seconds"] < LONGEST_TEST_S]
        return sorted(short, key=lambda name: (not naming[name], self.tests[name]["seconds"]))

    def running(self, mutant: Mutant) -> list[str]:
        """Tests that run one of its lines."""
        run = {name: test["lines"].get(mutant.file, []) for name, test in self.tests.items()}
        return [name for name, lines in run.items() if not set(mutant.lines).isdisjoint(lines)]

    def _recorded(self, area: str) -> dict[str, Any]:
        place = self.project.root / ".mutants_cache" / f"{area.replace('/', '-')}-{self._state(area)}.json"
        if not place.exists():
            print(f"Recording which tests run which lines of {area}: once, some minutes", flush=True)
            place.parent.mkdir(exist_ok=True)
            worker = Worker(lambda folder: _record(self.project, area, place, folder), 3600)
            while worker.ended() is None:
                time.sleep(0.1)
            if not place.exists():
                raise RuntimeError(f"The tests of {area} were not recorded:\n{worker.said}")
        return json.loads(place.read_text())

    def _state(self, area: str) -> str:
        """A hash of an area and its tests: which lines of it they run does not hang on the rest of the package."""
        root, digest = self.project.root, hashlib.sha256(str(area in self.project.slow).encode())
        digest.update(Path(__file__).with_name("recording.py").read_bytes())
        for top in (f"{self.project.package}/{area}", *self.project.areas[area]):
            for path in sorted((root / top).rglob("*.py")) or [root / top]:
                digest.update(path.read_bytes())
        return digest.hexdigest()[:16]


def _pytest(project: Project, tests: Sequence[str], folder: Path, plugin: object) -> int:
    os.chdir(project.root)
    sys.path[:0] = [str(project.root / "src"), str(project.root)]
    flags = [*FLAGS.split(), "--basetemp", str(folder / "tmp")]
    return int(pytest.main([*flags, *tests], plugins=[plugin]))


def _record(project: Project, area: str, place: Path, folder: Path) -> int:
    recorder = Recorder(project.root / project.package / area)
    flags = [
        "--maxfail=1000",
        f"--timeout={3 * LONGEST_TEST_S}",
        "-m",
        "" if area in project.slow else "not slow",
    ]
    code = _pytest(project, [*flags, *project.areas[area]], folder, recorder)
    (folder / "recorded").write_text(json.dumps(recorder.to_dict(project.root)))
    shutil.move(folder / "recorded", place)
    return code


def try_mutant(project: Project, mutant: Mutant, lines: Lines) -> Generator[None, None, str]:
    """Run the tests that a mutant concerns, without waiting for them; what becomes of it.

    A machine may be busier than when the tests were recorded. Where they are late they run without the mutant, and
    then with it for three times as long as that took: `"late"` is what is late again.
    """
    names = lines.concerned(mutant)
    if not names:
        return "unseen"
    spent_s = list(accumulate(lines.tests[name]["seconds"] for name in names))
    is_run = not mutant.lines or bool(lines.running(mutant))
    fitting = max(1, bisect(spent_s, LONGEST_RUN_S if is_run else LONGEST_GUESS_S))
    chosen, longest_s = names[:fitting], 60 + 3 * spent_s[fitting - 1]
    code = yield from _run(project, chosen, mutant, project.patience_s, longest_s)
    if code == LATE:
        started = time.monotonic()
        yield from _run(project, chosen, None, 10 * longest_s, 10 * longest_s)
        now_s = time.monotonic() - started
        code = yield from _run(project, chosen, mutant, project.patience_s + now_s, 30 + 3 * now_s)
    lives = "survived" if is_run else "unseen"
    return {0: lives, 5: "unseen", LATE: "late"}.get(code, "killed")


def _run(
    project: Project, names: Sequence[str], mutant: Mutant | None, test_s: float, longest_s: float
) -> Generator[None, None, int]:
    """The exit code of tests, one of which may take `test_s` and all of them `longest_s`."""

    def work(folder: Path) -> int:
        if mutant is not None:
            sys.meta_path.insert(0, _Mutated(project, mutant))
        files = list(dict.fromkeys(map(_file_of, names)))
        return _pytest(project, [f"--timeout={test_s}", *files], folder, _Chosen(names))

    worker = Worker(work, longest_s)
    while (code := worker.ended()) is None:
        yield
    return code


def _file_of(test: str) -> str:
    return test.partition("::")[0]


class _Chosen:
    """Keeps some tests, in their order."""

    def __init__(self, names: Sequence[str]):
        self.rank = {name: rank for rank, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.rank), key=lambda item: self.rank[item.nodeid]
        )


class _Mutated(importlib.machinery.SourceFileLoader):
    """Finds and loads one module, with a mutant in it."""

    def __init__(self, project: Project, mutant: Mutant):
        path = project.root / mutant.file
        below = mutant.file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
        super().__init__(below.replace("/", "."), str(path))
        self.text = mutant.applied(path.read_text(encoding="utf-8"))

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        return (
            importlib.util.spec_from_file_location(name, self.path, loader=self)
            if name == self.name
            else None
        )

    def get_code(self, fullname: str) -> Any:
        return compile(self.text, self.path, "exec", dont_inherit=True)

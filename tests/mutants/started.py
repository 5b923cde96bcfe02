"""What a program that a test starts anew takes along: the mistake, and the record of the lines that it runs.

It is the `sitecustomize` of such a program, so it knows the standard library alone; the environment says what to do.
"""

import os
import shutil
import sys
import threading
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

MISTAKE, MISTAKEN = "MUTANTS_MISTAKE", "MUTANTS_MISTAKEN"  # a file with the text of a module, its path
RECORD, SOURCE, TEST = "MUTANTS_RECORD", "MUTANTS_SOURCE", "MUTANTS_TEST"  # a file, what is watched, who runs


class Trace:
    """Notes the lines below `SOURCE` that run from now on, with who runs them, at the end of the file `RECORD`."""

    def __init__(self) -> None:
        self._source, self._test = os.environ[SOURCE], os.environ[TEST]
        self._seen: set[tuple[str, str, int]] = set()
        # A file, because what a test forks or starts writes there as well.
        self._lines = open(os.environ[RECORD], "ab", buffering=0)  # noqa: SIM115
        self.begin()
        threading.settrace(self._trace)

    def runs(self, test: str) -> None:
        """Who runs from here on: a test, or a fixture that several share; nobody while files are imported."""
        self._test = os.environ[TEST] = test

    def begin(self) -> None:
        """Also anew: who recurses until Python gives up loses it."""
        sys.settrace(self._trace)

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self._source) else None

    def _line(self, frame: Any, event: str, argument: Any) -> Any:
        found = (self._test, frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and found not in self._seen:
            self._seen.add(found)
            with suppress(OSError):  # of a process that may write no large file, as tests have it
                self._lines.write("\t".join(map(str, found)).encode() + b"\n")
        return self._line


def put_in(mistaken: str, text: str) -> None:
    """Load a module as another text."""
    load = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> Any:
        if os.path.abspath(loader.path) == mistaken:
            return compile(text, mistaken, "exec", dont_inherit=True)
        return load(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]


def in_all_programs(folder: Path) -> None:
    """Let programs that are started from here on do as this file says."""
    folder.mkdir()
    shutil.copyfile(__file__, folder / "sitecustomize.py")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *([before] if before else [])])
    sys.path.insert(0, str(folder))  # some tests hand on this one


def begin() -> None:
    """Do what the environment says."""
    if MISTAKE in os.environ:
        put_in(os.environ[MISTAKEN], Path(os.environ[MISTAKE]).read_text(encoding="utf-8"))
    if RECORD in os.environ:
        Trace()


if __name__ == "sitecustomize":
    begin()

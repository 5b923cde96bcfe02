"""What a program that a test starts anew takes along: the mistake, and the record of the lines that it runs.

It is the `sitecustomize` of such a program, so it knows the standard library alone; the environment says what to do.
"""

import os
import shutil
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

MISTAKE, MISTAKEN = "MUTANTS_MISTAKE", "MUTANTS_MISTAKEN"  # a file with the text of a module, its path
SETTINGS, TEST = "COVERAGE_PROCESS_START", "MUTANTS_TEST"  # of the record, who runs


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
    if SETTINGS in os.environ:
        import coverage

        coverage.process_startup()


if __name__ == "sitecustomize":
    begin()

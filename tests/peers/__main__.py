"""Run transformers' common model tests over every method and backbone, and print them beside those of a DINOv2.

Their text comes with the source distribution of the installed version, from the package index, once. Nothing of it is
part of this package.
"""

import argparse
import importlib
import io
import logging
import subprocess
import sys
import tarfile
import unittest
import warnings
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import transformers

from tests.peers.classes import BY_DESIGN, CASES, CONTROL, made

CACHE = Path(".peers_cache")
NAME = "transformers_tests"


def fetched() -> ModuleType:
    """Their module of common tests, fetched if it is not in the cache; ends the program where it cannot be had."""
    version = transformers.__version__
    folder = CACHE / version
    if not (folder / NAME).is_dir():
        words = ["download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
        pip = [sys.executable, "-m", "pip", *words, f"transformers=={version}", "--dest", str(folder)]
        if subprocess.run(pip).returncode:
            sys.exit(f"pip found no source of transformers {version}: run the same with a network")
        inside, new = f"transformers-{version}/tests/", folder / f"{NAME}.new"
        with tarfile.open(folder / f"transformers-{version}.tar.gz") as archive:
            for member in archive.getmembers():
                if member.isfile() and member.name.startswith(inside) and member.name.endswith(".py"):
                    member.name = member.name.removeprefix(inside)
                    archive.extract(member, new, filter="data")
        new.rename(folder / NAME)
    sys.path.insert(0, str(folder))
    while True:
        try:
            return importlib.import_module(f"{NAME}.test_modeling_common")
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith(f"{NAME}."):
                sys.exit(f"their tests need {error.name}: pip install {error.name}")
            print(f"left out, since no source distribution has it: {error.name}")
            sys.modules[str(error.name)] = without(str(error.name))


def without(name: str) -> ModuleType:
    """A module whose classes have no test."""
    module = ModuleType(name)
    module.__path__ = []
    module.__getattr__ = lambda each: type(each, (), {})  # type: ignore[method-assign]
    return module


def run(common: ModuleType, name: str) -> dict[str, str]:
    """What became of each test of a case: "pass", "skip", or the last line of what went wrong."""
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(made(common, name))
    found = {_called(test): "pass" for test in suite}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = unittest.TextTestRunner(io.StringIO(), verbosity=0).run(suite)
    found |= {_called(test): "skip" for test, _ in result.skipped}
    for test, said in [*result.failures, *result.errors]:
        found[_called(test)] = said.strip().splitlines()[-1][:200]
    return found


def _called(test: Any) -> str:
    """The method of a test, or of the one that a sub-test is of."""
    called: str = getattr(test, "test_case", test)._testMethodName
    return called


def sort_of(test: str, said: str, control: dict[str, str]) -> str:
    """How a result counts: pass, skip, by design, like the control, or FAIL."""
    if said in ("pass", "skip"):
        return said
    if test in BY_DESIGN:
        return "by design"
    return "FAIL" if control.get(test) in ("pass", "skip", None) else "as the control"


def main() -> int:
    """Print a line for every case, then what failed; 1 if something failed that should not."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)}; all by default")
    given = parser.parse_args().cases or [*CASES]
    logging.disable(logging.WARNING)  # they set keys that no configuration of ours has, and this is said
    transformers.utils.logging.disable_progress_bar()
    common, failed = fetched(), dict[str, list[str]]()
    control = run(common, CONTROL)
    for name in (CONTROL, *given):
        found = control if name == CONTROL else run(common, name)
        sorts = {test: sort_of(test, said, control) for test, said in found.items()}
        counted = ", ".join(f"{count} {sort}" for sort, count in sorted(Counter(sorts.values()).items()))
        print(f"{name:32}{counted}", flush=True)
        for test in (test for test, sort in sorts.items() if sort == "FAIL"):
            failed.setdefault(test, []).append(f"{name}: {found[test]}")
    for test, reason in BY_DESIGN.items():
        print(f"by design, {test}: {reason}.")
    for test, cases in failed.items():
        print(f"FAIL {test} in {len(cases)} cases; {cases[0]}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

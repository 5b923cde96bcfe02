"""Take each guard out of a copy of the project in turn and run its tests: ``python -m tests.guards [WORD]``.

With a word, only guards whose name or file holds it. Exit code 1 if one was not missed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.guards import ROOT, Guard, all_guards

WORKERS = 2
COPIED = ("src", "tests", "benchmarks", "hub_configs", "spaces", "pyproject.toml", "README.md", "train.py")
LONGEST_S = 600


def copy_of_project(folder: Path) -> Path:
    """What the tests need, in a folder of its own."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    return folder


def passes(project: Path, tests: list[str]) -> tuple[bool, str]:
    """Whether tests pass there, and the end of what they say."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(tests)} did not run:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return done.returncode == 0, done.stdout[-3000:]


def main(word: str = "") -> int:
    """Print a line for every guard."""
    guards = [guard for guard in all_guards() if word in guard.name or word in guard.file]
    with tempfile.TemporaryDirectory() as scratch:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(WORKERS):
            copies.put(copy_of_project(Path(scratch, str(number))))

        def missed(guard: Guard) -> bool:
            project = copies.get()
            path = project / guard.file
            whole = path.read_text(encoding="utf-8")
            try:
                path.write_text(guard.removed_from(whole), encoding="utf-8")
                return not passes(project, list(guard.tests))[0]
            except subprocess.TimeoutExpired:
                return True  # nothing ended it any more
            finally:
                path.write_text(whole, encoding="utf-8")
                copies.put(project)

        every = sorted({test for guard in guards for test in guard.tests})
        project = copies.get()
        whole, said = passes(project, every)
        copies.put(project)
        if not whole:
            print(f"The tests do not pass with all guards in place:\n{said}")
            return 1
        survived = 0
        with ThreadPoolExecutor(WORKERS) as pool:
            for guard, was_missed in zip(guards, pool.map(missed, guards), strict=True):
                survived += not was_missed
                print(f"{'missed  ' if was_missed else 'SURVIVED'} {guard.file}: {guard.name}", flush=True)
    print(f"\n{len(guards) - survived} of {len(guards)} guards are missed by a test.")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))

"""``python -m tests.mutants``: draw mutants, run the tests they concern, print what survives; 1 if one does.

With paths or ``--changed-since`` only tests beside the files and those of whole outputs are tried, else all quick ones.
"""

import argparse
import contextlib
import gc
import importlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

from tests.mutants import started
from tests.mutants.lines import Lines, Project
from tests.mutants.mutations import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
AT_ONCE = 2  # mutants
LONGEST_RUN_S = 60.0  # of a mutant's own tests, and of the others, as they were recorded; more are left out
LATE = 90  # the exit code of what took too long
NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)
FLAGS = "-q -x --tb=no -p no:cacheprovider -p no:xdist -W ignore -o addopts= -o timeout_func_only=true"
PRELOADED = (  # by tests of most areas; none of them may import this package
    *("torch", "transformers.models.dinov2.modeling_dinov2", "datasets", "huggingface_hub.hf_api", "httpx"),
    *("sklearn.mixture", "sklearn.cluster", "sklearn.metrics", "scipy.stats", "safetensors.torch", "xdist"),
)
# A golden command takes a quarter of the patience.
PROJECT = Project(
    ROOT,
    "src/promptccd",
    whole=(
        *(f"tests/test_golden{each}.py" for each in ("", "_run", "_numbers")),
        "tests/cli/test_options.py",
    ),
    patience_s=45,
)


def changed_lines(root: Path, since: str) -> dict[str, set[int]]:
    """Lines of source files that differ from a commit."""
    command = ["git", "diff", "-U0", "--no-color", since, "--", "*.py"]
    text = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    lines: dict[str, set[int]] = {}
    for line in text.splitlines():
        if line.startswith("+++ "):  # a file that was deleted is /dev/null
            lines[file := line.removeprefix("+++ ").removeprefix("b/")] = set()
        elif found := re.match(r"@@ .* \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(found[1]), int(found[2] or 1)
            lines[file] |= set(range(first, first + count))
    return lines


def drawn(project: Project, paths: Sequence[str], since: str | None) -> list[Mutant]:
    """The mutants that a run draws from: those that a comment explains are none of them."""
    files = [file for file in project.files() if not paths or any(each in file for each in paths)]
    changed = changed_lines(project.root, since) if since else {}
    found = [mutant for file in files for mutant in mutants_of(project.root, file)]
    left = [each for each in found if not each.is_equivalent]
    return [each for each in left if not since or each.line in changed.get(each.file, ())]


class Worker:
    """A function of a folder at work in a forked process of a group of its own, for some seconds at most."""

    def __init__(self, work: Callable[[Path], int], longest_s: float):
        self.folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        self.due = time.monotonic() + longest_s
        sys.stdout.flush()
        self.process = os.fork()
        if self.process == 0:
            code = 70
            try:
                os.setpgid(0, 0)
                code = work(self.folder)
            finally:
                os._exit(code)

    def ended(self) -> int | None:
        """The exit code, `None` while it runs."""
        done, status = os.waitpid(self.process, os.WNOHANG)
        if not done and time.monotonic() < self.due:
            return None
        with contextlib.suppress(ProcessLookupError):  # what it forked itself may go on without it
            os.killpg(self.process, signal.SIGKILL)
        if not done:
            _, status = os.waitpid(self.process, 0)
        shutil.rmtree(self.folder, ignore_errors=True)
        return LATE if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def tried(mutant: Mutant, lines: Lines) -> Worker | None:
    """The tests that a mutant concerns, at work; `None` if there are none."""
    project, (own, whole, others) = lines.project, lines.concerned(mutant)
    chosen = [*_in_time(own, lines.seconds), *whole, *_in_time(others, lines.seconds)]

    def work(folder: Path) -> int:
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        (folder / "mistake.py").write_text(text := mutant.applied(), encoding="utf-8")
        os.environ |= {started.MISTAKE: str(folder / "mistake.py"), started.MISTAKEN: str(mutant.path)}
        started.in_all_programs(folder / "started")
        started.put_in(str(mutant.path), text)
        os.chdir(project.root)
        sys.path[:0] = [str(project.root / "src"), str(project.root)]
        flags = [*FLAGS.split(), f"--basetemp={folder / 'tmp'}", f"--timeout={project.patience_s}"]
        files = dict.fromkeys(name.partition("::")[0] for name in chosen)
        plugin = _Chosen(chosen)
        code = int(pytest.main([*flags, *files], plugins=[plugin]))
        return LATE if plugin.is_late else code

    return Worker(work, 6 * LONGEST_RUN_S) if chosen else None


def _in_time(names: Sequence[str], seconds: Mapping[str, float]) -> list[str]:
    spent_s = accumulate(seconds[name] for name in names)
    return [name for name, sum_s in zip(names, spent_s, strict=True) if sum_s < LONGEST_RUN_S]


class _Chosen:
    """Keeps some tests, in their order."""

    def __init__(self, names: Sequence[str]):
        self.rank = {name: rank for rank, name in enumerate(names)}
        self.is_late = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = (item for item in items if item.nodeid in self.rank)
        items[:] = sorted(kept, key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.is_late |= "Failed: Timeout" in report.longreprtext


def judged(mutants: Sequence[Mutant], lines: Lines, minutes: float) -> Iterator[tuple[Mutant, str]]:
    """What became of each mutant, as it is known; those for which there is no time are left out."""
    due, waiting = time.monotonic() + 60 * minutes, list(reversed(mutants))
    running: dict[Mutant, Worker] = {}
    while running or waiting:
        if time.monotonic() > due:
            waiting.clear()
        while waiting and len(running) < AT_ONCE:
            mutant = waiting.pop()
            if worker := tried(mutant, lines):
                running[mutant] = worker
            else:
                yield mutant, "unseen"
        for mutant, worker in list(running.items()):
            if (code := worker.ended()) is not None:
                del running[mutant]
                yield mutant, {0: "survived", LATE: "late", NO_TESTS: "unseen"}.get(code, "killed")
        time.sleep(0.01)


def report(verdicts: Iterable[tuple[Mutant, str]], num_drawn: int) -> int:
    """Print verdicts as they come, and what lives; 1 if something lives."""
    counts, started = Counter[str](), time.monotonic()
    for mutant, verdict in verdicts:
        counts[verdict] += 1
        if verdict != "killed":
            print(f"{verdict.upper():9} {mutant.file}:{mutant.line}: {mutant.operator}")
            print(mutant.shown(), flush=True)
    lived = counts["survived"] + counts["unseen"]
    print(
        f"{counts.total()} mutants in {time.monotonic() - started:.0f} s: {counts['killed']} killed, "
        f"{counts['survived']} survived, {counts['unseen']} no test runs: "
        f"{counts['killed'] / max(1, counts['killed'] + lived):.1%} killed. Apart from these, the tests of "
        f"{counts['late']} were late; no time was left for {num_drawn - counts.total()}."
    )
    return 1 if lived else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run some mutants."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="only files whose path holds one of these")
    parser.add_argument("--count", type=int, default=200, help="how many are drawn; 0 for all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--changed-since", metavar="REF", help="only, but all, on lines that differ from it")
    parser.add_argument("--minutes", type=float, help="stop after as many; 10 with --changed-since")
    chosen = parser.parse_args(arguments)
    mutants = drawn(PROJECT, chosen.paths, chosen.changed_since)
    possible = len(mutants)
    count = possible if chosen.changed_since else min(chosen.count or possible, possible)
    mutants = random.Random(chosen.seed).sample(mutants, count)
    print(f"{count} of {possible} mutants, seed {chosen.seed}", flush=True)
    if not mutants:
        return 0
    minutes = chosen.minutes or (10.0 if chosen.changed_since else 1e6)
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # pytest collects garbage over and over as it ends: not through all that was imported
    is_part = chosen.paths or chosen.changed_since
    lines = Lines(PROJECT, PROJECT.near({each.file for each in mutants}) if is_part else ["tests"])
    return report(judged(mutants, lines, minutes), len(mutants))


if __name__ == "__main__":
    sys.exit(main())

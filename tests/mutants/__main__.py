"""``python -m tests.mutants``: draw mutants, run the tests they concern, print what survives; 1 if one does.

With paths or ``--changed-since`` only tests beside the files and those of whole outputs are tried, else all quick ones.
"""

import argparse
import gc
import importlib
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.mutants.lines import Lines, Project
from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.running import LATE, NO_TESTS, Worker, tried

ROOT = Path(__file__).parents[2]
AT_ONCE = 2  # mutants
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
        if line.startswith("+++ b/"):
            lines[file := line.removeprefix("+++ b/")] = set()
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

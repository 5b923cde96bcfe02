"""``python -m tests.mutants``: draw mutants, run the tests they concern, print what survives; 1 if one may not."""

import argparse
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.running import Lines, Project, try_mutant

ROOT = Path(__file__).parents[2]
# Tests of an area beside those that are called after it.
MORE = {
    "models": ["tests/training/objectives"],  # what models of one method do by themselves is tested beside it
    "training": [
        *("tests/runs/test_devices.py", "tests/runs/test_recipes.py", "tests/experiments/test_history.py"),
        *("tests/cli/test_values.py", "tests/data/test_benchmarks.py", "tests/data/test_spectrum.py"),
    ],
    "evaluation": ["tests/runs/test_protocols.py"],
    "cli": [
        "tests/runs/test_sweep.py",
        "tests/hub/test_push.py",
        "tests/hub/test_space.py",
        "tests/experiments",
    ],
    "discovery": ["tests/spaces"],
    "__init__.py": ["tests/cli/test_quick.py"],
    "errors.py": ["tests/cli/test_mistakes.py", "tests/cli/test_values.py"],
    "on_demand.py": ["tests/cli/test_quick.py"],
    "storage.py": ["tests/test_planted_links.py"],
    "trainer.py": ["tests/test_category_trainer.py"],
}


def areas_of(package: Path, tests: Path) -> dict[str, list[str]]:
    """Tests of every folder and file of a package: ``tests/NAME`` or ``tests/test_NAME.py``, and `MORE`."""
    areas = {}
    for path in sorted(package.iterdir()):
        if path.suffix == ".py" or (path / "__init__.py").exists():
            own = [tests / path.stem, tests / f"test_{path.stem}.py"]
            named = [each.relative_to(tests.parent).as_posix() for each in own if each.exists()]
            areas[path.name] = [*named, *MORE.get(path.name, [])]
    return areas


PROJECT = Project(
    ROOT,
    "src/promptccd",
    areas_of(ROOT / "src/promptccd", ROOT / "tests"),
    slow=("cli", "errors.py"),  # their quick tests run hardly any command
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
    found = [mutant for file in files for mutant in mutants_of(project.root, file)]
    mutants = [mutant for mutant in found if not mutant.is_marked]
    if since is None:
        return mutants
    changed = changed_lines(project.root, since)
    return [each for each in mutants if each.line in changed.get(each.file, ())]


def judged(
    project: Project, mutants: Sequence[Mutant], lines: Lines, workers: int, minutes: float
) -> Iterator[tuple[Mutant, str]]:
    """What became of each mutant, as it is known; those for which there is no time are left out."""
    due, waiting = time.monotonic() + 60 * minutes, list(reversed(mutants))
    running: dict[Mutant, Generator[None, None, str]] = {}
    while running or (waiting and time.monotonic() < due):
        while waiting and len(running) < workers and time.monotonic() < due:
            mutant = waiting.pop()
            running[mutant] = try_mutant(project, mutant, lines)
        for mutant, trial in list(running.items()):
            try:
                next(trial)
            except StopIteration as ended:
                del running[mutant]
                yield mutant, ended.value
        time.sleep(0.01)


def report(project: Project, verdicts: Iterable[tuple[Mutant, str]], num_drawn: int) -> int:
    """Print verdicts as they come, and the diff of what lives; 1 if something lives."""
    counts, started = Counter[str](), time.monotonic()
    for mutant, verdict in verdicts:
        counts[verdict] += 1
        if verdict != "killed":
            print(f"{verdict.upper():9} {mutant.file}:{mutant.line}: {mutant.operator}", flush=True)
        if verdict in ("survived", "unseen"):
            print(mutant.diff((project.root / mutant.file).read_text(encoding="utf-8")), flush=True)
    lived = counts["survived"] + counts["unseen"]
    print(
        f"{counts.total()} mutants in {time.monotonic() - started:.0f} s: {counts['killed']} killed, "
        f"{counts['survived']} survived, {counts['unseen']} no test runs: "
        f"{counts['killed'] / max(1, counts['killed'] + lived):.1%} killed. Apart from these, {counts['late']} were "
        f"late twice; no time was left for {num_drawn - counts.total()}."
    )
    return 1 if lived else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run some mutants."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="only files whose path holds one of these")
    parser.add_argument("--count", type=int, default=200, help="how many are drawn; 0 for all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--changed-since", metavar="REF", help="only on lines that differ from this commit")
    parser.add_argument("--minutes", type=float, help="stop after as many; 10 with --changed-since")
    parser.add_argument("--slow", action="store_true", help="try tests that are marked as slow too")
    parser.add_argument("--workers", type=int, default=2, help="mutants at once")
    chosen = parser.parse_args(arguments)
    project = replace(PROJECT, slow=PROJECT.areas) if chosen.slow else PROJECT
    mutants = drawn(project, chosen.paths, chosen.changed_since)
    possible = len(mutants)
    count = possible if chosen.changed_since else chosen.count or possible
    mutants = random.Random(chosen.seed).sample(mutants, min(count, possible))
    print(f"{len(mutants)} of {possible} mutants, seed {chosen.seed}", flush=True)
    if not mutants:
        return 0
    minutes = chosen.minutes or (10.0 if chosen.changed_since else 1e6)
    areas = dict.fromkeys(project.area_of(each.file) or "" for each in mutants)
    verdicts = judged(project, mutants, Lines(project, list(areas)), chosen.workers, minutes)
    return report(project, verdicts, len(mutants))


if __name__ == "__main__":
    sys.exit(main())

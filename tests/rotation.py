"""Tests that are not quick, in five parts: a landing runs one of them, and what every landing runs."""

import functools
import hashlib
import subprocess
from collections.abc import Collection
from pathlib import Path, PurePosixPath

import pytest

PARTS = 5
ROOT = Path(__file__).parent.parent


def part_of(item: pytest.Item) -> int:
    """The part of a slow test, from 1 on.

    It follows from the test's own name, so that tests that come and go move no other one. Cases of one name stay
    together within a file: they share what a fixture trained for them.
    """
    case = getattr(item, "callspec", None)
    key = f"{item.location[0]}::{case.id if case else item.name}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % PARTS + 1


def git(*words: str, repository: Path = ROOT) -> str:
    """What git prints.

    Raises:
        pytest.UsageError: there is no git, no repository or no such commit.
    """
    try:
        done = subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", None) or error
        raise pytest.UsageError(f"git cannot say which part it is: {why}. Say --slow-part 1 to 5.") from error
    return done.stdout.strip()


def part_of_commit(repository: Path = ROOT) -> int:
    """The part whose turn it is.

    Nothing but the repository is kept between landings, so the turn is the number of commits along the first parents:
    five landings in a row that are one merge each run everything. `make test-all` before a release depends on no turn.
    """
    return int(git("rev-list", "--count", "--first-parent", "HEAD", repository=repository)) % PARTS + 1


def changed_tests(repository: Path = ROOT) -> set[str]:
    """Files of tests that the last landing changed, or whose file of the same name in `src` it changed."""
    try:
        names = git("diff", "--name-only", "HEAD~1", repository=repository).splitlines()
    except pytest.UsageError:  # the first commit, or a clone of one: what changed cannot be known
        return set()
    folders = [PurePosixPath(name) for name in names if name.startswith("src/promptccd/")]
    mirrored = {PurePosixPath("tests", *each.parts[2:-1], f"test_{each.name}").as_posix() for each in folders}
    return mirrored | set(names)


def is_run(item: pytest.Item, part: int, changed: Collection[str]) -> bool:
    """Whether a landing runs a test: a quick one, one of every landing, one of its part, one that it changed."""
    marks = {mark.name for mark in item.iter_markers()}
    is_quick = marks.isdisjoint({"slow", "moderate"})
    return is_quick or "landing" in marks or part_of(item) == part or item.location[0] in changed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-part",
        metavar="PART",
        choices=["commit", *map(str, range(1, PARTS + 1))],
        help=f"of the tests that are not quick only this one of {PARTS} parts, those of every landing, and (with "
        "'commit', which takes the part whose turn it is) those that the last commit changed",
    )


@functools.cache
def turn(wanted: str) -> tuple[int, set[str]]:
    """The part, and the files of tests that run with it."""
    return (part_of_commit(), changed_tests()) if wanted == "commit" else (int(wanted), set())


def pytest_report_header(config: pytest.Config) -> str | None:
    wanted = config.option.slow_part
    return (
        wanted and f"tests that are not quick: part {turn(wanted)[0]} of {PARTS}, and those of every landing"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # The longest tests start first, of golden files and of the whole package: a process that starts them last keeps the
    # others waiting.
    items.sort(key=lambda item: (item.path.name != "test_golden.py", item.path.parent.name != "tests"))
    if wanted := config.option.slow_part:
        left_out = [item for item in items if not is_run(item, *turn(wanted))]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_run(item, *turn(wanted))]

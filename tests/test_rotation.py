"""Five landings run every slow test, and each of them what it has to run besides."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.messages import TEXT
from tests.rotation import PARTS, changed_tests, part_of_commit

pytest_plugins = ["pytester"]
GIT = "git -c user.name=a -c user.email=a@b"
BEGIN = f"git init -qb main; {GIT} commit -qm first --allow-empty"
# Commits of a branch that change these files, as one merge.
LANDING = f"""
git switch -qC branch
for file in "$@"; do mkdir -p "$(dirname $file)"; echo x >> $file; git add .; {GIT} commit -qm x; done
git switch -q main
{GIT} merge -qm landing --no-ff branch
"""


def shell(repository: Path, script: str, *words: str) -> None:
    subprocess.run(["bash", "-ec", script, "bash", *words], cwd=repository, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of one commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    shell(folder, BEGIN)
    return folder


@pytest.mark.moderate
def test_five_landings_in_a_row_run_every_part(repository: Path) -> None:
    parts = set()
    for size in (5, 2, 1, 10, 4):
        shell(repository, LANDING, *["file"] * size)
        parts.add(part_of_commit(repository))
    assert parts == set(range(1, PARTS + 1))


def test_what_a_landing_changes_is_run_by_it(repository: Path, tmp_path: Path) -> None:
    shell(repository, LANDING, "tests/runs/test_own.py", "src/promptccd/hub/push.py")
    assert changed_tests(repository) >= {"tests/runs/test_own.py", "tests/hub/test_push.py"}
    assert changed_tests(tmp_path) == set()
    with pytest.raises(pytest.UsageError, match=TEXT["say-slow-part-1-to-5"]):  # where no repository is
        part_of_commit(tmp_path)


SUITE = """
import pytest

@pytest.mark.parametrize("number", range(2))
def test_quick(number): ...

@pytest.mark.slow
@pytest.mark.parametrize("number", range(100))
def test_one(number): ...

@pytest.mark.moderate
@pytest.mark.parametrize("number", range(100))
def test_other(number): ...

@pytest.mark.slow
@pytest.mark.landing
def test_life(): ...
"""


@pytest.mark.slow
def test_parts_share_the_slow_tests_and_nothing_else(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_suite=SUITE)
    pytester.makeini("[pytest]\nmarkers =\n  slow\n  moderate\n  landing\n")

    def collected(*options: str) -> list[str]:
        (finished,) = pytester.inline_run("-p", "tests.rotation", "--collect-only", *options).getcalls(
            "pytest_collection_finish"
        )
        return [item.name for item in finished.session.items]

    everything = collected()
    always = {"test_quick[0]", "test_quick[1]", "test_life"}
    parts = [collected("--slow-part", str(number)) for number in range(1, PARTS + 1)]
    assert all(always <= set(part) for part in parts)
    rest = Counter(name for part in parts for name in part if name not in always)
    assert rest == Counter(set(everything) - always)  # each of them once
    assert all(20 <= len(part) <= 60 for part in parts)  # of 200
    for part in parts:
        cases = {name.partition("[")[2] for name in part if name.startswith("test_one")}
        assert cases == {name.partition("[")[2] for name in part if name.startswith("test_other")}

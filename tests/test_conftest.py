"""What the tests' own setup promises; five landings run every slow test, and each what it has to run besides."""

import subprocess
from collections import Counter
from pathlib import Path

import execnet
import pytest

from tests.browsing import driver
from tests.conftest import sendable
from tests.messages import TEXT
from tests.rotation import PARTS, changed_tests, part_of_commit

pytest_plugins = ["pytester"]


def test_a_report_with_half_of_a_surrogate_pair_can_be_sent() -> None:
    report = {"name\udce9": ["half \udce9", ("whole", 1, None)], "outcome": "failed"}
    with pytest.raises(execnet.DumpError):
        execnet.dumps(report)
    sent = execnet.loads(execnet.dumps(sendable(report)))
    assert sent == {"name\\udce9": ["half \\udce9", ("whole", 1, None)], "outcome": "failed"}


def test_without_a_driver_of_browsers_tests_are_skipped_but_not_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PROMPTCCD_BROWSER", raising=False)
    assert driver("pathlib").Path
    with pytest.raises(pytest.skip.Exception, match=TEXT["no-nobody-has-it-is-installed-2"]):
        driver("nobody_has_it.sync_api")
    monkeypatch.setenv("PROMPTCCD_BROWSER", "required")
    with pytest.raises(pytest.fail.Exception, match=TEXT["no-nobody-has-it-is-installed"]):
        driver("nobody_has_it.sync_api")


# Which of the slow tests a landing runs


GIT = "git -c user.name=a -c user.email=a@b"
# Commits of a branch that change these files, as one merge.
LANDING = f"""
git switch -qC branch
for file in "$@"; do mkdir -p "$(dirname $file)"; echo x >> $file; git add .; {GIT} commit -qm x; done
git switch -q main
{GIT} merge -qm landing --no-ff branch
"""


def land(repository: Path, *files: str) -> None:
    """The merge, in a repository that is made where there is none."""
    begin = "" if repository.exists() else f"git init -qb main; {GIT} commit -qm first --allow-empty"
    repository.mkdir(exist_ok=True)
    subprocess.run(["bash", "-ec", f"{begin}{LANDING}", "bash", *files], cwd=repository, check=True)


@pytest.mark.moderate
def test_five_landings_in_a_row_run_every_part(tmp_path: Path) -> None:
    parts = set()
    for size in (5, 2, 1, 10, 4):
        land(tmp_path / "repository", *["file"] * size)
        parts.add(part_of_commit(tmp_path / "repository"))
    assert parts == set(range(1, PARTS + 1))


def test_what_a_landing_changes_is_run_by_it(tmp_path: Path) -> None:
    land(tmp_path / "repository", "tests/runs/test_own.py", "src/promptccd/hub/push.py")
    assert changed_tests(tmp_path / "repository") >= {"tests/runs/test_own.py", "tests/hub/test_push.py"}
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

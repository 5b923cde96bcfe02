"""The runner on a package of a few functions, and what it knows of this one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import MORE, PROJECT, changed_lines, drawn, report
from tests.mutants.mutations import marks_of, mutants_of
from tests.mutants.running import Lines, Project

TOY = '''"""Sums."""

LIMIT = 4


def larger(one: int, two: int) -> int:
    """The larger of two, at least 0 > -1."""
    if one > two:
        return one
    return two


def total(values: list[int] = [0]) -> int:
    result = 0
    for value in values[:LIMIT]:
        result += value
    if result < -1000:
        raise ValueError(f"{result - 1} is below {-1000 + 1}" + "!")
    return result
'''
REGISTER = """
def listed(made):
    made.is_listed = True
    return made

@listed
def nothing():
    return None
"""
LIMITS = "MOST = 3\nLEAST = 1\n"
HALVES = """
MOST = 9

def halvings(value):
    count = 0
    while value > 1:
        count += 1
        value //= 2
    return count
"""
GUARDS = """
def root(value):
    if value < 0:
        raise ValueError(value)
    if value > 100 or value == 49:
        return 10.0
    return value**0.5

def doubled(value):
    return 2 * value + 0

def read(names, key):
    try:
        return [name for name in names[key] if name]
    except KeyError:
        return []
"""
OF_GUARDS = """
import os
import pytest
from toy.guards import doubled, read, root

def test_root():
    assert root(4) == 2 and root(49) == 10
    with pytest.raises(ValueError, match="-4"):
        root(-4)

@pytest.mark.slow
def test_most():
    assert root(400) == 10

def test_forked():
    child = os.fork()
    if child == 0:
        os._exit(int(doubled(2) == 4))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

def test_read():
    assert read({}, 1) == [] and read({1: ["a", ""]}, 1) == ["a"]
"""
MAKER = "from toy.sums import larger\n"
TESTS = """
import time
from pathlib import Path
import pytest
from maker import larger
from toy.halves import halvings
from toy.limits import MOST
from toy.register import nothing
from toy.sums import total

def test_deep():
    def deeper():
        deeper()
    with pytest.raises(RecursionError):
        deeper()

def test_most():
    assert MOST == 3

def test_nothing():
    assert nothing.is_listed and nothing() is None

def test_larger():
    assert larger(1, 2) == 2
    assert larger(3, 1) == 3

def test_total():
    assert total([1, 2, 4, 8, 16]) == 15

def test_halvings():
    busy = Path(__file__).with_name("busy")
    time.sleep(float(busy.read_text()) if busy.exists() else 0)
    assert halvings(3) == 1
"""
ELSEWHERE = """
from toy import halves

def test_most_halves():
    assert halves.MOST == 9
"""
RUN = """
import json, sys
from pathlib import Path
from tests.mutants.__main__ import judged
from tests.mutants.mutations import mutants_of
from tests.mutants.running import Lines, Project

areas = dict.fromkeys(["sums.py", "limits.py", "halves.py", "register.py", "guards.py"], ["tests"])
project = Project(Path(sys.argv[1]), "src/toy", areas, patience_s=0.3)
mutants = [mutant for file in project.files() for mutant in mutants_of(project.root, file)]
lines = Lines(project, list(project.areas))
(project.root / "tests/busy").write_text("0.5")
verdicts = dict(judged(project, mutants, lines, 2, 5.0))
print(json.dumps([[Path(each.file).stem, each.line, each.operator, verdicts[each]] for each in mutants]))
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("toy")
    for name, text in {
        "src/toy/sums.py": TOY,
        "src/toy/limits.py": LIMITS,
        "src/toy/halves.py": HALVES,
        "src/toy/register.py": REGISTER,
        "src/toy/guards.py": GUARDS,
        "src/toy/__init__.py": "",
        "maker.py": MAKER,
        "tests/test_sums.py": TESTS,
        "tests/test_elsewhere.py": ELSEWHERE,
        "tests/test_guards.py": OF_GUARDS,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(scope="module")
def verdicts(toy: Path) -> dict[tuple[str, int, str], str]:
    """What became of every mutant of the toy, by module, line and operator.

    The toy can be imported from the start, as an installed package can, and by what its tests import.
    """
    paths = os.pathsep.join(map(str, [PROJECT.root, toy, toy / "src"]))
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(toy)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {tuple(place): verdict for *place, verdict in json.loads(done.stdout.splitlines()[-1])}


def test_mistakes_that_a_test_sees_are_killed(verdicts: dict[tuple[str, int, str], str]) -> None:
    for mistake in [
        (3, "4 to 3"),
        (3, "4 to 5"),
        (8, "> to <="),
        (9, "returns None"),
        (14, "0 to 1"),
        (16, "+= to -="),
        (16, "dropped"),
    ]:
        assert verdicts["sums", *mistake] == "killed", mistake
    assert verdicts["limits", 1, "3 to 4"] == "killed"  # no test runs a line of that module
    assert verdicts["register", 3, "True to False"] == "killed"  # an import calls that function, and no test
    assert verdicts["halves", 2, "9 to 8"] == "killed"  # the tests beside those that do have nothing to say


def test_mistakes_that_no_test_sees_survive(verdicts: dict[tuple[str, int, str], str]) -> None:
    assert verdicts["sums", 8, "> to >="] == "survived"  # equal numbers: nothing could see it
    assert verdicts["sums", 17, "1000 to 1001"] == "survived"  # a sum below the limit is never tried
    assert verdicts["limits", 2, "1 to 2"] == "survived"
    assert verdicts["sums", 18, "guard removed"] == "unseen"


def test_a_busy_machine_changes_no_verdict_and_what_never_ends_is_late(
    verdicts: dict[tuple[str, int, str], str],
) -> None:
    """The test of that module takes longer than a test may at first, with a mutant and without."""
    assert verdicts["halves", 6, "> to <="] == "killed"
    assert verdicts["halves", 6, "1 to 2"] == "survived"
    assert verdicts["halves", 8, "dropped"] == "late"


def test_a_default_is_tried_first_by_the_tests_that_name_it(toy: Path) -> None:
    """There is not time for all, and a test that names a default is likelier to hold it than one that is quick."""
    (mutant,) = (each for each in mutants_of(toy, "src/toy/limits.py") if each.operator == "3 to 4")
    (toy / "tests/test_quick.py").write_text("def test_quick(): pass\n")
    lines = Lines(Project(toy, "src/toy", {}), [])
    slow, quick = "tests/test_sums.py::test_most", "tests/test_quick.py::test_quick"
    lines.tests = {name: {"seconds": len(name), "lines": {}} for name in (quick, slow)}
    lines.tests[quick]["seconds"] = 0
    lines.tests[slow]["seconds"] = 5
    assert lines.concerned(mutant) == [slow, quick]


def test_what_a_test_forks_has_the_mistake_too(verdicts: dict[tuple[str, int, str], str]) -> None:
    assert verdicts["guards", 10, "* to /"] == "killed"
    assert verdicts["guards", 10, "+ to -"] == "survived"  # seen to run, and the same


def test_late_mutants_are_in_no_score(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mutants = mutants_of(toy, "src/toy/sums.py")
    said = ["killed", "killed", "killed", "survived", "late"]
    assert report(Project(toy, "src/toy", {}), zip(mutants, said, strict=False), 6) == 1
    end = capsys.readouterr().out.splitlines()[-1]
    assert "3 killed, 1 survived, 0 no test runs: 75.0% killed" in end
    assert "1 were late twice; no time was left for 1" in end


def test_nothing_is_changed_in_texts_and_annotations(toy: Path) -> None:
    mutants = mutants_of(toy, "src/toy/sums.py")
    assert {each.line for each in mutants} == {3, 8, 9, 10, 13, 14, 16, 17, 18, 19}
    assert [each.operator for each in mutants if each.line == 18] == ["guard removed"]


def test_what_is_only_said_or_for_type_checkers_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("if TYPE_CHECKING:\n    import a\nif b:\n    logger.info(b)\n")
    assert [each.operator for each in mutants_of(tmp_path, "one.py")] == ["negated"]


def test_what_only_moves_a_tensor_to_a_device_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("a = f(b).cpu() + f(b).to(c.device) + f(b).to(c)\n")
    operators = [each.operator for each in mutants_of(tmp_path, "one.py")]
    assert operators == ["+ to -", "+ to - #2", "without .to()"]  # keys are of one mutant each


@pytest.mark.parametrize(
    "file", ["src/promptccd/evaluation/accuracy.py", "src/promptccd/registry/grouping.py"]
)
def test_every_mutant_is_another_program(file: str) -> None:
    whole, seen = (PROJECT.root / file).read_text(encoding="utf-8"), set()
    for mutant in mutants_of(PROJECT.root, file):
        text = mutant.applied(whole)
        compile(text, file, "exec")
        seen.add(text)
        assert mutant.diff(whole)
    assert len(seen) == len(mutants_of(PROJECT.root, file)) > 50
    assert whole not in seen


def test_lines_changed_since_a_commit_are_those_git_names(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "one.py").write_text("a = 1\nb = 2\nc = 3\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    (tmp_path / "one.py").write_text("a = 1\nb = 4\nc = 3\nd = 5\n")
    assert changed_lines(tmp_path, "HEAD") == {"one.py": {2, 4}}


MARKED = """
LIMIT = 4  # mutant: speed alone
MOST = 4  # a number # mutant 4 to 5: speed alone

def few(a, b):
    # mutant > to >= #2: equal numbers
    # are as good as each other
    return a > b > 3

# mutants: sizes of batches
ONE = 1
TWO = "# mutant: no comment"; THREE = 3

FOUR = 4
"""


def test_what_a_comment_explains_is_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(MARKED)
    mutants = drawn(Project(tmp_path, ".", {"one.py": ["tests"]}), [], None)
    left = {line: [each.operator for each in mutants if each.line == line] for line in range(1, 15)}
    assert {line: operators for line, operators in left.items() if operators} == {
        3: ["4 to 3"],
        8: ["returns None", "> to >=", "> to <=", "> to <= #2", "3 to 4", "3 to 2"],
        14: ["4 to 5", "4 to 3"],
    }


def test_every_comment_is_of_a_mutant() -> None:
    seen = 0
    for file in PROJECT.files():
        marks = marks_of((PROJECT.root / file).read_text(encoding="utf-8"))
        mutants = mutants_of(PROJECT.root, file) if marks else []
        for line, operators in marks.items():
            here = {each.operator for each in mutants if each.line == line and each.is_marked}
            assert here, f"{file}:{line}"
            assert {each.split(" #")[0] for each in operators - {""}} <= {
                each.split(" #")[0] for each in here
            }
            seen += 1
    assert seen > 100


def test_a_guard_that_is_taken_out_is_missed(verdicts: dict[tuple[str, int, str], str]) -> None:
    for mistake in [
        (4, "guard removed"),
        (5, "without operand 2"),
        (16, "not caught"),
        (14, "filter removed"),
    ]:
        assert verdicts["guards", *mistake] == "killed", mistake
    assert ("guards", 4, "dropped") not in verdicts  # the same program
    assert verdicts["guards", 5, "without operand 1"] == "survived"  # only a slow test could see it


def test_every_file_has_an_area_and_every_area_tests() -> None:
    package = PROJECT.root / PROJECT.package
    files = {path.relative_to(PROJECT.root).as_posix() for path in package.rglob("*.py")}
    assert set(PROJECT.files()) == files
    for area, tests in PROJECT.areas.items():
        assert tests, f"{area} has no tests: call them after it, or name them in MORE"
        assert all((PROJECT.root / each).exists() for each in tests), area
    assert set(MORE) <= set(PROJECT.areas)

"""The runner on a package of one file, and what it knows of this one."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.layouts import written
from tests.mutants.__main__ import PROJECT, drawn
from tests.mutants.lines import Project
from tests.mutants.mutations import EQUIVALENT, equivalent_of, listed, mutants_of

TOY = '''"""Sums."""

LIMIT = 4  # which a test knows


def listed(made):
    made.is_listed = True
    return made


@listed
def larger(one: int, two: int) -> int:
    """The larger of two, at least 0 > -1."""
    if one > two:
        return one
    return two


def root(value):
    if value < 0:
        raise ValueError(f"{value - 1} is below {-1000 + 1}" + "!")
    if value > 100 or value == 49:
        return value**0.5
    return value / 2


def unread():
    return LIMIT


def forked(value):
    while value > 1:
        value //= 2
    return value + 0 + 0


def apart(value):
    return value * 3


def read(names, key):
    try:
        return [name for name in names[key] if name]
    except KeyError:
        return []
'''
TESTS = """
import os
import subprocess
import sys
import pytest
from maker import larger
from toy import sums

def test_deep():
    def deeper():
        deeper()
    with pytest.raises(RecursionError):
        deeper()

def test_limit():
    assert sums.LIMIT == 4

@pytest.fixture(scope="module")
def larger_one():
    return larger(3, 1)

def test_before(larger_one):
    pass

def test_larger(larger_one):
    assert larger_one == 3 and larger(1, 2) == 2 and larger.is_listed

def test_root():
    assert sums.root(4) == 2 and sums.root(49) == 7
    with pytest.raises(ValueError, match="-5"):
        sums.root(-4)

@pytest.mark.slow
def test_most():
    assert sums.root(400) == 20

def test_forked():
    child = os.fork()
    if child == 0:
        os._exit(sums.forked(3))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

def test_apart():
    lines = "import sys; from toy import sums; sys.exit(sums.apart(2))"
    assert subprocess.run([sys.executable, "-c", lines]).returncode == 6

def test_read():
    assert sums.read({}, 1) == [] and sums.read({1: ["a", ""]}, 1) == ["a"]
"""
FILE = "src/toy/sums.py"
# The toy can be imported from the start, as an installed package can, and by what its tests import.
MAKER = "from toy.sums import larger\n"
RUN = """
import json, sys
from pathlib import Path
from tests.mutants.__main__ import judged
from tests.mutants.mutations import mutants_of
from tests.mutants.lines import Lines, Project

project = Project(Path(sys.argv[1]), "src/toy", patience_s=2)
wanted = json.loads(sys.argv[2])
mutants = [each for each in mutants_of(project.root, "src/toy/sums.py") if [each.line, each.operator] in wanted]
for mutant, verdict in judged(mutants, Lines(project, ["tests"]), 5.0):
    print(json.dumps([mutant.line, mutant.operator, verdict]))
"""
VERDICTS = {
    (3, "4 to 5"): "killed",  # no test runs a line of it
    (7, "True to False"): "killed",  # an import calls that function, and no test
    (14, "> to <="): "killed",  # a fixture runs it that is another test's too
    (14, "> to >="): "survived",  # equal numbers: nothing could see it
    (15, "returns None"): "killed",
    (21, "guard removed"): "killed",
    (22, "without operand 2"): "killed",
    (22, "without operand 1"): "survived",  # only a slow test could see it
    (28, "returns None"): "unseen",
    (33, "dropped"): "late",  # never ends
    (34, "0 to 1"): "killed",  # what a test forks has the mistake too
    (34, "+ to -"): "survived",  # seen to run, and the same
    (38, "* to /"): "killed",  # so has what it starts anew
    (38, "3 to 2"): "killed",
    (43, "filter removed"): "killed",
    (45, "not caught"): "killed",
}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    files = {FILE: TOY, "src/toy/__init__.py": "", "maker.py": MAKER, "tests/test_sums.py": TESTS}
    return written(tmp_path, files)


@pytest.mark.slow
def test_what_becomes_of_mistakes(toy: Path) -> None:
    paths = os.pathsep.join(map(str, [PROJECT.root, toy, toy / "src"]))
    command = [sys.executable, "-c", RUN, str(toy), json.dumps(list(VERDICTS))]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert {(line, operator): verdict for line, operator, verdict in said} == VERDICTS


def test_every_mutant_is_another_program() -> None:
    file = "src/promptccd/evaluation/accuracy.py"
    whole, mutants = (PROJECT.root / file).read_text(encoding="utf-8"), mutants_of(PROJECT.root, file)
    texts = {mutant.applied() for mutant in mutants}
    for text in texts:
        compile(text, file, "exec")
    assert len(texts) == len(mutants) > 50
    assert whole not in texts


LISTED = """
[["src/toy/sums.py"]]
function = ""
line = "LIMIT = 4"
operators = ["4 to 5"]
reason = "speed alone"

[["src/toy/sums.py"]]
function = "forked"
line = "return value + 0 + 0"
operators = ["+ to - #2"]
reason = "nothing is as good as nothing"

[["src/toy/sums.py"]]
function = "root"
line = "return value / 2"
reason = "speed alone"
"""


def test_nothing_is_changed_in_texts_and_annotations_and_no_listed_mutant_is_drawn(toy: Path) -> None:
    written(toy, {EQUIVALENT: LISTED})
    mutants, left = mutants_of(toy, FILE), drawn(Project(toy, "src/toy"), [], None)
    assert {each.line for each in mutants}.isdisjoint({1, 11, 12, 13})
    assert [each.operator for each in mutants if each.line == 21] == ["guard removed"]
    left_out = [(each.line, each.operator) for each in mutants if each not in left]
    assert left_out == [
        (3, "4 to 5"), (24, "returns None"), (24, "/ to *"), (24, "2 to 3"), (24, "2 to 1"), (34, "+ to - #2"),
    ]  # fmt: skip


@pytest.mark.slow
def test_every_listed_mutant_exists() -> None:
    entries = listed(PROJECT.root)
    assert set(entries) <= set(PROJECT.files())
    for file, of_file in entries.items():
        whole = (PROJECT.root / file).read_text(encoding="utf-8")
        mutants = mutants_of(PROJECT.root, file)
        for entry in of_file:
            assert entry["reason"]
            places = equivalent_of(ast.parse(whole), whole, [entry])
            here = {each.operator.split(" #")[0] for each in mutants if each.line in places}
            named = {each.split(" #")[0] for each in entry.get("operators", [])}
            assert here and named <= here, f"{file}: {entry['line']}"


def test_what_is_near_a_file_exists() -> None:
    for each in PROJECT.near(PROJECT.files()):
        assert (PROJECT.root / each).exists()

"""The list of guards fits the code; `make guards` takes them out."""

import time
from pathlib import Path

import pytest

from tests.guards import ROOT, Guard, all_guards
from tests.guards import __main__ as runner
from tests.workers import Worker


@pytest.mark.parametrize("guard", all_guards(), ids=lambda guard: guard.name)
def test_a_guard_stands_where_the_list_says(guard: Guard) -> None:
    text = (ROOT / guard.file).read_text(encoding="utf-8")
    assert guard.removed_from(text) != text
    for test in guard.tests:
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8"), test


def test_tests_of_a_copy_find_its_code_and_an_environment_below_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of `make` is ``.venv`` in the root, whose own code nobody may find."""
    root, copy = tmp_path / "root", tmp_path / "copy"
    for name, text in {
        "root/src/of_the_project.py": "PLACE = 'root'",
        "root/.venv/installed.py": "",
        "copy/src/of_the_project.py": "PLACE = 'copy'",
        "copy/tests/test_one.py": "import installed, of_the_project as own\n"
        "def test_place(): assert own.PLACE == 'copy'\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(runner, "ROOT", root)
    for place in (root / ".venv", root / "src", root):
        monkeypatch.syspath_prepend(place)
    worker = Worker(runner.running(copy, ["tests/test_one.py"]), 60)
    while worker.ended() is None:
        time.sleep(0.01)
    assert worker.code == runner.PASSED, worker.said

"""Killed before and after any system call that changes the disk, the same command is the answer.

A sample of `python -m tests.crash`, which does all of them and prints a line for each command.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from promptccd.disk import remove_leftovers, trusted, write_directory
from promptccd.runs import RunDirectory
from promptccd.training import TrainingState
from tests.crash.__main__ import Point
from tests.crash.system_calls import Call, Verdict, can_watch, run_watched
from tests.crash.workshop import COMMANDS

pytestmark = pytest.mark.skipif(not can_watch(), reason="this machine does not let a process be watched")


@pytest.mark.slow
@pytest.mark.fault(1)
@pytest.mark.timeout(600)
def test_the_same_command_is_the_answer() -> None:
    """One kill of each, other ones every day; one process has all imported and forks the rest."""
    command = [sys.executable, "-m", "tests.crash", "1", str(date.today().toordinal())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    found = dict(line.rsplit(": ", 1) for line in done.stdout.splitlines())
    assert list(found) == [each.name for each in COMMANDS]
    for name, outcome in found.items():
        calls, _, killed, wrong = map(int, re.findall(r"\d+", outcome))
        # A correction is a transaction; others make more calls.
        assert calls > 8 and killed <= 1 and wrong == 0, name


def calls_of(work: Callable[[], None], folder: Path) -> list[Call]:
    calls: list[Call] = []
    assert run_watched(lambda: work() or 0, folder, lambda call: calls.append(call) or Verdict.GO_ON) == 0
    return calls


def fill_with(value: float) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        save_file({"weight": torch.full((500,), value)}, folder / "tensors.safetensors")
        (folder / "inner").mkdir()
        (folder / "inner" / "position.json").write_text(f"{value}")

    return fill


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.fault(2)
@pytest.mark.parametrize("replace", [False, True], ids=["new", "in the place of another"])
def test_a_directory_is_the_old_one_or_the_new_one_after_a_kill_at_any_system_call(
    tmp_path: Path, replace: bool
) -> None:
    place, start = tmp_path / "place", tmp_path / "start"
    start.mkdir()
    if replace:
        write_directory(start / "one", fill_with(1.0))
    old = bytes_below(start)

    def begin() -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(start, place)

    def work() -> None:
        remove_leftovers(place)
        write_directory(place / "one", fill_with(2.0), replace=True)

    begin()
    calls = calls_of(work, place)
    new = bytes_below(place)
    kinds = {call.name for call in calls}
    assert {"write", "mkdir", "rename"} <= kinds
    assert len(calls) >= 14
    for number, call in enumerate(calls):
        for verdict in (Verdict.KILL, Verdict.CUT) if call.writes else (Verdict.KILL,):
            begin()
            assert run_watched(lambda: work() or 0, place, Point(number, call, verdict).verdict_on()) is None
            remove_leftovers(place)
            assert bytes_below(place) in (old, new), (number, call, verdict)
            assert not (place / "one").exists() or trusted(place / "one")
            work()
            assert bytes_below(place) == new, (number, call, verdict)


@pytest.mark.fault(13)
def test_a_new_state_is_complete_before_an_old_one_goes(tmp_path: Path) -> None:
    """At every system call, from the first state on, there is a whole one, and never an older one than before."""
    run, whole = RunDirectory(tmp_path), list[int]()

    def work() -> int:
        for step in range(1, 6):
            tensors = {"model.weight": torch.full((9,), float(step))}
            run.save_state(0, TrainingState(0, step, tensors), seconds=0)
        return 0

    def note(call: Call) -> Verdict:
        loaded = run.load_state(0)
        whole.append(0 if loaded is None else loaded[0].step)
        return Verdict.GO_ON

    assert run_watched(work, tmp_path, note) == 0
    assert whole == sorted(whole), "it never falls back behind what was saved"
    assert set(whole) == {0, 1, 2, 3, 4}
    assert run.load_state(0)[0].step == 5
    assert [each.name for each in (tmp_path / "resume").iterdir()] == ["stage0.safetensors"]


def test_what_other_languages_write_is_seen_and_a_write_is_cut(tmp_path: Path) -> None:
    def work() -> None:
        save_file({"weight": torch.ones(1000)}, tmp_path / "weights.safetensors")  # is Rust

    calls = calls_of(work, tmp_path)
    whole = (tmp_path / "weights.safetensors").read_bytes()
    last = max(number for number, call in enumerate(calls) if call.writes)
    (tmp_path / "weights.safetensors").unlink()
    cutting = Point(last, calls[last], Verdict.CUT).verdict_on()
    assert run_watched(lambda: work() or 0, tmp_path, cutting) is None
    (cut,) = tmp_path.iterdir()
    left = cut.read_bytes().rstrip(b"\0")
    assert left
    assert whole.startswith(left)
    assert len(left) < len(whole)

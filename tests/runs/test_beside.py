"""What follows a stage, beside a training of several processes."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from promptccd.runs.folder import RunDirectory
from promptccd.runs.train import Beside


def test_it_is_called_again_with_what_was_finished_meanwhile(tmp_path: Path) -> None:
    calls, may_go = list[list[int]](), threading.Event()
    began = threading.Event()

    def work(run: RunDirectory, finished: Sequence[int]) -> None:
        began.set()
        assert may_go.wait(60)
        calls.append([*finished])

    run = RunDirectory(tmp_path)
    with Beside(work) as beside:
        beside(run, [0])
        assert began.wait(60)
        beside(run, [0, 1])
        beside(run, [0, 1, 2])
        assert calls == []  # nobody waited
        may_go.set()
    assert calls == [[0], [0, 1, 2]]


def test_nothing_is_called_where_nothing_was_finished(tmp_path: Path) -> None:
    with Beside(lambda run, finished: pytest.fail("called")):
        pass


def test_an_error_is_told_at_the_end(tmp_path: Path) -> None:
    def work(run: RunDirectory, finished: Sequence[int]) -> None:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"), Beside(work) as beside:
        beside(RunDirectory(tmp_path), [0])


def test_the_end_of_a_training_that_failed_waits_for_nothing(tmp_path: Path) -> None:
    may_go = threading.Event()
    with (
        pytest.raises(KeyboardInterrupt),
        Beside(lambda run, finished: may_go.wait(60) and None) as beside,
    ):
        beside(RunDirectory(tmp_path), [0])
        raise KeyboardInterrupt
    may_go.set()

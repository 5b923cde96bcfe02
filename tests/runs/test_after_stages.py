"""Work after a stage, in the background of a training of several processes."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from promptccd.runs.folder import RunDirectory
from promptccd.runs.train import in_background


def test_calls_are_made_in_order_and_not_waited_for(tmp_path: Path) -> None:
    calls, may_go = list[list[int]](), threading.Event()

    def work(run: RunDirectory, finished: Sequence[int]) -> None:
        assert may_go.wait(60)
        calls.append([*finished])

    run = RunDirectory(tmp_path)
    with in_background(work) as background:
        background(run, [0])
        background(run, [0, 1])
        assert calls == []  # nothing waited
        may_go.set()
    assert calls == [[0], [0, 1]]


def test_nothing_is_called_where_nothing_was_finished(tmp_path: Path) -> None:
    with in_background(lambda run, finished: pytest.fail("called")):
        pass


def test_an_error_is_raised_at_the_end(tmp_path: Path) -> None:
    def work(run: RunDirectory, finished: Sequence[int]) -> None:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"), in_background(work) as background:
        background(RunDirectory(tmp_path), [0])


def test_the_end_of_a_training_that_failed_waits_for_nothing(tmp_path: Path) -> None:
    may_go = threading.Event()
    with (
        pytest.raises(KeyboardInterrupt),
        in_background(lambda run, finished: may_go.wait(60) and None) as background,
    ):
        background(RunDirectory(tmp_path), [0])
        raise KeyboardInterrupt
    may_go.set()

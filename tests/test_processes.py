"""What Linux does with processes that are asked to end, or whose parent is gone; commands end in `tests/cli`."""

import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.connection import Connection

import psutil
import pytest

from promptccd import processes
from promptccd.processes import end_with_parent
from tests.messages import TEXT
from tests.processes import eventually, is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")


@pytest.mark.parametrize(
    ("rank", "size", "is_first"), [(None, None, True), ("0", "2", True), ("1", "2", False), ("1", "1", True)]
)
def test_one_process_of_several_is_the_first(rank, size, is_first, monkeypatch):
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert processes.is_first_process() is is_first


def load(seconds: float) -> None:
    end_with_parent(0)
    signal.raise_signal(signal.SIGTERM)
    time.sleep(seconds)


@pytest.mark.parametrize(("seconds", "lingers_s", "code"), [(60, 0.2, 1), (0, 60, 0)])
def test_a_loader_that_is_asked_to_end_is_given_time(seconds, lingers_s, code, monkeypatch):
    assert processes.LINGERS_S <= 30  # after which schedulers kill
    monkeypatch.setattr(processes, "LINGERS_S", lingers_s)
    loader = multiprocessing.get_context("fork").Process(target=load, args=(seconds,))
    begun = time.monotonic()
    loader.start()
    try:
        loader.join(10)
        assert loader.exitcode == code
        assert time.monotonic() - begun >= min(lingers_s, seconds)
    finally:
        loader.kill()


def load_long(parent: int, is_late: bool) -> None:
    while is_late and os.getppid() == parent:  # it is not done with its imports before that is gone
        time.sleep(0.01)
    end_with_parent(0)
    time.sleep(60)


def start_loader(numbers: Connection, is_late: bool) -> None:
    loader = multiprocessing.get_context("fork").Process(target=load_long, args=(os.getpid(), is_late))
    loader.start()
    numbers.send(loader.pid)
    time.sleep(60)


@pytest.mark.parametrize("is_late", [False, True], ids=["while it loads", "while it imports"])
def test_a_loader_ends_with_its_parent(is_late: bool) -> None:
    reading, writing = multiprocessing.Pipe(duplex=False)
    parent = multiprocessing.get_context("fork").Process(target=start_loader, args=(writing, is_late))
    parent.start()
    loader = reading.recv()
    parent.kill()
    assert eventually(lambda: not is_running(loader))


PARENT = "import subprocess, time; subprocess.Popen(['sh', '-c', 'sleep 60; :']); time.sleep(60)"


def test_a_process_apart_is_asked_to_end_or_ended_with_its_children() -> None:
    works = (time.sleep, 0), (time.sleep, 60), (exec, PARENT)
    done, asked, killed = (
        processes.ProcessApart(work, (what,), ["promptccd.processes"]) for work, what in works
    )
    asked.stop()
    assert done.ended() == (0, "")
    code, why = asked.ended()
    assert (code, "SIGTERM" in why, "memory" in why) == (-signal.SIGTERM, True, False)
    whole = psutil.Process(killed._process.pid)
    assert eventually(lambda: len(whole.children(recursive=True)) == 2)
    family = whole.children(recursive=True)
    killed.kill()
    assert killed.ended() == (-signal.SIGKILL, TEXT["killed-by-signal-9-sigkill-out"])
    assert eventually(lambda: not any(is_running(each.pid) for each in family))
    done.stop(), done.kill()  # too late, and of no consequence

"""What Linux does with processes that are asked to end, or whose parent is gone; commands end in `tests/cli`."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest

from promptccd import processes
from promptccd.processes import ProcessApart, end_with_parent
from tests.processes import is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")


def test_a_process_that_does_not_lead_its_group_yet_is_reached_by_itself() -> None:
    def apart(runs: bool) -> ProcessApart:
        process = ProcessApart.__new__(ProcessApart)
        process._process = SimpleNamespace(
            pid=one.pid, is_alive=lambda: runs, join=lambda: codes.append(one.wait(10))
        )
        return process

    codes = list[int]()

    with subprocess.Popen(["sleep", "60"]) as one:
        try:
            apart(False).stop()  # another may have its number by now
            apart(True).kill()
            assert codes == [-signal.SIGKILL]
        finally:
            one.kill()
    apart(True).end_rest()  # it ended this instant


def load(is_asked: bool, seconds: float) -> None:
    end_with_parent(0)
    if is_asked:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)


@pytest.mark.parametrize(("seconds", "lingers_s", "code"), [(60, 0.2, 1), (0, 60, 0)])
def test_a_loader_that_is_asked_to_end_is_given_time(seconds, lingers_s, code, monkeypatch):
    assert processes.LINGERS_S <= 30  # after which schedulers kill
    monkeypatch.setattr(processes, "LINGERS_S", lingers_s)
    loader = multiprocessing.get_context("fork").Process(target=load, args=(True, seconds))
    begun = time.monotonic()
    loader.start()
    try:
        loader.join(10)
        assert loader.exitcode == code
        assert time.monotonic() - begun >= min(lingers_s, seconds)
    finally:
        loader.kill()


def start_loader(numbers: Connection) -> None:
    loader = multiprocessing.get_context("fork").Process(target=load, args=(False, 60))
    loader.start()
    numbers.send(loader.pid)
    time.sleep(60)


def test_a_loader_ends_with_its_parent() -> None:
    reading, writing = multiprocessing.Pipe(duplex=False)
    parent = multiprocessing.get_context("fork").Process(target=start_loader, args=(writing,))
    parent.start()
    loader, until = reading.recv(), time.monotonic() + 10
    parent.kill()
    while is_running(loader) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_running(loader)

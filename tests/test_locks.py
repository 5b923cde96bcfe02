"""Who may write to a folder."""

import errno
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from promptccd.errors import DiskError, RunError
from promptccd.locks import FolderLock, owner_of

HOLD = """
import sys, time
from pathlib import Path
from promptccd.locks import FolderLock
held = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_names_its_owner_and_ends_when_it_is_closed(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "38_2")
    monkeypatch.setattr("promptccd.locks._SHORTEST_WAIT_S", 0.05)
    assert owner_of(tmp_path / "missing") is owner_of(tmp_path) is None
    held = FolderLock(tmp_path)
    owner = f"{socket.gethostname()} (process {os.getpid()}, job 38_2)"
    assert (tmp_path / ".lock-owner").read_text() == owner
    for name in (owner, "other-computer (process 4711, job 5)"):
        (tmp_path / ".lock-owner").write_text(f"{name}\nanother line")
        assert owner_of(tmp_path) == name
        begun = time.monotonic()
        with pytest.raises(RunError) as refused:
            FolderLock(tmp_path, wait_s=0.1)
        assert time.monotonic() - begun >= 0.1
        assert str(refused.value).startswith(f"{name} is writing to ")
    (tmp_path / ".lock-owner").write_text("x" * 201)
    assert owner_of(tmp_path) == "x" * 200
    (tmp_path / ".lock-owner").unlink()
    assert owner_of(tmp_path) == "Another process"
    held.close()
    held.close()
    assert owner_of(tmp_path) is None
    FolderLock(tmp_path).close()


@pytest.mark.moderate
def test_asking_who_writes_delays_nobody(tmp_path):
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            owner_of(tmp_path)

    FolderLock(tmp_path).close()
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(200):
            FolderLock(tmp_path).close()
    finally:
        ended.set()
        asking.join()


@pytest.mark.moderate
def test_the_lock_of_a_killed_process_is_free(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert f"(process {process.pid})" in (owner_of(tmp_path) or "")
        with pytest.raises(RunError):
            FolderLock(tmp_path)
        process.kill()
    assert owner_of(tmp_path) is None
    FolderLock(tmp_path).close()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_disk_without_locks_is_reported_and_used(number, tmp_path, monkeypatch, caplog):
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    with FolderLock(tmp_path):
        assert "has no locks" in caplog.text
        assert owner_of(tmp_path) is None


def test_the_lock_of_another_user_is_respected(tmp_path, monkeypatch):
    def refuse(path, *rest, **named):
        if str(path).endswith(".lock"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return open_file(path, *rest, **named)

    (tmp_path / ".lock").touch()
    open_file = os.open
    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(DiskError, match="Permission denied"):
        FolderLock(tmp_path)

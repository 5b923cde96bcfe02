"""Who may write to a folder: by locks, and by leases where locks are missing or do not reach other computers."""

import errno
import logging
import os
import socket
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from promptccd import locks, systems
from promptccd.disk import remove_leftovers, temporary
from promptccd.errors import RunError
from promptccd.locks import FolderLock, owner_of, owners_of
from tests.disk import lease_of_another_computer

HERE = f"{socket.gethostname()} (process {os.getpid()})"


@pytest.fixture
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a disk whose locks do not reach other computers; its leases are renewed and given up quickly."""
    monkeypatch.setattr(systems, "locks_reach", lambda folder: False)
    monkeypatch.setattr(locks, "BEAT_S", 0.1)
    monkeypatch.setattr(locks, "DEAD_S", 0.6)
    return tmp_path


HOLD = """
import sys, time
from pathlib import Path
from promptccd import locks, systems
if sys.argv[2] == "lease":
    systems.locks_reach = lambda folder: False
    locks.BEAT_S, locks.DEAD_S = 0.1, 0.6
held = locks.FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def holder(folder: Path, kind: str) -> subprocess.Popen[str]:
    """A process that has the lock of a folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, folder, kind], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("reaches", [True, False])
def test_a_lock_names_its_owner_and_ends_when_it_is_closed(tmp_path, monkeypatch, reaches):
    monkeypatch.setattr(systems, "locks_reach", lambda folder: reaches)
    monkeypatch.setattr(locks, "BEAT_S", 0.05)
    monkeypatch.setenv("SLURM_JOB_ID", "38_2")
    assert owner_of(tmp_path / "missing") is owner_of(tmp_path) is None
    held = FolderLock(tmp_path)
    with pytest.raises(RunError, match=rf"\(process {os.getpid()}, job 38_2\) is writing to "):
        FolderLock(tmp_path)
    owner = f"{socket.gethostname()} (process {os.getpid()}, job 38_2)"
    assert owner_of(tmp_path) == owner
    assert owners_of([tmp_path, tmp_path / "missing"]) == {tmp_path: owner}
    held.close()
    held.close()
    assert owner_of(tmp_path) is None
    FolderLock(tmp_path).close()


def test_the_owner_on_another_computer_is_named(tmp_path):
    held = FolderLock(tmp_path)
    (tmp_path / ".lock-owner").write_text("other-computer (process 4711, job 5)")
    with pytest.raises(RunError, match=r"other-computer \(process 4711, job 5\) is writing to"):
        FolderLock(tmp_path)
    assert owner_of(tmp_path) == "other-computer (process 4711, job 5)"
    held.close()


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
@pytest.mark.parametrize("kind", ["lock", "lease"])
def test_the_lock_of_a_killed_process_is_acquired(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(systems, "locks_reach", lambda folder: kind == "lock")
    monkeypatch.setattr(locks, "BEAT_S", 0.1)
    monkeypatch.setattr(locks, "DEAD_S", 0.6)
    with holder(tmp_path, kind) as process:
        assert f"(process {process.pid})" in owner_of(tmp_path)
        with pytest.raises(RunError, match=rf"process {process.pid}\) is writing"):
            FolderLock(tmp_path)
        process.kill()
    assert owner_of(tmp_path) is None
    FolderLock(tmp_path).close()


@pytest.mark.moderate
def test_a_disk_without_locks_gets_leases(tmp_path, monkeypatch, caplog):
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with FolderLock(tmp_path):
        assert "has no locks" in caplog.text
        assert owner_of(tmp_path) == HERE
        with pytest.raises(RunError, match=rf"process {os.getpid()}\) is writing to"):
            monkeypatch.setattr(locks, "BEAT_S", 0.05)
            FolderLock(tmp_path)
    assert owner_of(tmp_path) is None


@pytest.mark.moderate
def test_a_lease_that_is_not_renewed_is_acquired(leases, caplog):
    caplog.set_level(logging.INFO)
    lease_of_another_computer(leases)
    assert owner_of(leases) == "node7 (process 4711, job 38)"  # without observing it
    assert owners_of([leases]) == {}
    FolderLock(leases).close()
    assert "waiting for node7 (process 4711, job 38)" in caplog.text


@pytest.mark.moderate
def test_a_lease_that_is_renewed_keeps_others_out(leases):
    lease_of_another_computer(leases)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(0.05):
            os.utime(leases / ".lock-lease")

    elsewhere = threading.Thread(target=renew)
    elsewhere.start()
    try:
        with pytest.raises(RunError, match=r"node7 \(process 4711, job 38\) is writing"):
            FolderLock(leases)
        assert owners_of([leases]) == {leases: "node7 (process 4711, job 38)"}
    finally:
        ended.set()
        elsewhere.join()


@pytest.mark.moderate
def test_of_many_who_want_a_lease_one_gets_it(leases, monkeypatch):
    monkeypatch.setattr(locks, "DEAD_S", 60.0)
    got, refused = list[FolderLock](), list[RunError]()

    def acquire() -> None:
        try:
            got.append(FolderLock(leases))
        except RunError as error:
            refused.append(error)

    others = [threading.Thread(target=acquire) for _ in range(8)]
    for each in others:
        each.start()
    for each in others:
        each.join()
    assert (len(got), len(refused)) == (1, 7)
    got[0].close()


@pytest.mark.moderate
def test_a_long_wait_names_the_owner_once(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    held = FolderLock(tmp_path)
    with pytest.raises(RunError):
        FolderLock(tmp_path)
    assert "waiting" not in caplog.text
    with pytest.raises(RunError):
        FolderLock(tmp_path, wait_s=0.8)
    assert caplog.text.count(f"{tmp_path}: waiting for {HERE}.") == 1
    held.close()


Mount = namedtuple("Mount", "mountpoint fstype opts")


@pytest.mark.parametrize(
    ("kind", "options", "reach"),
    [
        ("ext4", "rw,relatime", True),
        ("lustre", "rw,flock,lazystatfs", True),
        ("lustre", "rw,localflock", False),
        ("nfs4", "rw,vers=4.2,local_lock=none", True),
        ("nfs", "rw,vers=3,nolock,local_lock=all", False),
        ("cifs", "rw,nobrl", False),
        ("fuse.rclone", "rw", False),
        ("fuse.fuse-overlayfs", "rw", True),
        ("fuseblk", "rw", True),
        ("9p", "rw", False),
    ],
)
def test_it_is_known_which_locks_reach_other_computers(tmp_path, monkeypatch, kind, options, reach):
    mounts = [Mount("/", "ext4", "localflock"), Mount(str(tmp_path), kind, options)]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    assert systems.locks_reach(tmp_path / "run") is reach
    assert systems.file_system_of(tmp_path) == kind
    with FolderLock(tmp_path / "run"):
        assert (tmp_path / "run" / ".lock-lease").exists() is not reach


def test_what_another_computer_is_writing_is_no_leftover(tmp_path, monkeypatch):
    mine = temporary(tmp_path / "a")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "node7")
        theirs, old = temporary(tmp_path / "a"), temporary(tmp_path / "b")
    for path in (mine, theirs, old):
        path.touch()
    os.utime(old, (0, 0))
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [theirs]

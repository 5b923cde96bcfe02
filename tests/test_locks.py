"""Who may write to a folder: by locks, and by leases where locks are missing or do not reach other computers."""

import errno
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from promptccd import locks, storage, system
from promptccd.errors import RunError
from promptccd.locks import FolderLock, Owner, owner_of, owners_of
from promptccd.storage import remove_leftovers, temporary, write_directory


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are renewed so often that a test sees it, and those of others are over at once."""
    monkeypatch.setattr(locks, "BEAT_S", 0.01)
    monkeypatch.setattr(locks, "DEAD_S", 0.1)


def refuse_locks(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the disk of a folder have no locks."""
    flock = system.fcntl.flock

    def on_this_disk(descriptor: int, how: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder)):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        flock(descriptor, how)

    monkeypatch.setattr(system.fcntl, "flock", on_this_disk)


@pytest.fixture
def without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a disk without locks."""
    place = tmp_path / "disk"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    refuse_locks(monkeypatch, place)
    place.mkdir()
    return place


def other_computer(place: Path, number: int = 1, beat: str = "1") -> None:
    """Leave a lease as a process of another computer does."""
    (place / ".lock").touch()
    (place / "whole").write_text(f"4711 on node7, job 38\nnode7 1 2\n{beat}\n")
    os.replace(place / "whole", place / f".lock-{number}")


def test_a_lock_says_who_has_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "38_2")
    assert owner_of(tmp_path / "missing") is owner_of(tmp_path) is None
    held = FolderLock(tmp_path)
    with pytest.raises(
        RunError, match=rf"Process {os.getpid()} \(job 38_2\) is writing to .*Wait for it, stop it"
    ):
        FolderLock(tmp_path)
    assert owner_of(tmp_path) == Owner(str(os.getpid()), socket.gethostname(), "38_2")
    assert str(owner_of(tmp_path)) == f"{os.getpid()} on {socket.gethostname()}, job 38_2"
    held.close()
    held.close()
    assert owner_of(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_second_computer_learns_which_one_writes(tmp_path):
    held = FolderLock(tmp_path)
    (tmp_path / ".lock").write_text("4711 on other-computer, job 5\n")
    with pytest.raises(
        RunError, match=r"Process 4711 on the computer 'other-computer' \(job 5\) is writing to"
    ):
        FolderLock(tmp_path)
    assert owner_of(tmp_path) == Owner("4711", "other-computer", "5")
    held.close()


@pytest.mark.moderate
def test_whoever_asks_who_writes_stands_in_nobodys_way(tmp_path):
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


def test_without_locks_processes_of_one_machine_still_wait_for_each_other(without_locks, caplog):
    held = FolderLock(without_locks)
    assert f"The disk of {without_locks} ({system.file_system_of(without_locks)}) has no locks" in caplog.text
    assert (
        "says every 10 s that this process writes, and others take over when it has not said so for 120 s"
        in (caplog.text)
    )
    with pytest.raises(RunError, match=f"Process {os.getpid()} is writing to"):
        FolderLock(without_locks)
    assert owner_of(without_locks) == Owner.this()
    held.close()
    assert owner_of(without_locks) is None
    FolderLock(without_locks, wait_s=1).close()


@pytest.mark.usefixtures("quick")
def test_a_lease_that_nobody_renews_is_over(without_locks, caplog):
    caplog.set_level(logging.INFO)
    other_computer(without_locks)
    assert owner_of(without_locks) == Owner("4711", "node7", "38")  # as far as one sees at once
    assert owners_of([without_locks]) == {}
    FolderLock(without_locks).close()
    assert "4711 on node7, job 38 wrote there; looking for at most 0 s whether it still does" in caplog.text
    assert (without_locks / ".lock-2").read_bytes() == b"over"
    assert not (without_locks / ".lock-1").exists()


def test_a_lease_that_is_renewed_keeps_others_away(without_locks, monkeypatch):
    monkeypatch.setattr(locks, "BEAT_S", 0.01)
    ended = threading.Event()

    def renew() -> None:
        for beat in range(10**6):
            other_computer(without_locks, beat=str(beat))
            if ended.wait(0.005):
                return

    other_computer(without_locks)
    elsewhere = threading.Thread(target=renew)
    elsewhere.start()
    try:
        with pytest.raises(RunError, match=r"Process 4711 on the computer 'node7' \(job 38\) is writing"):
            FolderLock(without_locks)
        monkeypatch.setattr(locks, "BEAT_S", 1.0)  # it looks for long
        assert owners_of([without_locks]) == {without_locks: Owner("4711", "node7", "38")}
    finally:
        ended.set()
        elsewhere.join()


@pytest.mark.usefixtures("quick")
def test_a_lease_is_renewed_until_it_is_closed(without_locks):
    held = FolderLock(without_locks)
    path = without_locks / ".lock-1"
    seen = {path.read_bytes()}
    while len(seen) < 3:
        seen.add(path.read_bytes())
    held.close()
    assert path.read_bytes() == b"over"


@pytest.mark.usefixtures("quick")
def test_whoever_was_away_for_long_learns_who_took_over(without_locks, caplog):
    held = FolderLock(without_locks)
    other_computer(without_locks, number=2)
    while (
        "has not said for long that it writes there, and 4711 on node7, job 38 took over" not in caplog.text
    ):
        time.sleep(0.01)
    held.close()
    assert Owner.read((without_locks / ".lock-2").read_bytes()).host == "node7"  # which still has it


@pytest.mark.usefixtures("quick")
def test_whoever_looked_too_early_does_not_take_a_number_that_was_there_before(without_locks, monkeypatch):
    """Others have made the second lease and removed the first one since it looked."""
    newest, looks = locks._newest, iter([(0, b"over")])
    monkeypatch.setattr(locks, "_newest", lambda folder: next(looks, None) or newest(folder))
    other_computer(without_locks, number=2)
    held = FolderLock(without_locks)
    assert sorted(path.name for path in without_locks.iterdir()) == [".lock", ".lock-3"]
    held.close()


@pytest.mark.usefixtures("quick")
def test_of_many_who_see_that_a_lease_is_over_one_gets_it(without_locks, monkeypatch):
    """As computers that share nothing but the folder: no lock of this machine helps them."""
    monkeypatch.setattr(locks, "_own_lock_of", lambda folder: storage.open_to_change(folder / "none"))
    monkeypatch.setattr(locks, "DEAD_S", 120.0)
    (without_locks / ".lock-1").write_bytes(b"over")
    got, refused = list[locks.FolderLock](), list[RunError]()

    def take() -> None:
        try:
            got.append(FolderLock(without_locks))
        except RunError as error:
            refused.append(error)

    others = [threading.Thread(target=take) for _ in range(8)]
    for each in others:
        each.start()
    for each in others:
        each.join()
    assert (len(got), len(refused)) == (1, 7)
    got[0].close()


HOLD = """
import sys, time
from pathlib import Path
from promptccd import system
system.locks_reach = lambda folder: False
from promptccd.locks import FolderLock
held = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_killed_process_is_noticed_at_once_on_its_own_computer(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "locks_reach", lambda folder: False)
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        assert str(owner_of(tmp_path)).startswith(f"{owner.pid} on ")
        owner.kill()
    assert owner_of(tmp_path) is None
    FolderLock(tmp_path).close()
    assert (tmp_path / ".lock-2").read_bytes() == b"over"


def test_a_computer_of_the_same_name_is_another(without_locks, monkeypatch):
    """Many are called localhost, and a network drive has one number for all of them."""
    held = FolderLock(without_locks)
    left = (without_locks / ".lock-1").read_bytes()
    held.close()
    (without_locks / ".lock-1").write_bytes(left)
    assert owner_of(without_locks) is None, "the same computer sees that it ended"
    monkeypatch.setattr(system, "boot_of", lambda: "another")
    assert owner_of(without_locks) == Owner.this()


def test_a_lease_that_another_computer_removes_meanwhile_is_none(without_locks, monkeypatch):
    other_computer(without_locks)
    other_computer(without_locks, 2)
    read = locks.read_file

    def stale(path: Path, most: int) -> bytes:
        if path.name == ".lock-2":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return read(path, most)

    monkeypatch.setattr(locks, "read_file", stale)
    assert owner_of(without_locks) == Owner("4711", "node7", "38")


@pytest.mark.moderate
def test_whoever_waits_for_long_says_for_whom(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    held = FolderLock(tmp_path)
    with pytest.raises(RunError):
        FolderLock(tmp_path)
    assert not caplog.text
    with pytest.raises(RunError):
        FolderLock(tmp_path, wait_s=0.8)
    assert caplog.text.count(f"{tmp_path}: waiting for {Owner.this().place}.") == 1
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
    assert system.locks_reach(tmp_path / "run") is reach
    assert system.file_system_of(tmp_path) == kind
    FolderLock(tmp_path / "run").close()
    assert (tmp_path / "run" / ".lock-1").exists() is not reach


def fill(text: str, place: Path | None = None):
    """Fill a folder; `place` is made by another computer meanwhile."""

    def filled(folder: Path) -> None:
        (folder / "a").write_text(text)
        if place is not None:
            write_directory(place, fill("same"))

    return filled


def test_what_another_computer_put_in_place_meanwhile_is_taken_if_it_is_the_same(tmp_path):
    write_directory(tmp_path / "stage0", fill("same", tmp_path / "stage0"))
    assert [path.name for path in tmp_path.iterdir()] == ["stage0"]
    with pytest.raises(RunError, match="Another process wrote .*stage1 meanwhile, and with other content"):
        write_directory(tmp_path / "stage1", fill("other", tmp_path / "stage1"))

    def save(folder: Path, seconds: int) -> None:
        (folder / "a.safetensors").write_text("the same steps")
        (folder / "position.json").write_text(str(seconds))
        if seconds == 2:
            write_directory(tmp_path / "state", lambda folder: save(folder, 1))

    write_directory(tmp_path / "state", lambda folder: save(folder, 2))  # which took another time
    assert (tmp_path / "state" / "position.json").read_text() == "1"
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "a").touch()
    with pytest.raises(OSError, match=re.escape(os.strerror(errno.ENOTEMPTY))):
        write_directory(tmp_path / "half", fill("same"))


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

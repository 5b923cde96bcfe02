"""What the systems do with files, disks and memory: Linux as it is, the others as far as a call tells."""

import errno
import os
import socket
import stat
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest

from promptccd import systems

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems are pretended on Linux")


def refusing(number: int) -> Mock:
    return Mock(side_effect=OSError(number, os.strerror(number)))


def test_a_file_is_opened_without_waiting_and_a_link_is_linked(tmp_path: Path) -> None:
    descriptor = systems.open_file(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    assert not os.get_blocking(descriptor)
    os.close(descriptor)
    (tmp_path / "dangling").symlink_to("nothing")
    systems.link(tmp_path / "dangling", tmp_path / "again")
    assert (tmp_path / "again").is_symlink()


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EINVAL, errno.EROFS])
def test_a_disk_without_modes_and_flushes_of_folders_serves(number, tmp_path, monkeypatch):
    (tmp_path / "a").touch()
    for name in ("chmod", "fsync", "utime"):
        monkeypatch.setattr(os, name, refusing(number))
    systems.copy_facts(tmp_path / "a", tmp_path / "a")
    with pytest.raises(OSError):
        systems.flush(tmp_path / "a")  # a file that cannot be flushed is not safe
    for act in (systems.make_private, systems.flush):
        if number == errno.EROFS:
            with pytest.raises(OSError):
                act(tmp_path)
        else:
            act(tmp_path)


def test_only_what_this_user_has_alone_is_private(tmp_path, monkeypatch):
    (tmp_path / "a").touch(0o666)
    (tmp_path / "link").symlink_to(tmp_path / "a")

    def mode() -> int:
        return stat.S_IMODE((tmp_path / "a").stat().st_mode)

    systems.make_private(tmp_path / "a")
    assert mode() == 0o600
    (tmp_path / "a").chmod(0o777)
    systems.make_read_only(tmp_path / "a")
    assert mode() == 0o555
    assert [systems.is_own_file(tmp_path / name) for name in ("a", "link", "")] == [True, False, False]
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    assert not systems.is_own_file(tmp_path / "a")


@pytest.mark.parametrize(
    ("platform", "command"),
    [
        ("linux", ["xdg-open", "/album"]),
        ("darwin", ["open", "-R", "/album/a.jpg"]),
        ("win32", ["explorer", "/select,/album/a.jpg"]),
    ],
)
def test_a_file_is_shown_by_the_program_of_each_system(platform, command, monkeypatch):
    waited = threading.Event()
    started = Mock(return_value=SimpleNamespace(wait=waited.set))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(systems.shutil, "which", lambda name: f"/bin/{name}" if name == command[0] else None)
    monkeypatch.setattr(systems.subprocess, "Popen", started)
    assert systems.has_shown(Path("/album/a.jpg")) is True
    assert waited.wait(10)
    nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), systems.subprocess.DEVNULL)
    started.assert_called_once_with([f"/bin/{command[0]}", *command[1:]], **nowhere)
    monkeypatch.setattr(systems.shutil, "which", lambda name: None)
    assert systems.has_shown(Path("/album/a.jpg")) is False


@pytest.mark.parametrize(
    ("kind", "options", "is_network"),
    [
        ("ext4", "rw,relatime", False),
        ("nfs4", "rw,vers=4.2", True),
        ("cifs", "rw", True),
        ("fuse.rclone", "rw", True),
        ("fuse.fuse-overlayfs", "rw", False),
        ("fuseblk", "rw", False),
        ("NTFS", "rw,remote", True),
        ("NTFS", "rw,fixed", False),
    ],
)
def test_network_drives_are_known(tmp_path, monkeypatch, kind, options, is_network):
    mounts = {
        "/": ("ext4", ""),
        str(tmp_path): (kind, options),
        f"{tmp_path}/deep-and-elsewhere": ("nfs", ""),
    }
    found = [SimpleNamespace(mountpoint=at, fstype=what, opts=how) for at, (what, how) in mounts.items()]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: found)
    assert systems.is_network_drive(tmp_path / "run") is is_network
    monkeypatch.setattr(psutil, "disk_partitions", refusing(errno.EACCES))
    assert systems.is_network_drive(tmp_path) is False


@pytest.mark.parametrize(
    ("most", "taken", "left"),
    [("1000\n", "300\n", 700), ("1000", "1300", 0), ("max", "300", 5000), ("1000", None, 5000)],
)
def test_free_memory_is_that_of_the_container(most, taken, left, tmp_path, monkeypatch):
    (tmp_path / "most").write_text(most)
    if taken is not None:
        (tmp_path / "taken").write_text(taken)
    monkeypatch.setattr(systems, "_CONTAINERS", ((str(tmp_path / "most"), str(tmp_path / "taken")),))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5000))
    assert systems.free_memory() == left
    monkeypatch.setattr(psutil, "virtual_memory", refusing(errno.EACCES))
    assert systems.free_memory() == (left if left < 5000 else None)


def test_memory_and_cores_are_those_of_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr(systems.resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=3000))
    assert systems.peak_memory() == 3000 * 1024
    monkeypatch.setattr(sys, "platform", "darwin")
    assert systems.peak_memory() == 3000
    monkeypatch.setattr(systems, "SHARED_MEMORY", str(tmp_path / "none"))
    assert systems.free_shared_memory() is None
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5} if process == 0 else set())
    assert systems.available_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert systems.available_cores() == 1


def test_what_systems_leave_in_folders_is_known():
    left = "a/.DS_Store Thumbs.db ._a.jpg .nfs01 .fuse_hidden1 found.000/a.jpg found.999/ @eaDir/a"
    assert all(map(systems.left_by_system, left.split()))
    assert not any(map(systems.left_by_system, ("a.jpg", "found.1000/a.jpg", "@eaDir", "Thumbs.db/a.jpg")))


def test_a_port_is_taken_alone_and_soon_again() -> None:
    with socket.socket() as one, socket.socket() as two:
        systems.bind_alone(one, ("127.0.0.1", 0))
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1
        one.listen()
        with pytest.raises(OSError):
            systems.bind_alone(two, one.getsockname())

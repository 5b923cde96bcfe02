"""What the systems do with files, disks and memory: Linux as it is, the others as far as a call tells."""

import errno
import fcntl
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from promptccd import systems

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="Linux is asked, and others are pretended on it"
)


def refusing(number: int) -> object:
    def refuse(*given: object, **named: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def test_a_file_that_is_made_can_be_read_and_written_by_those_whom_the_umask_lets(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        descriptor = systems.open_file(tmp_path / "a", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o644
    os.close(descriptor)
    descriptor = systems.open_file(tmp_path / "a", os.O_RDONLY)
    assert not os.get_blocking(descriptor)
    os.close(descriptor)


def test_links_are_told(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    assert systems.is_link(tmp_path / "link") is True
    assert systems.is_link(tmp_path / "file") is False
    with pytest.raises(OSError, match="symbolic") as refused:
        systems.open_file(tmp_path / "link", os.O_RDONLY)
    assert refused.value.errno == errno.ELOOP


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL])
def test_a_disk_without_modes_and_flushes_of_folders_serves(number, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "chmod", refusing(number))
    monkeypatch.setattr(os, "fsync", refusing(number))
    (tmp_path / "a").touch()
    systems.make_private(tmp_path / "a")
    systems.flush(tmp_path)
    with pytest.raises(OSError):
        systems.flush(tmp_path / "a")  # a file that cannot be flushed is not safe


def test_nothing_stays_open_that_was_flushed(tmp_path, monkeypatch):
    flushed = list[int]()
    monkeypatch.setattr(os, "fsync", flushed.append)
    systems.flush(tmp_path)
    with pytest.raises(OSError):
        os.fstat(flushed[0])


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
def test_a_disk_that_fails_is_told(number, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "chmod", refusing(number))
    monkeypatch.setattr(os, "fsync", refusing(number))
    for act in (systems.make_private, systems.flush):
        with pytest.raises(OSError):
            act(tmp_path)


def test_what_is_private_is_read_by_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "a").touch(0o666)
    systems.make_private(tmp_path / "a")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    with (tmp_path / "a").open() as opened:
        systems.make_private(opened.fileno(), 0o640)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    systems.make_read_only(tmp_path / "a")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o440
    (tmp_path / "a").chmod(0o777)
    systems.make_read_only(tmp_path / "a")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o555


def test_only_what_this_user_has_alone_is_private(tmp_path, monkeypatch):
    (tmp_path / "a").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert [systems.is_own_file(tmp_path / name) for name in ("a", "link", "")] == [True, False, False]
    with pytest.raises(FileNotFoundError):
        systems.is_own_file(tmp_path / "none")

    def private(mode: int) -> bool:
        (tmp_path / "a").chmod(mode)
        return systems.is_private((tmp_path / "a").stat())

    assert private(0o600) is private(0o700) is private(0o400) is True
    assert not any(map(private, (0o601, 0o602, 0o604, 0o610, 0o620, 0o640)))
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    assert not private(0o600)
    assert not systems.is_own_file(tmp_path / "a")


def test_blocks_are_shared_by_the_call_of_linux(monkeypatch):
    asked = list[tuple[int, int, int]]()
    monkeypatch.setattr(fcntl, "ioctl", lambda *given: asked.append(given))
    assert systems.has_cloned(3, 4) is True
    assert asked == [(4, 0x40049409, 3)]  # FICLONE, of linux/fs.h
    monkeypatch.setattr(fcntl, "ioctl", refusing(errno.EOPNOTSUPP))
    assert systems.has_cloned(3, 4) is False
    monkeypatch.setattr(sys, "platform", "darwin")
    assert systems.has_cloned(3, 4) is False


def test_a_second_name_is_one_of_the_link_itself(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nothing")
    systems.link(tmp_path / "link", tmp_path / "again")
    assert (tmp_path / "again").is_symlink()


def test_a_copy_gets_dates_and_mode_where_there_are_any(tmp_path, monkeypatch):
    for name in ("one", "two", "three"):
        (tmp_path / name).touch()
    (tmp_path / "one").chmod(0o400)
    os.utime(tmp_path / "one", (10, 20))
    systems.copy_facts(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two").stat().st_mtime == 20
    assert stat.S_IMODE((tmp_path / "two").stat().st_mode) == 0o400
    monkeypatch.setattr(os, "utime", refusing(errno.EPERM))
    systems.copy_facts(tmp_path / "one", tmp_path / "three")


@pytest.mark.parametrize(
    ("platform", "command"),
    [
        ("linux", ["xdg-open", "/album"]),
        ("darwin", ["open", "-R", "/album/a.jpg"]),
        ("win32", ["explorer", "/select,/album/a.jpg"]),
    ],
)
def test_a_file_is_shown_by_the_program_of_each_system(platform, command, monkeypatch):
    """Which says nothing in our terminal, may outlast us, and is waited for lest it stays as a zombie."""
    started, waited = list[tuple[list[str], object, object, object]](), threading.Event()

    def start(words: list[str], *, stdin: object, stdout: object, stderr: object) -> SimpleNamespace:
        started.append((words, stdin, stdout, stderr))
        return SimpleNamespace(wait=lambda: waited.set() if threading.current_thread().daemon else None)

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(systems.shutil, "which", lambda name: f"/bin/{name}" if name == command[0] else None)
    monkeypatch.setattr(systems.subprocess, "Popen", start)
    assert systems.has_shown(Path("/album/a.jpg")) is True
    assert started == [([f"/bin/{command[0]}", *command[1:]], *[subprocess.DEVNULL] * 3)]
    assert waited.wait(10)
    monkeypatch.setattr(systems.shutil, "which", lambda name: None)
    assert systems.has_shown(Path("/album/a.jpg")) is False


def test_paths_are_measured_as_linux_does(tmp_path: Path) -> None:
    parts = ["d" * 200] * 25

    def of_size(size: int) -> Path:
        path = tmp_path.joinpath(*parts)
        # No two slashes in a row, wherever this path ends.
        return Path(str(path)[: size - 3] + "d/e")

    assert systems.too_long(of_size(4095)) == systems.too_long(Path("a")) == ""
    assert systems.too_long(of_size(4096)) == "a path of 4096 characters where the system takes 4095"
    assert systems.too_long(tmp_path / ("ö" * 127)) == ""
    told = "a name of 256 characters where the disk takes 255"
    assert systems.too_long(tmp_path / ("ö" * 128)) == told
    assert systems.too_long(tmp_path / ("n" * 256) / "deep") == told


def test_the_disk_of_a_folder_is_the_last_that_was_mounted_nearest(tmp_path, monkeypatch):
    def disks(*mounted: tuple[str, str]) -> str:
        found = [SimpleNamespace(mountpoint=place, fstype=kind, opts="rw") for place, kind in mounted]
        asked = list[bool]()
        monkeypatch.setattr(psutil, "disk_partitions", lambda all: asked.append(all) or found)
        kind = systems.file_system_of(tmp_path / "album")
        assert asked == [True]  # network drives too
        return kind

    here = str(tmp_path)
    assert disks(("/", "ext4"), (here, "exfat"), (f"{here}/elsewhere-and-deep", "cifs")) == "exfat"
    assert disks((here, "exfat"), ("/", "ext4")) == "exfat"
    assert disks((here, "exfat"), (here, "nfs")) == "nfs"
    assert disks(("/", "ext4")) == "ext4"
    assert disks(("/nowhere", "ext4")) == "unknown"
    monkeypatch.setattr(psutil, "disk_partitions", refusing(errno.EACCES))
    assert systems.file_system_of(tmp_path) == "unknown"


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


@pytest.mark.parametrize("error", [OSError, RuntimeError])
def test_free_memory_that_nobody_tells_is_unknown(error, monkeypatch):
    def untold() -> None:
        raise error

    monkeypatch.setattr(psutil, "virtual_memory", untold)
    monkeypatch.setattr(systems, "_CONTAINERS", ())
    assert systems.free_memory() is None


def test_containers_of_both_kinds_of_linux_are_asked() -> None:
    assert [Path(most).name for most, _ in systems._CONTAINERS] == ["memory.max", "memory.limit_in_bytes"]
    assert all(Path(most).parent == Path(taken).parent for most, taken in systems._CONTAINERS)


def test_memory_is_counted_in_bytes_on_each_system(monkeypatch):
    monkeypatch.setattr(systems.resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=3000))
    assert systems.peak_memory() == 3000 * 1024
    monkeypatch.setattr(sys, "platform", "darwin")
    assert systems.peak_memory() == 3000


def test_shared_memory_is_that_of_linux_or_without_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(systems.shutil, "disk_usage", lambda place: SimpleNamespace(free=len(place)))
    monkeypatch.setattr(systems, "SHARED_MEMORY", str(tmp_path))
    assert systems.free_shared_memory() == len(str(tmp_path))
    monkeypatch.setattr(systems, "SHARED_MEMORY", str(tmp_path / "none"))
    assert systems.free_shared_memory() is None


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5} if process == 0 else set())
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    assert systems.available_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert systems.available_cores() == 9
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert systems.available_cores() == 1


def test_a_port_is_taken_alone_and_soon_again() -> None:
    with socket.socket() as one, socket.socket() as two:
        systems.bind_alone(one, ("127.0.0.1", 0))
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1
        one.listen()
        with pytest.raises(OSError):
            systems.bind_alone(two, one.getsockname())

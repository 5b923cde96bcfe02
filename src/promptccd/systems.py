"""Files, disks and memory, as far as Linux, macOS and Windows differ; `promptccd.processes` has processes.

No other module asks which system this is. On Windows a power cut may undo the last rename, because folders are not
flushed there, and files have no modes: everybody who can read a folder can read all files in it.
"""

import contextlib
import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

if sys.platform != "win32":
    import resource

SHARED_MEMORY = "/dev/shm"  # of Linux, and small in containers; other systems have no such limit
# Errors of a disk without modes or without flushes of folders, which are ignored.
_NOT_SUPPORTED = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_CONTAINERS = (  # of Linux: memory limit of a container, and what its processes use
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
# Beginnings of the names of disks that a network or a program serves, and of disks on this computer.
_SERVED = ("nfs", "cifs", "smb", "afp", "9p", "virtiofs", "lustre", "beegfs", "gpfs", "ceph", "fuse")
_LOCAL = ("fuseblk", "fuse.fuse-overlayfs")
# Files that macOS, Windows and file managers of Linux leave in a folder that a person opens.
_LEFT = {".ds_store", "thumbs.db", "ehthumbs.db", "desktop.ini", ".localized", "icon\r", ".directory"}
# Folders of macOS, Windows, Linux and the makers of network drives.
_LEFT_FOLDERS = {
    "__macosx", "$recycle.bin", "system volume information", "recycler", "lost+found", "@eadir", "#recycle",
    "#snapshot", "@recycle", "@recently-snapshot", "@sharebin", "@tmp", "@synoresource",
    *(f"found.{number:03d}" for number in range(1000)),
}  # fmt: skip
_LINK_BIT = 0x20000000  # bit of links and junctions in a reparse tag of Windows, not of placeholders
_PATIENCE_S = 1.0


def open_file(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file for its bytes, through no link, and without waiting for the writer of a pipe.

    Raises:
        OSError: ELOOP if it is a link.
    """
    if sys.platform == "win32":
        if is_link(Path(path)):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
        return os.open(path, flags | os.O_BINARY | os.O_NOINHERIT)
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def is_link(place: "Path | os.DirEntry[str]") -> bool:
    """Whether something leads elsewhere: a symbolic link, on Windows also a junction."""
    if sys.platform != "win32":
        return place.is_symlink()
    try:
        return bool(place.stat(follow_symlinks=False).st_reparse_tag & _LINK_BIT)
    except OSError:
        return False


def rename(source: Path, target: Path) -> None:
    """Give a file or folder another name, in place of a file that has it."""
    if sys.platform != "win32":
        os.rename(source, target)
        return
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            os.replace(source, target)  # `os.rename` does not replace a file
            return
        except PermissionError:  # scanners and indexers open a new file for moments
            if time.monotonic() >= until:
                raise
            time.sleep(0.02)


def flush(path: Path) -> None:
    """Bring the bytes of a file, or the names in a folder, to the disk, where they outlast a power cut."""
    if sys.platform == "win32":
        if path.is_dir():
            return  # Windows opens no folder; its disks write down names in their own time
        descriptor = os.open(path, os.O_RDWR)  # Windows flushes only writable files
    else:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # of folders; a file that cannot be flushed is not safe
        if error.errno not in _NOT_SUPPORTED or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def make_private(path: Path, mode: int = 0o600) -> None:
    """Set the mode of a file where its disk has modes: exFAT, network drives and Windows often have none."""
    try:
        os.chmod(path, mode)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise


def make_read_only(path: Path) -> None:
    """Keep programs from writing into a file, where its disk has modes; on Windows it could not be removed either."""
    if sys.platform != "win32":
        make_private(path, stat.S_IMODE(path.stat().st_mode) & ~0o222)


def is_own_file(path: Path) -> bool:
    """Whether a path is a regular file of this user, and no link; an `OSError` if missing."""
    found = path.stat(follow_symlinks=False)
    return stat.S_ISREG(found.st_mode) and (sys.platform == "win32" or found.st_uid == os.geteuid())


def is_too_long(error: OSError) -> bool:
    """Whether a path could not be made because it is too long; Windows says that its folder is missing."""
    return error.errno == errno.ENAMETOOLONG or (sys.platform == "win32" and error.errno == errno.ENOENT)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or raise an `OSError`."""
    if sys.platform == "win32" and not os.access(source, os.W_OK):  # no name of such a file could be removed
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(source))
    os.link(source, target, follow_symlinks=False)


def has_shown(path: Path) -> bool:
    """Whether a file manager was asked to show a file; a simple file manager shows the folder."""
    commands = {"darwin": ["open", "-R", str(path)], "win32": ["explorer", f"/select,{path}"]}
    command = commands.get(sys.platform, ["xdg-open", str(path.parent)])
    if (program := shutil.which(command[0])) is None:
        return False
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen([program, *command[1:]], stdin=nowhere, stdout=nowhere, stderr=nowhere)
    threading.Thread(target=process.wait, daemon=True).start()  # it may stay as long as its window
    return True


def left_by_system(path: str) -> bool:
    """Whether a file was put there by a system, a file manager or a network drive, and not by a person.

    Args:
        path: inside of the searched folder, with ``/``; at the end, for a folder.
    """
    *folders, name = path.lower().split("/")
    return (
        name in _LEFT
        or name.startswith(("._", ".nfs", ".fuse_hidden"))
        or not _LEFT_FOLDERS.isdisjoint(folders)
    )


def copy_facts(source: Path, target: Path) -> None:
    """Give a copy the dates and the mode of a file, as far as the disk has them."""
    with contextlib.suppress(OSError):
        shutil.copystat(source, target)
        if sys.platform == "win32":
            os.chmod(target, stat.S_IWRITE)  # read-only files could not be removed again


def is_network_drive(folder: Path) -> bool:
    """Whether a folder is on a disk that a network or a program serves, as far as the system tells.

    SQLite's write-ahead log needs memory that all processes share, which such disks do not have.
    """
    place, found = Path(os.path.realpath(folder)), ("", "", "")
    with contextlib.suppress(OSError):
        for each in psutil.disk_partitions(all=True):
            if place.is_relative_to(each.mountpoint) and len(each.mountpoint) >= len(found[0]):
                found = each.mountpoint, each.fstype, each.opts
    _, kind, options = found
    return "remote" in options.split(",") or (kind.startswith(_SERVED) and kind not in _LOCAL)


def free_memory() -> int | None:
    """Available bytes of memory, in a container its own; `None` if unknown."""
    free = [each for each in map(_left_in, _CONTAINERS) if each is not None]
    with contextlib.suppress(OSError, RuntimeError):
        free.append(int(psutil.virtual_memory().available))
    return min(free, default=None)


def peak_memory() -> int:
    """The most bytes that this process had at once."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    else:
        unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, kilobytes on Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free_shared_memory() -> int | None:
    """Bytes that processes can still share; `None` where there is no limit of its own."""
    return shutil.disk_usage(SHARED_MEMORY).free if os.path.isdir(SHARED_MEMORY) else None


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bind_alone(listening: socket.socket, address: tuple[str, int]) -> None:
    """Bind a socket to an unused port, also soon after its last owner ended."""
    option = socket.SO_REUSEADDR
    if sys.platform == "win32":  # where that would share the port, and without this another may still take it
        option = socket.SO_EXCLUSIVEADDRUSE
    listening.setsockopt(socket.SOL_SOCKET, option, True)
    listening.bind(address)


def _left_in(files: tuple[str, str]) -> int | None:
    try:
        most, taken = (int(Path(file).read_text()) for file in files)
    except (OSError, ValueError):  # no container, or one without a limit
        return None
    return max(0, most - taken)

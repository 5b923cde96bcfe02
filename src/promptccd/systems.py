"""What Linux, macOS and Windows do differently with files, disks and memory; `promptccd.processes` does processes.

No module but these two asks which system this is. Windows keeps less in two ways: a power cut may take back the last
rename, because no folder is flushed there, and files have no modes, so whoever may read a folder reads all in it.

`psutil`, which Accelerate brings, tells memory, kinds of disks and the processes that one has started. Locks are a few
lines here: `filelock` and `portalocker` take a file that has a second name elsewhere and keep no owner in it, and the
latter installs pywin32. `platformdirs` would name one folder, of locks that nobody looks for.
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

from promptccd.errors import UnsupportedSystemError

if sys.platform == "win32":
    import _winapi
    import msvcrt
    import winreg
else:
    try:
        import fcntl
        import resource
    except ImportError as error:  # such as Python in a browser
        raise UnsupportedSystemError(
            f"promptccd runs on Linux, macOS and Windows; this is {sys.platform!r}, which has no locks of files."
        ) from error
import psutil  # not before the sentence above: it knows fewer systems than Python

SHARED_MEMORY = "/dev/shm"  # of Linux, and small in containers; other systems have no such limit
# What a disk says to a mode or a flush that it has not got, which changes nothing for us.
_REFUSED_KINDLY = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_CLONE = 0x40049409  # FICLONE of Linux: a file of its own that shares the blocks of another
_CONTAINERS = (  # of Linux: most that this process and those beside it may take, and what they take
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
# Disks that a program serves, and options of Lustre, NFS and SMB with which locks stay on this computer.
_SERVED = ("fuse", "9p", "virtiofs")
_LOCAL_LOCKS = {"localflock", "local_lock=all", "local_lock=flock", "nolock", "nobrl"}
# Left in a folder by macOS and Windows, and by file managers of Linux, when somebody looks into it.
_LEFT = frozenset(
    {".ds_store", "thumbs.db", "ehthumbs.db", "desktop.ini", ".localized", "icon\r", ".directory"}
)
# Of macOS, Windows, Linux and the makers of network drives.
_LEFT_FOLDERS = frozenset(
    {
        "__macosx", "$recycle.bin", "system volume information", "recycler", "lost+found", "@eadir", "#recycle",
        "#snapshot", "@recycle", "@recently-snapshot", "@sharebin", "@tmp", "@synoresource",
    }
    | {f"found.{number:03d}" for number in range(1000)}
)  # fmt: skip
# Of Windows.
_LOCKED_AT = 2**30  # others cannot read a locked byte, and the owner's name stands at the start of the file
_STANDS_FOR_ANOTHER = 0x20000000  # the bit of links and junctions in a reparse tag, which no placeholder has
_PATIENCE_S = 1.0
_DENIED = 5  # ERROR_ACCESS_DENIED
_SHARED = 7  # FILE_SHARE_READ, _WRITE and _DELETE: others may do what they may on Linux
_MAKE_NEW, _OPEN, _MAKE_OR_OPEN = 1, 3, 4  # CREATE_NEW, OPEN_EXISTING, OPEN_ALWAYS
_LINK_ITSELF, _FOLDER_TOO = 0x00200000, 0x02000000  # FILE_FLAG_OPEN_REPARSE_POINT, FILE_FLAG_BACKUP_SEMANTICS
_TO_DELETE = 0x00010000  # DELETE, the right that a rename needs
_LONG_PATHS = r"SYSTEM\CurrentControlSet\Control\FileSystem"


def open_file(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file for its bytes, through no link, and without waiting for the writer of a pipe.

    Raises:
        OSError: ELOOP if it is a link.
    """
    if sys.platform == "win32":
        return _open_on_windows(os.fspath(path), flags)
    no_wait = 0 if flags & os.O_EXCL else os.O_NONBLOCK  # what is made now is no pipe
    return os.open(path, flags | os.O_NOFOLLOW | no_wait, 0o666)


def is_link(place: "Path | os.DirEntry[str]") -> bool:
    """Whether something leads elsewhere: a symbolic link, on Windows also a junction."""
    if sys.platform != "win32":
        return place.is_symlink()
    try:
        return bool(place.stat(follow_symlinks=False).st_reparse_tag & _STANDS_FOR_ANOTHER)
    except OSError:
        return False


def rename(source: Path, target: Path) -> None:
    """Give a file or folder another name, in place of a file that has it."""
    if sys.platform == "win32":
        _rename_on_windows(source, target)
    else:
        os.rename(source, target)


def flush(path: Path) -> None:
    """Bring the bytes of a file, or the names in a folder, to the disk, where they outlast a power cut."""
    if sys.platform == "win32":
        if path.is_dir():
            return  # Windows opens no folder; its disks write down names in their own time
        descriptor = os.open(path, os.O_RDWR)  # Windows flushes only what one may write
    else:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # of folders; a file that cannot be flushed is not safe
        if error.errno not in _REFUSED_KINDLY or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def has_locked(descriptor: int) -> bool:
    """Whether the lock of a file was free, and is ours until the file is closed or this process ends.

    Raises:
        OSError: there are no locks on that disk.
    """
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, _LOCKED_AT, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held = (errno.EACCES, errno.EDEADLK) if sys.platform == "win32" else (errno.EWOULDBLOCK, errno.EAGAIN)
        if error.errno not in held:
            raise
        return False
    return True


def read_at(descriptor: int, length: int, start: int) -> bytes:
    """Bytes of a file from a position on."""
    if sys.platform != "win32":
        return os.pread(descriptor, length, start)
    os.lseek(descriptor, start, os.SEEK_SET)  # Windows reads and writes where the file stands
    return os.read(descriptor, length)


def write_at(descriptor: int, content: bytes, start: int) -> int:
    """Write bytes into a file from a position on; how many were written."""
    if sys.platform != "win32":
        return os.pwrite(descriptor, content, start)
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.write(descriptor, content)


def make_private(target: Path | int, mode: int = 0o600) -> None:
    """Set the mode of a file where its disk has modes: exFAT, network drives and Windows often have none."""
    if sys.platform == "win32" and isinstance(target, int):
        return  # it takes paths alone
    try:
        os.chmod(target, mode)
    except OSError as error:
        if error.errno not in _REFUSED_KINDLY:
            raise


def make_read_only(path: Path) -> None:
    """Keep programs from writing into a file, where its disk has modes; on Windows it could not be removed either."""
    if sys.platform != "win32":
        make_private(path, stat.S_IMODE(path.stat().st_mode) & ~0o222)


def is_own_file(path: Path) -> bool:
    """Whether a path is a regular file of this user, and no link; an `OSError` if there is none."""
    found = path.stat(follow_symlinks=False)
    return stat.S_ISREG(found.st_mode) and (sys.platform == "win32" or found.st_uid == os.geteuid())


def is_private(seen: os.stat_result) -> bool:
    """Whether a file is of this user and nobody else can read it, where its disk knows such a thing."""
    return sys.platform == "win32" or (seen.st_uid == os.geteuid() and not seen.st_mode & 0o077)


def has_cloned(source: int, target: int) -> bool:
    """Whether the disk let an open file share the blocks of another, as Btrfs and XFS do."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.ioctl(target, _CLONE, source)
            return True
    return False


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or raise an `OSError`."""
    if sys.platform == "win32" and not os.access(source, os.W_OK):  # no name of such a file could be removed
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(source))
    os.link(source, target, follow_symlinks=False)


def has_shown(path: Path) -> bool:
    """Whether a file manager was asked to show a file; one that knows folders alone shows the folder."""
    commands = {
        "darwin": ["open", "-R", str(path)],
        "win32": ["explorer", f"/select,{path}"],
    }
    command = commands.get(sys.platform, ["xdg-open", str(path.parent)])
    if (program := shutil.which(command[0])) is None:
        return False
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen([program, *command[1:]], stdin=nowhere, stdout=nowhere, stderr=nowhere)
    threading.Thread(target=process.wait, daemon=True).start()  # it may stay as long as its window
    return True


def left_by_system(path: str) -> bool:
    """Whether a file was put there by a system, a file manager or a network drive, and is nobody's.

    Args:
        path: inside of what is looked at, with ``/``; at the end, for a folder.
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
            os.chmod(target, stat.S_IWRITE)  # what is read-only could not be removed again


def too_long(path: Path) -> str:
    """In what a path is longer than the system and the disk of its folder take; empty if it is not."""
    path = Path(os.path.abspath(path))
    if len(os.fsencode(path)) < 140:
        return ""
    if sys.platform == "win32":  # which counts in UTF-16
        size, *parts = (len(each.encode("utf-16-le")) // 2 for each in (str(path), *path.parts))
        most, most_named = _most_on_windows(), 255
    else:
        size, *parts = (len(os.fsencode(each)) for each in (str(path), *path.parts))
        there = next(each for each in path.parents if os.path.exists(each))
        most, most_named = os.pathconf(there, "PC_PATH_MAX") - 1, os.pathconf(there, "PC_NAME_MAX")
    if max(parts) > most_named:
        return f"a name of {max(parts)} characters where the disk takes {most_named}"
    return f"a path of {size} characters where the system takes {most}" if size > most else ""


def error_number(number: int) -> int:
    """The ``errno`` of an error that a library tells by the system's own number."""
    return OSError(0, "", None, number).errno or 0 if sys.platform == "win32" else number


def file_system_of(folder: Path) -> str:
    """The kind of the disk that a folder is on, such as ``exfat``, as far as the system tells."""
    return _mount_of(folder)[0]


def locks_reach(folder: Path) -> bool:
    """Whether other computers that have the disk of a folder see locks of this one, as far as the system tells.

    Linux keeps locks to itself where a network drive is told so, or where a program serves the disk (FUSE, 9p,
    virtiofs) and does not speak of locks.
    """
    kind, options = _mount_of(folder)
    if kind in _SERVED or (kind.startswith("fuse.") and kind != "fuse.fuse-overlayfs"):
        return False
    return _LOCAL_LOCKS.isdisjoint(options.split(","))


def is_running(process: int) -> bool:
    """Whether a process of this computer has not ended."""
    return psutil.pid_exists(process)


def _mount_of(folder: Path) -> tuple[str, str]:
    """Kind and options of the disk that a folder is on."""
    place, found = Path(os.path.realpath(folder)), ("", "unknown", "")
    with contextlib.suppress(OSError):
        for each in psutil.disk_partitions(all=True):
            if place.is_relative_to(each.mountpoint) and len(each.mountpoint) >= len(found[0]):
                found = each.mountpoint, each.fstype, each.opts
    return found[1:]


def free_memory() -> int | None:
    """Bytes that can be asked for without driving others out, in a container its own; `None` where nobody tells."""
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
    """Bind a socket to a port that nobody else listens on, also soon after its last owner ended."""
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


if sys.platform == "win32":

    def _open_on_windows(path: str, flags: int) -> int:
        """Open what stands under a name, be it a link, and refuse that; `os.open` would follow it."""
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        access = _winapi.GENERIC_WRITE if writes else 0
        access |= _winapi.GENERIC_READ if writes != os.O_WRONLY else 0
        making = _MAKE_NEW if flags & os.O_EXCL else _MAKE_OR_OPEN if flags & os.O_CREAT else _OPEN
        try:
            handle = _winapi.CreateFile(path, access, _SHARED, 0, making, _LINK_ITSELF, 0)
        except OSError as error:
            if error.winerror == _DENIED and os.path.isdir(path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from None
            raise OSError(error.errno, error.strerror, path, error.winerror) from None
        plain = os.O_BINARY | os.O_NOINHERIT | (flags & os.O_APPEND)
        descriptor = msvcrt.open_osfhandle(handle, plain)
        found = os.fstat(descriptor)
        if not found.st_file_attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT:
            return descriptor
        os.close(descriptor)
        named = os.lstat(path)
        if named.st_reparse_tag & _STANDS_FOR_ANOTHER or not os.path.samestat(named, found):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return os.open(path, writes | plain)  # a placeholder, whose bytes its program fetches from a cloud

    def _rename_on_windows(source: Path, target: Path) -> None:
        """Wait a second for who has a file open: scanners and indexers hold a new one for moments."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                os.replace(source, target)  # `os.rename` takes no name that is taken
                return
            except PermissionError:
                if time.monotonic() >= until or _is_denied(source, target):
                    raise
                time.sleep(0.02)

    def _is_denied(source: Path, target: Path) -> bool:
        """Whether a rename is refused for good; while somebody has a file open, Windows often says the same."""
        for path in (source, target):
            try:
                flags = _LINK_ITSELF | _FOLDER_TOO
                _winapi.CloseHandle(_winapi.CreateFile(str(path), _TO_DELETE, _SHARED, 0, _OPEN, flags, 0))
            except OSError as refused:
                if refused.winerror == _DENIED:
                    return True
        return target.is_dir() or (target.exists() and not os.access(target, os.W_OK))

    def _most_on_windows() -> int:
        """Characters of a path: 259 unless an administrator allowed more."""
        with contextlib.suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _LONG_PATHS) as key:
            if winreg.QueryValueEx(key, "LongPathsEnabled")[0]:
                return 32_766
        return 259

"""A pretended Windows on Linux, for calls that come from this package; it is a `sitecustomize` of a process.

What Windows lacks is not there; what it does otherwise is done so: a folder cannot be opened, a file that is read
cannot be flushed, a name that is taken stays so, what somebody has open is neither renamed nor removed, a descriptor is
text unless it says binary, names are those of NTFS, processes are started anew. What Python tells of Windows
(attributes of files) is here as far as the package asks.

Not pretended: separators of paths, what other processes have open, and ACLs.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

REFUSED_LOG = "PRETEND_WINDOWS_LOG"
ROOT = "PRETEND_WINDOWS"  # the folder of the package
OURS = "on_windows.py"  # a script that is there, too
JUNCTION = "junction"  # links so called pretend to be one
SYMLINK_TAG, JUNCTION_TAG = 0xA000000C, 0xA0000003
# Of files so called, which are no links.
REPARSE_TAGS = {"placeholder": 0x9000001A, "deduplicated": 0x80000013}
_SHARING_VIOLATION, _ACCESS_DENIED = 32, 5


def environment(folder: Path) -> dict[str, str]:
    """The environment of a process that believes to be on Windows; `folder` takes its `sitecustomize`."""
    import promptccd

    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(__file__, folder / "sitecustomize.py")
    source = Path(promptccd.__file__).parents[1]
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PYTHONPATH": os.pathsep.join([str(folder), str(source), str(Path(__file__).parents[1])]),
        ROOT: str(source),
        REFUSED_LOG: str(folder / "refused.log"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def refused(folder: Path) -> list[str]:
    """What was asked of this Windows in vain, a line each."""
    log = folder / "refused.log"
    return sorted(set(log.read_text().splitlines())) if log.exists() else []


def begin() -> None:  # noqa: C901 - one process believes all of it
    """Let this process believe it."""
    import builtins
    import errno
    import fcntl
    import io
    import multiprocessing.context
    import select
    import signal
    import socket
    import stat
    import types

    import psutil

    source, here = os.environ[ROOT], os.path.abspath(__file__)
    library = os.path.dirname(os.__file__) + os.sep
    names = "open write close fsync rename replace unlink kill lstat stat mkdir chmod scandir access"
    real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in names.split()}
    real_open = io.open

    def ours(file: str) -> bool:
        is_package = file.startswith(source) and "site-packages" not in file[len(source) :]
        return is_package or os.path.basename(file) == OURS

    def asks(*, through: bool = False) -> bool:
        """Whether the package calls, by itself or through the standard library."""
        frame = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            is_installed = file.startswith(library) and "site-packages" not in file
            in_library = (is_installed or file.startswith("<frozen")) and not file.endswith("tempfile.py")
            if file == here or (through and in_library):
                frame = frame.f_back  # type: ignore[assignment]
                continue
            return ours(file)
        return False

    def refuse(what: str, error: BaseException) -> None:
        with real_open(os.environ[REFUSED_LOG], "a", encoding="utf-8") as log:
            log.write(f"{what}\n")
        raise error

    def os_error(number: int, winerror: int, path: Any = None) -> OSError:
        error = OSError(number, os.strerror(number), None if path is None else os.fspath(path))
        error.winerror = winerror  # type: ignore[attr-defined]
        return error

    # Modules

    absent = {"fcntl", "resource", "pwd", "grp", "termios", "multiprocessing.popen_fork"}
    instead: dict[str, Any] = {}
    real_import = builtins.__import__

    def imports(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if level == 0 and globals and ours(globals.get("__file__") or ""):
            if name in absent:
                refuse(f"import {name}", ModuleNotFoundError(f"No module named {name!r}", name=name))
            if name in instead:
                return instead[name]
        return real_import(name, globals, locals, fromlist, level)

    builtins.__import__ = imports

    memory: Any = type(psutil.Process().memory_info())
    memory.peak_wset = property(lambda found: found.rss)  # its name there

    class Sys(types.ModuleType):
        platform = "win32"

        def __getattr__(self, name: str) -> Any:
            return getattr(sys, name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(sys, name, value)

    instead |= {"sys": Sys("sys")}

    text: set[int] = set()

    class Status:
        """What Windows tells of a file, besides."""

        def __init__(self, found: os.stat_result, name: str):
            self._found, name = found, os.path.basename(name)
            is_link = stat.S_ISLNK(found.st_mode)
            link = JUNCTION_TAG if name.startswith(JUNCTION) else SYMLINK_TAG
            self.st_reparse_tag = link if is_link else REPARSE_TAGS.get(name.partition(".")[0], 0)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._found, name)

        def __getitem__(self, index: int) -> Any:
            return self._found[index]

    def p_stat(path: Any, *, dir_fd: Any = None, follow_symlinks: bool = True) -> Any:
        found = real["stat"](path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        wraps = not follow_symlinks and isinstance(path, (str, os.PathLike)) and asks(through=True)
        return Status(found, os.fspath(path)) if wraps else found  # type: ignore[arg-type]

    class Entry:
        def __init__(self, entry: Any):
            self._entry = entry

        def __getattr__(self, name: str) -> Any:
            return getattr(self._entry, name)

        def __fspath__(self) -> str:
            return str(self._entry.path)

        def is_symlink(self) -> bool:
            return bool(self._entry.is_symlink() and not self._entry.name.startswith(JUNCTION))

        def stat(self, *, follow_symlinks: bool = True) -> Any:
            return Status(self._entry.stat(follow_symlinks=follow_symlinks), self._entry.name)

    def p_scandir(path: Any = ".") -> Any:
        listed = real["scandir"](path)
        return contextlib.nullcontext(map(Entry, listed)) if asks() else listed

    # Names of modules that are not there, or are others

    gone = {
        "os": "O_NOFOLLOW O_NONBLOCK O_CLOEXEC O_DIRECTORY fchmod pread pwrite killpg setpgid setsid fork getuid "
        "geteuid getpgid mkfifo register_at_fork posix_fadvise statvfs sysconf pathconf getloadavg uname wait3 WNOHANG "
        "sched_getaffinity",
        "select": "poll POLLERR epoll",
        "signal": "SIGKILL SIGPIPE SIGHUP SIGCHLD SIGALRM pthread_sigmask pthread_kill alarm sigwait",
        "multiprocessing.context": "ForkServerProcess ForkProcess",
        "socket": "AF_UNIX SO_REUSEPORT",
    }
    absent_names = {(module, name) for module, listed in gone.items() for name in listed.split()}
    others = {
        ("os", "name"): "nt",
        ("os", "O_BINARY"): 0x8000,
        ("os", "O_NOINHERIT"): os.O_CLOEXEC,
        ("signal", "SIGBREAK"): signal.SIGUSR1,
        ("socket", "SO_EXCLUSIVEADDRUSE"): socket.SO_KEEPALIVE,  # of no consequence
    }

    class Pretended(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            get = object.__getattribute__
            key = get(self, "__dict__").get("__name__"), name
            if (key in absent_names or key in others) and ours(sys._getframe(1).f_code.co_filename):
                if key in others:
                    return others[key]
                text = f"module {key[0]!r} has no attribute {name!r}"
                if name == "sched_getaffinity":  # is asked for with hasattr
                    raise AttributeError(text)
                refuse(f"{key[0]}.{name}", AttributeError(text))
            return get(self, name)

    for module in (os, select, signal, multiprocessing.context, socket):
        module.__class__ = Pretended

    # Files

    def p_open(path: Any, flags: int, mode: int = 0o777, **named: Any) -> int:
        if not asks():
            descriptor = real["open"](path, flags & ~0x8000, mode, **named)
            text.discard(descriptor)
            return descriptor
        if flags & os.O_CREAT:
            require_name(path)
        if os.path.isdir(path):
            refuse("open a folder", os_error(errno.EACCES, _ACCESS_DENIED, path))
        descriptor = real["open"](path, (flags & ~0x8000) | os.O_CLOEXEC, mode, **named)
        (text.discard if flags & 0x8000 else text.add)(descriptor)
        return descriptor

    def p_write(descriptor: int, data: Any) -> int:
        if descriptor in text and b"\n" in bytes(data) and asks():
            real["write"](descriptor, bytes(data).replace(b"\n", b"\r\n"))
            return len(data)
        return int(real["write"](descriptor, data))

    def p_close(descriptor: int) -> None:
        text.discard(descriptor)
        real["close"](descriptor)

    def p_fsync(descriptor: int) -> None:
        if asks() and fcntl.fcntl(descriptor, fcntl.F_GETFL) & 3 == os.O_RDONLY:
            refuse("fsync of what is read", OSError(errno.EBADF, "Bad file descriptor"))
        real["fsync"](descriptor)

    def resolved(path: Any) -> str:
        parent, name = os.path.split(os.path.abspath(os.fsdecode(path)))
        return os.path.join(os.path.realpath(parent), name)

    def used(path: str) -> str:
        """A file at or below a path that this process holds open or mapped."""
        targets = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
        with real_open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            targets += ["/" + line.rstrip("\n").partition("/")[2] for line in maps]
        files = (each for each in targets if f"{each}{os.sep}".startswith(f"{path}{os.sep}"))
        return next(filter(os.path.isfile, files), "")

    def require_unused(what: str, *paths: str) -> None:
        for path in paths:
            if found := used(path):
                refuse(f"{what} {os.path.basename(found)}", os_error(errno.EACCES, _SHARING_VIOLATION, path))

    def is_read_only(path: str) -> bool:
        return os.path.isfile(path) and not real["lstat"](path).st_mode & 0o200

    def p_rename(source: Any, target: Any, **named: Any) -> None:
        if asks(through=True):
            require_name(target)
            if os.path.lexists(new := resolved(target)):
                refuse("rename onto what is there", os_error(errno.EEXIST, 183, new))
            require_unused("rename", resolved(source), new)
        real["rename"](source, target, **named)

    def p_replace(source: Any, target: Any, **named: Any) -> None:
        if asks(through=True):
            require_name(target)
            if os.path.isdir(new := resolved(target)) or is_read_only(new):
                refuse("replace what may not be", os_error(errno.EACCES, _ACCESS_DENIED, new))
            require_unused("replace", resolved(source), new)
        real["replace"](source, target, **named)

    def p_unlink(path: Any, **named: Any) -> None:
        if asks(through=True):
            if is_read_only(gone := resolved(path)):
                refuse("unlink what is read-only", os_error(errno.EACCES, _ACCESS_DENIED, gone))
            require_unused("unlink", gone)
        real["unlink"](path, **named)

    def p_chmod(path: Any, mode: int, **named: Any) -> None:
        if isinstance(path, int) and asks():
            refuse("chmod of a descriptor", TypeError("chmod: path should be string, bytes or os.PathLike"))
        real["chmod"](path, mode, **named)

    def p_access(path: Any, mode: int, **named: Any) -> bool:
        if mode == os.W_OK and asks():  # root may write to everything; Windows looks at the attribute
            return not is_read_only(os.fspath(path)) and os.path.exists(path)
        return bool(real["access"](path, mode, **named))

    def p_kill(process: int, number: int) -> None:
        real["kill"](process, 9 if asks(through=True) else number)  # all but Ctrl+Break end a process at once

    def p_mkdir(path: Any, mode: int = 0o777, **named: Any) -> None:
        if asks(through=True):
            require_name(path)
        real["mkdir"](path, mode, **named)

    replaced = (
        p_open, p_write, p_close, p_fsync, p_rename, p_replace, p_unlink, p_chmod, p_kill, p_stat, p_scandir, p_access,
        p_mkdir,
    )  # fmt: skip
    for each in replaced:
        setattr(os, each.__name__.removeprefix("p_"), each)
    os.remove = p_unlink  # type: ignore[assignment]
    os.supports_dir_fd |= {p_open, p_unlink, p_rename, p_stat}  # type: ignore[operator]
    os.supports_follow_symlinks |= {p_stat, p_chmod}  # type: ignore[operator]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # the `rmtree` of Windows

    # Names that NTFS refuses, and text

    reserved = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}

    def require_name(path: Any) -> None:
        for part in os.fsdecode(path).split("/"):
            if part in ("", ".", ".."):
                continue
            strange = set(part) & set('<>:"|?*\\') or any(ord(each) < 32 for each in part)
            if strange or part.endswith((" ", ".")) or part.partition(".")[0].rstrip().lower() in reserved:
                refuse(f"a name {part!r}", os_error(errno.EINVAL, 123, path))

    def p_builtin_open(
        file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
        newline: Any = None, closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        is_path = isinstance(file, (str, bytes, os.PathLike))
        if is_path and asks(through=True):
            if set(mode) & set("wxa"):
                require_name(file)
            if "b" not in mode:
                encoding = encoding or "cp1252"
                newline = "\r\n" if newline is None and set(mode) & set("wxa") else newline
        return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)

    builtins.open = io.open = p_builtin_open  # type: ignore[assignment]

    # Processes

    multiprocessing.set_start_method("spawn")
    real_context = multiprocessing.context.DefaultContext.get_context

    def p_context(self: Any, method: Any = None) -> Any:
        if method in ("fork", "forkserver") and asks(through=True):
            refuse(f"get_context({method!r})", ValueError(f"cannot find context for {method!r}"))
        return real_context(self, method)

    multiprocessing.context.DefaultContext.get_context = p_context  # type: ignore[method-assign,assignment]
    multiprocessing.get_context = multiprocessing.context._default_context.get_context  # type: ignore[attr-defined]


if __name__ == "sitecustomize" and ROOT in os.environ:
    from tests.mutants import started

    started.begin()
    begin()

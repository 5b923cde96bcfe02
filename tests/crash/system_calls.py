"""Every system call of a process that changes the disk, and the process killed at any of them.

The kernel tells (seccomp with a listener, Linux 5.9 on, no privileges): a filter in the watched process hands each
such call to the watcher before it is done. So what C, Rust and C++ write is seen as well as what Python writes, and
no call can be forgotten by a list of places in the code.

The state of the disk after one call is the state before the next. Killing before every call, and once more after the
last one, is therefore killing before and after each. Calls that only wait for the disk (fsync) change nothing there.
"""

import contextlib
import ctypes
import faulthandler
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.processes import processes_of

MACHINE = "x86_64"  # whose numbers these are
# By which arguments name what is changed, a file descriptor, or (folder or None, path): names and numbers.
Where = int | tuple[int | None, int]
_BY_PLACE: dict[tuple[Where, ...], dict[str, int]] = {
    (0,): {
        "write": 1, "pwrite64": 18, "writev": 20, "pwritev": 296, "pwritev2": 328, "sendfile": 40, "ftruncate": 77,
        "fallocate": 285, "fchmod": 91, "fsetxattr": 190, "sendto": 44, "recvfrom": 45,
    },
    (2,): {"copy_file_range": 326},
    ((None, 0),): {
        "open": 2, "creat": 85, "truncate": 76, "mkdir": 83, "rmdir": 84, "unlink": 87, "chmod": 90, "setxattr": 188,
    },
    ((0, 1),): {"openat": 257, "mkdirat": 258, "unlinkat": 263, "fchmodat": 268, "utimensat": 280},
    ((None, 0), (None, 1)): {"rename": 82},
    ((0, 1), (2, 3)): {"renameat": 264, "renameat2": 316},
    ((None, 1),): {"link": 86, "symlink": 88},
    ((2, 3),): {"linkat": 265},
    ((1, 2),): {"symlinkat": 266},
}  # fmt: skip
CALLS = {number: (name, place) for place, of in _BY_PLACE.items() for name, number in of.items()}
_OPENING = {2: 1, 257: 2}  # the argument that holds the flags; reading is not asked about
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_DATA = (1, 18)  # write and pwrite64, which can be cut short
CONNECTION = "(connection)"

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # of the filter's little machine
_INSTRUCTION = struct.Struct("HBBI")  # what to do, steps to skip if so and if not, a number
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000
_SET_MODE_FILTER, _NEW_LISTENER, _NO_NEW_PRIVILEGES = 1, 8, 38
_SECCOMP = 317
_RECEIVE, _ANSWER, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082104
_WAKE_AT_ONCE = 1  # Linux 6.6 on: on a busy machine each call would wait for its turn twice
_GO_ON = 1
_ASKED = struct.Struct("QIIiIQ6Q")  # id, process, flags; number, machine, place, six arguments
_AT_CURRENT = 2**64 - 100, 2**32 - 100
_LONGEST_PATH = 4096
LONGEST_RUN_S = 300.0


class Verdict(Enum):
    """What becomes of a call: done, or the process is killed before it, or when half of what it writes is written."""

    GO_ON = "go on"
    KILL = "killed before"
    CUT = "killed halfway"


@dataclass(frozen=True)
class Call:
    """One system call.

    Attributes:
        name: as the manual has it.
        path: the file below the watched folder that it changes, or `CONNECTION`.
        writes: whether it can be cut short.
    """

    name: str
    path: str
    writes: bool


Decide = Callable[[Call], Verdict]


def can_watch() -> bool:
    """Whether this machine lets a process be watched."""
    if platform.machine() != MACHINE or platform.system() != "Linux":
        return False
    try:
        return run_watched(lambda: 0, Path("/nowhere"), lambda call: Verdict.GO_ON) == 0
    except OSError:
        return False


def run_watched(work: Callable[[], int], folder: Path, decide: Decide, log: Path | None = None) -> int | None:
    """Run work in a forked process; `decide` is told of every call that changes something below a folder.

    Args:
        work: returns the exit code.
        folder: what is watched.
        decide: says what becomes of each call, while the process waits.
        log: gets what it prints.

    Returns:
        The exit code; `None` if it was killed.

    Raises:
        OSError: this machine does not let processes be watched.
        TimeoutError: it neither ended nor was killed.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        _be_watched(work, theirs, log)
    theirs.close()
    with ours:
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        os.waitpid(child, 0)
        raise OSError("seccomp with a listener is not allowed here")
    try:
        return _watch(descriptors[0], child, folder, decide)
    finally:
        kill_session(child)
        os.close(descriptors[0])


def kill_session(leader: int) -> None:
    """End a process and all that it started and that stayed in its session."""
    while found := [each for each in processes_of(leader) if each != os.getpid()]:
        for each in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.002)


def _be_watched(work: Callable[[], int], watcher: socket.socket, log: Path | None) -> None:
    """What the forked process does; it does not come back."""
    code = 99
    try:
        os.setsid()
        if log is not None:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            faulthandler.dump_traceback_later(LONGEST_RUN_S - 5, file=sys.__stderr__)
        try:
            socket.send_fds(watcher, [b"."], [_install_filter()])
        except OSError:
            watcher.close()
            os._exit(1)
        watcher.close()
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _install_filter() -> int:
    """Ask the kernel to hand the calls over; returns the descriptor where they arrive."""
    number, arguments = 0, 16  # where they lie in what the filter sees
    ask, allow = (_RETURN, 0, 0, _ASK), (_RETURN, 0, 0, _ALLOW)
    steps = [(_LOAD, 0, 0, number)]
    for call in CALLS.keys() - _OPENING.keys():
        steps += [(_EQUAL, 0, 1, call), ask]
    for call, flags in _OPENING.items():
        steps += [
            (_EQUAL, 0, 4, call),
            (_LOAD, 0, 0, arguments + 8 * flags),
            (_ANY_BIT, 0, 1, _WRITING),
            ask,
            allow,
        ]
    steps.append(allow)
    instructions = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    listener = libc.syscall(_SECCOMP, _SET_MODE_FILTER, _NEW_LISTENER, program)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return int(listener)


def _watch(listener: int, child: int, folder: Path, decide: Decide) -> int | None:
    poll, until = select.poll(), time.monotonic() + LONGEST_RUN_S
    poll.register(listener, select.POLLIN)
    with contextlib.suppress(OSError):
        fcntl.ioctl(listener, _SET_FLAGS, _WAKE_AT_ONCE)
    ended: int | None = None
    while time.monotonic() < until:
        events = poll.poll(20)
        if events and events[0][1] & select.POLLIN:
            if not _go_on(listener, folder, decide):
                kill_session(child)
                os.waitpid(child, 0)
                return None
        elif ended is None:
            found, status = os.waitpid(child, os.WNOHANG)
            ended = os.waitstatus_to_exitcode(status) if found else None
        elif not events or events[0][1] & select.POLLHUP:
            return ended  # and so have those it started
    raise TimeoutError(f"not at its end after {LONGEST_RUN_S:.0f} s")


def _go_on(listener: int, folder: Path, decide: Decide) -> bool:
    """Answer the process that waits; `False` if it is to be killed."""
    asked = bytearray(_ASKED.size)
    call = None
    try:
        fcntl.ioctl(listener, _RECEIVE, asked)
    except FileNotFoundError:  # whoever asks may die meanwhile
        return True
    name, process, _, number, _, _, *arguments = _ASKED.unpack(asked)
    with contextlib.suppress(FileNotFoundError):  # a path may be gone; the answer is due all the same
        call = _call(process, number, arguments, folder)
    verdict = Verdict.GO_ON if call is None else decide(call)
    if verdict is Verdict.CUT and call and call.writes:  # calls of threads may come in another order
        _write_half(process, number, arguments)
    if verdict is not Verdict.GO_ON:
        return False
    with contextlib.suppress(FileNotFoundError):
        fcntl.ioctl(listener, _ANSWER, struct.pack("QqiI", name, 0, 0, _GO_ON))
    return True


def _call(process: int, number: int, arguments: list[int], folder: Path) -> Call | None:
    """The call, if it changes something below the folder or goes out."""
    name, places = CALLS[number]
    for place in places:
        path = _path(process, place, arguments)
        if isinstance(place, int) and path.startswith("socket:"):
            return Call(name, CONNECTION, False)
        if path.startswith(f"{folder}/"):
            return Call(name, path.removeprefix(f"{folder}/"), number in _DATA and arguments[2] > 1)
    return None


def _path(process: int, place: Where, arguments: list[int]) -> str:
    if isinstance(place, int):
        return _target_of(process, f"fd/{arguments[place] % 2**32}")
    start, path = place
    address, given = arguments[path], ""
    if address:  # none for utimensat of an open file
        content = _memory(process, address, _LONGEST_PATH).partition(b"\0")[0]
        given = content.decode(errors="surrogateescape")
    if given.startswith("/"):
        return os.path.normpath(given)
    at = None if start is None else arguments[start]
    base = "cwd" if at is None or at in _AT_CURRENT else f"fd/{at % 2**32}"
    return os.path.normpath(os.path.join(_target_of(process, base), given))


def _target_of(process: int, link: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{process}/{link}")
    return ""


def _memory(process: int, address: int, length: int) -> bytes:
    with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        page = os.sysconf("SC_PAGE_SIZE")
        found = b""
        while len(found) < length:  # the next page may not be there
            try:
                found += memory.read(min(length - len(found), page - (address + len(found)) % page))
            except OSError:
                break
        return found


def _write_half(process: int, number: int, arguments: list[int]) -> None:
    """What a process that dies in the middle of a write leaves."""
    descriptor, address, length, place = arguments[0] % 2**32, *arguments[1:4]
    facts = Path(f"/proc/{process}/fdinfo/{descriptor}").read_text().split()
    flags = int(facts[facts.index("flags:") + 1], 8)
    position = place if number != 1 else int(facts[facts.index("pos:") + 1])
    half = _memory(process, address, length // 2)
    file = os.open(f"/proc/{process}/fd/{descriptor}", os.O_WRONLY | (flags & os.O_APPEND))
    try:
        os.write(file, half) if flags & os.O_APPEND else os.pwrite(file, half, position)
    finally:
        os.close(file)

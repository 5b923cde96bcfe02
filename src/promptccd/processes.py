"""What Linux, macOS and Windows do differently with signals and processes; see `promptccd.systems` for all else."""

import contextlib
import errno
import multiprocessing
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from typing import Any

if sys.platform == "win32":
    import ctypes

    import psutil
else:
    import select
    from multiprocessing import forkserver

CTRL_C: int = signal.SIGINT
TERMINATE: int = signal.SIGTERM
IGNORED = signal.SIG_IGN
LINGERS_S = 30.0  # a loader process that is asked to end, where its parent does not end it before
BROKEN_PIPE = 128 + 13  # what a shell reports of a program whose reader went away; Windows has no SIGPIPE
_ENDING = [CTRL_C, TERMINATE]
if sys.platform == "win32":  # whose Ctrl+Break, and closed windows and sessions, are a signal of their own
    _ENDING.append(signal.SIGBREAK)


def is_first_process() -> bool:
    """Whether this is the only process, or the first that ``torchrun`` or ``accelerate launch`` started."""
    return os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE", "1") == "1"


def on_ending(handler: Any) -> dict[int, Any]:
    """Let a handler meet the signals that ask this process to end; returns the handlers of before, for `restore`.

    What was ignored stays so: a command that was started with nohup or in the background by a script ignores Ctrl-C.
    """
    heeded = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heeded}


def restore(handlers: dict[int, Any]) -> None:
    """Put back what `on_ending` returned."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


def signal_myself(number: int) -> None:
    """Let the main thread meet a signal."""
    if sys.platform == "win32":
        signal.raise_signal(number)  # `os.kill` would end the process at once there
    else:
        os.kill(os.getpid(), number)


def reader_is_gone(error: OSError, descriptor: int) -> bool:
    """Whether a write failed because the other end of the pipe is closed."""
    if sys.platform == "win32":  # which says EINVAL of it as well, and has nothing to ask
        return error.errno in (errno.EPIPE, errno.EINVAL) and stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    else:
        poll = select.poll()
        poll.register(descriptor)
        return isinstance(error, BrokenPipeError) and any(e & select.POLLERR for _, e in poll.poll(0))


class ProcessApart:
    """A process that the terminal's Ctrl-C does not reach, and that ends with those that it starts, and with us.

    On Linux and macOS it leads a group, and is forked from a server that has all imported. On Windows it is started
    anew, and asked to end through a pipe: CTRL_BREAK_EVENT would end its loader processes too, needs a console, and may
    come before anybody listens.

    Args:
        target: a function of a module.
        args: of it; they are pickled.
        preload: modules that the server imports.
    """

    def __init__(self, target: Callable[..., None], args: Sequence[Any], preload: Sequence[str]):
        receiving: Any = None
        if sys.platform == "win32":
            receiving, self._asked = multiprocessing.Pipe()
        context = _context(preload)
        self._process = context.Process(target=_apart, args=(receiving, target, args))
        with _deaf_to_ctrl_c():
            self._process.start()

    @property
    def sentinel(self) -> int:
        """For `multiprocessing.connection.wait`: ready when the process has ended."""
        return self._process.sentinel

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    def stop(self) -> None:
        """Ask it to end."""
        if sys.platform == "win32":
            with contextlib.suppress(OSError):  # it has ended
                self._asked.send_bytes(b"end")
        else:
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and those that it started at once."""
        self.end_rest()
        self._process.join()

    def end_rest(self) -> None:
        """End those that it started, or itself if only the server died."""
        if sys.platform == "win32":
            with contextlib.suppress(psutil.NoSuchProcess):
                _end_tree(psutil.Process(self._process.pid))
        else:
            self._signal(signal.SIGKILL)

    def ended(self) -> tuple[int, str]:
        """Its exit code once it has ended, and what killed it if something did."""
        self._process.join()
        code: int = self._process.exitcode
        if code >= 0:
            return code, ""
        name = signal.Signals(-code).name
        return code, f"killed by signal {-code} ({name}){'; out of memory?' * (name == 'SIGKILL')}"

    if sys.platform != "win32":

        def _signal(self, number: signal.Signals) -> None:
            assert self._process.pid is not None
            with contextlib.suppress(ProcessLookupError):
                try:
                    os.killpg(self._process.pid, number)
                except ProcessLookupError:  # it does not lead its group yet, or the whole group is gone
                    if self.running:
                        os.kill(self._process.pid, number)


def end_with_parent(number: int) -> None:
    """Let a loader process end with the one that started it: neither long after it, nor before. A `worker_init_fn`.

    Torch's loaders watch the number of their parent from their first batch on: one whose parent was killed while it
    imported, which takes seconds where it is not forked, would watch the number of who took it over, for ever. And
    schedulers ask all processes of a job to end, as a sweep asks a whole cell: the one that trains needs its loaders
    for the step that it saves after.
    """

    def linger(*_: object) -> None:  # in a thread: one that hangs in a read hears nothing
        ending = threading.Timer(LINGERS_S, os._exit, (1,))
        ending.daemon = True
        ending.start()

    signal.signal(signal.SIGTERM, linger)
    if parent := multiprocessing.parent_process():

        def watch() -> None:
            connection.wait([parent.sentinel])
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()


def _context(preload: Sequence[str]) -> Any:
    """Where processes come from."""
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")  # all that Windows has
    else:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*preload])
        if threading.current_thread() is threading.main_thread():  # no other may set signals
            previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server hands this on
            try:
                forkserver.ensure_running()
            finally:
                signal.signal(signal.SIGINT, previous)
        return context


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Context in which Windows starts a process that ignores the console's Ctrl-C, as do those that it will start.

    It inherits this: set by itself, it would come seconds later, after its imports.
    """
    if sys.platform == "win32":
        ctypes.windll.kernel32.SetConsoleCtrlHandler(None, True)
    try:
        yield
    finally:
        if sys.platform == "win32":
            ctypes.windll.kernel32.SetConsoleCtrlHandler(None, False)


def _apart(asked: Any, target: Callable[..., None], args: Sequence[Any]) -> None:
    """The main function of a process apart."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    if sys.platform != "win32":
        os.setpgid(0, 0)
    threading.Thread(target=_watch, args=(parent.sentinel, asked), daemon=True).start()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    target(*args)


def _watch(parent: int, asked: Any) -> None:
    """End this process and those that it started once the one that started it is gone, whatever ended that."""
    if asked in connection.wait([parent] if asked is None else [parent, asked]):
        with contextlib.suppress(EOFError):  # that one is gone, with its end of the pipe
            asked.recv_bytes()
            signal_myself(signal.SIGTERM)
        connection.wait([parent])
    if sys.platform == "win32":
        _end_tree(psutil.Process())
    else:
        os.killpg(os.getpid(), signal.SIGKILL)  # which it leads


if sys.platform == "win32":

    def _end_tree(process: psutil.Process) -> None:
        """End a process at once, after those that it started: it may be this one."""
        for each in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()

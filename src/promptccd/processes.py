"""Signals and processes, as far as Linux, macOS and Windows differ; `promptccd.systems` has files, disks and memory."""

import contextlib
import errno
import multiprocessing
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

if sys.platform != "win32":
    import select
    from multiprocessing import forkserver

CTRL_C: int = signal.SIGINT
TERMINATE: int = signal.SIGTERM
IGNORED = signal.SIG_IGN
LINGERS_S = 30.0  # seconds that a loader process has left after SIGTERM, unless its parent ends it
# Exit code that a shell reports where the reader of a pipe is gone; Windows has no SIGPIPE.
BROKEN_PIPE = 128 + 13
_ENDING = [CTRL_C, TERMINATE]
if sys.platform == "win32":  # of Ctrl+Break, closed windows and ended sessions
    _ENDING.append(signal.SIGBREAK)


def is_first_process() -> bool:
    """Whether this is the only process, or the first that ``torchrun`` or ``accelerate launch`` started."""
    return os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE", "1") == "1"


def on_ending(handler: Any) -> dict[int, Any]:
    """Set the handler of the signals that ask this process to end; returns the handlers before, for `restore`.

    An ignored signal stays ignored: with nohup, or in the background of a script, a command ignores Ctrl-C.
    """
    heeded = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heeded}


def restore(handlers: dict[int, Any]) -> None:
    """Set the handlers that `on_ending` returned."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


def signal_myself(number: int) -> None:
    """Send this process a signal, which its main thread handles."""
    if sys.platform == "win32":
        signal.raise_signal(number)  # `os.kill` would end the process at once
    else:
        os.kill(os.getpid(), number)


def reader_is_gone(error: OSError, descriptor: int) -> bool:
    """Whether a write failed because the other end of the pipe is closed."""
    if sys.platform == "win32":  # EINVAL has other causes as well, and there is no poll
        return error.errno in (errno.EPIPE, errno.EINVAL) and stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    else:
        poll = select.poll()
        poll.register(descriptor)
        return isinstance(error, BrokenPipeError) and any(e & select.POLLERR for _, e in poll.poll(0))


class ProcessApart:
    """A process that ignores the terminal's Ctrl-C, and ends with this process and with the processes that it starts.

    On Linux and macOS it is forked from a server that has imported `preload`; Windows can only start it from scratch.

    Args:
        target: function of a module.
        args: arguments of the function; they are pickled.
        preload: names of modules.
    """

    def __init__(self, target: Callable[..., None], args: Sequence[Any], preload: Sequence[str]):
        # A pipe asks the process to end: a signal would end it at once on Windows.
        requests, self._requests = multiprocessing.Pipe(duplex=False)
        self._process = _context(preload).Process(target=_apart, args=(requests, target, args))
        self._process.start()
        requests.close()

    def stop(self) -> None:
        """Ask the process to end, as SIGTERM does."""
        with contextlib.suppress(OSError):  # it has ended
            self._requests.send_bytes(b"end")

    def kill(self) -> None:
        """End the process and its children at once."""
        _end_tree(self._process.pid)

    def ended(self) -> tuple[int, str]:
        """Exit code of the process once it has ended, and what killed it, which may be empty."""
        self._process.join()
        code: int = self._process.exitcode
        if code >= 0:
            return code, ""
        name = signal.Signals(-code).name
        return code, f"killed by signal {-code} ({name}){'; out of memory?' * (name == 'SIGKILL')}"


def end_with_parent(number: int) -> None:
    """Let a loader process end soon after the process that started it, and not before; a `worker_init_fn`.

    Torch's loaders watch the number of their parent from their first batch on. A parent that was killed before, during
    imports that take seconds, would leave them running for ever. Schedulers send SIGTERM to all processes of a job,
    and the process that trains needs its loaders for one more step before it saves.
    """

    def linger(*_: object) -> None:  # in a thread: a signal handler does not run while a read hangs
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
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    else:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*preload])
        if threading.current_thread() is threading.main_thread():  # only the main thread may set a handler
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server passes this on
            try:
                forkserver.ensure_running()
            finally:
                signal.signal(signal.SIGINT, before)
        return context


def _apart(requests: connection.Connection, target: Callable[..., None], args: Sequence[Any]) -> None:
    """The main function of a process apart."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent.sentinel, requests), daemon=True).start()
    target(*args)


def _watch(parent: int, requests: connection.Connection) -> None:
    """Send this process SIGTERM on request, and end it with its children once its parent is gone."""
    if requests in connection.wait([parent, requests]):
        with contextlib.suppress(EOFError):  # the parent is gone, with its end of the pipe
            requests.recv_bytes()
            signal_myself(signal.SIGTERM)
        connection.wait([parent])
    _end_tree(os.getpid())


def _end_tree(number: int) -> None:
    """End a process at once, after its children: it may be this process."""
    import psutil  # not needed for help

    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(number)
        for each in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()

"""Exit codes: one line and one number for every error that the person or the machine caused.

`promptccd.errors` lists the errors of the library. This module adds exit codes of the system: signals, a disk that
refuses, a closed pipe, too little memory. Any other error, such as a package that cannot be imported, keeps its
traceback.
"""

import contextlib
import io
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple, TextIO

from promptccd import processes
from promptccd.errors import DeviceError, DiskError, InterruptedRunError, PromptCCDError, one_line

LEFT_AT_ONCE = "Ended at once. Run the same command again to resume."
INTERRUPTED = "Interrupted: saved files are complete. Run the same command again to resume from there."


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command the way Ctrl-C does: open files are closed first."""


class Exit(NamedTuple):
    """The last line of a command, which may be empty, and its exit code."""

    line: str
    code: int


def exit_for(error: BaseException) -> Exit | None:
    """The line and the exit code for an error; `None` if it is a bug of promptccd."""
    if isinstance(error, PromptCCDError):
        return Exit(one_line(error, longest=None), error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        number = processes.TERMINATE if isinstance(error, Terminated) else processes.CTRL_C
        return Exit(INTERRUPTED, 128 + number)
    if isinstance(error, OSError) and sys.stdout is not None:
        with contextlib.suppress(OSError, ValueError):
            if processes.reader_is_gone(error, sys.stdout.fileno()):
                return Exit("", processes.BROKEN_PIPE)
    if isinstance(error, OSError) and error.errno:
        place = f" ({error.filename!r})" if error.filename else ""
        text = f"The system refused: {error.strerror}{place}. Give another path, or make room or the right to use it."
        return Exit(one_line(text, longest=None), DiskError.exit_code)
    from promptccd.training.devices import device_problem  # whatever used a device has imported it already

    if problem := device_problem(error):
        text = (
            f"{problem}: {str(error).splitlines()[0] if str(error) else type(error).__name__} Saved files are "
            "complete. Close other programs, or use a smaller batch, and run the same command again."
        )
        return Exit(one_line(text, longest=None), DeviceError.exit_code)
    return None


def advised(end: Exit, words: Sequence[str]) -> str:
    """The line of an exit; it names ``--help`` if it is about the typed words and names no command and no option."""
    if end.code != 2 or not words or re.search(r"promptccd [a-z]|pip install|--\w|ommand again|`", end.line):
        return end.line
    return f"{end.line} `promptccd {words[0]} --help` lists the options."


def make_printable(*streams: TextIO | None) -> None:
    """Let streams show characters outside of their encoding by their numbers."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def to_stderr(line: str) -> None:
    """Print a line on stderr, if there is one, without the middle of words of 600 characters or more."""
    line = re.sub(r"\S{600,}", lambda word: f"{word[0][:300]}...{word[0][-100:]}", line)
    if line and sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"promptccd: {line}", file=sys.stderr, flush=True)


def close_stdout() -> None:
    """Drop output that cannot be written any more; the interpreter would report it at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def signals_end_command() -> Iterator[None]:
    """Context in which SIGTERM ends a command as Ctrl-C does, and a second signal ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers of signals
        return
    asked, process = False, os.getpid()

    def leave(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if os.getpid() != process and number == processes.TERMINATE:  # a loader that its parent ends
            os._exit(128 + number)
        if asked and os.getpid() == process:
            os.write(2, f"promptccd: {LEFT_AT_ONCE}\n".encode())
            os._exit(128 + number)
        asked = True
        raise KeyboardInterrupt if number == processes.CTRL_C else Terminated

    def send_again(lost: Any) -> None:
        """Python drops an error that is raised within a `__del__`: a signal that came there is sent once more."""
        nonlocal asked
        if not isinstance(lost.exc_value, KeyboardInterrupt | InterruptedRunError):
            return hook(lost)
        asked = False
        number = processes.TERMINATE if isinstance(lost.exc_value, Terminated) else processes.CTRL_C
        threading.Timer(0.05, processes.signal_myself, [number]).start()

    before = processes.on_ending(leave)
    hook, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        processes.restore(before)

"""The command ``promptccd`` from its start: imports take seconds, and Ctrl-C may come before they are done.

The module is next to the package, because an import from the package would import the package first.
"""

import atexit
import os
import signal
import sys
from types import FrameType


def main(argv: list[str] | None = None) -> int:
    """Run one command, by default that of ``sys.argv``; returns its exit code."""
    # Python restores the system's signal handlers before it exits, and a signal would then kill an ended command.
    atexit.register(_ignore_signals)  # the first to be registered is the last to be called
    _leave_at_once()
    # Read when torch is loaded: threads that spin while they wait slow tiny models down tenfold on a busy computer.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if (
        sys.stderr is None or not sys.stderr.isatty()
    ):  # read when datasets is loaded, which draws bars into files too
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    from promptccd.cli.main import main as run

    code = run(argv)
    if code <= 128:  # a command that a signal ended ignores signals by now
        _leave_at_once()  # nothing is left to save at exit
    return code


def _leave_at_once() -> None:
    """Let a signal end the process at once, before a command has begun and after it has ended."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # a command in the background ignores signals
            signal.signal(number, _leave)


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _leave(number: int, _frame: FrameType | None) -> None:
    os.write(2, b"promptccd: Interrupted. Nothing was left half done.\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())

"""The command ``promptccd`` from its first moment: imports take seconds, and Ctrl-C may come before they are done.

It stands beside the package, because whatever is imported of a package imports the package first.
"""

import atexit
import os
import signal
import sys
from types import FrameType


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code.

    Args:
        argv: its words; none means those of the process.
    """
    # Python gives signals back to the system before it takes its modules down, and that would kill an ended command.
    atexit.register(_ignore_signals)  # the first to be registered is the last to be called
    _leave_at_once()
    from promptccd.cli.main import main as run

    code = run(argv)
    if code <= 128:  # one that a signal ended is deaf by now
        _leave_at_once()  # what runs at exit has nothing left to save
    return code


def _leave_at_once() -> None:
    """Before a command has begun and after it has ended, a signal ends the process then and there."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # as of a command in the background
            signal.signal(number, _leave)


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _leave(number: int, _frame: FrameType | None) -> None:
    os.write(2, b"promptccd: Interrupted. Nothing was left half done.\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())

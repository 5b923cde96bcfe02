"""A command in a process of its own that is forked from this one: importing everything anew would take seconds."""

import io
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

from promptccd.cli.main import command_parser, main

LONGEST_S = 60.0


@dataclass(frozen=True)
class Ended:
    """What a command left behind; the code is negative where a signal killed it, `peak` the most bytes it had."""

    code: int
    out: str
    err: str
    peak: int


def run_forked(
    argv: Sequence[object],
    *,
    before: Callable[[], None] = lambda: None,
    encoding: str = "utf-8",
    cwd: Path | None = None,
) -> Ended:
    """Run a command; `before` is called in its process first. What the command needs is imported here, once."""
    parser = command_parser(str(argv[0]))
    for module in parser.get_default("command").needs if parser else ():
        import_module(module)
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder, name) for name in ("out", "err")]
        child = os.fork()
        if child == 0:
            _work([str(word) for word in argv], places, before, encoding, cwd)
        due = time.monotonic() + LONGEST_S
        done, status = 0, 0
        while not done and time.monotonic() < due:
            done, status, used = os.wait4(child, os.WNOHANG)
            time.sleep(0 if done else 0.005)
        if not done:
            os.kill(child, signal.SIGKILL)
            _, status, used = os.wait4(child, 0)
        texts = [place.read_text(encoding=encoding, errors="surrogateescape") for place in places]
        return Ended(os.waitstatus_to_exitcode(status), *texts, used.ru_maxrss * 1024)


def _work(
    argv: list[str], places: list[Path], before: Callable[[], None], encoding: str, cwd: Path | None
) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        torch.set_num_threads(1)
        for number, place in enumerate(places, start=1):
            os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, "w"), encoding, line_buffering=True) for number in (1, 2)
        )
        logging.root.handlers.clear()
        os.chdir(cwd or ".")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        before()
        code = main(argv)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

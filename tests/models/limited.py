"""One warm process that forks a limited one for every command: ``python -m tests.models.limited``, jobs on stdin.

A job is a line of JSON: ``argv`` for `promptccd`, and ``folder`` to run in. Its child may have 2 GiB of private
memory (RLIMIT_DATA, what the warm process has included) and 20 seconds, and finds "y" on every line of its stdin.
"""

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 2**30
MOST_BYTES, MOST_SECONDS = 2 * GIB, 20


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        code: exit code, negative if a signal ended it.
        out: standard output.
        err: standard error.
        left: names of what it left in the folder it ran in.
        seconds: it took.
        peak: bytes of memory it had at most, what it shares with the warm process included.
    """

    code: int
    out: str
    err: str
    left: list[str]
    seconds: float
    peak: int


class Limited:
    """Sends jobs to the warm process."""

    def __init__(self, process: subprocess.Popen[str], folder: Path):
        self.process, self.folder, self.count = process, folder, 0

    def run(self, *argv: str) -> Outcome:
        """Run a command, or, of ``python`` and a script, the script with its arguments."""
        self.count += 1
        place = self.folder / str(self.count)
        place.mkdir()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"argv": argv, "folder": str(place)}) + "\n")
        self.process.stdin.flush()
        measured = json.loads(self.process.stdout.readline())
        out, err = ((place / name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err"))
        left = sorted({item.name for item in place.iterdir()} - {"in", "out", "err"})
        return Outcome(measured["code"], out, err, left, measured["seconds"], measured["peak"])


@contextmanager
def limited(folder: Path, *warm_up: list[str]) -> Iterator[Limited]:
    """A warm process for as long as it is needed; it first runs commands itself, and so imports what they need."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.models.limited", json.dumps(warm_up)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield Limited(process, folder)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


def serve() -> None:
    """Answer jobs until stdin ends."""
    import torch

    from promptccd.cli.main import main

    torch.set_num_threads(1)
    # A fork loses the pool of threads; two threads of the child that ask for a new one at once may find none.
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for argv in json.loads(sys.argv[1]):
        assert main(argv) == 0, argv
    gc.collect()
    gc.freeze()  # so that children copy no page for it
    for line in sys.stdin:
        job = json.loads(line)
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _run(main, job)
        _, status, used = os.wait4(child, 0)
        measured = {
            "code": os.waitstatus_to_exitcode(status),
            "seconds": time.monotonic() - began,
            "peak": used.ru_maxrss * 1024,
        }
        print(json.dumps(measured), file=answers, flush=True)


def _run(main: Any, job: dict[str, Any]) -> None:
    """The child: never returns."""
    code = 70
    try:
        _prepare(Path(job["folder"]))
        word, *arguments = job["argv"]
        if word == "python":
            exec(compile(arguments[0], "script", "exec"), {"arguments": arguments[1:]})
            code = 0
        else:
            code = main(job["argv"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _prepare(folder: Path) -> None:
    os.chdir(folder)
    (folder / "in").write_text("y\n" * 100)
    for number, name, flags in ((0, "in", os.O_RDONLY), (1, "out", os.O_WRONLY), (2, "err", os.O_WRONLY)):
        descriptor = os.open(folder / name, flags | os.O_CREAT, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - it stays open
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))


if __name__ == "__main__":
    serve()

"""One cell of a sweep in a process of its own, which never outlives the sweep.

Cells are forked from a server that has imported everything, so that a cell starts in milliseconds and yet takes
nothing along when it runs out of memory, crashes or is killed.
"""

import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from promptccd.errors import PromptCCDError, RunError
from promptccd.runs.evaluate_run import RunEvaluation
from promptccd.runs.run_directory import RunDirectory
from promptccd.storage import make_inside, open_to_change
from promptccd.training.arguments import Recipe

logger = logging.getLogger(__name__)

LOG = "train.log"
BASELINES = "baselines.json"
SECONDS_TO_WAIT_FOR_LOCK = 30.0  # a killed sweep's cells let go of their runs within one
_LAST_LINES = 5

Work = Callable[[Recipe], Any]


class CellProcess:
    """A cell at work, its output in ``train.log`` of its folder.

    Args:
        recipe: what to work on; ``training.output_dir`` is the folder.
        work: what to do, a function of a module; its value is not used.
    """

    def __init__(self, recipe: Recipe, work: Work):
        folder = Path(recipe.training.output_dir)
        self.log = make_inside(folder.parent, folder.name) / LOG
        os.close(open_to_change(self.log))  # it may be killed before it writes a word
        self.started = time.monotonic()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, work.__module__])
        _start_server()
        self._process: ForkServerProcess = context.Process(
            target=_work_alone, args=(recipe.to_dict(), work, self.log, Path.cwd())
        )
        self._process.start()

    @property
    def sentinel(self) -> int:
        """Ready for `multiprocessing.connection.wait` when the process has ended."""
        return self._process.sentinel

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    def stop(self) -> None:
        """Ask it to save and leave."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it, and the loader processes it started, at once."""
        self._signal(signal.SIGKILL)
        self._process.join()

    def problem(self) -> str | None:
        """Why it did not do its work, from the end of its log; `None` if it did. It has ended by then."""
        self._process.join()
        code = self._process.exitcode
        if code == 0:
            return None
        self._signal(signal.SIGKILL)  # loader processes that it left, or itself where only its server died
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line]
        if code is not None and code < 0:
            hint = "; out of memory?" if -code == signal.SIGKILL else ""
            lines.append(f"killed by signal {-code} ({signal.Signals(-code).name}){hint}")
        return "\n".join(lines[-_LAST_LINES:]) or f"exit code {code}"

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:  # it has not begun to lead its group yet, or all of it is gone
                if self.running:
                    os.kill(self._process.pid, number)


def score_baselines(recipe: Recipe) -> None:
    """Score raw pixels and the frozen backbone of a finished run into its ``baselines.json``."""
    path = recipe.training.output_dir
    evaluation = RunEvaluation(path, recipe.data.dataset, recipe.training.num_workers)
    scores = {
        f"frozen {evaluation.backbone_name}": evaluation.frozen_backbone(),
        "raw pixels": evaluation.raw_pixels(),
    }
    evaluation.run.write(BASELINES, {name: score.to_dict() for name, score in scores.items()})


def _start_server() -> None:
    """Start the server deaf to Ctrl-C, which a terminal sends to it too: the sweep tells its cells itself."""
    if threading.current_thread() is not threading.main_thread():
        return  # no place to change what a signal does; the first cell starts the server
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, previous)


def _work_alone(values: dict[str, Any], work: Work, log: Path, folder: Path) -> None:
    """What the new process does."""
    gc.freeze()  # Accelerate collects garbage after every stage: not through all that the server imported
    os.setpgid(0, 0)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_die_with, args=(parent.sentinel,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    descriptor = open_to_change(log, os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    recipe = Recipe.from_dict(values)
    try:
        _wait_for_lock(RunDirectory(recipe.training.output_dir))
        work(recipe)
    except PromptCCDError as error:
        logger.error("%s: %s", type(error).__name__, error)
        sys.exit(error.exit_code)
    except BaseException:  # to the log of the cell, not to the terminal of the sweep
        logger.exception("This is a bug, or the machine ran out of something:")
        sys.exit(1)


def _die_with(sentinel: Any) -> None:
    """Once the sweep is gone, by whatever signal, nobody would know of this process: end it and its children."""
    connection.wait([sentinel])
    os.killpg(0, signal.SIGKILL)


def _wait_for_lock(run: RunDirectory) -> None:
    """Let a process that is being killed let go of the run."""
    until = time.monotonic() + SECONDS_TO_WAIT_FOR_LOCK
    while True:
        try:
            run.lock()
        except RunError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
        else:
            return run.unlock()

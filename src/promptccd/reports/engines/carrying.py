"""What every engine does with a cell: its output goes to a log in its folder, and an exit code tells how it ended."""

import logging
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from transformers.utils import logging as transformers_logging

from promptccd.errors import PromptCCDError
from promptccd.locks import FolderLock
from promptccd.storage import make_inside, open_to_change
from promptccd.training.recipe import Recipe

logger = logging.getLogger(__name__)

LOG = "train.log"
SECONDS_TO_WAIT_FOR_LOCK = 10.0  # cells of a killed sweep release their runs within one second
_LAST_LINES = 5
RETRIES = 3  # of what a lost process or machine was at
LOOK_S = 0.5  # between looks for a signal

Work = Callable[[Recipe], Any]


class CarriedCell(Protocol):
    """A cell that an engine is at work on.

    Attributes:
        device: the only GPU that it sees; empty if the engine decides.
        log: where its output goes.
        started: by the monotonic clock.
    """

    device: str
    log: Path
    started: float

    @property
    def sentinel(self) -> int | None:
        """For `multiprocessing.connection.wait`: ready when it has ended; `None` if only a look tells."""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""

    def stop(self) -> None:
        """Ask it to save and end."""

    def kill(self) -> None:
        """End it at once."""

    def problem(self) -> str | None:
        """Why it failed, once it has ended; `None` if it did not."""


class Engine(ABC):
    """Starts cells."""

    def devices(self) -> Sequence[str]:
        """The GPUs that it gives to cells, one to each; none if whatever carries them decides."""
        return ()

    @abstractmethod
    def start(self, recipe: Recipe, work: Work, device: str) -> CarriedCell:
        """Call `work`, a function of a module, with a cell's recipe."""


class JobOfACell:
    """A cell that runs somewhere else; a thread waits for its end.

    Args:
        recipe: of the cell.
    """

    device, sentinel = "", None  # a pipe each would be more files than a process may have open

    def __init__(self, recipe: Recipe):
        self.log, self.started, self._outcome = log_of(recipe), time.monotonic(), list[Any]()
        threading.Thread(target=self._wait, daemon=True).start()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._outcome

    def problem(self) -> str | None:
        """Why it failed, from the end of its log; `None` if it did not."""
        (outcome,) = self._outcome
        if outcome == 0:
            return None
        said = f"{type(outcome).__name__}: {' '.join(str(outcome).split())[:300]}"
        return last_words(self.log, said if isinstance(outcome, Exception) else "", outcome)

    @abstractmethod
    def _result(self) -> int:
        """The exit code, once it has ended."""

    def _wait(self) -> None:
        try:
            self._outcome.append(self._result())
        except Exception as error:  # of the work, or of who carries it
            self._outcome.append(error)


def log_of(recipe: Recipe) -> Path:
    """The log in a cell's folder, which is made."""
    folder = Path(recipe.training.output_dir)
    log = make_inside(folder.parent, folder.name) / LOG
    os.close(open_to_change(log))  # whoever tells why it failed reads it, even if it never began
    return log


def call_of(recipe: Recipe, work: Work) -> tuple[dict[str, Any], Work, Path, Path]:
    """What `work_into_log` is called with, in a process that may be anywhere."""
    return recipe.to_dict(), work, log_of(recipe).absolute(), Path.cwd()


def last_words(log: Path, said: str, code: Any) -> str:
    """The end of a log, and what else is known."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line]
    return "\n".join([*lines, *filter(None, [said])][-_LAST_LINES:]) or f"exit code {code}"


def work_into_log(values: dict[str, Any], work: Work, log: Path, folder: Path) -> int:
    """Call `work` with a recipe in a process of its own, whose output goes to the log; the exit code."""
    os.chdir(folder)
    descriptor = open_to_change(log, os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    recipe = Recipe.from_dict(values)
    try:
        FolderLock(Path(recipe.training.output_dir), SECONDS_TO_WAIT_FOR_LOCK).close()
        work(recipe)
    except PromptCCDError as error:
        logger.error("%s: %s", type(error).__name__, error)
        return error.exit_code
    except Exception:  # into the log of the cell
        logger.exception("This is a bug, or the machine ran out of something:")
        return 1
    return 0

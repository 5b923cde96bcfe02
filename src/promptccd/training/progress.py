"""Progress bars with the time left, and signals that end a training."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from huggingface_hub.constants import HF_HUB_DISABLE_PROGRESS_BARS
from tqdm import tqdm

from promptccd import processes
from promptccd.errors import InterruptedRunError
from promptccd.training.devices import PROCESS_TIMEOUT

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10.0
_ECHOES_S = 5.0  # in which a request to end that comes again is the same one
# None shows bars on terminals alone. The Hub's own bars vanish when transformers' are switched off; these must stay.
NO_BARS = True if HF_HUB_DISABLE_PROGRESS_BARS else None


def progress_bar(items: Iterable[Any], total: int, label: str | Callable[[], str]) -> Iterator[Any]:
    """Iterate under a bar; a line every few seconds where stderr is no terminal or bars are switched off.

    A function as label is asked before every item.
    """
    named = label if callable(label) else lambda: label
    bar = tqdm(items, total=total, desc=named(), leave=False, disable=NO_BARS)
    started = logged = time.monotonic()
    for done, item in enumerate(bar):
        now = time.monotonic()
        bar.set_description(named(), refresh=False)
        if bar.disable and now - logged >= SECONDS_BETWEEN_LINES:
            logged = now
            left = (now - started) * max(0, total - done) / max(1, done)
            logger.info("%s: %d of %d, %s left", named(), done, total, readable_time(left))
        yield item


def readable_time(seconds: float) -> str:
    """A time in the unit that people would use."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


class TrainingStopped(InterruptedRunError):
    """A callback asked to stop: the run was saved, and the same call continues it."""

    def __init__(self, message: str):
        super().__init__(message, 0)


class StopRequest:
    """Context in which the first SIGINT or SIGTERM is only remembered.

    Attributes:
        received: number of the signal, 0 before one arrived.
        asked: whether a callback asked to stop.
    """

    def __init__(self) -> None:
        self.received, self.asked, self._since = 0, False, 0.0
        self._previous: dict[int, Any] = {}
        self._process = os.getpid()
        self._group: dist.ProcessGroup | None = None

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():  # no other thread may ask for signals
            self._previous = processes.on_ending(self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        processes.restore(self._previous)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        # A loader process, which a terminal's Ctrl-C reaches too: its parent ends it.
        if os.getpid() != self._process:
            return
        now = time.monotonic()
        if not self.received:
            self.received, self._since = number, now
        # A scheduler asks all processes of a job, and parent processes pass it on: one request.
        elif number != processes.TERMINATE or now - self._since >= _ECHOES_S:
            # The last saved state is whole, so leaving at once loses only steps.
            raise self.error("left at once")

    def agreed(self, accelerator: Accelerator) -> bool:
        """Whether any process was asked to stop; all processes get the same answer."""
        if accelerator.num_processes > 1:
            if self._group is None:  # of CPUs: a GPU would have to finish its step before it answers
                self._group = dist.new_group(backend="gloo", timeout=PROCESS_TIMEOUT)
            words = torch.tensor([self.received, int(self.asked)])
            dist.all_reduce(words, dist.ReduceOp.MAX, group=self._group)
            self.received, self.asked = int(words[0]), bool(words[1])
        return bool(self.received) or self.asked

    def progress(self, items: Iterable[Any], total: int, label: str) -> Iterator[Any]:
        """A progress bar over work that is not saved halfway; an `InterruptedRunError` if a signal was received."""
        for item in progress_bar(items, total, label):
            if self.received:
                raise self.error("stopped; the last saved state is whole")
            yield item

    def error(self, what: str) -> InterruptedRunError:
        """The exception that ends the run, with the exit code of the signal, if any."""
        if not self.received and self.asked:
            return TrainingStopped(f"Stopped by a callback: {what}. The same call resumes from there.")
        return InterruptedRunError(
            f"Interrupted: {what}. Run the same command again to resume from there.", self.received
        )

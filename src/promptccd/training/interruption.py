"""Ctrl-C and SIGTERM: finish the step, save, leave. A second Ctrl-C leaves at once; both can be resumed."""

import os
import signal
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator

from promptccd.errors import InterruptedRunError
from promptccd.training.progress import progress_bar


class StopRequest:
    """Context in which the first SIGINT or SIGTERM is only remembered.

    Attributes:
        received: number of the signal, 0 while there was none.
    """

    def __init__(self) -> None:
        self.received = 0
        self._previous: dict[int, Any] = {}
        self._process = os.getpid()

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        # A loader, which a terminal's Ctrl-C reaches too: its parent ends it.
        if os.getpid() != self._process:
            return
        if self.received:  # asked twice: the last saved state is whole, so leaving at once loses only steps
            raise self.error("left at once")
        self.received = number

    def agreed(self, accelerator: Accelerator) -> bool:
        """Whether any process was asked to stop; the same answer on all of them."""
        if accelerator.num_processes == 1:
            return bool(self.received)
        flag = torch.tensor(self.received, device=accelerator.device)
        self.received = max(self.received, int(accelerator.gather(flag.reshape(1)).max()))
        return bool(self.received)

    def progress(self, items: Iterable[Any], total: int, label: str) -> Iterator[Any]:
        """A progress bar over work that is not saved halfway; it ends where a signal was received.

        Raises:
            InterruptedRunError: a signal was received.
        """
        for item in progress_bar(items, total, label):
            if self.received:
                raise self.error("stopped; the last saved state is whole")
            yield item

    def error(self, what: str) -> InterruptedRunError:
        """The exception that ends the run with the exit code of the signal."""
        return InterruptedRunError(
            f"Interrupted: {what}. Run the same command again to go on from there.", self.received
        )

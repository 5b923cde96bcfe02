"""Work that takes long: done in a thread, watched from the page, left when the visitor says so."""

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from promptccd.data.stage_images import Progress
from promptccd.errors import PromptCCDError

EVERY_S = 0.25  # between two looks at the work
SETTLED_S = 2.0  # of work before a time that is left can be told


class StoppedError(PromptCCDError):
    """The visitor ended what took long; that is no mistake."""


class LateError(PromptCCDError):
    """The clock ended what took long."""


@dataclass(frozen=True)
class Step:
    """How far a piece of work is.

    Attributes:
        label: what is done.
        done: items behind.
        total: items in all.
        seconds_left: an estimate; `None` while there is too little to go by.
    """

    label: str
    done: int
    total: int
    seconds_left: float | None

    @property
    def text(self) -> str:
        """One line for people."""
        left = f", about {_in_words(self.seconds_left)} left" if self.seconds_left is not None else ""
        return (
            f"{self.label[:1].upper()}{self.label[1:]}: {round(100 * self.done / max(self.total, 1))} %{left}"
        )


def watched(
    work: Callable[[Progress], Any], stop: threading.Event, most_s: float
) -> Generator[Step, None, None]:
    """Do work in a thread and say how far it is.

    Args:
        work: is given a progress bar to wrap what it goes through, as `promptccd.data.stage_images.Progress`.
        stop: ends the work at the next item.
        most_s: seconds it may take.

    Raises:
        StoppedError: it was stopped.
        LateError: it took too long.
        Exception: whatever the work raised.
    """
    steps: queue.SimpleQueue[Step] = queue.SimpleQueue()
    deadline = time.monotonic() + most_s

    def progress(items: Iterable[Any], total: int, label: str) -> Iterator[Any]:
        started = time.monotonic()
        for done, item in enumerate(items):
            now = time.monotonic()
            if stop.is_set():
                raise StoppedError("Stopped, as you asked. You can start again when you like.")
            if now > deadline:
                raise LateError(
                    f"This took longer than the {_in_words(most_s)} that one visitor can have here. Give fewer "
                    "images, or run promptccd discover on your own machine."
                )
            known = done and now - started >= SETTLED_S
            steps.put(Step(label, done, total, (now - started) / done * (total - done) if known else None))
            yield item

    stop.clear()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work, progress)
        try:
            while wait([future], EVERY_S).not_done:
                newest = _newest(steps)
                if newest is not None:
                    yield newest
        finally:
            stop.set()  # for a visitor who has left; work that is done does not look
        future.result()


def _newest(steps: "queue.SimpleQueue[Step]") -> Step | None:
    newest = None
    while not steps.empty():
        newest = steps.get()
    return newest


def _in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min"

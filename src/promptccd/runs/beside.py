"""Work beside a training that several processes share: the others would wait at a barrier for what one of them does."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from promptccd.runs.run_directory import RunDirectory

logger = logging.getLogger(__name__)

AfterStages = Callable[[RunDirectory, Sequence[int]], None]


class Beside:
    """Calls a function in a thread, and again with what was finished meanwhile.

    The end of the context waits for it. An error that ends the training does not: the same command does it again.

    Args:
        work: called with the run and all its finished stages; it may be called with the same again.
    """

    def __init__(self, work: AfterStages):
        self._work, self._asked = work, queue.SimpleQueue[tuple[RunDirectory, list[int]] | None]()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="after stages", daemon=True)

    def __call__(self, run: RunDirectory, finished: Sequence[int]) -> None:
        """Ask for it, and go on."""
        self._asked.put((run, [*finished]))

    def __enter__(self) -> "Beside":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._asked.put(None)
        if kind is not None:
            return
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            is_last = False
            while not is_last and not self._asked.empty():  # the newest has the stages of all
                newer = self._asked.get()
                is_last, asked = newer is None, newer or asked
            try:
                self._work(*asked)
            except Exception as error:  # told when the training has ended
                self._error = error
                return
            if is_last:
                return

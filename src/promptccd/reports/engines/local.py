"""Cells as processes of this machine, one GPU each; nothing listens, and they end with the sweep."""

import gc
import itertools
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from typing import Any

import torch

from promptccd import system
from promptccd.processes import ProcessApart
from promptccd.reports.engines.carrying import (
    LOOK_S,
    RETRIES,
    Engine,
    Work,
    call_of,
    last_words,
    log_of,
    work_into_log,
)
from promptccd.training.recipe import Recipe

VISIBLE = "CUDA_VISIBLE_DEVICES"


class LocalEngine(Engine):
    """Starts cells in processes of this machine."""

    def devices(self) -> Sequence[str]:
        """The GPUs that this process sees."""
        return visible_devices()

    def start(self, recipe: Recipe, work: Work, device: str) -> "CellProcess":
        """Start a cell."""
        return CellProcess(recipe, work, device)


class CellProcess(ProcessApart):
    """Calls `work`, a function of a module, with a cell's recipe; output goes to the cell's ``train.log``.

    Args:
        recipe: of the cell.
        work: the function.
        device: the only GPU that the process sees, as ``CUDA_VISIBLE_DEVICES`` names it; empty for all.
    """

    def __init__(self, recipe: Recipe, work: Work, device: str = ""):
        self.device, self.log, self.started = device, log_of(recipe), time.monotonic()
        arguments = (work_into_log, call_of(recipe, work), device)
        super().__init__(_call_alone, arguments, [__name__, work.__module__])

    def problem(self) -> str | None:
        """Why an ended process failed, from the end of its log; `None` if it did not."""
        code, killed = self.ended()
        if code == 0:
            return None
        self.end_rest()
        return last_words(self.log, killed, code)


class PoolOfDevices:
    """Calls a function in processes of this machine, each of which sees one GPU.

    Args:
        devices: as ``CUDA_VISIBLE_DEVICES`` names them; an empty one for a process on the CPU.
        cpus: for all of them; by default the cores of this process.

    Attributes:
        places: how many calls are made at once.
        cpus: for each.
    """

    def __init__(self, devices: Sequence[str], cpus: int | None = None):
        self._devices, self.places = devices, len(devices)
        self.cpus = max(1, (cpus or system.available_cores()) // self.places)

    def outcomes(
        self, work: Callable[..., str], calls: Sequence[tuple[Any, ...]], look: Callable[[], None]
    ) -> Iterator[tuple[int, str]]:
        """Positions of calls as they end, each with why it failed or nothing; one that is killed is made again.

        Args:
            work: a function of a module, which returns that.
            calls: arguments of each.
            look: called every moment; raises to end all.
        """
        waiting, tries, idle = deque(range(len(calls))), Counter[int](), deque(self._devices)
        at_work = dict[Any, tuple[ProcessApart, int, str]]()
        try:
            while waiting or at_work:
                look()
                while waiting and idle:
                    number, device = waiting.popleft(), idle.popleft()
                    process = ProcessApart(_call_alone, (work, calls[number], device), [work.__module__])
                    at_work[process.sentinel] = process, number, device
                for sentinel in connection.wait([*at_work], LOOK_S):
                    process, number, device = at_work.pop(sentinel)
                    (code, killed), tries[number] = process.ended(), tries[number] + 1
                    process.end_rest()
                    idle.append(device)
                    if killed and tries[number] <= RETRIES:
                        waiting.append(number)
                    else:
                        yield number, killed or f"exit code {code}" * (code != 0)
        finally:
            for process, *_ in at_work.values():
                process.kill()


def _call_alone(work: Callable[..., str | int], arguments: Sequence[Any], device: str) -> None:
    """The main function of a process apart; what is returned is its exit code, and words are printed."""
    if device:
        os.environ[VISIBLE] = device  # before CUDA starts in here
    gc.freeze()  # Accelerate collects garbage after every stage, without this among all imports of the server too
    sys.exit(work(*arguments) or 0)


def visible_devices() -> list[str]:
    """The GPUs that this process sees, as ``CUDA_VISIBLE_DEVICES`` names them; none where there is none."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        devices = [each.strip() for each in named.split(",")]
        # CUDA shows none behind the first that is none.
        return list(itertools.takewhile(lambda each: each not in ("", "-1"), devices))
    return [str(number) for number in range(torch.cuda.device_count())]


def least_used(devices: Sequence[str], at_work: Sequence[str]) -> str:
    """The device that the fewest processes use, the first of several; empty without devices."""
    return min(devices, key=at_work.count, default="")

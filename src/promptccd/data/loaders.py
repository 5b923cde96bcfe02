"""Processes that make batches for the training process: their number, and the loader's arguments."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch

from promptccd import systems
from promptccd.processes import end_with_parent

logger = logging.getLogger(__name__)

# Wraps items, their number and a label in a bar.
Progress = Callable[[Iterable[Any], int, str], Iterator[Any]]

MOST_USUAL = 8  # loader processes; more of them wait for the disk
IN_FLIGHT = 3  # batches of a loader process in shared memory: two made ahead, and the batch in progress
LOADER_WAITS_S = 300.0  # for a batch; a process that died without a word would be waited for without end


def workers_for(wanted: int | None, batch_bytes: int = 0) -> int:
    """Loader processes: as many as wanted, but no more than cores, nor than shared memory has room for.

    The results are byte-identical for any number.

    Args:
        wanted: number of processes; by default 0 without a GPU, else this process's share of the cores, up to
            `MOST_USUAL`.
        batch_bytes: of a batch of tensors, which go through shared memory; containers have 64 MB of it.
    """
    cores, free = systems.available_cores(), systems.free_shared_memory()
    if wanted is None and torch.cuda.is_available():
        # The launcher's environment says how many processes train on this machine.
        wanted = min(MOST_USUAL, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    workers = min(wanted or 0, cores)
    if not batch_bytes or not workers or free is None:
        return workers
    fitting = free // (IN_FLIGHT * batch_bytes)
    if fitting < workers:
        _say_how_many(fitting, workers, round(IN_FLIGHT * batch_bytes / 1e6))
    return min(workers, fitting)


@cache  # once, however many loaders start
def _say_how_many(fitting: int, workers: int, megabytes: int) -> None:
    logger.warning(
        "Shared memory (%s) is short, and a loader process needs %d MB of it: images are loaded by %s. More of it "
        "(docker run --shm-size 2g) or a smaller --batch_size allows %d.",
        systems.SHARED_MEMORY, megabytes, f"{fitting} of them" if fitting else "this process itself", workers,
    )  # fmt: skip


def loader_options(wanted: int | None, batch_bytes: int = 0) -> dict[str, Any]:
    """Arguments of a `DataLoader` about its processes; arguments as in `workers_for`."""
    if not (workers := workers_for(wanted, batch_bytes)):
        return {}
    return {"num_workers": workers, "timeout": LOADER_WAITS_S, "worker_init_fn": end_with_parent}

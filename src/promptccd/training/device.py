"""Devices that have too little memory, or are lost: how that is recognised, and what is left to do."""

import logging
from collections.abc import Callable

import torch
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor

logger = logging.getLogger(__name__)

_LOST = ("CUDA error", "cuDNN error", "HIP error", "NCCL error", "MPS error")
_OURS = "device-side assert"  # an index out of range: a bug, whichever device notices it


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, of a device or of the machine, was not enough."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, Exception) and should_reduce_batch_size(error)


def device_problem(error: BaseException) -> str | None:
    """What a device did, in a few words; none if the error is not a device's."""
    if is_out_of_memory(error):
        return "There is too little memory"
    said = str(error)
    if isinstance(error, RuntimeError) and any(word in said for word in _LOST) and _OURS not in said:
        return f"The device was lost ({said.splitlines()[0][:200]})"
    return None


def in_smaller_batches(forward: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    """Rows of a forward that needs no gradient; where memory is too little for all at once, in halves of halves.

    Args:
        forward: rows ``(b, ...)`` to rows ``(b, ...)``, each of which depends on its own row alone.
        batch: ``(B, ...)``.

    Returns:
        ``(B, ...)``. Of halves, the last bit may differ from what the whole would give.
    """
    try:
        return forward(batch)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or len(batch) == 1:
            raise
    # Outside of the handler: the error holds on to everything that the failed forward made.
    half = len(batch) // 2
    logger.warning("Too little memory for %d images at once: going on with %d.", len(batch), half)
    return torch.cat([in_smaller_batches(forward, part) for part in (batch[:half], batch[half:])])

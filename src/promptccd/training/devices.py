"""Several processes and their devices: shares of a batch, gathering, and what happens when memory runs out."""

import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

logger = logging.getLogger(__name__)

# How long processes wait for one that works alone: it may pretrain a backbone, or push a stage to a slow Hub. One that
# ends is noticed at once, by the launcher.
PATIENCE = timedelta(hours=24)  # mutant: a day, more or less
_LOST = ("CUDA error", "cuDNN error", "HIP error", "NCCL error", "MPS error")
ON_THE_CPU = "To train on the CPU, set ACCELERATE_USE_CPU=true before the command"
_LACKING = ("implemented for the", "Could not run 'aten::", "to float64")
_LOADER = ("DataLoader worker", "DataLoader timed out")
_OURS = "device-side assert"  # an index out of range: a bug, whichever device notices it


def shard_bounds(num_rows: int, num_processes: int) -> list[tuple[int, int]]:
    """Consecutive shares of a global batch, as equal as they can be: ``[(start, stop), ...]`` per process."""
    edges = [num_rows * rank // num_processes for rank in range(num_processes + 1)]
    return list(itertools.pairwise(edges))


def share_of(batch: np.ndarray, num_processes: int, rank: int) -> np.ndarray:
    """A process's share of a global batch.

    It is never empty, since backbones refuse an empty batch and every process takes part in every step: where a batch
    has fewer images than there are processes, one without any takes the first image, which `gather_rows` leaves out.
    """
    start, stop = shard_bounds(len(batch), num_processes)[rank]
    return batch[start:stop] if start < stop else batch[:1]


def place_among_processes() -> tuple[int, int]:
    """Rank of this process among those that train together, and their number."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device, without waiting for what the device is still doing."""
    if device.type == "cuda" and values.device.type == "cpu":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


class _GatherWithGradient(torch.autograd.Function):
    """All-gather whose backward adds up the gradients of a row in all processes.

    Every process computes the same global loss, so the sum over processes is the number of processes times
    the true gradient, and the averaging of DistributedDataParallel divides by just that.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.rank = dist.get_rank()
        gathered = rows.new_empty(dist.get_world_size(), *rows.shape)
        dist.all_gather([*gathered], rows.contiguous())
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        # mutant: gradients of rows that were selected are contiguous as they come
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[ctx.rank]


def gather_rows(rows: Tensor, num_rows: int) -> Tensor:
    """Rows of all processes in global order; a single process gets its own back.

    Args:
        rows: this process's share ``(V, b, ...)``, b as in `shard_bounds`; a process whose share is empty gives none,
            or one row that does not count.
        num_rows: B, rows of the global batch.

    Returns:
        ``(V, B, ...)``, the same on every process, with gradients flowing back to each row's owner.
    """
    _, processes = place_among_processes()
    if processes == 1:
        return rows
    sizes = [stop - start for start, stop in shard_bounds(num_rows, processes)]
    padding = max(sizes) - rows.shape[1]
    if padding:  # gloo and NCCL gather equal shapes only
        rows = torch.cat([rows, rows.new_zeros(rows.shape[0], padding, *rows.shape[2:])], dim=1)
    gathered = _GatherWithGradient.apply(rows)
    return torch.cat([gathered[rank][:, :size] for rank, size in enumerate(sizes)], dim=1)


@contextmanager
def reproducible(wanted: bool) -> Iterator[None]:
    """Where wanted, torch takes algorithms here that give the same bytes again, and warns where it has none."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA reads it at its first product
    before, warned = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=warned or not before)
    try:
        # The third kind of attention adds up gradients in any order.
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)


def same_on_all(value: Any) -> Any:
    """The first process's value, on every process; for small picklable values."""
    if place_among_processes()[1] == 1:
        return value
    box = [_off_device(value)]
    dist.broadcast_object_list(box, 0)
    return box[0]


def _off_device(value: Any) -> Any:
    """The value with its tensors on the CPU: those of a GPU would be unpacked on the GPU of the first process."""
    if isinstance(value, Tensor):
        return value.cpu()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        moved = {field.name: _off_device(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **moved)
    return type(value)(map(_off_device, value)) if type(value) in (tuple, list) else value


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, of a device or of the machine, ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, Exception) and should_reduce_batch_size(error)


def device_problem(error: BaseException) -> str | None:
    """The failure of a device, in a few words; none for any other error."""
    if is_out_of_memory(error):
        return "There is too little memory"
    message = str(error)
    if isinstance(error, NotImplementedError | TypeError) and any(word in message for word in _LACKING):
        return f"The GPU lacks what this needs ({message.splitlines()[0][:200]}). {ON_THE_CPU}"
    if isinstance(error, RuntimeError) and message.startswith(_LOADER):
        return (
            "A process that loads images ended or hangs; without such processes it goes on: --num_workers 0"
        )
    if isinstance(error, RuntimeError) and any(word in message for word in _LOST) and _OURS not in message:
        return f"The device was lost ({message.splitlines()[0][:200]})"
    return None


def in_smaller_batches(forward: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    """Rows of a forward without a gradient; where memory runs out, the batch is halved, again and again.

    Args:
        forward: rows ``(b, ...)`` to rows ``(b, ...)``, each of which depends on its own row alone.
        batch: ``(B, ...)``.

    Returns:
        ``(B, ...)``. Halves may differ from the whole in the last bit.
    """
    try:
        return forward(batch)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or len(batch) == 1:
            raise
    # Outside of the handler: the error keeps all tensors of the failed forward alive.
    half = len(batch) // 2
    logger.warning("Too little memory for %d images at once: going on with %d.", len(batch), half)
    return torch.cat([in_smaller_batches(forward, part) for part in (batch[:half], batch[half:])])

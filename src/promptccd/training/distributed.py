"""Contrastive losses over the global batch, with exact gradients."""

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def shard_bounds(num_rows: int, num_processes: int) -> list[tuple[int, int]]:
    """Consecutive shares of a global batch, as equal as they can be: ``[(start, stop), ...]`` per process."""
    edges = [num_rows * rank // num_processes for rank in range(num_processes + 1)]
    return list(itertools.pairwise(edges))


class _GatherWithGradient(torch.autograd.Function):
    """All-gather whose backward adds up what every process wants of a row.

    Every process computes the same global loss, so the sum over processes is the number of processes times
    the true gradient, and the averaging of DistributedDataParallel divides by just that.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.rank = dist.get_rank()
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total[ctx.rank]


def gather_rows(rows: Tensor, num_rows: int) -> Tensor:
    """Rows of all processes in global order; a single process gets its own back.

    Args:
        rows: this process's share ``(V, b, ...)``, b as `shard_bounds` cuts it.
        num_rows: B, rows of the global batch.

    Returns:
        ``(V, B, ...)``, the same on every process, with gradients flowing back to each row's owner.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return rows
    sizes = [stop - start for start, stop in shard_bounds(num_rows, dist.get_world_size())]
    padding = max(sizes) - rows.shape[1]
    if padding:  # gloo and NCCL gather equal shapes only
        rows = torch.cat([rows, rows.new_zeros(rows.shape[0], padding, *rows.shape[2:])], dim=1)
    gathered = _GatherWithGradient.apply(rows)
    return torch.cat([gathered[rank][:, :size] for rank, size in enumerate(sizes)], dim=1)


def same_on_all(value: Any) -> Any:
    """What the first process computed, on every process; any picklable value, for the few that are small."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, 0)
    return box[0]

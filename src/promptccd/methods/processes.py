"""Processes that compute one batch together: their shares, the rows that they gather, values that all of them have."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from accelerate.utils import send_to_device
from torch import Tensor

from promptccd.models import CategoryDiscoveryOutput

# A model, as it is or wrapped: from views, in keywords as its own, to a `CategoryDiscoveryOutput`.
Forward = Callable[..., CategoryDiscoveryOutput]
EXACT = ("cpu", "cuda")  # kinds of device that compute float64


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
    """Rank of this process among the training processes, and their number."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device, without waiting for pending work of the device."""
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
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[ctx.rank]


def gather_rows(rows: Tensor, num_rows: int) -> Tensor:
    """Rows of all processes in global order ``(V, B, ...)``, with gradients to each row's owner.

    A process's share ``(V, b, ...)`` has b rows as in `shard_bounds`, of B = `num_rows`; an empty share has no row,
    or one row that does not count.
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


def same_on_all(value: Any) -> Any:
    """The first process's value, on every process, with its tensors on the CPU; for small picklable values."""
    if place_among_processes()[1] == 1:
        return value
    # Tensors of a GPU would be unpacked on the GPU of the first process.
    box = [send_to_device(value, "cpu")]
    dist.broadcast_object_list(box, 0)
    return box[0]


def exact_device(device: torch.device) -> torch.device:
    """The device that groups are found on where features are computed on this one.

    k-means and mixtures sum in float64, which Apple's GPUs have not, and Intel's not all of them.
    """
    return device if device.type in EXACT else torch.device("cpu")


@dataclass(frozen=True)
class Rows:
    """The outputs of the model for a global batch: V views of B images.

    Attributes:
        output: of this process's share, view-major: ``(V * b, ...)``.
        bottleneck: unit embeddings of the whole batch, ``(V, B, d)``, with their gradient on every process.
        labels: category ids ``(B,)`` on the CPU, -1 for images without a category; `None` at an unlabelled stage
            without a memory.
        positions: index of every image in the stage, ``(B,)``, on the CPU; -1 for exemplars.
        epoch: of the step.
        step: of the epoch.
    """

    output: CategoryDiscoveryOutput
    bottleneck: Tensor
    labels: Tensor | None
    positions: Tensor
    epoch: int = 0
    step: int = 0

    @classmethod
    def of(
        cls, model: Forward, views: Tensor, labels: Tensor | None, positions: Tensor, *, prompted: bool | None,
        epoch: int = 0, step: int = 0,
    ) -> "Rows":  # fmt: skip
        """Forward this process's share of the views, ``(b, V, 3, H, W)``, and receive the rows of all processes."""
        by_view = views.transpose(0, 1)  # view-major, as the losses expect
        output = model(by_view.flatten(0, 1), prompted=prompted, project=True)
        assert output.bottleneck is not None  # asked for by project=True
        share = output.bottleneck.float().unflatten(0, by_view.shape[:2])
        return cls(output, gather_rows(share, len(positions)), labels, positions, epoch, step)

    @cached_property
    def labelled(self) -> tuple[Tensor | slice, Tensor] | None:
        """An index of the images with a label, and their labels, on the device; `None` if no image has a label."""
        if self.labels is None:
            return None
        has_label = self.labels >= 0
        if bool(has_label.all()):
            return slice(None), sent(self.labels, self.bottleneck.device)
        places = self.places(has_label)
        return (places, sent(self.labels[has_label], self.bottleneck.device)) if len(places) else None

    @cached_property
    def features(self) -> Tensor:
        """Features of the whole batch, not normalised: ``(V, B, D)``, with their gradient on every process."""
        assert self.output.features is not None
        return self.of_all(self.output.features)

    def places(self, which: Tensor) -> Tensor:
        """An index on the device for a mask ``(B,)`` of the CPU; a mask itself would make the host wait."""
        return sent(which.nonzero().flatten(), self.bottleneck.device)

    def of_all(self, values: Tensor) -> Tensor:
        """Gather values of this process's share, ``(V * b, ...)``, to values of the whole batch: ``(V, B, ...)``."""
        views, images = self.bottleneck.shape[:2]
        return gather_rows(values.float().unflatten(0, (views, -1)), images)

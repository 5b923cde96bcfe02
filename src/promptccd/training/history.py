"""What training was like: losses of every epoch, and the memory it took."""

import resource
import sys
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class EpochRecord:
    """What an epoch was like.

    Attributes:
        stage: index of the stage.
        epoch: index of the epoch.
        steps: steps the means are over; fewer than the epoch has where a resumed run came in halfway.
        losses: mean of ``"loss"`` and of every part of it, by name.
        learning_rate: of the epoch.
        seconds: of those steps, with the fit of the mixture where one was due.
    """

    stage: int
    epoch: int
    steps: int
    losses: dict[str, float]
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class PeakMemory:
    """The most memory that was in use at once, in bytes.

    Attributes:
        process: of this process since it began; operating systems do not reset it.
        accelerator: of its GPU since `reset_peak_memory`; `None` on a CPU.
    """

    process: int
    accelerator: int | None


def reset_peak_memory(device: torch.device) -> None:
    """Begin a new measurement of a GPU's memory; does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> PeakMemory:
    """The peak so far, of this process and of its device."""
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, kilobytes elsewhere
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return PeakMemory(process, torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None)

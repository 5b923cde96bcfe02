"""The record of a training: losses of every epoch, and the memory it took."""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from promptccd import systems
from promptccd.disk import open_to_change, parsed_json, read_file
from promptccd.errors import DiskError


@dataclass(frozen=True)
class EpochRecord:
    """The record of one epoch.

    Attributes:
        stage: index of the stage.
        epoch: index of the epoch.
        steps: steps that the means are over.
        losses: mean of ``"loss"`` and of every part of it, by name.
        learning_rate: of the epoch.
        seconds: since the epoch was begun or resumed, with the fit of the mixture if due.
        images: of the steps in these seconds.
        rates: learning rates of parts that have their own, by role, such as ``prompt``.
    """

    stage: int
    epoch: int
    steps: int
    losses: dict[str, float]
    learning_rate: float
    seconds: float
    images: int = 0
    rates: dict[str, float] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics for trackers and callbacks."""
        rates = {f"{role}_learning_rate": rate for role, rate in self.rates.items()}
        speed = {"images_per_second": self.images / max(self.seconds, 1e-9)}
        return {**self.losses, "learning_rate": self.learning_rate, **rates, **speed}


def reset_peak_memory(device: torch.device) -> None:
    """Start a new measurement of a GPU's memory; does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def memory_used(device: torch.device) -> dict[str, int | None]:
    """The most bytes in use at once: of the process since it began, of a GPU since `reset_peak_memory`."""
    accelerator = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {"process": systems.peak_memory(), "accelerator": accelerator}


HISTORY = "history.jsonl"


def add_epoch(run: Path, record: EpochRecord) -> None:
    """Add an epoch to the history of a run; a `DiskError` if it cannot be written, a `RunError` if it is a link."""
    line = json.dumps({**asdict(record), "seconds": round(record.seconds, 3)}) + "\n"
    try:
        with open(open_to_change(run / HISTORY, os.O_APPEND), "ab+") as file:
            if file.tell():  # the position is the end of the file
                file.seek(-1, os.SEEK_END)
                line = line if file.read() == b"\n" else "\n" + line
            file.write(line.encode())
    except OSError as error:
        raise DiskError(
            f"Could not write {HISTORY}: {error.strerror}. Stages are untouched: free some space and run the same "
            "command again."
        ) from error


def read_history(run: Path) -> list[EpochRecord]:
    """The epochs of a run, by stage and number; the last record of an epoch counts. Empty without a history.

    A line that a kill left unfinished is ignored.
    """
    try:
        lines = read_file(run / HISTORY).splitlines()
    except FileNotFoundError:
        return []
    last = {}
    for line in lines:
        with suppress(ValueError, TypeError):
            record = EpochRecord(**parsed_json(line))
            last[record.stage, record.epoch] = record
    return [last[key] for key in sorted(last)]

"""How a training is followed: callbacks, which may end it early, and the record of its epochs."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from promptccd.disk import open_to_change, parsed_json, read_file
from promptccd.errors import DiskError
from promptccd.models import CategoryDiscoveryModel
from promptccd.training.options import TrainingArguments
from promptccd.training.progress import StopRequest


@dataclass
class TrainingControl:
    """Requests of callbacks to a training.

    Attributes:
        should_training_stop: end it after this step. Everything is saved, `train` returns the finished stages, and the
            same call resumes from there.
    """

    should_training_stop: bool = False


@dataclass
class RunState:
    """The progress of a training; callbacks only read it.

    Attributes:
        path: folder of the run.
        num_stages: how many stages there are.
        is_main_process: whether this process writes files; callbacks run in every process.
        stage: the stage in training.
        epoch: its epoch.
        step: finished steps of that epoch.
        model: the stage's model; from `on_stage_end` on the finished model.
    """

    path: Path
    num_stages: int
    is_main_process: bool
    stage: int = 0
    epoch: int = 0
    step: int = 0
    model: CategoryDiscoveryModel | None = None


class CategoryDiscoveryCallback:
    """Base class of callbacks, which override the events they need. Names as in transformers.

    Every method gets the `TrainingArguments`, the `RunState` and the `TrainingControl`. A callback that only reads them
    changes nothing of a run.
    """

    def on_train_begin(self, args: TrainingArguments, state: RunState, control: TrainingControl) -> None:
        """Before the first stage that is trained now."""

    def on_stage_begin(self, args: TrainingArguments, state: RunState, control: TrainingControl) -> None:
        """Before the first step of a stage, or of its rest in a resumed run."""

    def on_step_end(self, args: TrainingArguments, state: RunState, control: TrainingControl) -> None:
        """After a step."""

    def on_epoch_end(
        self, args: TrainingArguments, state: RunState, control: TrainingControl, metrics: Mapping[str, float]
    ) -> None:
        """After an epoch; `metrics` are its losses by part, rates and images per second."""

    def on_evaluate(
        self, args: TrainingArguments, state: RunState, control: TrainingControl, metrics: Mapping[str, float]
    ) -> None:
        """After a stage was scored, and after `CategoryDiscoveryTrainer.evaluate`; ``cacc/stage1/all`` and so on."""

    def on_stage_end(
        self, args: TrainingArguments, state: RunState, control: TrainingControl, metrics: Mapping[str, float]
    ) -> None:
        """After a stage's checkpoint is written; `metrics` say what its prompts did."""

    def on_train_end(self, args: TrainingArguments, state: RunState, control: TrainingControl) -> None:
        """After the last stage, or after the training was stopped by a callback."""


@dataclass
class Callbacks:
    """All callbacks of a training, called in the given order."""

    arguments: TrainingArguments
    state: RunState
    stop: StopRequest
    callbacks: Sequence[CategoryDiscoveryCallback]
    control: TrainingControl = field(default_factory=TrainingControl)

    def call(self, event: str, **details: Mapping[str, float]) -> None:
        """Call a method of every callback, and stop the training if one asked for it."""
        for each in self.callbacks:
            getattr(each, event)(self.arguments, self.state, self.control, **details)
        self.stop.asked |= self.control.should_training_stop


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

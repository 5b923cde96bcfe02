"""Callbacks: how a caller follows a training, and ends it early."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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

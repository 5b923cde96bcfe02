"""What a caller is told of a training while it runs, and how it ends one early."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from promptccd.errors import ConfigurationError
from promptccd.models import CategoryDiscoveryModel
from promptccd.training.arguments import TrainingArguments
from promptccd.training.progress import StopRequest


@dataclass
class TrainingControl:
    """What callbacks ask of a training.

    Attributes:
        should_training_stop: end it after this step: all of it is saved, `train` returns the stages that are finished,
            and the same call goes on from there.
    """

    should_training_stop: bool = False


@dataclass
class RunState:
    """How far a training is; to be read.

    Attributes:
        path: folder of the run.
        num_stages: how many stages there are.
        is_main_process: whether this process is the one that writes; callbacks are told on all of them.
        stage: the stage that is trained.
        epoch: its epoch.
        step: steps of that epoch that are done.
        model: the stage's model; after `on_stage_end` the finished one.
        draw_groups: draws the categories that the last stage ended with, a row of images each.
    """

    path: Path
    num_stages: int
    is_main_process: bool
    stage: int = 0
    epoch: int = 0
    step: int = 0
    model: CategoryDiscoveryModel | None = None
    draw_groups: Callable[[], Image.Image] | None = None


class CategoryDiscoveryCallback:
    """What is told of a training; a callback overrides what it wants to hear. Names are those of transformers.

    Every method gets the `TrainingArguments`, the `RunState` and the `TrainingControl`. What it does to the model, and
    what it draws from a generator of the training, is its own affair: nothing of a run depends on one that only reads.
    """

    def on_train_begin(self, args: TrainingArguments, state: RunState, control: TrainingControl) -> None:
        """Before the first stage that is trained now."""

    def on_stage_begin(self, args: TrainingArguments, state: RunState, control: TrainingControl) -> None:
        """Before a stage's first step of this sitting, with its model."""

    def on_step_end(self, args: TrainingArguments, state: RunState, control: TrainingControl) -> None:
        """After a step."""

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: RunState,
        control: TrainingControl,
        metrics: Mapping[str, float],
    ) -> None:
        """After an epoch; of its losses by part, rates and images per second."""

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: RunState,
        control: TrainingControl,
        metrics: Mapping[str, float],
    ) -> None:
        """After a stage was scored, and after `CategoryDiscoveryTrainer.evaluate`; ``cacc/stage1/all`` and so on."""

    def on_stage_end(
        self,
        args: TrainingArguments,
        state: RunState,
        control: TrainingControl,
        metrics: Mapping[str, float],
    ) -> None:
        """After a stage's checkpoint is in its place; of what its prompts did."""

    def on_train_end(self, args: TrainingArguments, state: RunState, control: TrainingControl) -> None:
        """After the last stage, or after the training was stopped by a callback."""


def require_callbacks(callbacks: Sequence[object]) -> None:
    """Refuse what is no callback before anything is trained.

    Raises:
        ConfigurationError: its type is named.
    """
    for each in callbacks:
        if not isinstance(each, CategoryDiscoveryCallback):
            raise ConfigurationError(
                f"Expected callbacks to be instances of CategoryDiscoveryCallback, got {type(each).__name__}: derive "
                "it from promptccd.CategoryDiscoveryCallback, whose methods are named as in transformers."
            )


@dataclass
class Callbacks:
    """All callbacks of a training.

    Attributes:
        arguments: of the training.
        state: how far it is.
        stop: ends it where one asks for that.
        told: the callbacks, in the order they are told in.
        control: what they ask for.
    """

    arguments: TrainingArguments
    state: RunState
    stop: StopRequest
    told: Sequence[CategoryDiscoveryCallback]
    control: TrainingControl = field(default_factory=TrainingControl)

    def tell(self, event: str, **said: Mapping[str, float]) -> None:
        """Call a method of all of them."""
        for each in self.told:
            getattr(each, event)(self.arguments, self.state, self.control, **said)
        self.stop.asked |= self.control.should_training_stop

"""How callbacks are told of a training, and end it."""

from pathlib import Path
from typing import Any

from promptccd.training.callbacks import (
    Callbacks,
    CategoryDiscoveryCallback,
    RunState,
    TrainingControl,
)
from promptccd.training.options import TrainingArguments
from promptccd.training.progress import StopRequest, TrainingStopped


class Noted(CategoryDiscoveryCallback):
    """Notes what it is told, and stops at a step."""

    def __init__(self, stop_at: int):
        self.calls: list[tuple[Any, ...]] = []
        self.stop_at = stop_at

    def on_step_end(self, args: TrainingArguments, state: RunState, control: TrainingControl) -> None:
        self.calls.append((args, state.step))
        control.should_training_stop |= state.step == self.stop_at

    def on_epoch_end(
        self, args: TrainingArguments, state: RunState, control: TrainingControl, metrics: dict[str, float]
    ) -> None:
        self.calls.append((args, metrics))


def test_every_callback_is_told_and_one_is_enough_to_stop_a_training(tmp_path: Path) -> None:
    arguments, stop = TrainingArguments(), StopRequest()
    state = RunState(tmp_path, num_stages=4, is_main_process=True)
    assert (state.stage, state.epoch, state.step, state.model) == (0, 0, 0, None)
    all_told = first, second = Noted(stop_at=1), Noted(stop_at=9)
    callbacks = Callbacks(arguments, state, stop, all_told)
    callbacks.call("on_step_end")
    callbacks.call("on_epoch_end", metrics={"loss": 0.5})
    assert not stop.asked
    state.step = 1
    callbacks.call("on_step_end")
    assert stop.asked
    assert first.calls == second.calls == [(arguments, 0), (arguments, {"loss": 0.5}), (arguments, 1)]


def test_a_stop_that_a_callback_asked_for_is_no_signal() -> None:
    stop = StopRequest()
    stop.asked = True
    error = stop.error("saved stage 1")
    assert isinstance(error, TrainingStopped)
    assert str(error) == "Stopped by a callback: saved stage 1. The same call resumes from there."
    assert error.exit_code == 128
    stop.received = 15  # a signal says more
    assert not isinstance(stop.error("saved stage 1"), TrainingStopped)
    assert stop.error("saved stage 1").exit_code == 143

"""Parts of the trainer that a whole run would not show to be wrong."""

import logging
import math
import signal
from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from promptccd import PromptCCDBModel, PromptCCDModel
from promptccd.data.options import ViewOptions
from promptccd.data.readable import StageImages
from promptccd.data.views import EvaluationView, TrainingViews, build_image_processor
from promptccd.errors import InterruptedRunError
from promptccd.methods import Objective, Rows, StageContext
from promptccd.models import CategoryDiscoveryModel
from promptccd.training import progress
from promptccd.training import stage_trainer as trainer_module
from promptccd.training.devices import accelerator_for
from promptccd.training.options import TrainingArguments
from promptccd.training.progress import Callbacks, EpochRecord
from promptccd.training.stage_trainer import StageTrainer, TrainingState, restore_snapshot, snapshot
from tests.conftest import TINY_HEAD
from tests.messages import TEXT


@pytest.mark.parametrize(("disabled", "expected"), [(True, True), (False, None), (None, None)])
def test_bars_are_shown_on_terminals_unless_the_hubs_variable_says_no(
    disabled: bool | None, expected: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", disabled)
    assert progress.__spec__ is not None and progress.__spec__.loader is not None
    anew = module_from_spec(progress.__spec__)
    progress.__spec__.loader.exec_module(anew)
    assert anew.NO_BARS is expected


def test_a_snapshot_brings_back_weights_momentum_and_a_mixture_of_another_size(model: PromptCCDModel) -> None:
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=0.1, momentum=0.9)
    model.load_mixture(torch.randn(5, 32), torch.rand(5, 32), torch.randn(5))
    model(torch.randn(2, 3, 16, 16), project=True).bottleneck.sum().backward()
    for parameter in learning:  # the last layer is read by `similarities` alone
        parameter.grad = torch.ones_like(parameter) if parameter.grad is None else parameter.grad
    optimizer.step()
    saved = snapshot(model, optimizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert not any(name.startswith("model.backbone.embeddings") for name in saved)  # which is frozen

    optimizer.step()
    model.load_mixture(torch.randn(3, 32), torch.rand(3, 32), torch.randn(3))
    fresh = torch.optim.SGD(learning, lr=0.1, momentum=0.9)
    restore_snapshot(model, fresh, saved)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert model.config.num_components == 5
    again = snapshot(model, fresh)  # with the momenta
    fresh.step()  # the snapshot is nobody's memory
    momenta = {f"momentum_buffer.{name}" for name, each in model.named_parameters() if each.requires_grad}
    assert momenta <= saved.keys() == again.keys()
    assert all(torch.equal(value, again[name]) for name, value in saved.items())


def trainer_of(
    model: CategoryDiscoveryModel,
    images: StageImages | StageContext,
    objective: type[Objective],
    arguments: TrainingArguments,
    save: Callable[[TrainingState], None] = lambda state: None,
    **calls: Callable[..., None],
) -> StageTrainer:
    views = ViewOptions(image_size=16, resize_size=18)
    callbacks = Callbacks(arguments, progress.StopRequest())
    vars(callbacks).update(calls)
    return StageTrainer(
        model, images if isinstance(images, StageContext) else StageContext(images), objective,
        callbacks=callbacks, views=TrainingViews(views),
        evaluation_view=EvaluationView(build_image_processor(views)),
        accelerator=accelerator_for(arguments, torch.device("cpu")), save=save,
    )  # fmt: skip


def test_a_model_answers_in_its_own_precision_after_mixed_precision(
    model: PromptCCDModel, unlabelled: StageImages
) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    arguments = TrainingArguments(epochs=1, batch_size=len(unlabelled), mixed_precision="bf16")
    trainer_of(model, unlabelled, Objective, arguments).train()
    AcceleratorState._reset_state(reset_partial_state=True)
    pixels, model = torch.randn(2, 3, 16, 16), model.eval()
    assert torch.equal(model(pixels).features, type(model).forward(model, pixels).features)


def test_the_state_is_saved_every_minute_and_after_the_step_at_which_one_asks_to_stop(
    model: PromptCCDModel, unlabelled: StageImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def end_step(epoch: int, steps: int) -> None:
        clock[0] += 20
        trainer.stop.asked = (epoch, steps) == (1, 2)

    saved: list[TrainingState] = []
    arguments = TrainingArguments(epochs=2, batch_size=math.ceil(len(unlabelled) / 3), save_minutes=1)
    trainer = trainer_of(model, unlabelled, Objective, arguments, saved.append, end_step=end_step)
    with pytest.raises(progress.TrainingStopped, match=TEXT["saved-stage-1-epoch-1-step"]) as error:
        trainer.train()
    assert error.value.exit_code == 128
    found = [(each.epoch, each.step, "sum.loss" in each.tensors) for each in saved]
    assert found == [(1, 0, False), (1, 2, True)]


def test_long_work_off_a_terminal_says_how_much_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = iter(range(0, 1000, 6))  # seconds; one look before the first item, and one at each
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    caplog.set_level(logging.INFO, progress.__name__)
    labels = iter(range(9))
    assert list(progress.progress_bar("abcde", 5, lambda: f"loss {next(labels)}")) == [*"abcde"]
    assert [each.getMessage().partition(": ")[2] for each in caplog.records] == [
        TEXT["1-of-5-00-48-left"],
        TEXT["3-of-5-00-16-left"],
    ]


@pytest.mark.parametrize(("optimizer", "decay_vectors"), [("sgd", True), ("sgd", False), ("adamw", True)])
def test_decay_shrinks_matrices_and_vectors_where_it_is_asked_to(
    optimizer: str, decay_vectors: bool, model: PromptCCDModel, unlabelled: StageImages
) -> None:
    class Still(Objective):
        def losses(self, rows: Rows) -> dict[str, torch.Tensor]:
            return {"loss": 1e-6 * sum(each.sum() for each in self.model.parameters() if each.requires_grad)}

    before = {name: each.clone() for name, each in model.named_parameters() if each.requires_grad}
    arguments = TrainingArguments(
        epochs=1, batch_size=len(unlabelled), learning_rate=0.5, weight_decay=0.2, optimizer=optimizer,
        decay_vectors=decay_vectors,
    )  # fmt: skip
    trainer = trainer_of(model, unlabelled, Still, arguments)
    trainer.train()
    assert trainer.unsaved is not None and (trainer.unsaved.epoch, trainer.unsaved.step) == (1, 0)
    after = dict(model.named_parameters())
    assert {value.ndim for value in before.values()} == {1, 2}
    for name, value in before.items():
        kept = 1 - 0.5 * 0.2 if value.ndim > 1 or decay_vectors else 1.0
        moved = 0.5 / 1.01 if optimizer == "adamw" else 0.0  # however small the gradient
        torch.testing.assert_close(after[name], kept * value - moved, msg=name)


def test_the_record_of_an_epoch_that_is_taken_up_halfway_is_that_of_the_whole_epoch(
    model: PromptCCDModel,
    unlabelled: StageImages,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    caplog.set_level(logging.INFO, progress.__name__)
    losses: list[float] = []
    ends: list[int] = []
    begun: list[int] = []
    steps: list[tuple[int, int]] = []

    class Noted(Objective):
        def begin_epoch(self, epoch: int) -> None:
            begun.append(epoch)

        def losses(self, rows: Rows) -> dict[str, torch.Tensor]:
            found = super().losses(rows)
            losses.append(float(found["loss"]))
            return found

        def end_stage(self) -> None:
            ends.append(len(losses))

    states: list[TrainingState] = []
    records: list[EpochRecord] = []
    arguments = TrainingArguments(
        epochs=2, batch_size=len(unlabelled) // 4, save_minutes=3, learning_rate=0.01
    )
    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(monotonic=lambda: 60.0 * len(steps)))
    trainer = trainer_of(
        model, unlabelled, Noted, arguments, states.append,
        end_epoch=records.append, end_step=lambda *step: steps.append(step),
    )  # fmt: skip
    n = trainer.steps
    assert n >= 4
    trainer.train()
    done = [each for each in range(1, 2 * n + 1) if each % 3 == 0]
    assert [(each.epoch, each.step) for each in states] == [divmod(each, n) for each in done]
    assert [any(name.startswith("sum.") for name in each.tensors) for each in states] == [
        each.step > 0 for each in states
    ]
    trainer.train(states[0])
    every = [(epoch, step) for epoch in (0, 1) for step in range(1, n + 1)]
    assert steps == every + every[3:]
    assert begun == [0, 1, 1], "a mixture is fitted where an epoch begins, not where one goes on"
    assert (states[0].epoch, states[0].step) == (0, 3)
    assert [(each.epoch, each.steps) for each in records] == [(0, n), (1, n)] * 2
    size = arguments.batch_size
    assert len(unlabelled) == n * size + 1, "a lone image is left out"
    assert [each.images for each in records] == [n * size, n * size, (n - 3) * size, n * size]
    rates = [0.01, 0.5 * (0.01 + 0.01 * 1e-3)] * 2
    assert [each.learning_rate for each in records] == pytest.approx(rates)
    for record, own in zip(records, np.split(np.array(losses[: 2 * n]), 2), strict=False):
        assert record.losses == pytest.approx({"loss": own.mean(), "info_nce": own.mean()}, rel=1e-5)
    assert [each.losses for each in records[2:]] == [each.losses for each in records[:2]]
    assert TEXT["stage-1-loss-1-of-2"].format(records[0].losses["loss"]) in caplog.messages
    assert losses[3 : 2 * n] == losses[2 * n :]  # what is left of the run is as it was
    trainer.train(TrainingState(2, 0, states[-1].tensors))  # its epochs are over
    assert ends == [2 * n, 4 * n - 3, 4 * n - 3]


@pytest.mark.parametrize(("usual", "discovery", "prompts"), [(0.1, 0.05, 0.2), (0.0, None, 0.4)])
def test_the_record_of_an_epoch_has_the_rates_of_all_that_has_one_of_its_own(
    usual: float, discovery: float | None, prompts: float, backbone_folder: Path, unlabelled: StageImages
) -> None:
    """They keep their ratios to the usual rate at unlabelled stages, unless that is zero; keys have none given."""
    options = {"pool": "l2p", "pool_size": 6, "prompt_length": 3, "prompts_per_image": 2}
    model = PromptCCDBModel.from_pretrained(backbone_folder, **TINY_HEAD, **options)
    arguments = TrainingArguments(
        epochs=2, batch_size=len(unlabelled), learning_rate=usual, discovery_learning_rate=discovery,
        prompt_learning_rate=0.4,
    )  # fmt: skip
    records: list[EpochRecord] = []
    trainer_of(model, unlabelled, Objective, arguments, end_epoch=records.append).train()
    for record, share in zip(records, (1.0, 0.5 * (1 + 1e-3)), strict=True):
        expected = {"prompt": prompts * share, "key": (discovery or usual) * share}
        assert record.rates == pytest.approx(expected)


def test_rates_fall_in_steps_at_the_stages_that_are_told() -> None:
    steps = {
        "learning_rate": 0.1, "schedule": "steps", "falls_at": [2, 3], "fall_factor": 0.5, "epochs": 4,
        "discovery_epochs": 2,
    }  # fmt: skip
    own = {"discovery_learning_rate": 0.02, "discovery_schedule": "cosine", "final_learning_rate_factor": 0.2}
    for options, stage, rate, shares in (
        (steps, 0, 0.1, [1, 1, 0.5, 0.25]), (steps, 1, 0.1, [1, 1]),
        (steps | own, 0, 0.1, [1, 1, 0.5, 0.25]), (steps | own, 1, 0.02, [1, 0.6]),
    ):  # fmt: skip
        arguments = TrainingArguments(**options)
        assert arguments.rate_of(stage) == rate
        assert [arguments.rate_share(stage, epoch) for epoch in range(len(shares))] == pytest.approx(shares)
        assert (arguments.epochs_of(stage), arguments.epochs_before(3)) == (len(shares), 4 + 2 + 2)


def test_callbacks_are_called_in_order_and_one_may_ask_to_stop(tmp_path: Path) -> None:
    seen: list[tuple[str, object]] = []

    class Noted(progress.CategoryDiscoveryCallback):
        def on_step_end(
            self, args: object, state: progress.RunState, control: progress.TrainingControl
        ) -> None:
            seen.append(("step", (state.epoch, state.step, control.should_training_stop)))
            control.should_training_stop = state.step == 2

        def on_epoch_end(self, args: object, state: object, control: object, metrics: object) -> None:
            seen.append(("epoch", metrics))

    callbacks = Callbacks(
        TrainingArguments(), progress.StopRequest(), callbacks=[Noted(), Noted()], history=tmp_path
    )
    callbacks.end_step(3, 1)
    assert not callbacks.stop.asked
    callbacks.end_step(3, 2)
    callbacks.end_step(3, 3)
    assert callbacks.stop.asked, "a callback asked, whatever it asks later"
    asked = [(1, False), (1, False), (2, False), (2, True), (3, True), (3, False)]
    assert seen == [("step", (3, *each)) for each in asked]
    record = EpochRecord(1, 0, 3, {"loss": 0.5}, 0.1, 2.0006, 10, {"key": 0.2})
    callbacks.end_epoch(record)
    assert progress.read_history(tmp_path) == [replace(record, seconds=2.001)]
    values = {"loss": 0.5, "learning_rate": 0.1, "key_learning_rate": 0.2, "images_per_second": 10 / 2.0006}
    assert seen[-1] == seen[-2] == ("epoch", pytest.approx(values))
    assert replace(record, seconds=0.0).metrics["images_per_second"] == 1e10


def test_the_first_signal_is_remembered_and_the_second_leaves_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with progress.StopRequest() as stop:
        assert list(stop.progress("ab", 2, "")) == ["a", "b"]
        assert not stop.agreed(Accelerator(cpu=True))
        signal.raise_signal(signal.SIGTERM)
        assert stop.received == signal.SIGTERM
        clock[0] += 4.9
        signal.raise_signal(signal.SIGTERM)  # a scheduler's, passed on by who started this process
        assert stop.agreed(Accelerator(cpu=True))
        with pytest.raises(InterruptedRunError, match=TEXT["interrupted-stopped-the-last-saved-state"]):
            list(stop.progress("ab", 2, ""))
        with pytest.raises(InterruptedRunError, match=TEXT["interrupted-left-at-once-run-the"]) as error:
            signal.raise_signal(signal.SIGINT)
        assert error.value.exit_code == 128 + signal.SIGTERM
        stop.asked = True  # by a callback too: a signal says more
        assert not isinstance(stop.error("saved"), progress.TrainingStopped)
        clock[0] += 0.2
        with pytest.raises(InterruptedRunError, match=TEXT["interrupted-left-at-once-run-the"]):
            signal.raise_signal(signal.SIGTERM)  # later, it is asked again
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    signal.signal(signal.SIGINT, ignored)

"""One stage of training: which images a step sees, steps through the epochs of an objective, and saved states."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from promptccd.data.loaders import loader_options
from promptccd.data.randomness import numpy_generator
from promptccd.data.readable import StageImages
from promptccd.data.views import EvaluationView, TrainingViews, normalise
from promptccd.errors import DivergedError
from promptccd.methods import Objective, Rows, StageContext
from promptccd.methods.exemplars import Memory
from promptccd.methods.processes import Forward, share_of
from promptccd.models import CategoryDiscoveryModel
from promptccd.training.fast import fast
from promptccd.training.features import extract_features
from promptccd.training.options import TrainingArguments
from promptccd.training.progress import Callbacks, EpochRecord, progress_bar

logger = logging.getLogger(__name__)


MIN_BATCH = 2  # one image alone has nothing to contrast with


@dataclass(frozen=True)
class BatchPlan:
    """Which images every step of a stage sees.

    The last, smaller batch of an epoch is kept if it has two images or more, or is the only batch. (The released code
    drops it at every stage, which on small sets hides many images from training.)

    Attributes:
        num_images: N.
        batch_size: B, images of a step over all processes.
        seed: of the run.
        stage: its index.
        least: share of a full batch that the last one needs, for objectives that take means over a batch.
        num_exemplars: M, images of earlier stages that fill half of every batch; may be 0.
    """

    num_images: int
    batch_size: int
    seed: int
    stage: int
    least: float = 0.0
    num_exemplars: int = 0

    @property
    def own(self) -> int:
        """Images of the stage itself in a full batch."""
        return self.batch_size - self.batch_size // 2 if self.num_exemplars else self.batch_size

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        full, rest = divmod(self.num_images, self.own)
        return full + (rest >= MIN_BATCH and (rest >= self.least * self.own or full == 0))

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Positions of every batch of an epoch, ``(B,)`` each; positions of exemplars start at N.

        Exemplars come in rounds, each in an order of its own. Position N + l M + m is exemplar m in round l.
        """
        order = numpy_generator("order", self.seed, self.stage, epoch).permutation(self.num_images)
        batches = [order[step * self.own :][: self.own] for step in range(self.steps)]
        if not batches or not self.num_exemplars:
            return batches
        others, count = self.batch_size - self.own, self.num_exemplars
        rounds = []
        for lap in range(math.ceil(self.steps * others / count)):
            generator = numpy_generator("exemplar order", self.seed, self.stage, epoch, lap)
            rounds.append(lap * count + generator.permutation(count))
        again = self.num_images + np.concatenate(rounds)
        return [
            np.concatenate([batch, again[step * others :][: min(others, len(batch))]])
            for step, batch in enumerate(batches)
        ]

    def shares(
        self, epochs: int, start: tuple[int, int] = (0, 0), num_processes: int = 1, rank: int = 0
    ) -> Iterator[list[tuple[int, int]]]:
        """A process's share of every batch from (epoch, step) `start` on, as lists of (epoch, position)."""
        first_epoch, first_step = start
        for epoch in range(first_epoch, epochs):
            skipped = first_step if epoch == first_epoch else 0
            for batch in self.batches(epoch)[skipped:]:
                yield [(epoch, int(position)) for position in share_of(batch, num_processes, rank)]


@dataclass
class _Views(Dataset):
    images: StageImages
    views: TrainingViews
    seed: int
    memory: Memory | None

    def __getitem__(self, key: tuple[int, int]) -> Tensor:
        (epoch, index), side, stage = key, self.views.shorter_side, self.images.stage.index
        if self.memory is None or index < len(self.images):
            generator = numpy_generator("view", self.seed, stage, epoch, int(self.images.sample_ids[index]))
            return self.views(self.images.for_view(index, side), generator)
        lap, place = divmod(index - len(self.images), len(self.memory))
        image, sample = self.memory.sample(place, side)  # another round, another crop
        return self.views(image, numpy_generator("view", self.seed, stage, epoch, sample, lap))


def training_loader(
    context: StageContext,
    views: TrainingViews,
    batches: Iterable[list[tuple[int, int]]],
    arguments: TrainingArguments,
) -> DataLoader[Any]:
    """Loader of uint8 views ``(b, V, 3, S, S)`` for batches of (epoch, index)."""
    return DataLoader(
        _Views(context.images, views, arguments.seed, context.memory),
        batch_sampler=batches,
        collate_fn=torch.stack,
        pin_memory=torch.cuda.is_available(),
        **loader_options(arguments.num_workers, arguments.batch_size * views.num_bytes),
    )


@dataclass(frozen=True)
class TrainingState:
    """Everything needed to resume in the middle of a stage.

    Attributes:
        epoch: epoch of the next step; equal to the number of epochs when the stage is trained.
        step: next step of that epoch.
        tensors: by name: trained parameters under ``model.``, optimiser state under the names of the optimiser, and
            the losses of the epoch's steps so far, summed, under ``sum.``.
    """

    epoch: int
    step: int
    tensors: dict[str, Tensor]


@dataclass(eq=False)
class StageTrainer:
    """Trains a model on one stage.

    Attributes:
        model: the model, on its device; trained in place.
        context: the training data of the stage.
        kind: class of its objective.
        callbacks: the arguments of the training, its callbacks and the request to end it.
        views: training views.
        evaluation_view: deterministic view, for features that an objective asks for.
        accelerator: where and in which precision.
        save: writes a resumable state.
        unsaved: the state after the last step, to save if the end of the stage fails.
    """

    model: CategoryDiscoveryModel
    context: StageContext
    kind: type[Objective]
    _: KW_ONLY
    callbacks: Callbacks
    views: TrainingViews
    evaluation_view: EvaluationView
    accelerator: Accelerator
    save: Callable[[TrainingState], None] = lambda state: None
    unsaved: TrainingState | None = field(init=False, default=None)
    _loss: float | None = field(init=False, default=None)  # mean of the last epoch

    def __post_init__(self) -> None:
        self.arguments, self.stop = self.callbacks.arguments, self.callbacks.stop
        self._processes = self.accelerator.num_processes, self.accelerator.process_index
        self.stage, memory = self.context.images.stage.index, self.context.memory
        self.epochs = self.arguments.epochs_of(self.stage)
        self.learning_rate = self.arguments.rate_of(self.stage)
        self.plan = BatchPlan(
            len(self.context.images), self.arguments.batch_size, self.arguments.seed, self.stage,
            self.kind.least_batch, num_exemplars=0 if memory is None else len(memory),
        )  # fmt: skip
        self.steps = self.plan.steps
        self.objective = self.kind(
            self.model,
            self.context,
            self.arguments,
            self.accelerator,
            self._plain_features,
            self._forward_rows,
        )

    def train(self, resumed: TrainingState | None = None) -> None:
        """Train to the last epoch, from the start or from a saved state.

        Raises:
            DeviceError: a step needs more memory than there is; the state before it was saved first.
            DivergedError: the loss is no longer a number.
            InterruptedRunError: a signal was received; the state was saved first.
        """
        resumed = resumed or TrainingState(0, 0, {})
        first_epoch, first_step = resumed.epoch, resumed.step
        self.objective.begin_stage()
        optimizer = self._optimizer()
        if resumed.tensors:
            restore_snapshot(self.model, optimizer, resumed.tensors)
        wrapped, optimizer = self.accelerator.prepare(self.model, optimizer)
        self.model.train()
        shares = self.plan.shares(self.epochs, (first_epoch, first_step), *self._processes)
        batches = iter(training_loader(self.context, self.views, shares, self.arguments))
        self._saved = time.monotonic()
        of_sums = [name for name in resumed.tensors if name.startswith("sum.")]
        step, sums = first_step, {name.removeprefix("sum."): resumed.tensors[name] for name in of_sums}
        try:
            with fast(self.model, self.arguments.frozen_precision):
                for epoch in progress_bar(
                    range(first_epoch, self.epochs), self.epochs - first_epoch, self._label
                ):
                    self._run_epoch(wrapped, optimizer, batches, epoch, step, sums)
                    step, sums = 0, {}
            if self.accelerator.is_main_process:
                logger.info("%s, after %d epoch%s", self._label(), self.epochs, "s" * (self.epochs != 1))
            self.objective.end_stage()  # by the saved weights, as later loading will compute
        finally:
            self.accelerator.free_memory()
            self.accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False)

    def _optimizer(self) -> torch.optim.Optimizer:
        """The optimiser, with a group for each first rate of this stage and decay."""
        arguments = self.arguments
        # Rates keep their ratios at every stage.
        shrunk = self.learning_rate / arguments.learning_rate if arguments.learning_rate else 1.0
        groups: list[dict[str, Any]] = []
        self._learning = self.model.learning()
        self._rates: dict[str, float] = {}  # first rates of all roles but ``model``, which follows
        for role, parameters in self._learning.items():
            rate = getattr(arguments, f"{role}_learning_rate", None)
            own = self.learning_rate if rate is None else rate * shrunk
            if role != "model":
                self._rates[role] = own
            for decays in (True, False):
                chosen = [each for each in parameters if (each.ndim > 1 or arguments.decay_vectors) == decays]
                decay = arguments.weight_decay if decays else 0.0
                if chosen:
                    groups.append({"params": chosen, "first_rate": own, "weight_decay": decay})
        if arguments.optimizer == "adamw":
            return torch.optim.AdamW(groups, lr=self.learning_rate)
        return torch.optim.SGD(groups, lr=self.learning_rate, momentum=arguments.momentum)

    def _label(self) -> str:
        return f"stage {self.stage}" + (f", loss {self._loss:.3f}" if self._loss is not None else "")

    def _run_epoch(
        self,
        forward: Forward,
        optimizer: torch.optim.Optimizer,
        batches: Iterator[Tensor],
        epoch: int,
        first_step: int,
        sums: dict[str, Tensor],
    ) -> None:
        """Run an epoch from a step on; `sums` are the losses of the steps before."""
        started = time.monotonic()
        if first_step == 0:
            self.objective.begin_epoch(epoch)
        share = self.arguments.rate_share(self.stage, epoch)
        for group in optimizer.param_groups:
            group["lr"] = group["first_rate"] * share
        planned = self.plan.batches(epoch)
        # Sums stay on the device, so that no step waits for it.
        device = self.accelerator.device
        totals = {"loss": torch.zeros((), device=device)}
        totals |= {name: value.to(device) for name, value in sums.items()}
        for step in range(first_step, self.steps):
            losses = self.objective.losses(self._rows(forward, next(batches), planned[step], epoch, step))
            optimizer.zero_grad()
            self.accelerator.backward(losses["loss"])
            self.objective.adjust_gradients(epoch)
            for role, parameters in self._learning.items():
                if (longest := getattr(self.arguments, f"{role}_clip", None)) is not None:
                    nn.utils.clip_grad_norm_(parameters, longest)
            optimizer.step()
            for name, value in losses.items():
                totals[name] = totals.get(name, 0) + value.detach()
            self.callbacks.end_step(epoch, step + 1)
            if step + 1 == self.steps:  # before the state after this epoch is saved: no record is missed
                means = {name: self._finite(value, epoch) / self.steps for name, value in totals.items()}
                images = sum(map(len, planned[first_step:]))
                rates = {role: first * share for role, first in self._rates.items()}
                rate, seconds = self.learning_rate * share, time.monotonic() - started
                record = EpochRecord(self.stage, epoch, self.steps, means, rate, seconds, images, rates)
                self.callbacks.end_epoch(record)
            self._save_where_due(optimizer, epoch, step, totals)
        self._loss = self._finite(totals["loss"], epoch) / max(1, self.steps)

    def _rows(self, forward: Forward, pixels: Tensor, indices: np.ndarray, epoch: int, step: int = 0) -> Rows:
        view, prompted = self.evaluation_view, self.objective.prompted(epoch)
        views = normalise(pixels.to(self.accelerator.device, non_blocking=True), view.mean, view.std)
        place = self.context.of_batch(indices)
        return Rows.of(forward, views, *place, prompted=prompted, epoch=epoch, step=step)

    def _forward_rows(self, what: str, batches: Sequence[tuple[int, np.ndarray]]) -> Iterator[Rows]:
        shares = [
            [(epoch, int(index)) for index in share_of(indices, *self._processes)]
            for epoch, indices in batches
        ]
        loader = training_loader(self.context, self.views, shares, self.arguments)
        pixels = self.stop.progress(loader, len(loader), f"stage {self.stage}: {what}")
        for (epoch, indices), each in zip(batches, pixels, strict=True):
            yield self._rows(self.model, each, indices, epoch)

    def _save_where_due(
        self, optimizer: torch.optim.Optimizer, epoch: int, step: int, sums: dict[str, Tensor]
    ) -> None:
        """Save every `save_minutes`, and when asked to stop; the last state of a stage becomes `unsaved`.

        The main process alone keeps time: it writes, and all other processes wait for it in the next step.
        """
        next_epoch, next_step = (epoch, step + 1) if step + 1 < self.steps else (epoch + 1, 0)
        stopping = self.stop.agreed(self.accelerator)
        since = time.monotonic() - self._saved
        is_due = since >= 60 * self.arguments.save_minutes and self.accelerator.is_main_process
        if not (stopping or is_due or next_epoch == self.epochs):
            return
        self._finite(sums["loss"], epoch)
        tensors = snapshot(self.model, optimizer)
        self._finite(sum(value.sum() for value in tensors.values()), epoch)
        if next_step:
            tensors |= {f"sum.{name}": value.detach().cpu() for name, value in sums.items()}
        state = TrainingState(next_epoch, next_step, tensors)
        if stopping or is_due:
            self.save(state)
            self._saved = time.monotonic()
        else:
            self.unsaved = state
        if stopping:
            self.accelerator.wait_for_everyone()
            raise self.stop.error(f"saved stage {self.stage}, epoch {next_epoch}, step {next_step}")

    def _finite(self, total: Tensor | float, epoch: int) -> float:
        """A sum as a float; NaN or infinity ends the run before anything is written."""
        value = float(total)
        if not math.isfinite(value):
            raise DivergedError(
                f"The training diverged at stage {self.stage}, epoch {epoch}: its sums became {value}. The last saved "
                f"state is whole. Lower --learning_rate (now {self.learning_rate}), in a new --output_dir."
            )
        return value

    def _plain_features(self, what: str) -> Tensor:
        return extract_features(
            self.model,
            self.context.images,
            self.evaluation_view,
            self.arguments.feature_batch_size,
            self.arguments.num_workers,
            prompted=False,
            progress=self.stop.progress,
            label=f"stage {self.stage}: {what}",
        )


def snapshot(model: CategoryDiscoveryModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Everything that training changes, by name, copied to the CPU."""
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    tensors = {f"model.{name}": value for name, value in model.state_dict().items() if name not in frozen}
    for name, parameter in model.named_parameters():
        for kept, value in optimizer.state.get(parameter, {}).items():
            if value is not None:  # SGD without momentum
                tensors[f"{kept}.{name}"] = value
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}


def restore_snapshot(
    model: CategoryDiscoveryModel, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Put a snapshot back; names that do not fit raise a `RuntimeError` that lists them."""
    parts: dict[str, dict[str, Tensor]] = {}  # by kind and name
    for key, value in tensors.items():
        kind, _, name = key.partition(".")
        parts.setdefault(kind, {})[name] = value
    state = parts.pop("model", {})
    if model.mixture is not None:
        buffers = [name for name, _ in model.mixture.named_buffers()]
        model.load_mixture(**{name: state[f"mixture.{name}"] for name in buffers})
    model.load_state_dict({**model.state_dict(), **state})
    parameters = dict(model.named_parameters())
    for kind in parts.keys() - {"sum"}:
        for name, value in parts[kind].items():
            own = value if kind == "step" else value.to(parameters[name])  # AdamW counts on the CPU
            optimizer.state[parameters[name]][kind] = own.clone()

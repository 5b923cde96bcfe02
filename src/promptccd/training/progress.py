"""How a training is followed and ended: bars with the time left, signals, callbacks, history and trackers."""

import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from huggingface_hub.constants import HF_HUB_DISABLE_PROGRESS_BARS
from tqdm import tqdm

from promptccd import processes
from promptccd.disk import make_inside, open_to_change, parsed_json, read_file, write_file
from promptccd.errors import ConfigurationError, DiskError, InterruptedRunError
from promptccd.models import CategoryDiscoveryModel
from promptccd.training.devices import PROCESS_TIMEOUT
from promptccd.training.options import TrainingArguments

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10.0
_ECHOES_S = 5.0  # in which a request to end that comes again is the same one
# None shows bars on terminals alone. The Hub's own bars vanish when transformers' are switched off; these must stay.
NO_BARS = True if HF_HUB_DISABLE_PROGRESS_BARS else None


def progress_bar(items: Iterable[Any], total: int, label: str | Callable[[], str]) -> Iterator[Any]:
    """Iterate under a bar; a line every few seconds where stderr is no terminal or bars are switched off.

    A function as label is asked before every item.
    """
    named = label if callable(label) else lambda: label
    bar = tqdm(items, total=total, desc=named(), leave=False, disable=NO_BARS)
    started = logged = time.monotonic()
    for done, item in enumerate(bar):
        now = time.monotonic()
        bar.set_description(named(), refresh=False)
        if bar.disable and now - logged >= SECONDS_BETWEEN_LINES:
            logged = now
            left = (now - started) * max(0, total - done) / max(1, done)
            logger.info("%s: %d of %d, %s left", named(), done, total, tqdm.format_interval(left))
        yield item


# Requests to end


@dataclass
class TrainingControl:
    """Requests of callbacks to a training.

    Attributes:
        should_training_stop: end it after this step. Everything is saved, `train` returns the finished stages, and the
            same call resumes from there.
    """

    should_training_stop: bool = False


class TrainingStopped(InterruptedRunError):
    """A callback asked to stop: the run was saved, and the same call continues it."""


class StopRequest:
    """Context in which the first SIGINT or SIGTERM is only remembered.

    Attributes:
        received: number of the signal, 0 before one arrived.
        asked: whether a callback asked to stop.
    """

    def __init__(self) -> None:
        self.received, self.asked, self._since = 0, False, 0.0
        self._previous: dict[int, Any] = {}
        self._process = os.getpid()
        self._group: dist.ProcessGroup | None = None

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():  # no other thread may ask for signals
            self._previous = processes.on_ending(self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        processes.restore(self._previous)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        # A loader process, which a terminal's Ctrl-C reaches too: its parent ends it.
        if os.getpid() != self._process:
            return
        now = time.monotonic()
        if not self.received:
            self.received, self._since = number, now
        # A scheduler asks all processes of a job, and parent processes pass it on: one request.
        elif number != processes.TERMINATE or now - self._since >= _ECHOES_S:
            # The last saved state is whole, so leaving at once loses only steps.
            raise self.error("left at once")

    def agreed(self, accelerator: Accelerator) -> bool:
        """Whether any process was asked to stop; all processes get the same answer."""
        if accelerator.num_processes > 1:
            if self._group is None:  # of CPUs: a GPU would have to finish its step before it answers
                self._group = dist.new_group(backend="gloo", timeout=PROCESS_TIMEOUT)
            words = torch.tensor([self.received, int(self.asked)])
            dist.all_reduce(words, dist.ReduceOp.MAX, group=self._group)
            self.received, self.asked = int(words[0]), bool(words[1])
        return bool(self.received) or self.asked

    def progress(self, items: Iterable[Any], total: int, label: str) -> Iterator[Any]:
        """A progress bar over work that is not saved halfway; an `InterruptedRunError` if a signal was received."""
        for item in progress_bar(items, total, label):
            if self.received:
                raise self.error("stopped; the last saved state is whole")
            yield item

    def error(self, what: str) -> InterruptedRunError:
        """The exception that ends the run, with the exit code of the signal, if any."""
        if not self.received and self.asked:
            return TrainingStopped(f"Stopped by a callback: {what}. The same call resumes from there.", 0)
        return InterruptedRunError(
            f"Interrupted: {what}. Run the same command again to resume from there.", self.received
        )


# Callbacks


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

    path: Path = Path()
    num_stages: int = 1
    is_main_process: bool = True
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


@dataclass
class Callbacks:
    """All callbacks of a training, called in the given order; `stop` remembers that one asked to end it.

    The epochs are written into the history of the run in the folder `history`, if one is given.
    """

    arguments: TrainingArguments
    stop: StopRequest
    state: RunState = field(default_factory=RunState)
    callbacks: Sequence[CategoryDiscoveryCallback] = ()
    history: Path | None = None
    control: TrainingControl = field(default_factory=TrainingControl)

    def call(self, event: str, **details: Mapping[str, float]) -> None:
        """Call a method of every callback, and stop the training if one asked for it."""
        for each in self.callbacks:
            getattr(each, event)(self.arguments, self.state, self.control, **details)
        self.stop.asked |= self.control.should_training_stop

    def end_step(self, epoch: int, step: int) -> None:
        """Report a step."""
        self.state.epoch, self.state.step = epoch, step
        self.call("on_step_end")

    def end_epoch(self, record: EpochRecord) -> None:
        """Record and report an epoch."""
        if self.history is not None:
            add_epoch(self.history, record)
        self.call("on_epoch_end", metrics=record.metrics)


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


# Trackers

TRACKER_PROJECT = "promptccd"


@dataclass
class Tracking(CategoryDiscoveryCallback):
    """Reports a run to the tracker of `report_to`, or to the accelerator's own; epochs of all stages are its steps.

    The tracker stays open for later reports, such as evaluations: end it with `end_training` of the accelerator.
    """

    accelerator: Accelerator
    name: str
    manifest: Mapping[str, Any]

    def on_train_begin(self, args: TrainingArguments, state: RunState, control: TrainingControl) -> None:
        """Start the requested tracker with the recipe as its settings, if it is not running.

        Raises:
            ConfigurationError: its package is missing.
        """
        wanted = args.report_to
        if wanted == "none" or self.accelerator.trackers:
            return
        settings = {  # values that are neither words nor numbers become JSON
            f"{section}.{name}": value if isinstance(value, int | float | str) else json.dumps(value)
            for section, fields in self.manifest["recipe"].items()
            for name, value in fields.items()
        }
        options = self._options(wanted, state.path) if state.is_main_process else {}
        settings["split"] = self.manifest["split_fingerprint"]
        self.accelerator.init_trackers(TRACKER_PROJECT, settings, {wanted: options})
        if state.is_main_process and not self.accelerator.trackers:  # accelerate only warns
            raise ConfigurationError(
                f"--report_to {wanted} needs a package that is missing: pip install {wanted}."
            )

    def _options(self, wanted: str, run: Path) -> dict[str, Any]:
        """Options of a tracker; a continued run continues at the tracker too, where the tracker supports it."""
        logs = make_inside(run, "logs")
        named_by_project = LOGGER_TYPE_TO_CLASS[wanted].requires_logging_directory
        make_inside(logs, TRACKER_PROJECT if named_by_project else wanted)
        if wanted == "wandb":
            identity = logs / "wandb_id"
            if not identity.exists():
                write_file(identity, uuid.uuid4().hex)
            place = {"dir": str(logs), "id": read_file(identity).decode()}
            return {**place, "name": self.name, "resume": "allow", "reinit": "finish_previous"}
        return {"name": self.name, "resume": "allow"} if wanted == "trackio" else {}

    def on_epoch_end(
        self, args: TrainingArguments, state: RunState, control: TrainingControl, metrics: Mapping[str, float]
    ) -> None:
        """Losses by part, rates and images per second."""
        self._log(args.epochs_before(state.stage) + state.epoch, metrics, f"stage{state.stage}/")

    def on_evaluate(
        self, args: TrainingArguments, state: RunState, control: TrainingControl, metrics: Mapping[str, float]
    ) -> None:
        """All, Old and New of a protocol, and the number of categories."""
        self._log(args.epochs_before(state.stage + 1) - 1, metrics)

    def on_stage_end(
        self, args: TrainingArguments, state: RunState, control: TrainingControl, metrics: Mapping[str, float]
    ) -> None:
        """Measures of the prompts."""
        self._log(args.epochs_before(state.stage + 1) - 1, metrics, f"stage{state.stage}/")

    def _log(self, epoch: int, values: Mapping[str, float], prefix: str = "") -> None:
        if values and self.accelerator.trackers:
            self.accelerator.log({f"{prefix}{name}": value for name, value in values.items()}, step=epoch)

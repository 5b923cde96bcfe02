"""What an experiment tracker sees of a run: its recipe, losses, rates, speed, prompts, tables and groups."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from promptccd.errors import ConfigurationError
from promptccd.runs.run_directory import RunDirectory
from promptccd.storage import make_inside, read_file, write_file
from promptccd.training.arguments import TrainingArguments
from promptccd.training.callbacks import CategoryDiscoveryCallback, RunState, TrainingControl

PROJECT = "promptccd"


class Tracking(CategoryDiscoveryCallback):
    """Tells the tracker of `report_to`, or those that the accelerator came with; epochs of all stages are its steps.

    It stays open for what comes later, such as evaluations: who made the accelerator ends it with `end_training`.

    Args:
        accelerator: what the trackers belong to.
        run: the run they hear of.
    """

    def __init__(self, accelerator: Accelerator, run: RunDirectory):
        self.accelerator, self.run = accelerator, run

    def on_train_begin(self, args: TrainingArguments, state: RunState, control: TrainingControl) -> None:
        """Start the tracker, and tell it the recipe.

        Raises:
            ConfigurationError: its package is missing.
        """
        manifest = self.run.manifest
        self.start(args, state, {**_flat(manifest["recipe"]), "split": manifest["split_fingerprint"]})

    def start(self, args: TrainingArguments, state: RunState, settings: dict[str, Any] | None = None) -> None:
        """Start the tracker, if one is wanted and none is there.

        Raises:
            ConfigurationError: its package is missing.
        """
        wanted = args.report_to
        if wanted == "none" or self.accelerator.trackers:
            return
        options = self._options(wanted) if state.is_main_process else {}
        self.accelerator.init_trackers(PROJECT, settings, {wanted: options})
        if state.is_main_process and not self.accelerator.trackers:  # accelerate only warns
            raise ConfigurationError(
                f"--report_to {wanted} needs a package that is missing: pip install {wanted}."
            )

    def _options(self, wanted: str) -> dict[str, Any]:
        """What a tracker is started with; a run that goes on goes on there too, where it can."""
        logs = make_inside(self.run.path, "logs")
        make_inside(logs, PROJECT if LOGGER_TYPE_TO_CLASS[wanted].requires_logging_directory else wanted)
        if wanted == "wandb":
            place = {"dir": str(logs), "id": _identity(logs / "wandb_id")}
            return {**place, "name": self.run.name, "resume": "allow", "reinit": "finish_previous"}
        return {"name": self.run.name, "resume": "allow"} if wanted == "trackio" else {}

    def on_epoch_end(
        self, args: TrainingArguments, state: RunState, control: TrainingControl, metrics: Mapping[str, float]
    ) -> None:
        """Losses by part, rates and images per second."""
        self._log(
            {f"stage{state.stage}/{name}": value for name, value in metrics.items()},
            args.epochs_before(state.stage) + state.epoch,
        )

    def on_evaluate(
        self, args: TrainingArguments, state: RunState, control: TrainingControl, metrics: Mapping[str, float]
    ) -> None:
        """All, Old and New of a protocol, and how many categories there were."""
        self._log(metrics, _last_epoch(args, state))

    def on_stage_end(
        self, args: TrainingArguments, state: RunState, control: TrainingControl, metrics: Mapping[str, float]
    ) -> None:
        """What the prompts did, and the groups as a picture where the tracker shows pictures."""
        step = _last_epoch(args, state)
        self._log({f"stage{state.stage}/{name}": value for name, value in metrics.items()}, step)
        able = [each for each in self.accelerator.trackers if hasattr(each, "log_images")]
        if able and state.is_main_process and state.draw_groups is not None:
            picture = np.asarray(state.draw_groups())[None]  # one picture, (1, H, W, 3)
            for tracker in able:
                shape = {"dataformats": "NHWC"} if tracker.name == "tensorboard" else {}
                tracker.log_images({f"stage{state.stage}/groups": picture}, step, **shape)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        if values and self.accelerator.trackers:
            self.accelerator.log(dict(values), step=step)


def _last_epoch(args: TrainingArguments, state: RunState) -> int:
    return args.epochs_before(state.stage + 1) - 1


def _identity(path: Any) -> str:
    """The name a run has at its tracker, drawn once."""
    try:
        return read_file(path).decode()
    except FileNotFoundError:
        write_file(path, uuid.uuid4().hex)
        return _identity(path)


def _flat(recipe: Mapping[str, Mapping[str, Any]]) -> dict[str, bool | int | float | str]:
    """A recipe by ``section.field``; what is neither word nor number is written out."""
    return {
        f"{section}.{name}": value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for section, fields in recipe.items()
        for name, value in fields.items()
    }

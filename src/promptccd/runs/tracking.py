"""Reports of a run to an experiment tracker: recipe, losses, rates, speed, prompts and tables."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from promptccd.disk import make_inside, read_file, write_file
from promptccd.errors import ConfigurationError
from promptccd.runs.folder import RunDirectory
from promptccd.training.callbacks import CategoryDiscoveryCallback, RunState, TrainingControl
from promptccd.training.options import TrainingArguments

TRACKER_PROJECT = "promptccd"


class Tracking(CategoryDiscoveryCallback):
    """Reports a run to the tracker of `report_to`, or to the accelerator's own; epochs of all stages are its steps.

    The tracker stays open for later reports, such as evaluations: end it with `end_training` of the accelerator.
    """

    def __init__(self, accelerator: Accelerator, run: RunDirectory):
        self.accelerator, self.run = accelerator, run

    def on_train_begin(self, args: TrainingArguments, state: RunState, control: TrainingControl) -> None:
        """Start the tracker with the recipe as its settings."""
        manifest = self.run.manifest
        settings = {  # values that are neither words nor numbers become JSON
            f"{section}.{name}": value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for section, fields in manifest["recipe"].items()
            for name, value in fields.items()
        }
        self.start(args, state, {**settings, "split": manifest["split_fingerprint"]})

    def start(self, args: TrainingArguments, state: RunState, settings: dict[str, Any] | None = None) -> None:
        """Start the requested tracker, if it is not running; a `ConfigurationError` if its package is missing."""
        wanted = args.report_to
        if wanted == "none" or self.accelerator.trackers:
            return
        options = self._options(wanted) if state.is_main_process else {}
        self.accelerator.init_trackers(TRACKER_PROJECT, settings, {wanted: options})
        if state.is_main_process and not self.accelerator.trackers:  # accelerate only warns
            raise ConfigurationError(
                f"--report_to {wanted} needs a package that is missing: pip install {wanted}."
            )

    def _options(self, wanted: str) -> dict[str, Any]:
        """Options of a tracker; a continued run continues at the tracker too, where the tracker supports it."""
        logs = make_inside(self.run.path, "logs")
        named_by_project = LOGGER_TYPE_TO_CLASS[wanted].requires_logging_directory
        make_inside(logs, TRACKER_PROJECT if named_by_project else wanted)
        if wanted == "wandb":
            identity = logs / "wandb_id"
            if not identity.exists():
                write_file(identity, uuid.uuid4().hex)
            place = {"dir": str(logs), "id": read_file(identity).decode()}
            return {**place, "name": self.run.name, "resume": "allow", "reinit": "finish_previous"}
        return {"name": self.run.name, "resume": "allow"} if wanted == "trackio" else {}

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

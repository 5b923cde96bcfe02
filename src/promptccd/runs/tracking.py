"""Reports of a run to an experiment tracker: recipe, losses, rates, speed, prompts, tables and groups."""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from PIL import Image, ImageDraw, ImageOps
from torch import Tensor

from promptccd.data.readable import StageImages
from promptccd.disk import make_inside, read_file, write_file
from promptccd.errors import ConfigurationError
from promptccd.evaluation import Discovery
from promptccd.runs.folder import RunDirectory
from promptccd.training.callbacks import CategoryDiscoveryCallback, RunState, TrainingControl
from promptccd.training.options import TrainingArguments

TRACKER_PROJECT = "promptccd"
# Pixels of the picture of groups: of an image, between two, and of a line of words.
SIDE, GAP, TITLE = 64, 4, 14
MOST_GROUPS, MOST_IMAGES = 24, 10


class Tracking(CategoryDiscoveryCallback):
    """Reports to the tracker of `report_to`, or to the accelerator's own; the epochs of all stages are its steps.

    The tracker stays open for later reports, such as evaluations: end it with `end_training` of the
    accelerator.

    Args:
        accelerator: owns the trackers.
        run: the run to report.
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
        """Start the tracker, if one is wanted and not running; a `ConfigurationError` if its package is missing."""
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
        self._log(
            {f"stage{state.stage}/{name}": value for name, value in metrics.items()},
            args.epochs_before(state.stage) + state.epoch,
        )

    def on_evaluate(
        self, args: TrainingArguments, state: RunState, control: TrainingControl, metrics: Mapping[str, float]
    ) -> None:
        """All, Old and New of a protocol, and the number of categories."""
        self._log(metrics, _last_epoch(args, state))

    def on_stage_end(
        self, args: TrainingArguments, state: RunState, control: TrainingControl, metrics: Mapping[str, float]
    ) -> None:
        """Measures of the prompts, and the groups as a picture if the tracker takes pictures."""
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


def group_picture(
    images: StageImages, features: Tensor, found: Discovery, names: Mapping[int, str], num_known: int
) -> Callable[[], Image.Image]:
    """Draws a stage's groups when called: discovered ones before known ones, the largest first, typical images first.

    Features ``(N, D)`` are L2-normalised, and are not kept. Ids below `num_known` are of known categories.
    """
    ids, places = found.category_ids, {category: row for row, category in enumerate(found.prototype_ids)}
    rows = [places.get(category, 0) for category in ids.tolist()]
    likeness = (features * found.prototypes.to(features)[rows]).sum(1).cpu().numpy()

    def draw() -> Image.Image:
        sizes = Counter(ids[ids >= 0].tolist())
        groups = sorted(sizes.items(), key=lambda each: (each[0] < num_known, -each[1], each[0]))[
            :MOST_GROUPS
        ]
        height = TITLE + SIDE + GAP
        size = GAP + MOST_IMAGES * (SIDE + GAP), max(1, len(groups)) * height + GAP
        picture = Image.new("RGB", size, "white")
        pen = ImageDraw.Draw(picture)
        for row, (category, count) in enumerate(groups):
            kind = "known" if category < num_known else "discovered"
            title = f"{category}: {names.get(category, '')} ({kind}, {count} images)"
            pen.text((GAP, row * height + 1), title.encode("ascii", "replace").decode(), fill="black")
            members = np.flatnonzero(ids == category)
            typical = members[np.argsort(-likeness[members], kind="stable")][:MOST_IMAGES]
            for place, image in enumerate(typical.tolist()):
                corner = (GAP + place * (SIDE + GAP), row * height + TITLE)
                shown = images[image]
                is_small = max(shown.size) < SIDE
                filter_ = Image.Resampling.NEAREST if is_small else Image.Resampling.BICUBIC
                picture.paste(ImageOps.contain(shown, (SIDE, SIDE), filter_), corner)
        return picture

    return draw

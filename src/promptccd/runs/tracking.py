"""Reports of a run to an experiment tracker: recipe, losses, rates, speed, prompts, tables and groups."""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from PIL import Image, ImageDraw
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
        self.start(args, state, {**_flat(manifest["recipe"]), "split": manifest["split_fingerprint"]})

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
        make_inside(
            logs, TRACKER_PROJECT if LOGGER_TYPE_TO_CLASS[wanted].requires_logging_directory else wanted
        )
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


def _flat(recipe: Mapping[str, Mapping[str, Any]]) -> dict[str, bool | int | float | str]:
    """A recipe by ``section.field``; values that are neither words nor numbers become JSON."""
    return {
        f"{section}.{name}": value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for section, fields in recipe.items()
        for name, value in fields.items()
    }


def group_picture(
    images: StageImages, features: Tensor, found: Discovery, names: Mapping[int, str], num_known: int
) -> Callable[[], Image.Image]:
    """Draws a stage's groups when called: discovered ones before known ones, the largest first, typical images first.

    Args:
        images: readable images of the stage.
        features: of these images, ``(N, D)``, L2-normalised; they are not kept.
        found: their categories.
        names: of the categories, by id.
        num_known: ids below it are of known categories.
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
                picture.paste(_thumbnail(images[image]), corner)
        return picture

    return draw


def _thumbnail(image: Image.Image) -> Image.Image:
    """An image no larger than `SIDE` each way; a small one is enlarged pixel by pixel."""
    scale = SIDE / max(image.size)
    size = max(1, int(image.width * scale)), max(1, int(image.height * scale))
    return image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BICUBIC)

"""The folder of a run: paths, JSON records and resumable states."""

import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from promptccd.clustering import CountEstimate
from promptccd.data.stages import StageStream
from promptccd.disk import (
    make_inside,
    newer_format,
    parsed_json,
    problems_of,
    read_file,
    remove_leftovers,
    write_file,
)
from promptccd.errors import MOST_LISTED, RunError, nothing_at
from promptccd.evaluation import ContinualScore, StageScore
from promptccd.models import CategoryDiscoveryConfig
from promptccd.training.recipe import Recipe
from promptccd.training.stage_trainer import TrainingState

logger = logging.getLogger(__name__)

# Exceptions of a JSON file with unexpected names or types.
_INCOMPLETE = (AttributeError, KeyError, TypeError, ValueError)
_RECORDED = ("format", "split_fingerprint", "data_fingerprint", "recipe", "versions")
RUN_FORMAT = 1  # of manifest.json and all other records of a run
ASSIGNMENTS = "assignments.json"
RESUME = "resume"  # folder of the resumable states
STREAMS = "found"  # key in the manifest: a `stream_row` per stage
# Fields of a recipe that may name a local folder, or several.
PLACES = (("data", "dataset"), ("data", "unlabelled"), ("data", "labels"), ("model", "backbone"))


class RunDirectory:
    """Paths and records of one run.

    Layout: ``stage0 ... stageT`` (one checkpoint each), ``backbone`` (if the run pretrained it), ``resume`` (states
    inside a stage), ``split.json``, ``manifest.json``, ``images.json``, ``results.json``, ``history.jsonl``.

    Args:
        path: the folder; `promptccd.runs.start.begin` creates it.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.backbone = self.path / "backbone"  # that was pretrained for this run

    # Paths

    def stage(self, index: int) -> Path:
        """Folder of a stage's checkpoint."""
        return self.path / f"stage{index}"

    @property
    def name(self) -> str:
        """Name of the run on the Hub: the folder's name, reduced to characters that a repository's name may have.

        A sweep names its cells by fields and values, as in ``category_ratio=0.2``.
        """
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", folder_name(self.path))
        return re.sub(r"--+|\.\.+", "-", plain).strip("-.") or "run"

    @property
    def begun(self) -> bool:
        """Whether the folder contains a run."""
        return (self.path / "manifest.json").exists()

    @property
    def num_stages(self) -> int:
        """Number of stages of the run's split, trained or not; 0 before the split is recorded."""
        return len((self.read("split.json") or {"stages": ()})["stages"])

    @property
    def num_finished(self) -> int:
        """Number of stage folders from 0 on; their content is not checked."""
        return next(index for index in count() if not self.stage(index).exists())

    def stages_on_disk(self) -> int:
        """Number of stage folders from 0 on, after the checksums of each are compared.

        Raises:
            RunError: a stage folder is damaged, or missing.
        """
        for stage in range(self.num_finished):
            if problems := problems_of(self.stage(stage)):
                raise RunError(
                    f"{self.stage(stage)} is damaged: {'; '.join(problems)}. Run the training command again to resume "
                    "from the last whole stage."
                )
        if not self.begun:
            raise RunError(_no_run(self.path))
        if not self.num_finished:
            raise RunError(f"{self.path} contains no finished stage. Let the training finish a stage first.")
        return self.num_finished

    # Records

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON record of the run, or `None`.

        Raises:
            RunError: the file is a link, or no JSON.
        """
        try:
            return parsed_json(read_file(self.path / name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise RunError(f"{name} in {self.path} is damaged: {error}. Restore it from a copy.") from error

    def write(self, name: str, value: Any) -> None:
        """Replace a JSON record of the run atomically."""
        write_file(self.path / name, json.dumps(value, indent=1) + "\n")

    @property
    def manifest(self) -> dict[str, Any]:
        """Content of ``manifest.json``.

        Raises:
            RunError: the folder contains no run, the record is incomplete, or a newer version wrote it.
        """
        manifest = self.read("manifest.json")
        if manifest is None:
            raise RunError(_no_run(self.path))
        if absent := [name for name in _RECORDED if name not in manifest]:
            raise RunError(
                f"manifest.json in {self.path} is damaged: it has no {', '.join(absent)}. Restore it from a copy."
            )
        if newer := newer_format(manifest["format"], RUN_FORMAT):
            raise RunError(f"manifest.json in {self.path} {newer}")
        return manifest

    def update_manifest(self, values: dict[str, Any]) -> None:
        """Merge values into ``manifest.json``, dictionaries one level deep."""
        manifest = self.manifest if self.begun else {}
        for key, value in values.items():
            manifest[key] = {**manifest.get(key, {}), **value} if isinstance(value, dict) else value
        self.write("manifest.json", manifest)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run; local folders are resolved relative to where the run is stored now."""
        values = self.manifest["recipe"]

        def resolved(place: str) -> str:
            if not (found := self.path / place).exists():
                return place
            plain = Path(os.path.normpath(found))  # differs where a folder of the run's path is a link
            return str(plain if plain.exists() and plain.samefile(found) else found)

        change_places(values, resolved)
        # No folder of a cache: another person's record may name one, and nothing is written there.
        if values["training"].get("image_cache") != "off":
            values["training"]["image_cache"] = "auto"
        return Recipe.from_dict(values)

    @property
    def results(self) -> ContinualScore:
        """Content of ``results.json``; without stages before the first scored one.

        Raises:
            RunError: the file is no table of scores.
        """
        try:
            values = self.read("results.json")
            return ContinualScore("cacc", []) if values is None else ContinualScore.from_dict(values)
        except _INCOMPLETE as error:
            raise RunError(
                f"results.json in {self.path} is damaged: {_reason(error)}. Restore it from a copy, or delete it and "
                "run the training command again, which scores finished stages again."
            ) from error

    def results_up_to(self, stage: int) -> ContinualScore:
        """The rows of ``results.json`` without later stages; perhaps empty."""
        return ContinualScore("cacc", [row for row in self.results.stages if row.stage <= stage])

    def record(self, score: StageScore) -> None:
        """Put a stage's row into ``results.json``, in place of an earlier row."""
        rows = {row.stage: row for row in [*self.results.stages, score]}
        table = ContinualScore("cacc", [rows[stage] for stage in sorted(rows)]).to_dict()
        # Averages are of the rounded rows that are written.
        self.write("results.json", ContinualScore.from_dict(table).to_dict())

    def assignments(self, stage: int) -> dict[str, list[int]]:
        """The categories of a finished stage's images: ``sample_ids``, ``category_ids`` and perhaps ``class_ids``."""
        return assignments_in(self.stage(stage))

    def require_split(self, stages: StageStream) -> None:
        """Refuse, with a `SplitMismatchError`, to evaluate on another split than the run was trained on."""
        recorded = str((self.read("split.json") or {}).get("fingerprint"))
        for name, found in (("manifest.json", self.manifest["split_fingerprint"]), ("split.json", recorded)):
            stages.require_fingerprint(found, f"By {name}, the run in {self.path}")

    # Resumable states

    def state_file(self, stage: int) -> Path:
        """The file with the resumable state of a stage; it exists if the stage can be resumed."""
        return self.path / RESUME / f"stage{stage}.safetensors"

    def save_state(self, stage: int, state: TrainingState, seconds: float) -> None:
        """Replace the resumable state of a stage, with its training time in seconds.

        The state before stays until the new state is on the disk.
        """
        position = {"epoch": state.epoch, "step": state.step, "seconds": seconds}
        content = save(state.tensors, {"position": json.dumps(position)})
        make_inside(self.path, RESUME)
        write_file(self.state_file(stage), content)

    def load_state(self, stage: int) -> tuple[TrainingState, float] | None:
        """The state inside a stage and its training time in seconds; `None` to train the stage from its start."""
        try:
            with safe_open(self.state_file(stage), "pt") as file:
                position = json.loads(file.metadata()["position"])
                seconds = position.pop("seconds")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return TrainingState(**position, tensors=tensors), seconds
        except FileNotFoundError:
            return None
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            logger.warning(
                "%s is damaged (%s): the stage is trained from its start.", self.state_file(stage), error
            )
            return None

    def forget_states(self, stage: int) -> None:
        """Delete the state inside a finished stage."""
        remove_leftovers(self.path / RESUME)
        self.state_file(stage).unlink(missing_ok=True)
        with suppress(OSError):  # the folder contains states of another stage, or does not exist
            (self.path / RESUME).rmdir()


def assignments_in(folder: Path) -> dict[str, list[int]]:
    """Content of ``assignments.json`` of a stage, see `RunDirectory.assignments`.

    Raises:
        RunError: the file is missing or damaged.
    """
    try:
        found: dict[str, list[int]] = parsed_json((folder / ASSIGNMENTS).read_text(encoding="utf-8"))
        columns = [found["sample_ids"], found["category_ids"], *found.values()]
        if len({len(column) for column in columns}) != 1:
            raise ValueError("its columns differ in length")
    except (OSError, *_INCOMPLETE) as error:
        raise RunError(
            f"{folder / ASSIGNMENTS} is damaged: {_reason(error)}. Copy the stage again, or delete its folder and "
            "run the training command again."
        ) from error
    return found


def _reason(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")


def folder_name(folder: Path) -> str:
    """The name of a folder, also of ``.`` and ``..``."""
    return Path(os.path.abspath(folder)).name


def change_places(values: dict[str, dict[str, Any]], change: Callable[[str], str]) -> None:
    """Change every place that plain values of a recipe name."""
    for section, key in PLACES:
        if isinstance(value := values.get(section, {}).get(key), list):
            values[section][key] = list(map(change, value))
        elif value is not None:
            values[section][key] = change(value)


def _no_run(path: Path) -> str:
    """Why a folder is no run, and which one may be meant."""
    if not path.exists():
        return f"{nothing_at(path)} Give the folder of a run, the --output_dir of promptccd train."
    near = [*sorted(path.glob("*/manifest.json")), path.absolute().parent / "manifest.json"]
    runs = [str(each.parent) for each in near if each.exists()]
    near_here = f"{'one of ' * (len(runs) > 1)}{', '.join(runs[:MOST_LISTED])}"
    advice = near_here if runs else "the --output_dir of promptccd train"
    return f"{path} is not a run: it has no manifest.json. Give {advice}."


def stream_row(
    stage: int,
    category_ids: np.ndarray,
    before: Sequence[np.ndarray],
    config: CategoryDiscoveryConfig,
    not_sure: int,
    count: CountEstimate | None,
) -> dict[str, Any]:
    """Counts of a stream after its images were grouped; no labels are needed.

    `category_ids` are those of its images, ``(N,)``, and `before` those of earlier stages; `not_sure` images are more
    likely of no category than of the one they are in.

    Returns:
        ``stage``, the number of ``images``, and how many went into ``labelled`` categories of stage 0, into categories
        found or named ``earlier``, and into ``new`` ones; ``not_sure``; ``num_categories`` after the stage, and
        ``num_new`` of them; the ``estimate`` in words, empty where the number was given; a ``summary`` in words.
    """
    labelled = category_ids < config.num_known
    earlier = ~labelled & np.isin(category_ids, np.concatenate(before))
    new = ~labelled & ~earlier
    images, num_new, total = len(category_ids), len(np.unique(category_ids[new])), len(config.category_ids)
    estimate = str(count) if count is not None and count.is_estimate else ""
    kinds = f"{num_new} new categor{'y' if num_new == 1 else 'ies'}"
    unsure = " (estimate unreliable)" * estimate.endswith("unreliable)")
    return {
        "stage": stage, "images": images, "labelled": int(labelled.sum()), "earlier": int(earlier.sum()),
        "new": int(new.sum()), "not_sure": not_sure, "num_categories": total, "num_new": num_new,
        "estimate": estimate,
        "summary": f"{images} images, {new.sum()} of them in {kinds}. {total} categories so far{unsure}",
    }  # fmt: skip


def stream_rows(run: RunDirectory) -> list[dict[str, Any]]:
    """The `stream_row` of every stream that was grouped, in order; empty for a run whose labels were hidden."""
    return sorted(run.manifest.get(STREAMS, {}).values(), key=lambda row: row["stage"])

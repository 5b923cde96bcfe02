"""The folder of a run: its lock, its records and its resumable states."""

import dataclasses
import json
import logging
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from promptccd.clustering import CountEstimate
from promptccd.data.splits import CategorySplit
from promptccd.data.stages import StageStream
from promptccd.data.tables import BUILT_IN
from promptccd.errors import MOST_LISTED, ConfigurationError, RunError, SplitMismatchError, nothing_at
from promptccd.evaluation import ContinualScore, StageScore
from promptccd.methods import method_named
from promptccd.storage import (
    make_inside,
    newer_format,
    parsed_json,
    problems_of,
    read_file,
    refuse_links,
    remove,
    remove_leftovers,
    trusted,
    write_directory,
    write_file,
    write_json,
)
from promptccd.training.history import HISTORY
from promptccd.training.recipe import Recipe, laid_over
from promptccd.training.trainer import TrainingState
from promptccd.version import __version__

logger = logging.getLogger(__name__)

FOUND = "found"  # by stage, in the manifest

FORMAT = 1  # of manifest.json, for all records beside it
KEPT_STATES = 2
NORMALISATION = "normalisation"  # mean and deviation of colours, in the manifest
LICENCE = "licence"  # of the weights, in the manifest
FETCHED = "fetched"  # where stages come from, by stage, in the manifest; before there is one, in a file
OUT_OF_MEMORY = "out_of_memory.json"
_RECORDS = (
    "manifest.json",
    "split.json",
    "images.json",
    "results.json",
    HISTORY,
    OUT_OF_MEMORY,
    f"{FETCHED}.json",
)
_INNER = ("resume", "backbone", "logs", "logs/promptccd", "logs/wandb")  # the last three are a tracker's
# The position of a state. Randomness is keyed by position, so that epoch and step are its state too.
_POSITION = ("stage", "epoch", "step", "batch_size", "seconds", "tensors")
# Fields that may change before a run is continued: they change no byte of its stages.
FREE_FIELDS = {
    # The same data in another place; the split's fingerprint decides. Streams and labels are added to those before.
    "data": {"dataset", "unlabelled", "labels"},
    "model": {"max_model_bytes"},
    "training": {
        "output_dir", "num_workers", "image_cache", "save_minutes", "report_to", "push_to_hub", "hub_namespace",
        "hub_private", "resume_from",
    },
}  # fmt: skip
_FACTS = ("dataset", "split", "num_classes", "images_per_class")
# Fields that may name a local folder, or several.
PLACES = (("data", "dataset"), ("data", "unlabelled"), ("data", "labels"), ("model", "backbone"))
ASSIGNMENTS = "assignments.json"
# Fields that every manifest has, and those it has by stage.
_RECORDED = {"split_fingerprint": str, "data_fingerprint": str, "recipe": dict, "versions": dict}
_BY_STAGE = ("seconds", "peak_memory", "instruments", "found", FETCHED)
_PACKAGES = ("torch", "transformers", "datasets", "accelerate", "safetensors", "numpy", "pillow")


class RunDirectory:
    """Paths and records of one run.

    Layout: ``stage0 ... stageT`` (one checkpoint each), ``backbone`` (if the run pretrained it), ``resume``
    (states inside a stage), ``split.json``, ``manifest.json``, ``images.json``, ``results.json``.

    Args:
        path: the folder; `prepare` creates it.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def stage(self, index: int) -> Path:
        """Folder of a stage's checkpoint."""
        return self.path / f"stage{index}"

    @property
    def name(self) -> str:
        """The run's name on the Hub: its folder's name, without characters that a repository's name may not have.

        A sweep names its cells by fields and values, as in ``category_ratio=0.2``.
        """
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", _name_of(self.path))
        return re.sub(r"--+|\.\.+", "-", plain).strip("-.") or "run"

    @property
    def backbone(self) -> Path:
        """Folder of the backbone that was pretrained for this run."""
        return self.path / "backbone"

    @property
    def results(self) -> ContinualScore | None:
        """Content of ``results.json``, `None` before the first scored stage.

        Raises:
            RunError: it is damaged.
        """
        values = self.read("results.json")
        if values is None:
            return None
        try:
            score = ContinualScore.from_dict(values)
            score.to_dict()  # raises if a value is no number
            stages = [row.stage for row in score.stages]
            if stages != sorted(set(stages)):
                raise ValueError(f"rows of stages {stages}")
            return score
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"results.json in {self.path} is no table of a run any more ({_said(error)}). Restore it from a copy, "
                "or delete it and run the training command again, which scores finished stages anew."
            ) from error

    @property
    def manifest(self) -> dict[str, Any]:
        """Content of ``manifest.json``.

        Raises:
            RunError: this is no run directory, it is damaged, or a newer version wrote it.
        """
        manifest = self._manifest()
        if manifest is None:
            raise RunError(_no_run(self.path))
        absent = [name for name, kind in _RECORDED.items() if not isinstance(manifest.get(name), kind)]
        odd = [name for name in _BY_STAGE if not _is_by_stage(manifest.get(name, {}))]
        colours = manifest.get(NORMALISATION, {"mean": [0.0] * 3, "std": [0.0] * 3})
        odd += [NORMALISATION] * (not _are_colours(colours))
        if absent or odd:
            raise RunError(
                f"manifest.json in {self.path} does not say {', '.join([*absent, *odd])} as it was written. Restore it "
                "from a copy."
            )
        return manifest

    def made_with(self, device: torch.device) -> dict[str, str]:
        """Versions and hardware of the run, for people."""
        manifest = self.manifest
        hardware = f"{manifest['machine']} CPU" if "machine" in manifest else "CPU"
        if device.type == "cuda":
            hardware = torch.cuda.get_device_name(device)
        python = {"Python": manifest["python"]} if "python" in manifest else {}
        return {**manifest["versions"], **python, "on": hardware}

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run, with local folders as seen from where the run lies now."""
        values = self.manifest["recipe"]
        change_places(values, self._seen_from_here)
        values["training"]["image_cache"] = _cache_to_record(values["training"].get("image_cache", "auto"))
        return Recipe.from_dict(values)

    @property
    def fetched(self) -> dict[int, str]:
        """Where stages that were not trained here come from: ``namespace/name@commit``, empty for a local folder."""
        noted = {**(self.read(f"{FETCHED}.json") or {}), **(self._manifest() or {}).get(FETCHED, {})}
        return {
            int(name.removeprefix("stage")): str(noted[name])
            for name in sorted(noted)
            if noted[name] is not None
        }

    def note_source(self, stage: int, place: str | None) -> None:
        """Record where a stage comes from, before it is there; `None` if it is trained here after all."""
        if self.begun:
            self.update_manifest({FETCHED: {f"stage{stage}": place}})
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            self.write(f"{FETCHED}.json", {**(self.read(f"{FETCHED}.json") or {}), f"stage{stage}": place})

    def _seen_from_here(self, place: str) -> str:
        """A place that was recorded as seen from the run; one that is not there stays as it is."""
        found = self.path / place
        if not found.exists():
            return place
        plain = Path(os.path.normpath(found))  # which is another where a folder of the run's path is a link
        return str(plain if plain.exists() and plain.samefile(found) else found)

    @property
    def begun(self) -> bool:
        """Whether the folder holds a run, however far it got."""
        return (self.path / "manifest.json").exists()

    @property
    def num_stages(self) -> int:
        """Number of stages of the run's split, trained or not; 0 before the split is recorded."""
        split = self.read("split.json")
        return 0 if split is None else len(split["stages"])

    @property
    def num_finished(self) -> int:
        """Number of stage folders from 0 on, whatever they hold."""
        return next(index for index in count() if not self.stage(index).exists())

    def require_recipe(self, recipe: Recipe) -> None:
        """Refuse, with a `RunError`, a recipe that a begun run cannot be continued with; data are not compared."""
        if self.begun:
            _require_same(self.manifest["recipe"], _portable(recipe, self.path), self.path)

    def prepare(self, recipe: Recipe, stages: StageStream) -> None:
        """Record what the run is made with, or check that a run to be continued was made with the same.

        Raises:
            SplitMismatchError: the images or the split differ; both fingerprints are named.
            RunError: another setting differs; the settings are named. Or a name that will be written is a link.
        """
        written = [*_RECORDS, *_INNER, *(self.stage(stage.index).name for stage in stages)]
        refuse_links(self.path, written)
        remove_leftovers(self.path)
        before = self._manifest()
        if before is not None and not self._holds_work:
            logger.info("The run in %s ended before anything was trained: it begins anew.", self.path)
            (self.path / "manifest.json").unlink()
            before = None
        if before is not None:
            if not stages.is_scored:
                before = self._with_streams(before, recipe, stages)
            stages.require_fingerprint(before["split_fingerprint"], f"The run in {self.path}")
            self._go_on_with(before["recipe"], _portable(recipe, self.path))
        else:
            write_file(self.path / "split.json", json.dumps(stages.split.to_dict()))
            self.update_manifest(
                {
                    "format": FORMAT,
                    "split_fingerprint": stages.split.fingerprint,
                    "data_fingerprint": stages.split.data_fingerprint,
                    "seed": recipe.training.seed,
                    "recipe": _portable(recipe, self.path),
                    "versions": {"promptccd": __version__, **{name: version(name) for name in _PACKAGES}},
                    "python": platform.python_version(),
                    "machine": platform.machine(),
                    "threads": torch.get_num_threads(),
                    "seconds": {},
                    FETCHED: self.read(f"{FETCHED}.json") or {},
                }
            )
            (self.path / f"{FETCHED}.json").unlink(missing_ok=True)

    def _with_streams(self, before: dict[str, Any], recipe: Recipe, stages: StageStream) -> dict[str, Any]:
        """Record the streams that a run goes on with: those that were begun have to be the same, others may change.

        Returns:
            The manifest with them.

        Raises:
            SplitMismatchError: a stage was trained on other images, or is missing; it is named.
        """
        recorded = CategorySplit.from_dict(self.read("split.json") or {})
        done = self.num_finished
        begun = min(max(1, done + any(self._states(done))), len(recorded.counts))
        if recorded.rule != stages.split.rule:
            raise SplitMismatchError(
                f"The run in {self.path} hides labels (class_blocks {list(recorded.class_blocks)}), and these streams "
                f"have none: give another --output_dir, such as {self.path}-2"
            )
        if len(stages.split.counts) < begun:
            raise SplitMismatchError(
                f"The run in {self.path} has {begun - 1} streams already, and {len(stages.split.counts) - 1} are "
                "given: give all of them in their order, and new ones behind; or the new ones alone, promptccd train "
                f"{self.path} --unlabelled ..."
            )
        for stage in stages[:begun]:
            if recorded.contents[stage.index] != stages.split.contents[stage.index]:
                was, is_ = recorded.counts[stage.index].images, len(stage)
                raise SplitMismatchError(
                    f"Stage {stage.index} of {self.path} was made with other images than "
                    f"{stage.place or 'what is labelled'} holds now ({was} then, {is_} now). Leave what was trained as "
                    "it was: images that come later go into a stream of their own, labels that do into --labels; or "
                    f"train anew with --output_dir {self.path}-2"
                )
        if stages.split.first(begun).fingerprint != recorded.first(begun).fingerprint:
            stages.require_fingerprint(recorded.fingerprint, f"The run in {self.path}")
        now, then = _portable(recipe, self.path), before["recipe"]
        for name in ("unlabelled", "labels", "class_blocks"):
            then["data"][name] = now["data"][name]
        counts, given = then["training"]["category_count"], now["training"]["category_count"]
        if isinstance(counts, list) and isinstance(given, list) and given[: begun - 1] == counts[: begun - 1]:
            then["training"]["category_count"] = given
        write_file(self.path / "split.json", json.dumps(stages.split.to_dict()))
        made = {
            "split_fingerprint": stages.split.fingerprint,
            "data_fingerprint": stages.split.data_fingerprint,
        }
        self.update_manifest({**made, "recipe": then})
        return {**before, **made, "recipe": then}

    @property
    def _holds_work(self) -> bool:
        """Whether something was computed here that other settings would not have led to."""
        made = [self.backbone, self.path / "resume", *self.path.glob("stage*"), self.path / OUT_OF_MEMORY]
        return any(each.exists() for each in made)

    def allow_smaller_batches(self, batch_size: int) -> None:
        """Note that steps of so many images need too much memory: the run may continue with smaller ones."""
        self.write(OUT_OF_MEMORY, {"batch_size": batch_size})

    def _go_on_with(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        """Refuse other settings than before, except a batch size that had to become smaller, which is recorded."""
        noted = (self.read(OUT_OF_MEMORY) or {}).get("batch_size")
        was, is_ = (values["training"]["batch_size"] for values in (before, now))
        smaller = was == noted and is_ < was
        if smaller:
            before = {**before, "training": {**before["training"], "batch_size": is_}}
        _require_same(before, now, self.path)
        if smaller:
            whole = [stage for stage in range(self.num_stages) if self.stage(stage).exists()]
            changes = self.manifest.get("smaller_batches", [])
            changes = [*changes, {"batch_size": is_, "instead_of": was, "from_stage": len(whole)}]
            self.update_manifest({"recipe": before, "smaller_batches": changes})
            logger.warning(
                "From stage %d on a step has %d images instead of %d, for which memory was too little. Results are not "
                "those of %d throughout; manifest.json says so.", len(whole), is_, was, was,
            )  # fmt: skip
            (self.path / OUT_OF_MEMORY).unlink()

    def require_split(self, stages: StageStream) -> None:
        """Refuse, with a `SplitMismatchError`, to evaluate on another split than the run was trained on."""
        stages.require_fingerprint(self.manifest["split_fingerprint"], f"The run in {self.path}")
        recorded = (self.read("split.json") or {}).get("fingerprint")
        if recorded != stages.split.fingerprint:
            raise SplitMismatchError(
                f"split.json of {self.path} records split {recorded}, its manifest {stages.split.fingerprint}: "
                "one of them was changed. Restore it, or train again in a new output_dir."
            )

    def stages_on_disk(self) -> int:
        """Number of stage folders from 0 on, after checking each.

        Raises:
            RunError: a stage folder is damaged, or there is none.
        """
        done = self.num_finished
        for stage in range(done):
            if problems := problems_of(self.stage(stage)):
                raise RunError(
                    f"{self.stage(stage)} is damaged: {'; '.join(problems)}. Run the training command again: it "
                    "goes on from the last whole stage."
                )
        if done == 0:
            raise RunError(f"{self.path} holds no finished stage yet. Let the training finish a stage first.")
        return done

    def save_state(self, stage: int, state: TrainingState, seconds: float) -> None:
        """Write a resumable state; older ones are deleted only after it is in place."""
        target = (
            make_inside(self.path, "resume") / f"stage{stage}-epoch{state.epoch:06d}-step{state.step:08d}"
        )

        def fill(staging: Path) -> None:
            save_file(state.tensors, staging / "tensors.safetensors")
            values = (stage, state.epoch, state.step, state.batch_size, seconds, sorted(state.tensors))
            write_json(staging / "position.json", dict(zip(_POSITION, values, strict=True)))

        if not target.exists():
            needed = sum(each.nbytes for each in state.tensors.values())
            write_directory(target, fill, needed=needed)
        for old in self._states(stage)[KEPT_STATES:]:
            remove(old)

    def load_state(self, stage: int) -> tuple[TrainingState, float] | None:
        """Newest whole state inside a stage, with the seconds spent so far; `None` to begin the stage.

        Raises:
            RunError: the state's sums are right, yet a part of it is missing; the part is named.
        """
        remove_leftovers(self.path / "resume")
        for folder in self._states(stage):
            if trusted(folder):
                return _read_state(folder)
        return None

    def forget_states(self, stage: int) -> None:
        """Delete the states inside a finished stage, refused ones too."""
        for folder in (self.path / "resume").glob(f"*stage{stage}-*"):
            remove(folder)
        with suppress(OSError):  # it holds states of another stage, or does not exist
            (self.path / "resume").rmdir()
        (self.path / OUT_OF_MEMORY).unlink(missing_ok=True)

    def assignments(self, stage: int) -> dict[str, list[int]]:
        """Content of a stage's ``assignments.json``, see `assignments_in`."""
        return assignments_in(self.stage(stage))

    def record(self, score: StageScore) -> None:
        """Put a stage's row into ``results.json``, in place of an earlier one."""
        before = self.results
        rows = {row.stage: row for row in before.stages} if before else {}
        rows[score.stage] = score
        table = ContinualScore("cacc", [rows[stage] for stage in sorted(rows)]).to_dict()
        # Once more from the rounded rows, so that the mean is that of the written numbers.
        self.write("results.json", ContinualScore.from_dict(table).to_dict())

    def update_manifest(self, values: dict[str, Any]) -> None:
        """Merge values into ``manifest.json``, dictionaries one level deep."""
        manifest = self._manifest() or {}
        for key, value in values.items():
            manifest[key] = {**manifest.get(key, {}), **value} if isinstance(value, dict) else value
        self.write("manifest.json", manifest)

    def write(self, name: str, value: Any) -> None:
        """Replace a JSON record of the run atomically."""
        write_file(self.path / name, json.dumps(value, indent=1) + "\n")

    def _states(self, stage: int) -> list[Path]:
        return sorted((self.path / "resume").glob(f"stage{stage}-*"), reverse=True)

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON record of the run, `None` if there is none.

        Raises:
            RunError: the file is a link, or holds no JSON object.
        """
        try:
            values = parsed_json(read_file(self.path / name))
            if not isinstance(values, dict):
                raise ValueError(f"expected an object, got a {type(values).__name__}")
            return values
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RunError(
                f"{name} in {self.path} is not JSON any more: {error}. Restore it from a copy."
            ) from error

    def _manifest(self) -> dict[str, Any] | None:
        manifest = self.read("manifest.json")
        newer = None if manifest is None else newer_format(manifest.get("format", FORMAT), FORMAT)
        if newer is not None:
            raise RunError(f"manifest.json in {self.path} {newer}")
        return manifest


def assignments_in(folder: Path) -> dict[str, list[int]]:
    """What a finished stage assigned its images to: ``sample_ids``, ``category_ids`` and perhaps ``class_ids``.

    Raises:
        RunError: the file is missing or damaged.
    """
    try:
        given = parsed_json((folder / ASSIGNMENTS).read_text(encoding="utf-8"))
        columns = [given["sample_ids"], given["category_ids"], *given.values()]
        if not all(isinstance(each, int) for column in columns for each in column):
            raise ValueError("not all of it are numbers")
        if len({len(column) for column in columns}) != 1:
            raise ValueError("some images are without a category, or the other way round")
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise RunError(
            f"{folder / ASSIGNMENTS} does not say any more what was assigned to whom ({_said(error)}). Copy the stage "
            "again, or delete its folder and run the training command again."
        ) from error
    return given


def _said(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error).strip(".")


def _is_by_stage(values: Any) -> bool:
    return isinstance(values, dict) and all(re.fullmatch(r"stage\d+", name) for name in values)


def _read_state(folder: Path) -> tuple[TrainingState, float]:
    """A state and the seconds spent so far; raises if a part is missing, without which other bytes would result."""
    position = parsed_json((folder / "position.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "tensors.safetensors")
    absent = [name for name in _POSITION if name not in position]
    absent += sorted(set(position.get("tensors", ())) - tensors.keys())
    if absent:
        raise RunError(
            f"{folder} holds no {', '.join(absent[:3])}{f' and {len(absent) - 3} more' if len(absent) > 3 else ''}, "
            "without which the stage would end in other bytes. Delete that folder: the same command then goes on from "
            "the state before it, or begins the stage anew."
        )
    state = TrainingState(position["epoch"], position["step"], tensors, position["batch_size"])
    return state, position["seconds"]


def _no_run(path: Path) -> str:
    """Why a folder is no run, and which one may be meant."""
    if not path.exists():
        return f"{nothing_at(path)} Give the folder of a run, the --output_dir of promptccd train."
    above, below = (
        RunDirectory(path.parent),
        sorted(each.parent.name for each in path.glob("*/manifest.json")),
    )
    meant = f"It belongs to the run {above.path}: give that." if above.begun else ""
    meant = f"It holds the runs {', '.join(below[:MOST_LISTED])}: give one of them." if below else meant
    return f"{path} is not a run: it has no manifest.json. " + (
        meant or "Give the --output_dir of promptccd train."
    )


def _name_of(folder: Path) -> str:
    """The name of a folder, also of ``.`` and ``..``."""
    return Path(os.path.abspath(folder)).name


def _portable(recipe: Recipe, run: Path) -> dict[str, dict[str, Any]]:
    """The recipe with the benchmark's facts written out, so that a record does not change when their table does.

    Local folders are written relative to the run: no absolute path, no name of a person.
    """
    values = recipe.to_dict()
    facts = recipe.data.resolved
    values["data"] |= {name: getattr(facts, name) for name in _FACTS}
    values["data"]["class_blocks"] = list(facts.class_blocks)
    if "num_parts" in method_named(recipe.model.variant).model.config_class.__dataclass_fields__:
        values["model"]["num_parts"] = recipe.model.options.get("num_parts", facts.num_parts)
    # Not getpass.getuser: it fails for a user id without a name, which containers like to run under.
    somebody = {os.environ.get("USER"), os.environ.get("LOGNAME"), Path(os.path.expanduser("~")).name}

    def portable(value: str) -> str:
        if value in BUILT_IN or not os.path.exists(os.path.expanduser(value)):
            return value
        try:
            relative = Path(os.path.relpath(os.path.expanduser(value), run))
        except ValueError:  # of Windows: on another drive
            relative = Path(Path(value).name)
        return relative.name if somebody & set(relative.parts) else relative.as_posix()

    change_places(values, portable)
    values["training"]["output_dir"] = _name_of(run) or "run"
    values["training"]["image_cache"] = _cache_to_record(recipe.training.image_cache)
    return values


def _cache_to_record(place: str) -> str:
    """No folder: nobody else has it, and nothing is written to one that a stranger's record names."""
    return "off" if place == "off" else "auto"


def continued(run: RunDirectory, changes: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """The recipe that a begun run goes on with: its own, with further streams and labels.

    Args:
        run: the run.
        changes: values by section and field. Of `unlabelled`, `labels` and given numbers of categories those that
            the run has already are not added again, so that a command may be repeated.

    Raises:
        ConfigurationError: the run hides labels, and no stream can be added to it.
        RunError: its records are damaged.
    """
    recipe, data, training = run.recipe, dict(changes.get("data", {})), dict(changes.get("training", {}))
    streams = recipe.data.unlabelled
    if streams is None and (added := [name for name in ("unlabelled", "labels") if name in data]):
        raise ConfigurationError(
            f"The stages of {run.path} were cut from images that all have labels (class_blocks "
            f"{list(recipe.data.resolved.class_blocks)}), and {added[0]} cannot be added to it: begin a run with "
            "promptccd train LABELLED --unlabelled FOLDER."
        )
    if streams is not None:
        data["class_blocks"] = data.get("class_blocks")  # they are counted anew
        for name in ("unlabelled", "labels"):
            data[name] = _extended(getattr(recipe.data, name), data.get(name))
    given = training.get("category_count")
    if streams is not None and recipe.training.given_counts and isinstance(given, list):
        are_more = len(data["unlabelled"]) > len(streams)
        training["category_count"] = _with_counts(recipe.training.given_counts, given, are_more)
    own = {"training": {"output_dir": str(run.path)}}
    return Recipe.from_dict(
        laid_over([recipe.to_dict(), own, {**changes, "data": data, "training": training}])
    )


def _with_counts(before: list[int], given: list[int], are_more: bool) -> list[int]:
    """Numbers of categories for all streams; they are given for all, or for those that come behind, or once more."""
    if len(given) > len(before) and given[: len(before)] == before:
        return given
    if are_more:
        return [*before, *given]
    return before if before[-len(given) :] == given else given


def _extended(before: Sequence[str] | None, given: Sequence[str] | None) -> list[str] | None:
    """Places, and those behind them that are no place among them already."""
    known = {os.path.realpath(os.path.expanduser(each)) for each in before or ()}
    added = [each for each in given or () if os.path.realpath(os.path.expanduser(each)) not in known]
    return None if before is None and not added else [*(before or ()), *added]


def change_places(values: dict[str, dict[str, Any]], change: Callable[[str], str]) -> None:
    """Change every place that plain values of a recipe name."""
    for section, key in PLACES:
        value = values.get(section, {}).get(key)
        if value is not None:
            values[section][key] = (
                [change(each) for each in value] if isinstance(value, list) else change(value)
            )


def _are_colours(values: Any) -> bool:
    """Whether a mean and a deviation are given for each of three colours."""
    listed = [values.get(name) for name in ("mean", "std")] if isinstance(values, dict) else []
    return bool(listed) and all(
        isinstance(each, list) and [type(value) for value in each] == [float] * 3 for each in listed
    )


def _require_same(before: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    changed = [
        f"{section}.{key} was {before.get(section, {}).get(key)!r}, is {fields.get(key)!r}"
        for section, fields in now.items()
        for key in {**before.get(section, {}), **fields}
        if key not in FREE_FIELDS.get(section, ())
        and before.get(section, {}).get(key) != fields.get(key)
        and (key, fields.get(key)) != ("mixed_precision", "auto")  # which becomes what it was
    ]
    if changed:
        raise RunError(
            f"The run in {path} was made with other settings: {'; '.join(changed)}. Use those again, or give a new "
            f"folder, such as --output_dir {path}-2"
        )


@dataclass(frozen=True)
class StreamRecord:
    """A stream as it was grouped; nothing of it is an accuracy.

    Attributes:
        stage: index of its stage.
        images: number of images that were grouped.
        labelled: how many went into categories that stage 0 labelled.
        earlier: how many into categories that were found, or named, before this stage.
        new: how many into categories that this stage opened.
        not_sure: how many are more likely of no category than of the one they are in.
        num_categories: categories after the stage.
        num_new: categories that this stage opened.
        estimate: how many categories there may be, in words; empty where the number was given.
    """

    stage: int
    images: int
    labelled: int
    earlier: int
    new: int
    not_sure: int
    num_categories: int
    num_new: int
    estimate: str

    @classmethod
    def of(
        cls,
        stage: int,
        category_ids: np.ndarray,
        before: Sequence[np.ndarray],
        num_known: int,
        num_categories: int,
        strange: np.ndarray,
        count: CountEstimate | None,
    ) -> "StreamRecord":
        """From the ids ``(N,)`` of a stage, those of earlier ones, and which images are strange, ``(N,)``."""
        labelled = category_ids < num_known
        earlier = ~labelled & np.isin(category_ids, np.concatenate(before))
        new = ~labelled & ~earlier
        return cls(
            stage, len(category_ids), int(labelled.sum()), int(earlier.sum()), int(new.sum()), int(strange.sum()),
            num_categories, len(np.unique(category_ids[new])),
            str(count) if count is not None and count.is_estimate else "",
        )  # fmt: skip

    def __str__(self) -> str:
        number = f" (estimated: {self.estimate})" if self.estimate else ""
        return (
            f"{self.images} images without labels: {self.labelled} in labelled categories, {self.earlier} in those "
            f"found before, {self.new} in {self.num_new} new ones; {self.not_sure} not sure; categories so far: "
            f"{self.num_categories}{number}"
        )


def record_stream(run: RunDirectory, record: StreamRecord) -> None:
    """Write a record down."""
    run.update_manifest({FOUND: {f"stage{record.stage}": dataclasses.asdict(record)}})


def stream_records(run: RunDirectory) -> list[StreamRecord]:
    """The records of all streams that were grouped, in order; none of a run whose labels were hidden."""
    found = run.manifest.get(FOUND, {}).values()
    return sorted((StreamRecord(**each) for each in found), key=lambda each: each.stage)

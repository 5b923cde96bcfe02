"""The cells of a sweep: every recipe with every combination of values, once per seed."""

import itertools
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from promptccd.errors import ConfigurationError, RunError
from promptccd.evaluation import ContinualScore
from promptccd.evaluation.protocols import SCORE_TYPES
from promptccd.locks import FolderLock, owners_of
from promptccd.methods import method_named
from promptccd.reports.engines.local import least_used
from promptccd.runs.evaluate import RunEvaluation
from promptccd.runs.folder import RunDirectory
from promptccd.runs.run_groups import PIXELS
from promptccd.runs.start import described_backbone, model_options, require_recipe, require_whole_patches
from promptccd.storage import problems_of, remove_leftovers
from promptccd.training.recipe import Recipe

Settings = Mapping[str, Any]
LONGEST_NAME = 180  # of a folder; file systems take 255, and a stage's repository adds to it
_RESERVED = {"training.seed": "seeds", "training.output_dir": "out"}


@dataclass(frozen=True)
class SweepCell:
    """One training of a sweep.

    Attributes:
        config: name of the recipe file, without its ending.
        settings: values of the grid, by ``section.field``.
        recipe: of the training; its ``training.output_dir`` is the folder of the run.
    """

    config: str
    settings: Settings
    recipe: Recipe

    @property
    def seed(self) -> int:
        """Seed of the training."""
        return self.recipe.training.seed

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return Path(self.recipe.training.output_dir)

    @property
    def name(self) -> str:
        """Name of the folder: the variant and ``-seed7``, so that `evaluate` and `report` average over seeds."""
        return self.path.name

    @property
    def variant(self) -> str:
        """The name without its seed: cells that differ in their seed alone share a row of the table."""
        return self.name.removesuffix(f"-seed{self.seed}")

    @property
    def answers_natively(self) -> bool:
        """Whether the paper's rows of its method are taken to be of the method's own classifier."""
        return method_named(self.recipe.model.variant).answers_natively

    @cached_property
    def backbone_key(self) -> str:
        """Equal for cells of one seed that pretrain or load the same backbone."""
        sections = self.recipe.to_dict()
        backbone, config = sections["model"]["backbone"], sections["model"]["backbone_config"]
        made_here = [sections["data"], sections["views"], config, sections["pretraining"]]
        return json.dumps(made_here if backbone is None else backbone, sort_keys=True)

    @property
    def resumed_recipe(self) -> Recipe | None:
        """The recipe with the backbone that the run began with; `None` before it has begun."""
        run = RunDirectory(self.path)
        if not run.begun:
            return None
        backbone = run.manifest["recipe"]["model"]["backbone"]
        if self.recipe.model.backbone is not None or backbone is None:
            return self.recipe
        return self.with_backbone(self.path.parent / Path(backbone).parent.name / "backbone")

    def with_backbone(self, backbone: Path) -> Recipe:
        """The recipe with a backbone that another cell pretrained."""
        return replace(self.recipe, model=replace(self.recipe.model, backbone=str(backbone)))

    def require_same_recipe(self) -> None:
        """Refuse a cell whose run began with another recipe.

        Raises:
            RunError: it names the settings that differ.
        """
        require_recipe(RunDirectory(self.path), self.resumed_recipe or self.recipe)

    def finished(self) -> bool:
        """Whether the folder holds this whole training: the same recipe, every stage and its row in the table."""
        run = RunDirectory(self.path)
        if not run.begun or not _same_place(run.recipe.data.dataset, self.recipe.data.resolved.dataset):
            return False  # only the training can tell whether data in another place is the same
        rows = [] if run.results is None else [row.stage for row in run.results.stages]
        return rows == list(range(1, run.num_stages)) and not any(
            problems_of(run.stage(stage)) for stage in range(run.num_stages)
        )

    @property
    def seconds(self) -> float:
        """How long its stages took to train, interrupted attempts included."""
        return round(sum(RunDirectory(self.path).manifest["seconds"].values()), 1)

    def conclude(self) -> None:
        """Delete what is left of a training, or a scoring, that was killed after the last stage."""
        run = RunDirectory(self.path)
        with suppress(RunError), FolderLock(run.path):  # who writes there does so as well
            remove_leftovers(run.path)
            for stage in range(run.num_stages):
                run.forget_states(stage)


def plan_cells(
    configs: Sequence[str | Path],
    seeds: Sequence[int],
    settings: Mapping[str, Sequence[Any]],
    out: str | Path,
    overrides: Mapping[str, Settings] | None = None,
) -> list[SweepCell]:
    """All cells, by recipe, combination and seed; every recipe is built and checked here.

    Args:
        configs: recipe files.
        seeds: seeds of the trainings.
        settings: values to try, by ``section.field``; all combinations, which the folders are named by.
        out: folder of the runs.
        overrides: values of all cells, by section and field, which the folders are not named by.

    Raises:
        ConfigurationError: an unknown field, a value of the wrong type or range, a field in both `settings` and
            `overrides`, or two cells of one name.
    """
    _check_keys(settings, overrides or {})
    for what, values in (("config", configs), ("seed", seeds), *settings.items()):
        if not values:
            raise ConfigurationError(f"Expected at least one value of {what}, got none.")
    cells = [
        _cell(Path(config), dict(zip(settings, values, strict=True)), seed, Path(out), overrides or {})
        for config, *values, seed in itertools.product(configs, *settings.values(), seeds)
    ]
    for number, cell in enumerate(cells):
        if any(cell.name == other.name for other in cells[:number]):
            raise ConfigurationError(
                f"Two cells of the sweep would be called {cell.name}. Leave one out, or give the recipe file or the "
                "value another name."
            )
    return cells


def grid_keys(settings: Mapping[str, Sequence[Any]]) -> tuple[str, str] | None:
    """The two fields with several values; `None` unless there are exactly two."""
    several = [key for key, values in settings.items() if len(values) > 1]
    return (several[0], several[1]) if len(several) == 2 else None


def _check_keys(settings: Mapping[str, Sequence[Any]], overrides: Mapping[str, Settings]) -> None:
    shared = {
        f"{section}.{name}": value for section, part in overrides.items() for name, value in part.items()
    }
    for key in [*settings, *shared]:
        if key in _RESERVED:
            raise ConfigurationError(f"A sweep sets {key} itself: give its values to {_RESERVED[key]}.")
        if key in settings and key in shared:
            raise ConfigurationError(
                f"{key} is given twice: {list(settings[key])} to be tried and {shared[key]!r} for all cells. "
                "Leave one out."
            )


def _cell(
    config: Path, settings: dict[str, Any], seed: int, out: Path, overrides: Mapping[str, Settings]
) -> SweepCell:
    varied = (f"{key.partition('.')[2]}={_readable(value)}" for key, value in settings.items())
    name = "-".join([config.stem, *varied, f"seed{seed}"])
    if len(name) > LONGEST_NAME:
        raise ConfigurationError(
            f"The folder name {name!r} has {len(name)} characters, at most {LONGEST_NAME} are kept apart safely. Put "
            "long values into recipe files of their own."
        )
    values = {section: dict(part) for section, part in overrides.items()}
    for key, value in {**settings, "training.seed": seed, "training.output_dir": str(out / name)}.items():
        section, _, item = key.partition(".")
        values.setdefault(section, {})[item] = value
    recipe = Recipe.from_yaml(config, values)
    try:
        model_options(recipe)
        if recipe.model.backbone is None:
            described_backbone(recipe)
        if not RunDirectory(recipe.training.output_dir).begun:
            require_whole_patches(recipe, local_files_only=True)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error
    return SweepCell(config.stem, settings, recipe)


def _readable(value: Any) -> str:
    """A value as part of a file name: ``[7, 1, 1, 1]`` is ``7,1,1,1``, unsafe characters become ``_``."""
    text = value if isinstance(value, str) else json.dumps(value)
    bare = re.sub(r"[\s\"]", "", text)
    bare = re.sub(r"\],?\[", "_", bare).strip("[]{}")
    return re.sub(r"[^\w.,+=-]", "_", bare, flags=re.ASCII)


def _same_place(recorded: str | None, given: str) -> bool:
    if recorded == given:
        return True
    places = [Path(os.path.expanduser(place)) for place in (recorded or "", given)]
    return all(place.exists() for place in places) and places[0].samefile(places[1])


BASELINES = "baselines.json"


def score_baselines(recipe: Recipe) -> None:
    """Score raw pixels and the frozen backbone of a finished run into its ``baselines.json``."""
    evaluation = _evaluation_of(recipe)
    with FolderLock(evaluation.run.path):
        scores = {
            f"frozen {evaluation.backbone_name}": evaluation.frozen_backbone(),
            PIXELS: evaluation.raw_pixels(),
        }
        evaluation.run.write(BASELINES, {name: score.to_dict() for name, score in scores.items()})


def _evaluation_of(recipe: Recipe) -> RunEvaluation:
    training = recipe.training
    return RunEvaluation(
        training.output_dir, recipe.data.dataset, training.num_workers, image_cache=training.image_cache
    )


@dataclass(frozen=True)
class ProtocolScoring:
    """Scores a finished run by a protocol into ``file`` of its folder; cACC is in its results already."""

    protocol: str

    @property
    def file(self) -> str:
        """Name of the file with the score."""
        return f"score-{self.protocol}.json"

    def __call__(self, recipe: Recipe) -> None:
        """Score and write."""
        evaluation = _evaluation_of(recipe)
        with FolderLock(evaluation.run.path):
            evaluation.run.write(self.file, evaluation.evaluate(self.protocol).to_dict())

    def stored(self, cell: SweepCell) -> ContinualScore | None:
        """The score to compare with the paper, of k-means or of the method's own answer; `None` before scoring."""
        score = self._score(cell)
        if score is None:
            return None
        return (score.native if cell.answers_natively else None) or score.as_published

    def other(self, cell: SweepCell) -> ContinualScore | None:
        """The score of the other answer of a method that has two; `None` for other methods."""
        score = self._score(cell)
        if score is None or score.native is None:
            return None
        return score.as_published if cell.answers_natively else score.native

    def _score(self, cell: SweepCell) -> ContinualScore | None:
        run = RunDirectory(cell.path)
        if self.protocol == "cacc":
            return run.results
        values = run.read(self.file)
        return None if values is None else SCORE_TYPES.get(self.protocol, ContinualScore).from_dict(values)


def states_of(cells: Sequence[SweepCell]) -> dict[str, str]:
    """How far each cell is, by name: ``new``, ``begun``, ``finished``, or ``running on`` a computer.

    Raises:
        RunError: one was begun with other settings.
    """
    for cell in cells:
        cell.require_same_recipe()
    states = {
        cell.name: "finished" if cell.finished() else "begun" if cell.resumed_recipe else "new"
        for cell in cells
    }
    owners = owners_of(cell.path for cell in cells if states[cell.name] != "finished")
    return states | {path.name: f"running on {owner.place}" for path, owner in owners.items()}


def shared_recipe(
    cell: SweepCell, cells: Sequence[SweepCell], at_work: Sequence[SweepCell], to_come: Collection[str] = ()
) -> Recipe | None:
    """The recipe of a cell with the backbone that it shares; `None` while another cell pretrains it.

    Args:
        cell: the cell.
        cells: all of them.
        at_work: those that are trained just now.
        to_come: names of those that will have been trained.
    """
    resumed = cell.resumed_recipe
    if resumed is not None:
        backbone = Path(resumed.model.backbone or "")
        coming = backbone.parent.name in to_come and not backbone.exists()
        return None if coming and at_work else resumed
    if cell.recipe.model.backbone is not None:
        return cell.recipe
    key = (cell.backbone_key, cell.seed)
    mates = [other for other in cells if other.name != cell.name and (other.backbone_key, other.seed) == key]
    for mate in mates:
        backbone = RunDirectory(mate.path).backbone
        if not problems_of(backbone):
            return cell.with_backbone(backbone)
    return None if any(mate in at_work for mate in mates) else cell.recipe


def devices_of(cells: Sequence[SweepCell], jobs: int, devices: Sequence[str]) -> dict[str, str]:
    """The GPU that each cell will get, by name: ``0 or 1`` for one that starts when another ends; empty without GPUs.

    Finished cells are not in it. One whose backbone another pretrains starts when that has ended.
    """
    keys = {cell.name: (cell.backbone_key, cell.seed) for cell in cells}
    made = {keys[cell.name] for cell in cells if RunDirectory(cell.path).backbone.exists()}
    found, begun = dict[str, str](), set[tuple[str, int]]()
    for cell in (cell for cell in cells if not cell.finished()):
        key = keys[cell.name]
        waits = cell.recipe.model.backbone is None and key in begun - made
        starts = len(found) < jobs and not waits
        if starts:
            begun.add(key)
            found[cell.name] = least_used(devices, list(found.values()))
    later = " or ".join(devices[:jobs])
    return {cell.name: found.get(cell.name, later) for cell in cells if not cell.finished()}

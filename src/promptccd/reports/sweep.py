"""A grid of trainings: each runs in a process of its own and is resumed; the failure of one does not stop the sweep.

A training locks the folder of its cell. A cell that another process trains is left to that process.
"""

import itertools
import json
import logging
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from transformers.utils import logging as transformers_logging

from promptccd.data.stages import StageStream
from promptccd.disk import make_inside, open_to_change, problems_of, remove_leftovers, write_file
from promptccd.errors import ConfigurationError, PromptCCDError, RunError
from promptccd.evaluation import ContinualScore
from promptccd.locks import FolderLock, owner_of
from promptccd.methods import load_plugin, method_named
from promptccd.reports.engines import Engine, PoolOfDevices, visible_devices
from promptccd.reports.run_groups import Settings, baseline_rows, baselines_of
from promptccd.runs.evaluate import RunEvaluation
from promptccd.runs.folder import RESUME, RunDirectory
from promptccd.runs.start import require_recipe, require_whole_patches
from promptccd.runs.train import train_run
from promptccd.training.progress import StopRequest
from promptccd.training.recipe import Layer, Recipe, own_name, recipe_for_images

logger = logging.getLogger(__name__)

CellWork = Callable[[Recipe], Any]
LOG, BASELINES, RECIPES = "train.log", "baselines.json", ".cells"
SECONDS_TO_WAIT_FOR_TABLES = 60.0  # another sweep that ends at the same time writes a page
SECONDS_TO_WAIT_FOR_LOCK = 10.0  # cells of a killed sweep release their runs within one second
_LAST_LINES = 5
HALF_LABELLED = {"category_ratio": 0.5, "sample_ratio": 0.8}  # of a person's images with labels alone
_RESERVED = {"training.seed": "seeds", "training.output_dir": "out"}


@dataclass(frozen=True)
class OwnImages:
    """A person's images and a method, in place of a recipe; as `recipe_for_images`."""

    dataset: str
    method: str | None = None
    _counted: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def stem(self) -> str:
        """First part of the names of its cells."""
        return own_name(self.dataset, self.method)

    def recipe(self, values: Mapping[str, Settings]) -> Recipe:
        """The recipe with these values; if nothing hides labels, half of the categories are new."""
        recipe = recipe_for_images(self.dataset, self.method, None, values)
        require_whole_patches(recipe)
        if recipe.data.unlabelled == []:
            half = {**HALF_LABELLED, "num_classes": recipe.data.num_classes or self._num_categories(recipe)}
            values = {**values, "data": {**values.get("data", {}), **half}}
            recipe = recipe_for_images(self.dataset, self.method, None, values)
        return recipe

    def _num_categories(self, recipe: Recipe) -> int | None:
        """The number of categories of images on this machine, which all cells share."""
        if not Path(self.dataset).expanduser().exists():
            return None
        data = recipe.data
        place = data.resolved.split, data.layout, data.image_roots or ()
        if (key := repr(place)) not in self._counted:
            split, layout, roots = place
            whole = StageStream.from_dataset(
                self.dataset, split_rule="whole", split=split, layout=layout, image_roots=roots
            )
            self._counted[key] = len(whole.categories)
        return self._counted[key]


@dataclass(frozen=True)
class SweepCell:
    """One training of a sweep.

    Attributes:
        config: name of the recipe file, without its ending.
        settings: values of the grid, by ``section.field``.
        variant: name of its row in the table, which cells share that differ in their seed alone.
        recipe: of the training.
        run: its folder, called after the variant and the seed.
    """

    config: str
    settings: Settings
    variant: str
    recipe: Recipe
    run: RunDirectory

    @property
    def predicts_natively(self) -> bool:
        """Whether the paper's rows of its method show the method's own classifier."""
        return method_named(self.recipe.model.variant).predicts_natively

    @property
    def path(self) -> Path:
        """Folder of the run; its name is that of the cell."""
        return self.run.path

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    def finished(self) -> bool:
        """Whether the folder contains this whole training, cleaned up: the same recipe, every stage and its row."""
        run = self.run
        if not run.begun:
            return False
        recorded, given = (each.recipe.data.resolved.dataset for each in (run, self))
        places = [Path(os.path.expanduser(each)) for each in (recorded, given)]
        is_same = all(each.exists() for each in places) and places[0].samefile(places[1])
        if recorded != given and not is_same:
            return False  # only the training can tell whether data in another place is equal
        rows = [row.stage for row in run.results.stages]
        is_whole = not any(problems_of(run.stage(stage)) for stage in range(run.num_stages))
        return rows == list(range(1, run.num_stages)) and is_whole and not (run.path / RESUME).exists()

    def is_done(self, states: Mapping[str, str]) -> bool:
        """Whether nothing is left to do, by `states_of`; only the training can tell whether a cell is on the Hub."""
        return states[self.name] == "finished" and not self.recipe.training.push_to_hub


def plan_cells(
    configs: Sequence[str | Path | OwnImages],
    seeds: Sequence[int],
    settings: Mapping[str, Sequence[Any]],
    out: str | Path,
    overrides: Layer | None = None,
) -> list[SweepCell]:
    """All cells, by recipe, combination and seed; every recipe is built and checked here.

    Args:
        configs: recipe files, or images of a person with a method.
        seeds: seeds of the trainings.
        settings: values to try, by ``section.field``; all combinations, which are in the names of the folders.
        out: folder of the runs.
        overrides: values of all cells, by section and field, which are not in the names of the folders.

    Raises:
        ConfigurationError: an unknown field, a value of the wrong type or range, a field in both `settings` and
            `overrides`, or two cells of one name.
    """
    given = overrides or {}
    shared = {
        f"{section}.{name}": value for section in given for name, value in (given[section] or {}).items()
    }
    for key in [*settings, *shared]:
        if key in _RESERVED:
            raise ConfigurationError(f"A sweep sets {key} itself: give its values to {_RESERVED[key]}.")
        if key in settings and key in shared:
            raise ConfigurationError(
                f"{key} is given twice: {list(settings[key])} to be tried and {shared[key]!r} for all cells. "
                "Leave one out."
            )
    for what, values in (("config", configs), ("seed", seeds), *settings.items()):
        if not values:
            raise ConfigurationError(f"Expected at least one value of {what}, got 0.")
    cells = dict[str, SweepCell]()
    for config, *values, seed in itertools.product(configs, *settings.values(), seeds):
        source = config if isinstance(config, OwnImages) else Path(config)
        cell = _planned_cell(source, dict(zip(settings, values, strict=True)), seed, Path(out), given)
        if cells.setdefault(cell.name, cell) is not cell:
            raise ConfigurationError(
                f"Two cells of the sweep would be called {cell.name}. Leave one out, or give the recipe file or the "
                "value another name."
            )
    return list(cells.values())


def _planned_cell(
    source: Path | OwnImages, settings: Settings, seed: int, out: Path, overrides: Layer
) -> SweepCell:
    varied = (f"{key.partition('.')[2]}={_name_part(value)}" for key, value in settings.items())
    variant = "-".join([source.stem, *varied])
    run = RunDirectory(out / f"{variant}-seed{seed}")
    values = {section: dict(part or {}) for section, part in overrides.items()}
    for key, value in {**settings, "training.seed": seed, "training.output_dir": str(run.path)}.items():
        section, _, item = key.partition(".")
        values.setdefault(section, {})[item] = value
    recipe = source.recipe(values) if isinstance(source, OwnImages) else Recipe.from_yaml(source, values)
    try:
        require_whole_patches(recipe, local_files_only=True)
    except ConfigurationError as error:
        raise ConfigurationError(f"{run.path.name}: {error}") from error
    return SweepCell(source.stem, settings, variant, recipe, run)


def _name_part(value: Any) -> str:
    """A value as part of a file name: ``[7, 1, 1, 1]`` is ``7,1,1,1``, unsafe characters become ``_``."""
    text = value if isinstance(value, str) else json.dumps(value)
    bare = re.sub(r"[\s\"]", "", text)
    bare = re.sub(r"\],?\[", "_", bare).strip("[]{}")
    return re.sub(r"[^\w.,+=-]", "_", bare, flags=re.ASCII)


def _evaluation_of(recipe: Recipe) -> RunEvaluation:
    training = recipe.training
    return RunEvaluation(
        training.output_dir, recipe.data.dataset, training.num_workers, image_cache=training.image_cache
    )


def score_baselines(recipe: Recipe) -> None:
    """Score raw pixels and the frozen backbone of a finished run into its ``baselines.json``."""
    evaluation = _evaluation_of(recipe)
    with FolderLock(evaluation.run.path):
        scores = {name: score().to_dict() for name, score in baselines_of(evaluation).items()}
        evaluation.run.write(BASELINES, scores)


@dataclass(frozen=True)
class ProtocolScoring:
    """Scores a finished run by a protocol into ``file`` of its folder; cACC is in its results already."""

    protocol: str

    @property
    def file(self) -> str:
        """Name of the file with the score."""
        return "results.json" if self.protocol == "cacc" else f"score-{self.protocol}.json"

    def __call__(self, recipe: Recipe) -> None:
        """Score and write."""
        evaluation = _evaluation_of(recipe)
        with FolderLock(evaluation.run.path):
            evaluation.run.write(self.file, evaluation.evaluate(self.protocol).to_dict())

    def stored(self, cell: SweepCell, other: bool = False) -> ContinualScore | None:
        """The score to compare with the paper, of k-means or the native prediction; `None` before scoring.

        With `other` the score of the other prediction; `None` for methods with one prediction.
        """
        if (values := cell.run.read(self.file)) is None:
            return None
        score = ContinualScore.from_dict(values)
        if score.native is None:
            return None if other else score.as_published
        return score.native if cell.predicts_natively != other else score.as_published


def states_of(cells: Sequence[SweepCell]) -> dict[str, str]:
    """How far each cell is, by name: ``new``, ``begun``, ``finished``, or ``running on`` a computer.

    Raises:
        RunError: a cell was begun with other settings.
    """
    for cell in cells:
        require_recipe(cell.run, cell.recipe)
    states = {}
    for cell in cells:
        state = "finished" if cell.finished() else "begun" if cell.run.begun else "new"
        if state != "finished" and (owner := owner_of(cell.path)):
            state = f"running on {owner}"
        states[cell.name] = state
    return states


def cell_commands(cells: Sequence[SweepCell], out: str | Path, plugins: Sequence[str] = ()) -> list[str]:
    """One shell line for each cell that is not finished and that no process is at work on; nothing is trained.

    Any scheduler runs them, in any order and on any computer that has the folder. A line can be run again at any time,
    and resumes. Relative folders are meant from the current folder.

    Args:
        cells: from `plan_cells` for the same `out`.
        out: folder of the runs; recipes of the cells are written into its ``.cells``.
        plugins: files of methods from outside.

    Raises:
        RunError: a cell was begun with other settings.
        DiskError: nothing can be written there.
    """
    states = states_of(cells)
    for name, state in states.items():
        if state.startswith("running"):
            logger.info("%s: %s, and has no line", name, state)
    program = ["promptccd"] if shutil.which("promptccd") else [sys.executable, "-m", "promptccd"]
    program += ["train", *(word for place in plugins for word in ("--plugin", place)), "--config"]
    lines = []
    with locked_tables(Path(out)):
        folder = make_inside(Path(out), RECIPES)
        remove_leftovers(folder)
        for cell in cells:
            if not cell.is_done(states) and not states[cell.name].startswith("running"):
                path = folder / f"{cell.name}.yaml"
                write_file(path, yaml.safe_dump(cell.recipe.to_dict(), sort_keys=False, allow_unicode=True))
                lines.append(shlex.join([*program, str(path)]))
    return lines


@contextmanager
def locked_tables(out: Path) -> Iterator[None]:
    """Context in which no other sweep writes tables and recipes into the same folder."""
    with FolderLock(out, SECONDS_TO_WAIT_FOR_TABLES):
        remove_leftovers(out)
        yield


@dataclass(frozen=True)
class SweepResult:
    """The results of a sweep, read from the folders of its runs.

    Attributes:
        cells: in the order of the grid.
        failures: why a cell, or its baselines or protocol, is missing, by name.
        unfinished: how far other cells are, by name: ``new``, ``begun``, or where another process is at work on it.
        has_baselines: whether baselines were requested.
    """

    cells: Sequence[SweepCell]
    failures: Mapping[str, str]
    unfinished: Mapping[str, str]
    has_baselines: bool

    @cached_property
    def finished(self) -> list[SweepCell]:
        """All other cells."""
        return [cell for cell in self.cells if cell.name not in self.failures.keys() | self.unfinished.keys()]

    @cached_property
    def scores(self) -> dict[str, ContinualScore]:
        """Scores of every finished cell, by name."""
        return {cell.name: score for cell in self.finished if (score := cell.run.results).stages}

    @cached_property
    def baselines(self) -> dict[str, list[ContinualScore]]:
        """Scores of baselines, one per seed, by the name of their row."""
        found = dict[str, list[ContinualScore]]()
        for cell, end in _baseline_rows(self.finished) if self.has_baselines else ():
            for name, values in (cell.run.read(BASELINES) or {}).items():
                found.setdefault(f"{name}{end}", []).append(ContinualScore.from_dict(values))
        return found

    @property
    def groups(self) -> dict[str, list[ContinualScore]]:
        """Scores by variant, one per finished seed, then scores of the baselines."""
        groups = dict[str, list[ContinualScore]]()
        for cell in self.cells:
            if cell.name in self.scores:
                groups.setdefault(cell.variant, []).append(self.scores[cell.name])
        return groups | self.baselines


def _baseline_rows(cells: Sequence[SweepCell]) -> list[tuple[SweepCell, str]]:
    """Cells that baselines are scored with, and the ends of the names of their rows."""
    ends = baseline_rows([cell.path for cell in cells], [cell.variant for cell in cells])
    return [(cell, end) for cell, end in zip(cells, ends, strict=True) if end is not None]


def collect_sweep(cells: Sequence[SweepCell], *, baselines: bool = False) -> SweepResult:
    """The finished part of a sweep, also while other processes train it; nothing is trained, scored or written.

    Args:
        cells: from `plan_cells`.
        baselines: with the scores of baselines that an earlier sweep made.

    Raises:
        RunError: a cell was begun with other settings.
    """
    unfinished = {name: state for name, state in states_of(cells).items() if state != "finished"}
    return SweepResult(cells, {}, unfinished, baselines)


def run_sweep(
    cells: Sequence[SweepCell],
    out: str | Path,
    *,
    jobs: int = 1,
    baselines: bool = False,
    scorings: Sequence[ProtocolScoring] = (),
    train: CellWork = train_run,
    engine: Engine | None = None,
    plugins: Sequence[str] = (),
) -> SweepResult:
    """Train all cells that are not finished; an earlier sweep in the folder is resumed, also with more cells.

    A cell that another process is at work on is left to it, also on another computer that has the folder. The
    stages are byte-identical to cells trained alone on this machine with this number of threads.

    Args:
        cells: from `plan_cells` for the same `out`.
        out: folder of the runs.
        jobs: number of cells at work at once.
        baselines: also score the frozen backbone and raw pixels, once per data and seed.
        scorings: also score every cell by these protocols.
        train: trains a cell; a function of a module.
        engine: runs the cells; by default processes of this machine do.
        plugins: files of methods from outside, which the processes of cells load.

    Raises:
        RunError: a cell was begun with other settings.
        InterruptedRunError: Ctrl-C or SIGTERM; the cells at work were saved.
    """
    if RunDirectory(out).begun:
        raise RunError(f"{out} is the run of one training. Give the sweep a folder of its own.")
    states = states_of(cells)
    done = [cell for cell in cells if cell.is_done(states)]
    logger.info("%d of %d cells are finished already.", len(done), len(cells))
    failures, unfinished = dict[str, str](), dict[str, str]()
    pool, folder = engine or PoolOfDevices(visible_devices()), str(Path.cwd())
    files = [str(Path(each).absolute()) for each in plugins]
    with StopRequest() as stop:

        def work_through(todo: Sequence[SweepCell], work: CellWork, prefix: str = "") -> None:
            """Train cells, or score trained ones, whose names then have a prefix."""
            names, logs = [f"{prefix}{cell.name}" for cell in todo], [cell.path / LOG for cell in todo]
            calls = [
                (cell.recipe.to_dict(), work, str(log.absolute()), folder, files)
                for cell, log in zip(todo, logs, strict=True)
            ]
            for number, problem in pool.outcomes(work_into_log, calls, names, lambda: stop.received, jobs):
                cell, name, log = todo[number], names[number], logs[number]
                if not problem:
                    done.extend([cell] * (not prefix))
                    average = math.nan if prefix else cell.run.results.average["all"]
                    logger.info("%s: done%s", name, "" if math.isnan(average) else f", All {average:.1f}")
                elif owner := owner_of(cell.path):  # the cell waited for its lock
                    unfinished[cell.name] = f"running on {owner}"
                    logger.info("%s: running on %s", cell.name, owner)
                elif not stop.received:
                    failures[name] = words = _last_words(log, problem)
                    logger.error("%s: FAILED, see %s\n  %s", name, log, words.splitlines()[-1])
            if stop.received:
                raise stop.error(f"stopped; {len(done)} of {len(cells)} cells are finished")

        todo = [cell for cell in cells if cell not in done]
        work_through(sorted(todo, key=lambda cell: states[cell.name].startswith("running")), train)
        finished = SweepResult(cells, failures, unfinished, baselines).finished
        if baselines:
            sources = [cell for cell, _ in _baseline_rows(finished)]
            unscored = [cell for cell in sources if cell.run.read(BASELINES) is None]
            work_through(unscored, score_baselines, "baselines of ")
        for scoring in scorings:
            unscored = [cell for cell in finished if scoring.stored(cell) is None]
            work_through(unscored, scoring, f"{scoring.protocol} of ")
    # Failures are not in the order in which they happened.
    return SweepResult(cells, dict(sorted(failures.items())), unfinished, baselines)


def work_into_log(
    values: dict[str, Any], work: CellWork, log: str, folder: str, plugins: Sequence[str] = ()
) -> int:
    """Call `work` with a recipe in a process of its own, whose output goes to the log; the exit code."""
    os.chdir(folder)
    cell = Path(log).parent
    descriptor = open_to_change(make_inside(cell.parent, cell.name) / LOG, os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        for place in plugins:
            load_plugin(place)
        recipe = Recipe.from_dict(values)
        FolderLock(Path(recipe.training.output_dir), SECONDS_TO_WAIT_FOR_LOCK).close()
        work(recipe)
    except PromptCCDError as error:
        logger.error("%s: %s", type(error).__name__, error)
        return error.exit_code
    except Exception:  # into the log of the cell
        logger.exception("This is a bug, or the machine ran out of something:")
        return 1
    return 0


def _last_words(log: Path, problem: str) -> str:
    """The end of the log of a cell that failed, and what else is known."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line for line in text.splitlines() if line]
    more = [] if lines and problem.startswith("exit code") else [problem]
    return "\n".join([*lines, *more][-_LAST_LINES:])

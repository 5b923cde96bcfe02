"""The cells of a sweep: every recipe with every combination of values, once per seed."""

import contextlib
import dataclasses
import gc
import itertools
import json
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from promptccd.errors import ConfigurationError, PromptCCDError
from promptccd.evaluation import ContinualScore
from promptccd.evaluation.protocols import SCORERS
from promptccd.runs.evaluate_run import RunEvaluation
from promptccd.runs.models import described_backbone, model_options
from promptccd.runs.run_directory import RunDirectory
from promptccd.runs.run_groups import PIXELS
from promptccd.storage import make_inside, open_to_change, problems_of, remove_leftovers
from promptccd.training.objectives import method_named
from promptccd.training.recipe import Recipe

Settings = Mapping[str, Any]
LONGEST_NAME = 180  # of a folder; file systems take 255, and a stage's repository adds to it
_RESERVED = {"training.seed": "seeds", "training.output_dir": "out"}


@dataclass(frozen=True)
class SweepCell:
    """One training of a sweep.

    Attributes:
        config: name of the recipe file, without its ending.
        settings: what the grid sets, by ``section.field``.
        recipe: all of it; ``training.output_dir`` is the folder of the run.
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
        """Name of that folder: the variant and ``-seed7``, so that `evaluate` and `report` average over seeds."""
        return self.path.name

    @property
    def variant(self) -> str:
        """What cells that differ in their seed alone have in common: a row of the table."""
        return self.name.removesuffix(f"-seed{self.seed}")

    @property
    def answers_natively(self) -> bool:
        """Whether the paper's rows of its method are taken to be of the method's own classifier."""
        return method_named(self.recipe.model.variant).answers_natively

    @property
    def backbone_key(self) -> str:
        """Equal for cells that pretrain the same backbone, or load the same one, given their seed."""
        recipe = self.recipe
        if recipe.model.backbone is not None:
            return _key(recipe.model.backbone)
        return _key(recipe.data, recipe.views, recipe.model.backbone_config, recipe.pretraining)

    @property
    def resumed_recipe(self) -> Recipe | None:
        """The recipe with the backbone that the run was begun with; `None` if it was not begun."""
        run = RunDirectory(self.path)
        if not run.begun:
            return None
        backbone = run.manifest["recipe"]["model"]["backbone"]
        if self.recipe.model.backbone is not None or backbone is None:
            return self.recipe
        return self.with_backbone(self.path.parent / Path(backbone).parent.name / "backbone")

    def with_backbone(self, backbone: Path) -> Recipe:
        """The recipe with a backbone that another cell made."""
        model = dataclasses.replace(self.recipe.model, backbone=str(backbone))
        return dataclasses.replace(self.recipe, model=model)

    def require_same_recipe(self) -> None:
        """Refuse a cell whose run was begun with another recipe.

        Raises:
            RunError: naming the settings that differ.
        """
        RunDirectory(self.path).require_recipe(self.resumed_recipe or self.recipe)

    def finished(self) -> bool:
        """Whether the folder holds this whole training: the same recipe, every stage and its row in the table."""
        run = RunDirectory(self.path)
        if not run.begun or not _same_place(run.recipe.data.dataset, self.recipe.data.resolved.dataset):
            return False  # of data that lies elsewhere now the training finds out whether it is the same
        rows = [] if run.results is None else [row.stage for row in run.results.stages]
        return rows == list(range(1, run.num_stages)) and not any(
            problems_of(run.stage(stage)) for stage in range(run.num_stages)
        )

    @property
    def seconds(self) -> float:
        """How long its stages took to train, interrupted attempts included."""
        return round(sum(RunDirectory(self.path).manifest["seconds"].values()), 1)

    def conclude(self) -> None:
        """Delete what a training, or a scoring, that was killed after the last stage could not delete any more."""
        run = RunDirectory(self.path)
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
    """All cells, seed by seed within recipe and combination; every recipe is built and checked here.

    Args:
        configs: recipe files.
        seeds: seeds of the trainings.
        settings: values to try, by ``section.field``; combined with each other, and named in the run's folder.
        out: folder of the runs.
        overrides: values by section and field that all cells have beside these, not named in their folders.

    Raises:
        ConfigurationError: an unknown field, a value of the wrong type or range, a field that is both to be tried
            and the same for all cells, or two cells of one name.
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
    """The two fields that span a picture: `None` unless exactly two have several values."""
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
    parts = [config.stem, *(f"{_field(key)}={_readable(value)}" for key, value in settings.items())]
    name = "-".join([*parts, f"seed{seed}"])
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
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error
    return SweepCell(config.stem, settings, recipe)


def _field(key: str) -> str:
    return key.partition(".")[2]


def _readable(value: Any) -> str:
    """A value as part of a file name: ``[7, 1, 1, 1]`` is ``7,1,1,1``, what is not safe becomes ``_``."""
    text = value if isinstance(value, str) else json.dumps(value)
    bare = re.sub(r"[\s\"]", "", text)
    bare = re.sub(r"\],?\[", "_", bare).strip("[]{}")
    return re.sub(r"[^\w.,+=-]", "_", bare, flags=re.ASCII)


def _key(*values: Any) -> str:
    plain = [dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value for value in values]  # type: ignore[arg-type]
    return json.dumps(plain, sort_keys=True)


def _same_place(recorded: str | None, given: str) -> bool:
    if recorded == given:
        return True
    places = [Path(os.path.expanduser(place)) for place in (recorded or "", given)]
    return all(place.exists() for place in places) and places[0].samefile(places[1])


logger = logging.getLogger(__name__)

LOG = "train.log"
BASELINES = "baselines.json"
SECONDS_TO_WAIT_FOR_LOCK = 30.0  # a killed sweep's cells let go of their runs within one
_LAST_LINES = 5

Work = Callable[[Recipe], Any]


class CellProcess:
    """A cell at work, its output in ``train.log`` of its folder.

    Args:
        recipe: what to work on; ``training.output_dir`` is the folder.
        work: what to do, a function of a module; its value is not used.
    """

    def __init__(self, recipe: Recipe, work: Work):
        folder = Path(recipe.training.output_dir)
        self.log = make_inside(folder.parent, folder.name) / LOG
        os.close(open_to_change(self.log))  # it may be killed before it writes a word
        self.started = time.monotonic()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, work.__module__])
        _start_server()
        self._process: ForkServerProcess = context.Process(
            target=_work_alone, args=(recipe.to_dict(), work, self.log, Path.cwd())
        )
        self._process.start()

    @property
    def sentinel(self) -> int:
        """Ready for `multiprocessing.connection.wait` when the process has ended."""
        return self._process.sentinel

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    def stop(self) -> None:
        """Ask it to save and leave."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it, and the loader processes it started, at once."""
        self._signal(signal.SIGKILL)
        self._process.join()

    def problem(self) -> str | None:
        """Why it did not do its work, from the end of its log; `None` if it did. It has ended by then."""
        self._process.join()
        code = self._process.exitcode
        if code == 0:
            return None
        self._signal(signal.SIGKILL)  # loader processes that it left, or itself where only its server died
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line]
        if code is not None and code < 0:
            hint = "; out of memory?" if -code == signal.SIGKILL else ""
            lines.append(f"killed by signal {-code} ({signal.Signals(-code).name}){hint}")
        return "\n".join(lines[-_LAST_LINES:]) or f"exit code {code}"

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:  # it has not begun to lead its group yet, or all of it is gone
                if self.running:
                    os.kill(self._process.pid, number)


def score_baselines(recipe: Recipe) -> None:
    """Score raw pixels and the frozen backbone of a finished run into its ``baselines.json``."""
    path = recipe.training.output_dir
    evaluation = RunEvaluation(path, recipe.data.dataset, recipe.training.num_workers)
    scores = {
        f"frozen {evaluation.backbone_name}": evaluation.frozen_backbone(),
        PIXELS: evaluation.raw_pixels(),
    }
    evaluation.run.write(BASELINES, {name: score.to_dict() for name, score in scores.items()})


@dataclass(frozen=True)
class ProtocolScoring:
    """Scores a finished run by a protocol, into ``file`` of its folder; cACC is in its results already."""

    protocol: str

    @property
    def file(self) -> str:
        """Name of the file."""
        return f"score-{self.protocol}.json"

    def __call__(self, recipe: Recipe) -> None:
        """Score and write."""
        evaluation = RunEvaluation(
            recipe.training.output_dir, recipe.data.dataset, recipe.training.num_workers
        )
        evaluation.run.write(self.file, evaluation.evaluate(self.protocol).to_dict())

    def stored(self, cell: SweepCell) -> ContinualScore | None:
        """Of such a score what the paper prints, by the classifier of methods whose rows are taken to be its."""
        score = self._score(cell)
        if score is None:
            return None
        return (score.native if cell.answers_natively else None) or score.as_published

    def other(self, cell: SweepCell) -> ContinualScore | None:
        """The other answer of a method with a classifier: that of k-means where `stored` has the classifier's."""
        score = self._score(cell)
        if score is None or score.native is None:
            return None
        return score.as_published if cell.answers_natively else score.native

    def _score(self, cell: SweepCell) -> ContinualScore | None:
        run = RunDirectory(cell.path)
        if self.protocol == "cacc":
            return run.results
        values = run.read(self.file)
        return None if values is None else SCORERS[self.protocol].scores.from_dict(values)


def _start_server() -> None:
    """Start the server, ignoring Ctrl-C, which a terminal sends to it too: the sweep stops its cells itself."""
    if threading.current_thread() is not threading.main_thread():
        return  # no place to change what a signal does; the first cell starts the server
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, previous)


def _work_alone(values: dict[str, Any], work: Work, log: Path, folder: Path) -> None:
    """What the new process does."""
    gc.freeze()  # Accelerate collects garbage after every stage: not through all that the server imported
    os.setpgid(0, 0)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_die_with, args=(parent.sentinel,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    descriptor = open_to_change(log, os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    recipe = Recipe.from_dict(values)
    try:
        run = RunDirectory(recipe.training.output_dir)
        run.lock(SECONDS_TO_WAIT_FOR_LOCK)
        run.unlock()
        work(recipe)
    except PromptCCDError as error:
        logger.error("%s: %s", type(error).__name__, error)
        sys.exit(error.exit_code)
    except BaseException:  # to the log of the cell, not to the terminal of the sweep
        logger.exception("This is a bug, or the machine ran out of something:")
        sys.exit(1)


def _die_with(sentinel: Any) -> None:
    """Once the sweep is gone, by whatever signal, nobody would know of this process: end it and its children."""
    connection.wait([sentinel])
    os.killpg(0, signal.SIGKILL)

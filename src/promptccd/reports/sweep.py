"""A grid of trainings: each runs in a process of its own and is resumed; the failure of one does not stop others.

Any number of sweeps, and of trainings that something else started, work side by side on one folder: each holds the cell
that it is at work on.
"""

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

from promptccd.errors import ConfigurationError, RunError
from promptccd.evaluation import ContinualScore
from promptccd.evaluation.protocol_terms import OWN_ANSWER
from promptccd.locks import FolderLock, owner_of, owners_of
from promptccd.reports.engines.carrying import LOG, SECONDS_TO_WAIT_FOR_LOCK, CarriedCell, Engine, Work
from promptccd.reports.engines.local import LocalEngine, least_used
from promptccd.reports.sweep_cells import (
    BASELINES,
    ProtocolScoring,
    SweepCell,
    score_baselines,
    shared_recipe,
    states_of,
)
from promptccd.runs.folder import RunDirectory
from promptccd.runs.run_groups import baseline_rows
from promptccd.runs.train import train_run
from promptccd.storage import read_file, refuse_links, remove_leftovers
from promptccd.training.progress import StopRequest
from promptccd.training.recipe import Recipe

logger = logging.getLogger(__name__)

STATE = "sweep.json"
BASELINES_OF = "baselines of "
_SECONDS_BETWEEN_LOOKS = 0.3  # for a signal, and for jobs elsewhere; the end of a process needs no look


@dataclass(frozen=True)
class SweepResult:
    """The results of a sweep, read from the folders of its runs.

    Attributes:
        cells: in the order of the grid.
        scores: of every finished cell, by name.
        baselines: scores per seed, by the name of their row.
        failures: why a cell, or its baselines or protocol, is missing, by name.
        unfinished: how far other cells are, by name: ``new``, ``begun``, or where somebody is at work on it.
    """

    cells: Sequence[SweepCell]
    scores: Mapping[str, ContinualScore]
    baselines: Mapping[str, Sequence[ContinualScore]]
    failures: Mapping[str, str]
    unfinished: Mapping[str, str] = field(default_factory=dict)

    @property
    def groups(self) -> dict[str, list[ContinualScore]]:
        """Scores by variant, one per finished seed, then those of the baselines."""
        groups: dict[str, list[ContinualScore]] = {}
        for cell in self.cells:
            if cell.name in self.scores:
                groups.setdefault(cell.variant, []).append(self.scores[cell.name])
        return groups | {name: list(scores) for name, scores in self.baselines.items()}


def run_sweep(
    cells: Sequence[SweepCell],
    out: str | Path,
    *,
    jobs: int = 1,
    baselines: bool = False,
    scorings: Sequence[ProtocolScoring] = (),
    train: Work = train_run,
    engine: Engine | None = None,
) -> SweepResult:
    """Train all cells that are not finished; an earlier sweep in the folder goes on, also with more cells.

    A cell that somebody else is at work on is left to them, also on another computer that has the folder.

    Cells that would pretrain the same backbone share that of the first one. The stages are the same bytes as if each
    cell had been trained alone on this machine with this number of threads.

    Args:
        cells: from `plan_cells` for the same `out`.
        out: folder of the runs; the state of the sweep is in its ``sweep.json``.
        jobs: number of cells at work at once.
        baselines: also score the frozen backbone and raw pixels, once per data and seed.
        scorings: also score every cell by these protocols.
        train: trains a cell; a function of a module.
        engine: carries the cells; by default processes of this machine do.

    Raises:
        RunError: a cell was begun with other settings, or a link lies in the way.
        InterruptedRunError: Ctrl-C or SIGTERM; the cells at work were saved.
    """
    if jobs < 1:
        raise ConfigurationError(f"Expected jobs >= 1, got {jobs}.")
    folder = RunDirectory(out)
    if folder.begun:
        raise RunError(f"{out} is the run of one training. Give the sweep a folder of its own.")
    with tables_held(folder.path):
        refuse_links(folder.path, [STATE, *(cell.name for cell in cells)])
        for cell in cells:
            refuse_links(cell.path, [LOG, BASELINES, *(scoring.file for scoring in scorings)])
    with StopRequest() as stop:
        return _Sweep(cells, folder.path, jobs, stop, engine or LocalEngine()).run(train, baselines, scorings)


def collect_sweep(cells: Sequence[SweepCell], *, baselines: bool = False) -> SweepResult:
    """What there is of a sweep, whoever trained it and while others train it; nothing is trained, scored or written.

    Args:
        cells: from `plan_cells`.
        baselines: with the scores of baselines that an earlier sweep made.

    Raises:
        RunError: a cell was begun with other settings.
    """
    states = states_of(cells)
    finished = [cell for cell in cells if states[cell.name] == "finished"]
    return _result(
        cells, finished, {}, {name: state for name, state in states.items() if state != "finished"}, baselines
    )


@contextmanager
def tables_held(out: Path) -> Iterator[None]:
    """Context in which no other sweep writes notes, tables and recipes into the same folder."""
    with FolderLock(out, SECONDS_TO_WAIT_FOR_LOCK):
        remove_leftovers(out)
        yield


class _Sweep:
    def __init__(self, cells: Sequence[SweepCell], out: Path, jobs: int, stop: StopRequest, engine: Engine):
        self.cells, self.out, self.jobs, self.stop, self.engine = cells, out, jobs, stop, engine
        self.failures: dict[str, str] = {}
        self.elsewhere: dict[str, str] = {}
        self._seen: dict[str, float] = {}  # since when somebody else is at work on a cell
        self.started = time.monotonic()
        self._open: set[str] = set()

    def run(self, train: Work, baselines: bool, scorings: Sequence[ProtocolScoring]) -> SweepResult:
        for cell in self.cells:
            cell.require_same_recipe()
        # Only the training can tell whether all of a cell is on the Hub.
        done = [cell for cell in self.cells if cell.finished() and not cell.recipe.training.push_to_hub]
        todo = [cell for cell in self.cells if cell not in done]
        if done:
            logger.info("%d of %d cells are finished already.", len(done), len(self.cells))
        for cell in done:
            cell.conclude()
            self._note(cell, status="finished", seconds=cell.seconds)
        self._open = {cell.name for cell in todo}
        self._work_through(todo, train)
        absent = self.failures.keys() | self.elsewhere.keys()
        finished = [cell for cell in self.cells if cell.name not in absent]
        prefixes = ["", BASELINES_OF]
        if baselines:
            rows = baseline_rows([cell.path for cell in finished], [cell.variant for cell in finished])
            sources = [cell for cell, names in zip(finished, rows, strict=True) if names]
            unscored = [cell for cell in sources if RunDirectory(cell.path).read(BASELINES) is None]
            self._work_through(unscored, score_baselines, BASELINES_OF)
        for scoring in scorings:
            prefixes.append(f"{scoring.protocol} of ")
            unscored = [cell for cell in finished if scoring.stored(cell) is None]
            self._work_through(unscored, scoring, prefixes[-1])
        names = [f"{prefix}{cell.name}" for prefix in prefixes for cell in self.cells]
        failures = {name: self.failures[name] for name in names if name in self.failures}
        return _result(self.cells, finished, failures, self.elsewhere, baselines)

    def _work_through(self, todo: Sequence[SweepCell], work: Work, prefix: str = "") -> None:
        """Work on cells, several at once: train them, or score trained ones, with a prefix to their names."""
        waiting, seconds = list(todo), list[float]()
        running: list[tuple[SweepCell, CarriedCell]] = []
        asked = False
        try:
            while running or (waiting and not self.stop.received):
                self._begin(waiting, running, work, prefix, len(todo))
                if not running:  # others are at work on all that is left
                    time.sleep(_SECONDS_BETWEEN_LOOKS * bool(waiting))
                    continue
                if ends := [process.sentinel for _, process in running if process.sentinel is not None]:
                    connection.wait(ends, timeout=_SECONDS_BETWEEN_LOOKS)
                else:
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
                if self.stop.received and not asked:
                    asked = True
                    logger.info("Interrupted: waiting until what is running (%d) has saved.", len(running))
                    for _, process in running:
                        process.stop()
                for cell, process in [pair for pair in running if not pair[1].running]:
                    running.remove((cell, process))
                    seconds.append(time.monotonic() - process.started)
                    if process.problem() is not None and owner_of(cell.path) and not self.stop.received:
                        waiting.append(cell)  # somebody was quicker
                    else:
                        self._ended(cell, process, prefix, seconds, len(waiting) + len(running))
        finally:
            for _, process in running:
                process.kill()
        if self.stop.received:
            done = len(self.cells) - len(self._open)
            raise self.stop.error(f"stopped; {done} of {len(self.cells)} cells are finished")

    def _begin(
        self,
        waiting: list[SweepCell],
        running: list[tuple[SweepCell, CarriedCell]],
        work: Work,
        prefix: str,
        total: int,
    ) -> None:
        """Start as many cells as there is room for."""
        devices = self.engine.devices()
        while waiting and len(running) < self.jobs and not self.stop.received:
            chosen = self._next(waiting, [cell for cell, _ in running], prefix)
            if chosen is None:
                return
            cell, recipe = chosen
            waiting.remove(cell)
            # One GPU each, as a training of one process takes: all would start on the first.
            device = least_used(devices, [process.device for _, process in running])
            on = f" on GPU {device}" if device else ""
            logger.info("[%d/%d] %s%s starts%s", total - len(waiting), total, prefix, cell.name, on)
            if not prefix:
                self._note(cell, status="running")
            running.append((cell, self.engine.start(recipe, work, device)))

    def _ended(
        self, cell: SweepCell, process: CarriedCell, prefix: str, seconds: Sequence[float], left: int
    ) -> None:
        name, problem = f"{prefix}{cell.name}", process.problem()
        elapsed = time.monotonic() - self.started
        if problem is None:
            self._open.discard(cell.name)
            to_come = _clock(sum(seconds) / len(seconds) * left / self.jobs)
            logger.info(
                "%s: done in %s%s; %s since the start, %d to go%s",
                name, _clock(seconds[-1]), "" if prefix else _average(cell), _clock(elapsed), left,
                f", {to_come} left" if left else "",
            )  # fmt: skip
        elif not self.stop.received:
            self._open.discard(cell.name)
            self.failures[name] = problem
            logger.error("%s: FAILED, see %s\n  %s", name, process.log, problem.splitlines()[-1])
        if not prefix:
            status = "finished" if problem is None else "interrupted" if self.stop.received else "failed"
            error = problem if status == "failed" else None
            spent = cell.seconds if problem is None else round(seconds[-1], 1)
            self._note(cell, status=status, seconds=spent, error=error)

    def _next(
        self, waiting: list[SweepCell], running: Sequence[SweepCell], prefix: str
    ) -> tuple[SweepCell, Recipe] | None:
        """A cell to begin with, and its recipe; those that others are at work on come last, and may be left to them."""
        owners = {cell.name: owner for cell in waiting if (owner := owner_of(cell.path))}
        late = list[SweepCell]()
        free = [cell for cell in waiting if cell.name not in owners]
        seen = [cell for cell in free if self._seen.pop(cell.name, None) is not None]
        for cell in [cell for cell in seen if not prefix and cell.finished()]:
            logger.info("%s: done elsewhere%s", cell.name, _average(cell))
            self._open.discard(cell.name)
            self._note(cell, status="finished", seconds=cell.seconds)
            waiting.remove(cell)
            free.remove(cell)
        busy = {cell.name for cell in running} | owners.keys()
        at_work = [cell for cell in self.cells if cell.name in busy]
        for others in (
            [at_work] if running else [at_work, []]
        ):  # rather than wait, it makes a backbone of its own
            for cell in free:
                recipe = cell.recipe if prefix else shared_recipe(cell, self.cells, others, self._open)
                if recipe is not None:
                    return cell, recipe
        for name, owner in owners.items():
            if name not in self._seen:
                logger.info("%s: running on %s", name, owner.place)
            since = self._seen.setdefault(name, time.monotonic())
            # Cells of a sweep that was killed end within a second.
            if not running and time.monotonic() - since > SECONDS_TO_WAIT_FOR_LOCK:
                late.append(next(each for each in waiting if each.name == name))
        alive = owners_of(cell.path for cell in late)
        for cell in late:
            if cell.path not in alive:  # nobody renews its lease: who begins waits until it is over
                return cell, cell.recipe if prefix else shared_recipe(cell, self.cells, []) or cell.recipe
            waiting.remove(cell)
            self._open.discard(cell.name)
            self.elsewhere[cell.name] = f"running on {alive[cell.path].place}"
        return None

    def _note(self, cell: SweepCell, **values: Any) -> None:
        """Write values of a cell into ``sweep.json``; notes of other sweeps and of another grid stay.

        They are for a person, and no reason to end what is at work; the sweep itself reads the folders of the runs.
        """
        try:
            with tables_held(self.out):
                try:
                    cells = dict(json.loads(read_file(self.out / STATE))["cells"])
                    before = dict(cells.get(cell.name, {}))
                except (OSError, ValueError, TypeError, KeyError):
                    cells, before = {}, {}
                facts = {"config": cell.config, "settings": dict(cell.settings), "seed": cell.seed}
                cells[cell.name] = {**before, **facts, "error": None, **values}
                RunDirectory(self.out).write(STATE, {"cells": cells})
        except RunError as error:
            logger.warning("%s says nothing new of %s: %s", STATE, cell.name, error)


def _result(
    cells: Sequence[SweepCell],
    finished: Sequence[SweepCell],
    failures: Mapping[str, str],
    unfinished: Mapping[str, str],
    baselines: bool,
) -> SweepResult:
    """What is in the folders of finished cells."""
    results = {cell.name: RunDirectory(cell.path).results for cell in finished}
    scores = {name: score for name, score in results.items() if score is not None}
    tables = {}
    if baselines:
        rows = baseline_rows([cell.path for cell in finished], [cell.variant for cell in finished])
        tables = _named_baselines(finished, rows)
    return SweepResult(cells, scores, tables, failures, unfinished)


def _named_baselines(
    cells: Sequence[SweepCell], rows: Sequence[Mapping[str, str]]
) -> dict[str, list[ContinualScore]]:
    """Scores by row, one per seed: frozen backbones first, then pixels."""
    found: dict[str, dict[str, list[ContinualScore]]] = {}
    for cell, names in zip(cells, rows, strict=True):
        tables = RunDirectory(cell.path).read(BASELINES) or {} if names else {}
        for name, table in tables.items():
            if name in names:
                scores = found.setdefault(name, {}).setdefault(names[name], [])
                scores.append(ContinualScore.from_dict(table))
    return {row: scores for rows_of in found.values() for row, scores in rows_of.items()}


def _average(cell: SweepCell) -> str:
    results = RunDirectory(cell.path).results
    if results is None:
        return ""
    own = "" if results.native is None else f" ({OWN_ANSWER} {results.native.average['all']:.1f})"
    return f", All {results.average['all']:.1f}{own}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

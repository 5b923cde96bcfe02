"""From a folder of images to groups, in one call: read, embed, group, write down."""

import contextlib
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from promptccd.clustering import CountEstimate
from promptccd.data.loaders import Progress
from promptccd.discovery.adapt import (
    AdaptedStage,
    adapt,
    command_of,
    require_enough_images,
    require_head,
    save_adapted,
)
from promptccd.discovery.checkpoint import EarlierDiscovery, load_progress, save_progress
from promptccd.discovery.chunks import import_parts, results_folder, spread
from promptccd.discovery.exports.export_folder import Export
from promptccd.discovery.exports.formats import FORMATS
from promptccd.discovery.exports.rows import AssignmentRow, assignment_rows, assignments_csv, project_rows
from promptccd.discovery.intake.reading import IntakeReport
from promptccd.discovery.intake.seen import SEEN_FILES, SeenFiles, pictures_in
from promptccd.discovery.options import PAGE, TABLE, AdaptationOptions
from promptccd.discovery.project.alike import alike_pairs
from promptccd.discovery.project.changes import StageChange
from promptccd.discovery.project.checkpoint_form import load_registry, require_room
from promptccd.discovery.project.folder import PROJECT, RECORD, clear_leftovers, open_project
from promptccd.discovery.project.photos import Photos
from promptccd.discovery.project.record import read_record
from promptccd.discovery.report import write_page
from promptccd.discovery.session import DiscoverySession
from promptccd.disk import (
    read_file,
    remove_leftovers,
    write_file,
)  # fmt: skip
from promptccd.errors import DataError, RunError
from promptccd.locks import LOCK, FolderLock
from promptccd.reports import PoolOfDevices, RayEngine
from promptccd.training.progress import StopRequest, progress_bar
from promptccd.version import __version__

logger = logging.getLogger(__name__)

_IDLE = (LOCK, *SEEN_FILES)  # files of a project that hold nothing of an image


@dataclass(frozen=True)
class DiscoveryResult:
    """Results of a discovery.

    Attributes:
        report: counts of the files.
        distinct: images, near-duplicates (such as a burst) counted once, as for the estimate.
        near_duplicates: ``mode``, number of ``groups``, ``largest`` of them, and images that are ``doubted``: they look
            like others and count singly.
        estimate: number of categories, with its range.
        change: the difference from before the stage.
        waiting: name of the most similar category of each unassigned image, of this stage or an earlier one, by key.
        alike: pairs of ids of categories that may be one, closest first.
        rows: one per file found.
        paths: the files and folders written.
        exports: result of each export.
        seconds: by step.
    """

    report: IntakeReport
    distinct: int
    near_duplicates: dict[str, Any]
    estimate: CountEstimate
    change: StageChange
    waiting: dict[str, str]
    alike: list[tuple[int, int]]
    rows: list[AssignmentRow]
    paths: list[Path]
    exports: list[Export]
    seconds: dict[str, float]

    @property
    def counts(self) -> dict[str, int]:
        """Number of files by their result; the sum is the number of files found."""
        counted = {"known": 0, "settled": 0, "new": 0, "aside": 0, "unassigned": 0, "skipped": 0}
        for row in self.rows:
            counted[row.status if row.status in ("skipped", "aside") else row.known or "unassigned"] += 1
        return counted


def discover(
    session: DiscoverySession,
    source: str | Path | None,
    out: str | Path,
    *,
    num_categories: int | None = None,
    adaptation: AdaptationOptions | None = None,
    exports: Sequence[str] = (),
    engine: PoolOfDevices | RayEngine | None = None,
    stop: StopRequest | None = None,
) -> DiscoveryResult:
    """Group the images of a source and write the results to a folder.

    If an earlier discovery with the same model wrote to the folder, its categories, names and corrections are kept: the
    same images stay in their categories, and other images become the next stage. If the call ends early, the folder
    is as before, and the features computed so far are kept; without any, no folder is left that was not there. If it is
    killed while it writes, or repeated when all is written, the same call uses what is there: above all a stage.

    Args:
        session: fresh, with its model.
        source: a folder, a zip archive, or a data set; `None` for given items without images.
        out: gets ``assignments.csv``, ``discovery.html``, the exports, and in ``.promptccd`` what the next run needs.
        num_categories: of all categories; `None` estimates it.
        adaptation: trains a stage on the images before the final grouping, and leaves it in ``stage<t+1>``.
        exports: names of `FORMATS`; each takes along the photographs of all sources of the folder.
        engine: has other processes or machines look at new files first, if they are many; results are the same.
        stop: remembers signals; without one, Ctrl-C is an ordinary `KeyboardInterrupt`.

    Raises:
        PromptCCDError: with a message that says what, why and what to do.
        InterruptedRunError: a signal was received.
    """
    if adaptation is not None:
        require_head(session)
    with _nothing_left_of_an_error(Path(os.path.expanduser(out))):
        target = results_folder(source, out)
        return _Discovery(session, source, target, num_categories, adaptation, exports, engine, stop).run()


@dataclass
class _Discovery:
    """The arguments of `discover`, and the state that its steps share.

    Attributes:
        came_with: hash of the registry that the model came with.
        command: the given adaptation, if any, see `command_of`.
        trained: the stage, if the same command has trained it already.
        earlier: the results of an earlier discovery in the folder.
        seconds: by step.
    """

    session: DiscoverySession
    source: str | Path | None
    out: Path
    num_categories: int | None
    adaptation: AdaptationOptions | None
    exports: Sequence[str]
    engine: PoolOfDevices | RayEngine | None
    stop: StopRequest | None
    came_with: str = ""
    command: dict[str, Any] | None = None
    trained: AdaptedStage | None = None
    earlier: EarlierDiscovery | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self) -> DiscoveryResult:
        session = self.session
        project = open_project(self.out)
        with FolderLock(project), contextlib.ExitStack() as stack:
            remove_leftovers(self.out)
            clear_leftovers(project)
            session.seen = SeenFiles(project, session.made_with)
            stack.callback(session.seen.close)  # only after an error: the session may be used further
            self._begin()
            if self.engine is not None and self.source is not None and self.trained is None:
                with self._timed("parts"):
                    spread(session, self.source, self.out, self.engine, self._heed, self._progress)
            import_parts(session, project)
            with self._timed("reading"):
                self._read()
            with self._timed("features"):
                session.embed(self._progress)
            with self._timed("grouping"):
                self._group()
            if self.adaptation is not None and self.trained is None:
                with self._timed("training"):
                    adapt(session, self.adaptation, self.stop)
                    session.group(session.num_categories)
            with self._timed("writing"):  # a signal from here on is too late: all of it is written
                rows, paths, exports = self._write()
            stack.pop_all()
            names, likest = session.registry.category, session.remembered.likest()
            return DiscoveryResult(
                report=session.current.intake.report(),
                distinct=session.num_distinct,
                near_duplicates=session.near_duplicate_counts,
                estimate=session.estimate,
                change=session.change,
                waiting={key: names(each).name for key, each in likest.items()},
                alike=alike_pairs(session.registry),
                rows=rows,
                paths=paths,
                exports=exports,
                seconds=self.seconds,
            )

    def _begin(self) -> None:
        session, out = self.session, self.out
        self.came_with = session.registry.state_hash()
        if self.adaptation is not None:
            self.command = command_of(session, out, self.adaptation, self.num_categories)
            self.trained = AdaptedStage.left_by(self.command, out)
        if self.command is not None and self.trained is not None:
            self.earlier = self.trained.resume(session, out, self.command)
            return
        self.earlier = load_progress(session, out)
        if self.earlier is not None:
            session.registry = self.earlier.registry
            self._regroup(self.earlier)
        if self.num_categories is None:
            return
        # Too few categories are refused before anything is read. Images may be those of the earlier stage.
        stage = session.registry.stage + (self.earlier is None)
        stay = sum(each.named or each.settled(stage) for each in session.registry.active)
        if self.num_categories < stay:
            raise DataError(
                f"Expected {stay} <= num_categories, as {stay} categories are known and stay, got "
                f"{self.num_categories}: give more, or none to estimate it."
            )

    def _regroup(self, earlier: EarlierDiscovery) -> None:
        """Group the images of the earlier discovery again if a category was set aside since."""
        session = self.session
        if session.regroup(read_record(self.out)["features"]) is None:
            return
        logger.info(
            "Something was set aside since the photographs of stage %d were grouped, so the others were grouped anew: "
            "categories %s. `promptccd categories %s undo` takes this back.",
            session.registry.stage, session.estimate, self.out,
        )  # fmt: skip
        self.earlier = replace(earlier, estimate=session.estimate)

    def _read(self) -> None:
        session, earlier = self.session, self.earlier
        if earlier is not None:
            session.registry = earlier.registry
        session.read(self.source, self._progress)
        if earlier is not None and session.current.stage == earlier.registry.stage:
            session.current.before = earlier.before or session.current.before
        if self.trained is not None:
            self.trained.require_images(session)
        elif self.adaptation is not None:
            require_enough_images(session)
            if (stage := self._stage_folder).exists():
                raise RunError(
                    f"{stage} was trained already: go on with it as the model and without --adapt, or give another "
                    "--out."
                )
        before = session.registry.images.read()
        require_room(len(before) + sum(key not in before for key in session.current.keys))

    def _group(self) -> None:
        """Group the images, unless an earlier discovery did, whose groups and corrections then stay."""
        asked = self.num_categories is not None and self.trained is None
        if self.earlier is not None and not asked and self.session.is_grouped:
            self.session.keep(self.earlier.estimate_for(self.session))
        else:
            self.session.group(self.num_categories)

    def _write(self) -> tuple[list[AssignmentRow], list[Path], list[Export]]:
        """Write the trained stage, if any, then the state for the next discovery, then the results for people.

        After an interruption at any place, the same command writes the rest.
        """
        session = self.session
        if self.command is not None:
            stage = self.trained.folder if self.trained is not None else self._stage_folder
            if self.trained is None:
                save_adapted(session, stage, self.command)
            self.came_with = load_registry(stage).state_hash()
        save_progress(session, self.out, self.came_with, self.source)
        rows, table, exports = assignment_rows(session), self.out / TABLE, list[Export]()
        write_file(table, assignments_csv(rows))
        if self.exports:
            files, original = session.current.files, session.original
            photos = Photos(
                self.out, session.registry.images, lambda key: original(key) if key in files else None
            )
            listed = project_rows(session.registry, photos)
            exports = [FORMATS[name].write(photos, listed, self.out) for name in dict.fromkeys(self.exports)]
        page, made_of = self.out / PAGE, self._made_of(table)
        if not page.is_file() or not read_file(page).endswith(made_of):
            write_page(session, rows, page, end=made_of.decode())
        return rows, [page, table, *(each.place for each in exports)], exports

    def _made_of(self, table: Path) -> bytes:
        """The last line of the page; the page is written again only if this line changes."""
        session = self.session
        states = [each.state_hash() for each in (session.registry, session.current.before)]
        digest = hashlib.sha256(f"{__version__} {session.seed} {states}".encode())
        for path in (table, self.out / PROJECT / RECORD):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return f"<!-- {digest.hexdigest()} -->\n".encode()

    @property
    def _stage_folder(self) -> Path:
        return self.out / f"stage{self.session.current.stage}"

    @property
    def _progress(self) -> Progress:
        return self.stop.progress if self.stop else progress_bar

    def _heed(self) -> None:
        if self.stop is not None and self.stop.received:
            raise self.stop.error("stopped; features that were computed are kept")

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        self._heed()
        started = time.perf_counter()
        yield
        self.seconds[step] = round(time.perf_counter() - started, 2)


@contextmanager
def _nothing_left_of_an_error(out: Path) -> Iterator[None]:
    """Remove the folders that are made for results, if an error comes before anything of use is in them."""
    made = [each for each in (out / PROJECT, out, *out.parents) if not each.exists()]
    try:
        yield
    except BaseException:
        files = (path for path in (out / PROJECT).rglob("*") if path.is_file())
        if all(path.name.startswith(_IDLE) for path in files) and not pictures_in(out / PROJECT):
            _remove_idle(out / PROJECT, made)
        raise


def _remove_idle(project: Path, made: Sequence[Path]) -> None:
    """Remove folders without anything of use, inner ones first; not while another process writes there."""
    with contextlib.suppress(OSError, RunError):
        if project in made and project.exists():
            with FolderLock(project):
                shutil.rmtree(project, ignore_errors=True)
            shutil.rmtree(project, ignore_errors=True)  # Windows keeps a file that is open
        for each in made:
            if each.exists():
                each.rmdir()

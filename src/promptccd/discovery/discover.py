"""From a folder of images to groups, in one call: read, embed, group, write down."""

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptccd.clustering import CountEstimate
from promptccd.data.loaders import Progress
from promptccd.discovery.adapt import (
    adapt,
    require_enough_images,
    require_head,
    resume_adapted,
    save_adapted,
    values_asked,
)
from promptccd.discovery.checkpoint import (
    EarlierDiscovery,
    images_hash,
    load_progress,
    newest_stage_in,
    save_progress,
)
from promptccd.discovery.chunks import import_parts, results_folder, spread
from promptccd.discovery.exports.export_folder import Export
from promptccd.discovery.exports.formats import FORMATS
from promptccd.discovery.exports.rows import AssignmentRow, assignment_rows, assignments_csv, project_rows
from promptccd.discovery.intake.reading import IntakeReport
from promptccd.discovery.intake.seen import SeenFiles
from promptccd.discovery.options import PAGE, TABLE, AdaptationOptions
from promptccd.discovery.project.changes import StageChange
from promptccd.discovery.project.folder import PROJECT
from promptccd.discovery.project.photos import Photos
from promptccd.discovery.project.proposals import alike_pairs
from promptccd.discovery.report import write_page
from promptccd.discovery.session import DiscoverySession
from promptccd.disk import make_inside, remove_leftovers, write_file
from promptccd.errors import RunError
from promptccd.locks import FolderLock
from promptccd.reports import PoolOfDevices, RayEngine
from promptccd.training.progress import StopRequest, progress_bar

logger = logging.getLogger(__name__)


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
    same images stay in their categories, and other images become the next stage. If the call ends early, the results in
    the folder are as before, and the features computed so far are kept. If it is killed while it writes, or repeated
    when all is written, the same call uses what is there: above all a stage.

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
    target = results_folder(source, out)
    return _Discovery(session, source, target, num_categories, adaptation, exports, engine, stop).run()


@dataclass
class _Discovery:
    """The arguments of `discover`, and the state that its steps share.

    Attributes:
        asked: the given adaptation, if any, see `values_asked`.
        is_trained: whether the same command has trained the stage already.
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
    asked: dict[str, Any] | None = None
    is_trained: bool = False
    earlier: EarlierDiscovery | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self) -> DiscoveryResult:
        session = self.session
        project = make_inside(self.out, PROJECT)
        with FolderLock(project), contextlib.ExitStack() as stack:
            remove_leftovers(self.out)
            remove_leftovers(project)
            session.seen = SeenFiles(project, session.made_with)
            stack.callback(session.seen.close)  # only after an error: the session may be used further
            self._begin()
            if self.engine is not None and self.source is not None and not self.is_trained:
                with self._timed("parts"):
                    spread(session, self.source, self.out, self.engine, self._heed, self._progress)
            import_parts(session, project)
            with self._timed("reading"):
                self._read()
            with self._timed("features"):
                session.embed(self._progress)
            with self._timed("grouping"):
                self._group()
            if self.adaptation is not None and not self.is_trained:
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
        session = self.session
        if self.adaptation is not None:
            self.asked = values_asked(session, self.adaptation, self.num_categories)
            self.earlier = resume_adapted(session, self.out, self.asked)
            self.is_trained = self.earlier is not None
        self.earlier = self.earlier or load_progress(session, self.out)
        if self.earlier is not None:
            session.registry = self.earlier.registry

    def _read(self) -> None:
        session, earlier = self.session, self.earlier
        session.read(self.source, self._progress)
        if earlier is not None and session.current.stage == earlier.registry.stage:
            session.current.before = earlier.before or session.current.before
        is_other = earlier is None or images_hash(session) != earlier.images
        if self.adaptation is not None and (is_other if self.is_trained else self._stage_folder.exists()):
            trained = newest_stage_in(self.out)
            raise RunError(
                f"{trained} was trained already: give it as the model, without --adapt, or give another --out."
            )
        if self.adaptation is not None:
            require_enough_images(session)

    def _group(self) -> None:
        """Group the images, unless an earlier discovery did, whose groups and corrections then stay."""
        asked = self.num_categories is not None and not self.is_trained
        if self.earlier is not None and not asked and self.session.is_grouped:
            self.session.keep(self.earlier.estimate_for(self.session))
        else:
            self.session.group(self.num_categories)

    def _write(self) -> tuple[list[AssignmentRow], list[Path], list[Export]]:
        """Write the trained stage, if any, then the state for the next discovery, then the results for people.

        After an interruption at any place, the same command writes the rest.
        """
        session = self.session
        if self.asked is not None and not self.is_trained:
            save_adapted(session, self._stage_folder, self.asked)
        save_progress(session, self.out, self.source)
        rows, table, exports = assignment_rows(session), self.out / TABLE, list[Export]()
        write_file(table, assignments_csv(rows))
        if self.exports:
            files, original = session.current.files, session.original
            photos = Photos(
                self.out, session.registry.images, lambda key: original(key) if key in files else None
            )
            listed = project_rows(session.registry, photos)
            exports = [FORMATS[name].write(photos, listed, self.out) for name in dict.fromkeys(self.exports)]
        page = write_page(session, rows, self.out / PAGE)
        return rows, [page, table, *(each.place for each in exports)], exports

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

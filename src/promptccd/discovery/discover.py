"""From a folder of images to groups, in one call: read, embed, group, write down."""

import contextlib
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from promptccd.discovery.intake.seen import FEATURES, SEEN_FILES, SeenFiles
from promptccd.discovery.options import PAGE, TABLE, AdaptationOptions
from promptccd.discovery.project.folder import (
    PROJECT,
    RECORD,
    clear_leftovers,
    open_project,
)
from promptccd.discovery.project.photos import Photos
from promptccd.discovery.project.record import read_record
from promptccd.discovery.report import write_page
from promptccd.discovery.session import DiscoverySession
from promptccd.disk import (
    read_file,
    readable_size,
    refuse_links,
    remove_leftovers,
    require_space,
    write_file,
)
from promptccd.errors import DataError, RunError
from promptccd.locks import LOCK, FolderLock
from promptccd.registry import StageChange, alike_pairs, load_registry
from promptccd.registry.checkpoint_form import require_room
from promptccd.reports import PoolOfDevices, RayEngine
from promptccd.training.progress import StopRequest, progress_bar, readable_time
from promptccd.version import __version__

logger = logging.getLogger(__name__)

MANY = 1_000  # from so many files on, a message announces what they will cost
_THUMBNAIL_BYTES = 6_000  # of 128 pixels
_FILE_BYTES = 5_000  # name, verdict, hash, miniature and so on in memory, without features
_LINE_BYTES = 1_500  # the same on disk
_IDLE = (LOCK, *SEEN_FILES)  # files of a project that hold nothing of an image
_WRITTEN = (PAGE, TABLE, *FORMATS)


@dataclass(frozen=True)
class DiscoveryResult:
    """What a discovery found and wrote.

    Attributes:
        report: counts of the files.
        distinct: images, near-duplicates (such as a burst) counted once, as for the estimate.
        estimate: number of categories, with its range.
        change: the difference from before the stage.
        waiting: name of the category that each image, of this stage or an earlier one, is most like that fits nowhere.
        alike: pairs of ids of categories that may be one, closest first.
        rows: one per file found.
        paths: the files and folders written.
        exports: what became of each.
        seconds: by step.
    """

    report: IntakeReport
    distinct: int
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
        """Number of files by what became of them; they add up to all that were found."""
        counted = {"known": 0, "settled": 0, "new": 0, "aside": 0, "unassigned": 0, "skipped": 0}
        for row in self.rows:
            counted[row.status if row.status in ("skipped", "aside") else row.known or "unassigned"] += 1
        return counted


def discover(
    session: DiscoverySession,
    source: str | Path,
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
        source: a folder, a zip archive, or a data set.
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
    """The arguments of `discover`, and the state before it, which all of its steps need.

    Attributes:
        came_with: hash of the registry that the model came with.
        command: the adaptation that is asked for, if any, see `command_of`.
        trained: the stage, if the same command has trained it already.
        earlier: what an earlier discovery left in the folder of the results.
    """

    session: DiscoverySession
    source: str | Path
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

    def run(self) -> DiscoveryResult:
        session, seconds = self.session, dict[str, float]()
        refuse_links(self.out, _WRITTEN)
        refuse_links(self.out / PROJECT, (*SEEN_FILES, FEATURES))
        project = open_project(self.out)
        with FolderLock(project), contextlib.ExitStack() as stack:
            remove_leftovers(self.out)
            clear_leftovers(project)
            session.seen = SeenFiles(project, session.made_with)
            stack.callback(session.seen.close)  # unless all goes well: the session may go on with it
            self._begin()
            if self.engine is not None and self.trained is None:
                with self._timed(seconds, "parts"):
                    spread(session, self.source, self.out, self.engine, self._heed, self._progress)
            import_parts(session, project)
            with self._timed(seconds, "reading"):
                self._read()
            with self._timed(seconds, "features"):
                session.embed(self._progress)
            with self._timed(seconds, "grouping"):
                self._group()
            if self.adaptation is not None and self.trained is None:
                with self._timed(seconds, "training"):
                    adapt(session, self.adaptation, self.stop)
                    session.group(session.num_categories)
            with self._timed(seconds, "writing"):  # a signal from here on is too late: all of it is written
                rows, paths, exports = self._write()
            stack.pop_all()
            session.seen.flush()
            return DiscoveryResult(
                session.current.intake.report(),
                session.num_distinct,
                session.estimate,
                session.change,
                {
                    key: session.registry.category(each).name
                    for key, each in session.remembered.likest().items()
                },
                alike_pairs(session.registry),
                rows,
                paths,
                exports,
                seconds,
            )

    def _begin(self) -> None:
        session, out = self.session, self.out
        self.came_with = session.registry.state_hash()
        if self.adaptation is not None:
            self.command = command_of(session, out, self.adaptation, self.num_categories)
            self.trained = AdaptedStage.left_by(self.command, out)
        if self.command is not None and self.trained is not None:
            self.earlier = self.trained.resume(session, out, self.command)
        else:
            self.earlier = self._earlier()
            self._require_count()

    def _require_count(self) -> None:
        """Refuse fewer categories than those that stay before anything is read; how many at most, images tell."""
        if self.num_categories is None:
            return
        registry = self.session.registry
        # Where an earlier discovery looked at images, these may be the same ones, as the same stage.
        stage = registry.stage + (self.earlier is None)
        stay = sum(each.named or each.settled(stage) for each in registry.active)
        if self.num_categories < stay:
            raise DataError(
                f"Expected {stay} <= num_categories, as {stay} categories are known and stay, got "
                f"{self.num_categories}: give more, or none to estimate it."
            )

    def _earlier(self) -> EarlierDiscovery | None:
        """What is in the folder; what was found beside a category that was set aside since is grouped anew."""
        session, earlier = self.session, load_progress(self.session, self.out)
        if earlier is None:
            return None
        session.registry = earlier.registry
        if session.regroup(read_record(self.out)["features"]) is None:
            return earlier
        logger.info(
            "Something was set aside since the photographs of stage %d were grouped, so the others were grouped anew: "
            "categories %s. `promptccd categories %s undo` takes this back.",
            session.registry.stage,
            session.estimate,
            self.out,
        )
        return replace(earlier, estimate=session.estimate)

    def _read(self) -> None:
        session, earlier = self.session, self.earlier
        if earlier is not None:
            session.registry = earlier.registry
        session.read(self.source, self._progress, self._announce)
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
        self._require_space()

    def _announce(self, count: int, seconds_each: float) -> None:
        """Log what many images will cost."""
        if count < MANY:
            return
        memory, kept = _bytes_of(count, self.session)
        logger.info(
            "%d files: about %s to read them, %d at once, while features are computed on %s. Up to %s of memory "
            "besides the model; of disk in %s %s that stay and save it the next time.",
            count, readable_time(count * seconds_each), self.session.workers, self.session.model.device,
            readable_size(memory), self.out, readable_size(kept),
        )  # fmt: skip

    def _require_space(self) -> None:
        """Refuse results that the disk or a registry has no room for, before images are grouped."""
        before, used = self.session.registry.images.read(), self.session.current.intake.used
        require_room(len(before) + sum(file.key not in before for file in used))
        trained = 0 if self.adaptation is None else self.session.model.get_memory_footprint()
        copied = sum(file.num_bytes for file in used)
        copies = sum(FORMATS[name].copies for name in set(self.exports))  # of the others, most are links
        # Encoding a picture again may shrink it, but hardly to less than half.
        require_space(self.out, trained + copies * copied // 2, "the results that were asked for")

    def _group(self) -> None:
        """Group the images, unless an earlier discovery did, whose groups and corrections then stay."""
        asked = self.num_categories is not None and self.trained is None
        if self.earlier is not None and not asked and self.session.is_grouped:
            self.session.keep(self.earlier.estimate_for(self.session))
        else:
            self.session.group(self.num_categories)

    def _write(self) -> tuple[list[AssignmentRow], list[Path], list[Export]]:
        """Write the trained stage, if any, then the state for the next discovery, then what people look at.

        The order matters: however much of it is there, the same command can write the rest.
        """
        session = self.session
        if self.command is not None:
            stage = self.trained.folder if self.trained is not None else self._stage_folder
            if self.trained is None:
                save_adapted(session, stage, self.command)
            self.came_with = load_registry(stage).state_hash()
        save_progress(session, self.out, self.came_with, self.source)
        rows = assignment_rows(session)
        table = self.out / TABLE
        write_file(table, assignments_csv(rows))
        exports = self._export() if self.exports else []
        page, made_of = self.out / PAGE, self._made_of(table)
        if not page.is_file() or not read_file(page).endswith(made_of):
            write_page(session, rows, page, end=made_of.decode())
        return rows, [page, table, *(each.place for each in exports)], exports

    def _export(self) -> list[Export]:
        session = self.session
        photos = Photos(
            self.out,
            session.registry.images,
            lambda key: session.original(key) if key in session.current.files else None,
        )
        rows = project_rows(session.registry, photos)
        return [FORMATS[name].write(photos, rows, self.out) for name in dict.fromkeys(self.exports)]

    def _made_of(self, table: Path) -> bytes:
        """The last line of the page: while it is the same, the page need not be drawn again."""
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
    def _timed(self, seconds: dict[str, float], step: str) -> Iterator[None]:
        self._heed()
        started = time.perf_counter()
        yield
        seconds[step] = round(time.perf_counter() - started, 2)


@contextmanager
def _nothing_left_of_an_error(out: Path) -> Iterator[None]:
    """Take the folders away that are made for results, if an error comes before anything of use is in them."""
    made = [each for each in (out / PROJECT, out, *out.parents) if not each.exists()]
    try:
        yield
    except BaseException:
        files = (path for path in (out / PROJECT).rglob("*") if path.is_file())
        if all(path.name.startswith(_IDLE) for path in files):
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


def _bytes_of(count: int, session: DiscoverySession) -> tuple[int, int]:
    """Bytes of so many images: in memory, and on disk for good."""
    feature = 4 * session.model.config.vision_config.hidden_size
    return count * (_FILE_BYTES + 2 * feature), count * (_THUMBNAIL_BYTES + _LINE_BYTES + feature)

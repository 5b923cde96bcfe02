"""From a folder of images to groups, in one call: read, embed, group, write down."""

import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptccd.clustering import CountEstimate
from promptccd.discovery.adapt import (
    adapt,
    require_head,
    require_trainable,
    resume_adapted,
    save_adapted,
    values_asked,
)
from promptccd.discovery.checkpoint import load_progress, save_progress
from promptccd.discovery.exports.export_folder import Export
from promptccd.discovery.exports.formats import FORMATS
from promptccd.discovery.exports.rows import AssignmentRow, assignment_rows, assignments_csv, project_rows
from promptccd.discovery.intake.reading import IntakeReport, find_source
from promptccd.discovery.intake.seen import SeenFiles
from promptccd.discovery.options import PAGE, TABLE, AdaptationOptions
from promptccd.discovery.project.photos import Photos
from promptccd.discovery.project.record import PROJECT
from promptccd.discovery.project.rows import StageChange, alike_pairs
from promptccd.discovery.report import write_page
from promptccd.discovery.session import DiscoverySession
from promptccd.disk import CHECKSUMS, make_folder, make_inside, remove_leftovers, write_file
from promptccd.errors import ConfigurationError
from promptccd.locks import FolderLock
from promptccd.runs.folder import RunDirectory
from promptccd.training.progress import StopRequest, progress_bar

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DiscoveryResult:
    """Results of a discovery.

    Attributes:
        report: counts of the files.
        distinct: images, near-duplicates (such as a burst) counted once, as for the estimate.
        near_duplicates: ``mode``, number of ``groups``, size of the ``largest``, and images that are ``doubted``: they
            look like another image and count singly.
        estimate: number of categories, with its range.
        change: the difference from before the stage.
        waiting: name of the most similar category of each unassigned image, of this or an earlier stage, by key.
        alike: pairs of ids of categories that may be one, closest first.
        rows: one per file found.
        paths: the files and folders written.
        exports: result of each export.
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

    @property
    def counts(self) -> dict[str, int]:
        """Number of files by their result; the sum is the number of files found."""
        counted = {"known": 0, "earlier": 0, "new": 0, "aside": 0, "unassigned": 0, "skipped": 0}
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
    stop: StopRequest | None = None,
) -> DiscoveryResult:
    """Group the images of a source and write the results to a folder.

    If an earlier discovery with the same model wrote to the folder, its categories, names and corrections are kept: the
    same images stay in their categories, and other images become the next stage. If the call ends early, the results in
    the folder are as before, and the features computed so far are kept. If it is killed while it writes, or repeated
    when all is written, the same call resumes from the written files: a trained stage is not trained again.

    Args:
        session: fresh, with its model.
        source: a folder, a zip archive, or a data set; `None` for given items without images.
        out: gets ``assignments.csv``, ``discovery.html``, the exports, and the input of the next run in ``.promptccd``.
        num_categories: of all categories; `None` estimates it.
        adaptation: trains a stage on the images before the final grouping, and leaves it in ``stage<t+1>``.
        exports: names of `FORMATS`; each takes along the photographs of all sources of the folder.
        stop: remembers signals; without one, Ctrl-C is an ordinary `KeyboardInterrupt`.

    Raises:
        PromptCCDError: with a message that says what, why and what to do.
        InterruptedRunError: a signal was received.
    """
    if adaptation is not None:
        require_head(session)
    opened = source if source is None or session.given else find_source(source, session.image_roots)
    target = results_folder(source, out)
    project, progress = make_inside(target, PROJECT), stop.progress if stop else progress_bar

    def heed() -> None:
        if stop is not None and stop.received:
            raise stop.error("stopped; features that were computed are kept")

    with FolderLock(project), contextlib.ExitStack() as stack:
        remove_leftovers(target)
        remove_leftovers(project)
        enough = 0 if session.given else session.view.enough
        session.seen = SeenFiles(project, {"enough": enough, "max_pixels": session.limits.max_pixels})
        stack.callback(session.seen.close)  # only after an error: the session may be used further
        asked = None if adaptation is None else values_asked(session, adaptation, num_categories)
        came_with = session.registry
        is_trained = asked is not None and resume_adapted(session, target, asked)
        earlier = load_progress(session, target, came_with if is_trained else None)
        session.read(opened, progress)
        if earlier is not None and session.current.stage == session.registry.stage:
            session.current.before = earlier[0] or session.current.before
        if adaptation is not None:
            require_trainable(session, target, is_trained)
        heed()
        is_asked = num_categories is not None and not is_trained
        if earlier is not None and session.is_grouped and not is_asked:
            session.keep(earlier[1])  # with later corrections
        else:
            session.group(num_categories)
        if adaptation is not None and not is_trained:
            adapt(session, adaptation, stop)
            session.group(session.num_categories)
        heed()  # a signal from here on is too late: all of it is written
        if asked is not None and not is_trained:
            save_adapted(session, target, asked)
        save_progress(session, target, source)
        rows, paths, exported = _write_results(session, target, exports)
        stack.pop_all()
    names, likest = session.registry.category, session.grouping.likest()
    return DiscoveryResult(
        report=session.current.intake.report(),
        distinct=session.num_distinct,
        near_duplicates={"mode": session.near_duplicate_mode, **session.current.near_duplicates.counts},
        estimate=session.estimate,
        change=session.change,
        waiting={key: names(each).name for key, each in likest.items()},
        alike=alike_pairs(session.registry),
        rows=rows,
        paths=paths,
        exports=exported,
    )


def results_folder(source: str | Path | None, out: str | Path) -> Path:
    """The folder for the results, made if need be.

    Raises:
        ConfigurationError: it is a checkpoint, or lies inside the folder of images.
        DiskError: it cannot be made.
    """
    folder = Path(os.path.expanduser(out))
    images = None if source is None else Path(os.path.expanduser(source))
    if (folder / "config.json").exists() or (folder / CHECKSUMS).exists():
        raise ConfigurationError(f"{str(out)!r} is a model: give another --out for the results.")
    if RunDirectory(folder).begun:
        raise ConfigurationError(
            f"{str(out)!r} is a run of promptccd train: give another --out for the results."
        )
    if images is not None and images.is_dir() and folder.resolve().is_relative_to(images.resolve()):
        raise ConfigurationError(
            f"{str(out)!r} is in the folder of images, where the next run would take results for images: give an "
            "--out outside of it."
        )
    return make_folder(folder)


def _write_results(
    session: DiscoverySession, out: Path, formats: Sequence[str]
) -> tuple[list[AssignmentRow], list[Path], list[Export]]:
    """Write the table, the exports and the page, and return the rows, the paths and the exports."""
    rows, table, exports = assignment_rows(session), out / TABLE, list[Export]()
    write_file(table, assignments_csv(rows))
    if formats:
        files, read = session.current.files, session.current.intake.read_bytes
        photos = Photos(out, session.registry.images, lambda key: read(files[key]) if key in files else None)
        listed = project_rows(session.registry, photos)
        exports = [FORMATS[name].write(photos, listed, out) for name in dict.fromkeys(formats)]
    page = write_page(session, rows, out / PAGE)
    return rows, [page, table, *(each.place for each in exports)], exports

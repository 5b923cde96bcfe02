"""From a folder of images to groups, in one call: read, embed, group, write down."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptccd.clustering import CountEstimate
from promptccd.data.intake import IntakeReport
from promptccd.data.stage_images import Progress
from promptccd.discovery.adapt import AdaptationOptions, adapt
from promptccd.discovery.assignments import AssignmentRow, assignment_rows
from promptccd.discovery.checkpoint import EarlierDiscovery, load_progress, save_checkpoint, save_progress
from promptccd.discovery.embedding import Precision
from promptccd.discovery.exports import EXPORTS, make_folder
from promptccd.discovery.page import write_page
from promptccd.discovery.session import DiscoverySession
from promptccd.registry import StageChange
from promptccd.runs.run_directory import RunDirectory
from promptccd.training.progress import progress_bar

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DiscoveryResult:
    """What a discovery found and wrote.

    Attributes:
        report: counts of the files.
        estimate: number of categories, with its range.
        change: what is different from before.
        rows: one per file found.
        paths: what was written.
        seconds: by step.
    """

    report: IntakeReport
    estimate: CountEstimate
    change: StageChange
    rows: list[AssignmentRow]
    paths: list[Path]
    seconds: dict[str, float]

    @property
    def counts(self) -> dict[str, int]:
        """Files by what became of them; together all that were found."""
        counted = {"known": 0, "settled": 0, "new": 0, "unassigned": 0, "skipped": 0}
        for row in self.rows:
            counted["skipped" if row.status == "skipped" else row.known or "unassigned"] += 1
        return counted


def discover(
    session: DiscoverySession,
    source: str | Path,
    out: str | Path,
    *,
    num_categories: int | None = None,
    adaptation: AdaptationOptions | None = None,
    exports: Sequence[str] = (),
    precision: Precision = "auto",
    progress: Progress = progress_bar,
) -> DiscoveryResult:
    """Group the images of a source and write everything down.

    A folder that an earlier discovery with the same model wrote to is gone on with: categories, names and corrections
    there are taken over. The same images are grouped again, others become the next stage.

    Args:
        session: fresh, with its model.
        source: a folder, a zip archive, or a data set.
        out: gets ``assignments.csv``, ``discovery.html``, the registry and the exports.
        num_categories: of all categories; none estimates it.
        adaptation: trains a stage on the images before they are grouped for good, and leaves it in ``stage<t+1>``.
        exports: names of `EXPORTS` besides ``csv``.
        precision: of the model's forward.
        progress: wraps what takes long in a progress bar.

    Raises:
        PromptCCDError: with a message that says what, why and what to do.
    """
    target, seconds = make_folder(out), {}
    run = RunDirectory(target)
    run.lock()
    try:
        earlier = load_progress(session, target)
        session.registry = earlier.registry if earlier else session.registry
        steps: list[tuple[str, Any]] = [
            ("reading", lambda: session.read(source, progress)),
            ("features", lambda: session.embed(progress, precision)),
            ("grouping", lambda: _group(session, num_categories, earlier)),
            ("training", lambda: _adapted(session, target, adaptation, precision)),
            ("writing", lambda: _written(session, target, exports)),
        ]
        made: Any = None
        for name, step in steps:
            started = time.perf_counter()
            made = step()
            seconds[name] = round(time.perf_counter() - started, 2)
    finally:
        run.unlock()
    rows, paths = made
    return DiscoveryResult(
        session.current.intake.report(), session.estimate, session.change, rows, paths, seconds
    )


def _group(session: DiscoverySession, num_categories: int | None, earlier: EarlierDiscovery | None) -> None:
    """Group the images, unless they are where an earlier discovery and people since have put them."""
    if earlier is not None and num_categories is None and session.is_grouped:
        session.keep(earlier.estimate)
    else:
        session.group(num_categories)


def _adapted(
    session: DiscoverySession, out: Path, adaptation: AdaptationOptions | None, precision: Precision
) -> Path | None:
    if adaptation is None:
        return None
    adapt(session, adaptation, precision)
    session.group(len(session.registry.active))
    return save_checkpoint(session, out / f"stage{session.current.stage}")


def _written(
    session: DiscoverySession, out: Path, exports: Sequence[str]
) -> tuple[list[AssignmentRow], list[Path]]:
    save_progress(session, out)
    rows = assignment_rows(session)
    paths = [EXPORTS[name](session, rows, out) for name in dict.fromkeys(["csv", *exports])]
    return rows, [write_page(session, rows, out / "discovery.html"), *paths]

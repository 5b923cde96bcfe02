"""Which file went where: one row for every file that was found."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from promptccd.data.images import Status
from promptccd.data.intake_files import IntakeFile
from promptccd.discovery.session import DiscoverySession
from promptccd.reports.spreadsheet import csv_text


@dataclass(frozen=True)
class AssignmentRow:
    """One file.

    Attributes:
        file: where it is in the source.
        sha256: of its bytes; empty if they were not read.
        category: id of its category; `None` for a file without one.
        name: that category's name.
        known: ``known`` if stage 0 labelled it, ``settled`` if an earlier stage discovered it, ``new`` otherwise.
        confidence: in 0..1.
        distance: squared distance of the unit feature to the category's prototype.
        stage: the stage it was grouped at.
        status: ``used``, ``duplicate`` or ``skipped``.
        note: the reason for a skipped file, the file that a duplicate equals, or how an image was read.
    """

    file: str
    sha256: str
    category: int | None
    name: str
    known: str
    confidence: float | None
    distance: float | None
    stage: int
    status: str
    note: str


def shown_name(file: IntakeFile, file_names: bool) -> str:
    """What a file is called where somebody else may see it: its name or, without `file_names`, its number."""
    return file.name if file_names else f"image {file.index + 1}"


def assignment_rows(session: DiscoverySession, *, file_names: bool = True) -> list[AssignmentRow]:
    """Rows of the newest stage, in the order of the source, as many as files were found.

    Args:
        session: whose images.
        file_names: say what the files are called; otherwise they are numbered.
    """
    stage, standing = session.current, session.standing()
    row_of = {key: row for row, key in enumerate(standing.keys)}
    grouping, settled = standing.grouping, set(session.settled)
    rows = []
    for file in stage.intake.files:
        original = stage.intake.original(file)
        found = row_of.get(file.content_hash)
        skipped = file.verdict.status is Status.SKIPPED
        is_copy = original.index != file.index
        note = file.verdict.note
        if is_copy:
            note = f"same bytes as {shown_name(original, file_names)}" + (f"; {note}" if note else "")
        elif not skipped and file.index in stage.intake.near_duplicates:
            near = stage.intake.files[stage.intake.near_duplicates[file.index]]
            note = f"nearly the same picture as {shown_name(near, file_names)}" + (
                f"; {note}" if note else ""
            )
        category = None if found is None or skipped else int(grouping.category_ids[found])
        rows.append(
            AssignmentRow(
                file=shown_name(file, file_names),
                sha256=file.content_hash,
                category=category,
                name="" if category is None else session.registry.category(category).name,
                known="" if category is None else _standing_word(session, category, settled),
                confidence=None if category is None else round(float(grouping.confidences[found]), 6),
                distance=None if category is None else round(float(grouping.distances[found]), 6),
                stage=stage.stage,
                status="skipped" if skipped else "duplicate" if is_copy else "used",
                note=note,
            )
        )
    return rows


def assignments_csv(rows: Sequence[AssignmentRow]) -> str:
    """The rows as CSV; text that a spreadsheet would take for a formula is made harmless."""
    return csv_text([item.name for item in fields(AssignmentRow)], [asdict(row) for row in rows])


def _standing_word(session: DiscoverySession, category: int, settled: set[int]) -> str:
    if session.registry.category(category).known:
        return "known"
    return "settled" if category in settled else "new"

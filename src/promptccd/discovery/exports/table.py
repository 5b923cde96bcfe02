"""All images or items of a project with their categories, as one table: also of those without a file."""

from collections.abc import Sequence
from pathlib import Path

from promptccd.discovery.exports.export_folder import Export, ExportFolder, OnProgress, text_item
from promptccd.discovery.exports.rows import AssignmentRow, assignments_csv
from promptccd.discovery.project.photos import Photos

TABLE = "assignments.csv"


def export_table(
    photos: Photos, rows: Sequence[AssignmentRow], out: Path, on_progress: OnProgress, project: str = ""
) -> Export:
    """Write ``table/assignments.csv``; arguments and errors are those of `formats.Format.write`."""
    with ExportFolder.opened(out / "table", project=project) as folder:
        for _ in rows:
            on_progress()
        folder.put([text_item(TABLE, assignments_csv(rows), TABLE)], lambda: None)
        found = folder.finish()
        found.photographs = len(rows)
        return found

"""The list of export formats, which the command line, the page and `discover` read."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from promptccd.errors import RunError, nothing_at

if TYPE_CHECKING:
    from promptccd.discovery.exports.export_folder import Export, OnProgress
    from promptccd.discovery.exports.rows import AssignmentRow
    from promptccd.discovery.project.photos import Photos


@dataclass(frozen=True)
class Format:
    """A format in which the groups of a project can be exported.

    Attributes:
        name: of the format, of its folder, and of its function.
        title: a noun phrase for help and page.
        has_originals: whether the folder contains the photographs themselves.
        needs_images: whether it has nothing for items without image files.
        module: of the function, imported when it is called: help is quick. The function gets an `ExportFolder`,
            `Photos` and rows, and returns `ExportFolder.finish`.
    """

    name: str
    title: str
    has_originals: bool = False
    needs_images: bool = True
    module: str = "promptccd.discovery.exports.fills"

    def write(
        self,
        photos: "Photos",
        rows: Sequence["AssignmentRow"],
        out: Path,
        on_progress: "OnProgress" = lambda: None,
        project: str = "",
    ) -> "Export":
        """Write a folder of this format.

        Args:
            photos: gives the photographs.
            rows: the group of every photograph; unassigned photographs are left out.
            out: where the folder goes.
            on_progress: called for every photograph; its exceptions end the export.
            project: as `ExportFolder.opened` takes it.

        Raises:
            DiskError: it cannot be written, or a folder of that name was made by something else.
            RunError: it is of another project, another export is writing it, or no group contains image files.
        """
        # Help reads the list, and imports no pictures.
        from promptccd.discovery.exports.export_folder import DIGITS, ExportFolder
        from promptccd.discovery.intake.seen import item_name

        paths = [photos.path(row.picture) for row in rows if row.category is not None]
        if self.needs_images and paths and all(map(item_name, paths)):
            raise RunError("The project contains items without image files. Export it in the format table.")
        fill = getattr(import_module(self.module), self.name)
        originals = {row.sha256[:DIGITS]: photos.path(row.picture) for row in rows}
        with ExportFolder.opened(
            out / self.name, originals if self.has_originals else None, project, on_progress
        ) as folder:
            found: Export = fill(folder, photos, rows)
        return found


FORMATS = {
    each.name: each
    for each in (
        Format("folders", "the files themselves in a folder per group, linked where the disk can", has_originals=True),
        Format("sidecars", "keywords in XMP files"),
        Format("publish", "pixels without metadata, as an ImageFolder"),
        Format("table", "names and categories as CSV, of all weeks", needs_images=False),
    )
}  # fmt: skip


def titles() -> str:
    """The names and titles of all formats, for help."""
    return "; ".join(f"{name}: {each.title}" for name, each in FORMATS.items())


def export_project(
    project: str | Path, formats: Sequence[str], to: str | Path | None = None
) -> list["Export"]:
    """Export the groups of a project as they are now, with the photographs of all its sources.

    Args:
        project: the ``--out`` of a discovery, or of ``promptccd open``.
        formats: names of `FORMATS`.
        to: where the exported folders go; into the project by default.

    Raises:
        RunError: there is no project.
        DiskError: a folder cannot be written, or was made by something else.
    """
    from promptccd.discovery.exports.rows import project_rows
    from promptccd.discovery.project.photos import Photos
    from promptccd.discovery.project.record import categories_in

    folder = Path(project).expanduser()
    registry = categories_in(folder)
    if registry is None:
        none = f"{str(project)!r} contains no groups." if Path(project).exists() else nothing_at(project)
        raise RunError(f"{none} Give the --out of promptccd discover or open.")
    photos = Photos(folder, registry.images)
    rows = project_rows(registry, photos)
    out = folder if to is None else Path(to).expanduser()
    # Exports in the project move with it. Those elsewhere must not take the place of another project's.
    is_inside = out.resolve() == folder.resolve()
    name = "" if is_inside else hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    return [FORMATS[each].write(photos, rows, out, project=name) for each in dict.fromkeys(formats)]

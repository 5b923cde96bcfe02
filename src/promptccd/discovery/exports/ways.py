"""The ways to take groups along, by name."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from promptccd.discovery.exports.folders import export_folders
from promptccd.discovery.exports.kept_folder import DIGITS, Export, Tick
from promptccd.discovery.exports.publish import export_parquet, export_publish
from promptccd.discovery.exports.rows import project_rows
from promptccd.discovery.exports.sidecars import export_sidecars
from promptccd.discovery.options import EXPORT_NAMES
from promptccd.discovery.project.photos import Photos
from promptccd.discovery.project.record import categories_in
from promptccd.errors import RunError, nothing_at

# Takes photographs, rows, a folder, what is called for each photograph, and a name of the project.
Way = Callable[..., Export]

EXPORTS: Mapping[str, Way] = dict(
    zip(EXPORT_NAMES, (export_folders, export_sidecars, export_publish, export_parquet), strict=True)
)


def export_project(
    project: str | Path, ways: Sequence[str], to: str | Path | None = None, tick: Tick = lambda: None
) -> list[Export]:
    """Take the groups of a project along, as they stand now, with the photographs of all its sources.

    Args:
        project: the ``--out`` of a discovery, or of ``promptccd open``.
        ways: names of `EXPORTS`.
        to: where the exported folders go; into the project by default.
        tick: called for every photograph.

    Raises:
        RunError: there is no project.
        DiskError: a folder cannot be written, or was made by somebody else.
    """
    folder = Path(project).expanduser()
    registry = categories_in(folder)
    if registry is None:
        none = f"{str(project)!r} holds no groups." if Path(project).exists() else nothing_at(project)
        raise RunError(f"{none} Give the --out of promptccd discover or open.")
    photos = Photos(folder, registry.images)
    rows = project_rows(registry, photos)
    out = folder if to is None else Path(to).expanduser()
    # Exports in the project move with it. Those elsewhere must not take the place of another project's.
    is_inside = out.resolve() == folder.resolve()
    name = "" if is_inside else hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:DIGITS]
    return [EXPORTS[way](photos, rows, out, tick, name) for way in dict.fromkeys(ways)]

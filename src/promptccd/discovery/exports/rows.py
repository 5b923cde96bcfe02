"""Tables of photographs and their groups: a row for each file of a discovery, or for each photograph of a project."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptccd.data.names import display_name, is_of_windows
from promptccd.discovery.exports.export_folder import Export, ExportFolder, text_item
from promptccd.discovery.options import TABLE
from promptccd.discovery.project.photos import Photos
from promptccd.discovery.project.registry import CategoryRegistry
from promptccd.images.decode import Status
from promptccd.reports.page import csv_text

if TYPE_CHECKING:
    from promptccd.discovery.session import DiscoverySession


@dataclass(frozen=True)
class AssignmentRow:
    """One file.

    Attributes:
        file: its path in the source, as people read it.
        path: to join tables by, see `joinable_path`; empty for a file in an archive and for a row of a data set.
        date: when the photograph was taken, such as ``2024-05-01T10:11:12``, as its camera says; empty if it does not.
        sha256: of its bytes; empty if they were not read.
        picture: hash of its image content, independent of other data in the file; empty if it shows no image.
        category: id of its category, or `None`.
        name: that category's name.
        known: ``known`` if stage 0 labelled it, ``earlier`` if an earlier stage discovered it, ``new`` otherwise.
        confidence: in 0..1.
        distance: squared distance of the unit feature to the category's prototype, in typical spreads of a category
            if the checkpoint knows them.
        stage: the stage it came with.
        status: ``used``, ``duplicate``, ``skipped``, ``away`` if it is not where it was, or ``aside``, in no category,
            if a person ignored it or an image like it.
        state: ``reviewed`` if a person looked at it and put or left it in its category; ``pinned`` if a correction of
            many, such as a split, put it there; else ``found``. Empty without a category.
        note: the reason for a skipped file, the file that a duplicate equals, how an image was read, why it
            is ignored, or that it fits no category.
    """

    file: str
    path: str
    date: str
    sha256: str
    picture: str
    category: int | None
    name: str
    known: str
    confidence: float | None
    distance: float | None
    stage: int
    status: str
    state: str
    note: str


STRANGE = "unsure: unlike all of these categories"
WAITS = "fits nowhere yet, and waits for more like it"


def grouped(rows: Sequence[AssignmentRow]) -> tuple[list[tuple[int, AssignmentRow]], list[str]]:
    """The rows of photographs in groups, behind the ids of these, and notes on the remaining photographs."""
    inside = [(row.category, row) for row in rows if row.category is not None]
    aside = sum(row.status == "aside" for row in rows)
    counts = {"In no group": len(rows) - len(inside) - aside, "Set aside": aside}
    return inside, [f"{what}, and left out: {count}." for what, count in counts.items() if count]


def _aside_notes(registry: CategoryRegistry) -> dict[str, str]:
    """The note on each image that is set aside, by key."""
    names, by_people = {each.id: each.name for each in registry.aside}, registry.put_aside
    return {
        key: f"{'set aside' if key in by_people else 'like ignored images'}: {names[category_id]}"
        for key, category_id in registry.members.items()
        if category_id in names
    }


def _placed(
    names: Mapping[int, str],
    origins: Mapping[int, str],
    category_id: int | None,
    state: str,
    notes: Sequence[str],
) -> dict[str, Any]:
    """The values of a row that depend on its category, which it may lack."""
    values: dict[str, Any] = {"category": category_id, "name": "", "known": "", "state": ""}
    if category_id is not None:
        values |= {"name": names[category_id], "known": origins[category_id], "state": state}
    return {**values, "note": "; ".join(filter(None, notes))}


def joinable_path(path: str) -> str:
    r"""An absolute path for a table: as it is where that is text on one line, else as a ``file://`` address.

    So a name with a backslash is never confused with a name that has a byte outside UTF-8, and no cell starts a
    formula.
    """
    if not path:
        return ""
    is_foreign = is_of_windows(path) != (os.sep == "\\")  # of the computer where it was grouped
    absolute = path if is_foreign else os.path.abspath(path).replace(os.sep, "/")
    return absolute if display_name(absolute) == absolute else Path(absolute).as_uri()


def assignment_rows(session: "DiscoverySession") -> list[AssignmentRow]:
    """One row for each file of the newest stage, in the order of the source; its images are grouped."""
    stage, assigned = session.current, session.assignment()
    row_of, near = {key: row for row, key in enumerate(assigned.keys)}, session.near_duplicates
    registry, likest = session.registry, session.grouping.likest()
    aside = _aside_notes(registry)
    states, names, origins = registry.states, registry.names(), registry.origins()
    paths = [stage.intake.path_of(file) for file in stage.intake.files]
    rows = []
    for file, path in zip(stage.intake.files, paths, strict=True):
        original = stage.intake.original(file)
        found = row_of.get(file.key)
        is_copy = original.index != file.index
        status = "duplicate" if is_copy else "used"
        if file.verdict.status is Status.SKIPPED:
            status = "skipped"
        elif file.key in aside:
            status = "aside"
        notes = [file.verdict.note, aside.get(file.key, "")]
        if is_copy:
            notes.insert(0, f"same picture as {original.name}")
        elif (first := near.get(file.key)) is not None:
            notes.insert(0, f"nearly the same picture as {first.name}")
        category_id = None if found is None else int(assigned.category_ids[found])
        came, _, _, state = states.get(file.key, (stage.stage, None, None, ""))
        if found is not None:
            notes += [STRANGE] * bool(assigned.novel[found])
        elif file.key in likest:
            notes.append(f"{WAITS}; most like {names[likest[file.key]]}")
        rows.append(
            AssignmentRow(
                file=file.name,
                path=joinable_path(path),
                date=file.taken,
                sha256=file.content_hash,
                picture=file.key,
                confidence=None if found is None else round(float(assigned.confidences[found]), 6),
                distance=None if found is None else round(float(assigned.distances[found]), 6),
                stage=came,
                status=status,
                **_placed(names, origins, category_id, state, notes),
            )
        )
    return rows


def project_rows(registry: CategoryRegistry, photos: Photos) -> list[AssignmentRow]:
    """One row for each photograph that ever came to a project, as it is now, in the order of the files."""
    paths = {key: photos.path(key) for key in photos.keys}
    aside, rows, states = _aside_notes(registry), [], registry.states
    names, origins = registry.names(), registry.origins()
    for name, key, is_here in zip(photos.names, photos.keys, photos.here.tolist(), strict=True):
        stage, category_id, confidence, state = states[key]
        category_id = None if key in aside else category_id
        rows.append(
            AssignmentRow(
                file=name,
                path=joinable_path(paths[key] if os.path.isfile(paths[key]) or not is_here else ""),
                date=photos.date(key),
                sha256=photos.content_hash(key),
                picture=key,
                confidence=None if key in aside else confidence,
                distance=None,
                stage=stage,
                status="aside" if key in aside else "used" if is_here else "away",
                **_placed(
                    names,
                    origins,
                    category_id,
                    state,
                    [aside.get(key, ""), "" if is_here else "not where it was"],
                ),
            )
        )
    return rows


def assignments_csv(rows: Sequence[AssignmentRow]) -> str:
    """The rows as CSV; text that a spreadsheet would take for a formula is escaped, which no path is."""
    return csv_text([item.name for item in fields(AssignmentRow)], [asdict(row) for row in rows])


def fill(folder: ExportFolder, photos: Photos, rows: Sequence[AssignmentRow]) -> Export:
    """Write ``table/assignments.csv`` of all images and items, also without a file."""
    folder.add(text_item(TABLE, assignments_csv(rows), TABLE))
    return folder.finish(len(rows))

"""Tables of photographs and their groups: a row for each file of a discovery, or for each photograph of a project."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptccd.data.names import display_name, is_of_windows
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


class _Rows:
    """Makes the rows of images by key.

    Attributes:
        names: of the categories, by id.
        aside: the note on each image that is set aside.
    """

    def __init__(self, registry: CategoryRegistry, newest: int = 0):
        self.names, self._origins, self._states = registry.names(), registry.origins(), registry.states
        ignored, by_people = {each.id: each.name for each in registry.aside}, registry.put_aside
        self.aside = {
            key: f"{'set aside' if key in by_people else 'like ignored images'}: {ignored[category_id]}"
            for key, category_id in registry.members.items()
            if category_id in ignored
        }
        self._unknown = newest, None, None, ""

    def make(self, key: str, status: str, notes: Sequence[str], **values: Any) -> AssignmentRow:
        """The row of an image with its category; `values` are those of the file, and of this grouping."""
        stage, category, confidence, state = self._states.get(key, self._unknown)
        if key in self.aside:
            status, category, confidence = "aside", None, None
        known = {"name": "", "known": "", "state": ""}
        if category is not None:
            known = {"name": self.names[category], "known": self._origins[category], "state": state}
        grouped = {"category": category, "confidence": confidence, "distance": None, **known}
        note = "; ".join(filter(None, notes))
        return AssignmentRow(picture=key, stage=stage, status=status, note=note, **(grouped | values))


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
    stage, assigned, likest = session.current, session.assignment(), session.grouping.likest()
    row_of, near = {key: row for row, key in enumerate(assigned.keys)}, session.near_duplicates
    intake, rows, made = stage.intake, list[AssignmentRow](), _Rows(session.registry, stage.stage)
    for file in intake.files:
        original, found = intake.original(file), row_of.get(file.key)
        is_copy = original.index != file.index
        status = "duplicate" if is_copy else "used"
        if file.verdict.status is Status.SKIPPED:
            status = "skipped"
        notes = [file.verdict.note, made.aside.get(file.key, "")]
        if is_copy:
            notes.insert(0, f"same picture as {original.name}")
        elif (first := near.get(file.key)) is not None:
            notes.insert(0, f"nearly the same picture as {first.name}")
        values: dict[str, Any] = {"confidence": None}
        if found is not None:
            notes += [STRANGE] * bool(assigned.novel[found])
            values["confidence"] = round(float(assigned.confidences[found]), 6)
            values["distance"] = round(float(assigned.distances[found]), 6)
        elif file.key in likest:
            notes.append(f"{WAITS}; most like {made.names[likest[file.key]]}")
        path, sha256 = joinable_path(intake.path_of(file)), file.content_hash
        values |= {"file": file.name, "path": path, "date": file.taken, "sha256": sha256}
        rows.append(made.make(file.key, status, notes, **values))
    return rows


def project_rows(registry: CategoryRegistry, photos: Photos) -> list[AssignmentRow]:
    """One row for each photograph that ever came to a project, as it is now, in the order of the files."""
    rows, made = list[AssignmentRow](), _Rows(registry)
    for name, key, is_here in zip(photos.names, photos.keys, photos.here.tolist(), strict=True):
        path = photos.path(key) if not is_here or os.path.isfile(photos.path(key)) else ""
        row = made.make(
            key,
            "used" if is_here else "away",
            [made.aside.get(key, ""), "" if is_here else "not where it was"],
            file=name,
            path=joinable_path(path),
            date=photos.date(key),
            sha256=photos.content_hash(key),
        )
        rows.append(row)
    return rows


def assignments_csv(rows: Sequence[AssignmentRow]) -> str:
    """The rows as CSV; text that a spreadsheet would take for a formula is escaped, which no path is."""
    return csv_text([item.name for item in fields(AssignmentRow)], [asdict(row) for row in rows])

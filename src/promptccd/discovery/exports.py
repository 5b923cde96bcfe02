"""Export groups as a folder for each category or as a data set: pixels, ids and names of categories, nothing else."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from promptccd.data.images import Decoding, Status
from promptccd.discovery.options import EXPORT_NAMES, TABLE
from promptccd.errors import DataError, DiskError
from promptccd.experiments.pages import csv_text
from promptccd.storage import EXPORTED, write_directory, write_file

if TYPE_CHECKING:
    from promptccd.discovery.intake.intake import IntakeFile
    from promptccd.discovery.session import DiscoverySession


@dataclass(frozen=True)
class AssignmentRow:
    """One file.

    Attributes:
        file: its path in the source.
        sha256: of its bytes; empty if they were not read.
        picture: what its picture is known by, whatever is written into the file beside it; empty if it shows none.
        category: id of its category; `None` for a file without one.
        name: that category's name.
        known: ``known`` if stage 0 labelled it, ``settled`` if an earlier stage discovered it, ``new`` otherwise.
        confidence: in 0..1.
        distance: squared distance of the unit feature to the category's prototype, in typical spreads of a category
            if the checkpoint knows them.
        stage: the stage it came with.
        status: ``used``, ``duplicate`` or ``skipped``.
        note: the reason for a skipped file, the file that a duplicate equals, how an image was read, or that it is more
            like an image of none of the categories.
    """

    file: str
    sha256: str
    picture: str
    category: int | None
    name: str
    known: str
    confidence: float | None
    distance: float | None
    stage: int
    status: str
    note: str


STRANGE = "not sure: more like an image of none of these categories"


def shown_name(file: "IntakeFile", file_names: bool) -> str:
    """The name of a file for others to see; without `file_names`, its number."""
    return file.name if file_names else f"image {file.index + 1}"


def assignment_rows(session: "DiscoverySession", *, file_names: bool = True) -> list[AssignmentRow]:
    """One row for each file of the newest stage, in the order of the source.

    Args:
        session: its images are grouped.
        file_names: give the names of files; otherwise their numbers.
    """
    stage, assigned = session.current, session.assignment()
    row_of, near = {key: row for row, key in enumerate(assigned.keys)}, session.near_duplicates
    rows = []
    for file in stage.intake.files:
        original = stage.intake.original(file)
        found = row_of.get(file.key)
        is_copy = original.index != file.index
        status = "duplicate" if is_copy else "used"
        if file.verdict.status is Status.SKIPPED:
            status = "skipped"
        notes = [file.verdict.note]
        if is_copy:
            notes.insert(0, f"same picture as {shown_name(original, file_names)}")
        elif (first := near.get(file.key)) is not None:
            notes.insert(0, f"nearly the same picture as {shown_name(first, file_names)}")
        category = None
        if found is not None:
            category = session.registry.category(int(assigned.category_ids[found]))
            notes += [STRANGE] * bool(assigned.strange[found])
        rows.append(
            AssignmentRow(
                file=shown_name(file, file_names),
                sha256=file.content_hash,
                picture=file.key,
                category=None if category is None else category.id,
                name="" if category is None else category.name,
                known="" if category is None else category.standing(session.registry.stage),
                confidence=None if category is None else round(float(assigned.confidences[found]), 6),
                distance=None if category is None else round(float(assigned.distances[found]), 6),
                stage=session.registry.images.get(file.key, stage.stage),
                status=status,
                note="; ".join(filter(None, notes)),
            )
        )
    return rows


def assignments_csv(rows: Sequence[AssignmentRow]) -> str:
    """The rows as CSV; text that a spreadsheet would take for a formula is escaped."""
    return csv_text([item.name for item in fields(AssignmentRow)], [asdict(row) for row in rows])


class Originals(Protocol):
    """Gives the bytes of images, as a session does, and how they are decoded."""

    @property
    def decoding(self) -> Decoding:
        """How images become pixels."""

    def original(self, key: str) -> bytes:
        """The bytes of the image of a key.

        Raises:
            DataError: it is not there, or has changed since it was grouped.
        """


HASH_DIGITS = 10  # of a file's hash in its name, so that no two files of a category collide
_KINDS = {
    "category": "int64", "name": "string", "known": "string", "confidence": "float32", "stage": "int64",
    "sha256": "string",
}  # fmt: skip


def export_csv(
    originals: Originals, rows: Sequence[AssignmentRow], out: Path, file_names: bool = True
) -> Path:
    """Write ``assignments.csv``: one line for each file, under the name that its row has."""
    write_file(out / TABLE, assignments_csv(rows))
    return out / TABLE


def export_image_folder(
    originals: Originals, rows: Sequence[AssignmentRow], out: Path, file_names: bool = False
) -> Path:
    """Write ``images/<id>-<name>/<hash>.jpg``, an ImageFolder of `datasets`; one image per content.

    The pixels are exactly those that were grouped, without metadata, see `promptccd.data.clean_images`. The folder is
    made anew: what an earlier export left is removed.

    Args:
        originals: gives the images.
        rows: which image is in which group.
        out: where the folder goes.
        file_names: also export the names of the files.

    Raises:
        DiskError: it cannot be written, or a folder of that name was made by somebody else.
        DataError: a file has changed since it was grouped.
    """

    def fill(target: Path) -> None:
        listed: list[dict[str, Any]] = []
        for row in _grouped(rows):
            suffix, content = _clean(originals, row)
            called = f"{_plain(Path(row.file).stem)}-" if file_names else ""
            place = Path(folder_name(row.category, row.name), f"{called}{row.sha256[:HASH_DIGITS]}{suffix}")
            (target / place).parent.mkdir(exist_ok=True)
            (target / place).write_bytes(content)
            named = {"original_file": row.file} if file_names else {}
            listed.append({"file_name": place.as_posix(), **_facts(row), **named})
        columns = ("file_name", *_KINDS, *(["original_file"] if file_names else []))
        (target / "metadata.csv").write_text(csv_text(columns, listed), encoding="utf-8")

    return _replaced(out / "images", fill)


def export_dataset(
    originals: Originals, rows: Sequence[AssignmentRow], out: Path, file_names: bool = False
) -> Path:
    """Write ``dataset/data/train-00000-of-00001.parquet``, for ``load_dataset(folder)``; one row per content.

    Arguments and errors are those of `export_image_folder`; the names of the files go into a column ``file``.
    """
    # Takes a second, for which the page of a project need not wait.
    from datasets import Features, Image, Value

    from promptccd.data.clean_images import write_shards

    kinds = _KINDS | ({"file": "string"} if file_names else {})
    features = Features({"image": Image(), **{name: Value(kind) for name, kind in kinds.items()}})

    def record(row: AssignmentRow) -> dict[str, Any]:
        suffix, content = _clean(originals, row)
        image = {"bytes": content, "path": f"{row.sha256}{suffix}"}
        return {"image": image, **_facts(row), **({"file": row.file} if file_names else {})}

    def fill(target: Path) -> None:
        write_shards(target, "data", map(record, _grouped(rows)), features)

    return _replaced(out / "dataset", fill)


Export = Callable[[Originals, Sequence[AssignmentRow], Path, bool], Path]

EXPORTS: Mapping[str, Export] = dict(
    zip(EXPORT_NAMES, (export_csv, export_image_folder, export_dataset), strict=True)
)


def _replaced(target: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a folder that appears whole; it may replace an earlier export but nothing else."""
    if target.exists() and not (target / EXPORTED).exists():
        raise DiskError(
            f"{target} is there and was made by something else, so it is not replaced: give another --out, or move it "
            "away."
        )
    write_directory(target, fill, replace=True, sums_in=EXPORTED)
    return target


def folder_name(category: int | None, name: str) -> str:
    """Name such as ``007-heron``: sorts by id, and is safe in file systems and shells."""
    return f"{category:03d}-{_plain(name)}"


def _grouped(rows: Sequence[AssignmentRow]) -> Iterator[AssignmentRow]:
    return (row for row in rows if row.status == "used" and row.category is not None)


def _facts(row: AssignmentRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _KINDS}


def _clean(originals: Originals, row: AssignmentRow) -> tuple[str, bytes]:
    from promptccd.data.clean_images import clean_image

    clean = clean_image(originals.original(row.picture), originals.decoding)
    if clean is None:
        raise DataError(f"{row.file!r} could be decoded before and cannot be now.")
    return clean


def _plain(text: str) -> str:
    return re.sub(r"[^\w-]+", "_", text, flags=re.ASCII).strip("_")[:60] or "unnamed"

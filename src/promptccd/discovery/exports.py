"""Groups to take away: a folder for each category, or a data set. Pixels, ids and names of categories, nothing else."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Features, Image, Value

from promptccd.data.clean_images import clean_image
from promptccd.data.parquet_files import write_shards
from promptccd.discovery.assignments import AssignmentRow, assignments_csv
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import DataError, DiskError
from promptccd.reports.spreadsheet import csv_text
from promptccd.storage import EXPORTED, write_directory, write_file

HASH_DIGITS = 10  # of a file's hash in its name, so that no two files of a category collide
_METADATA = ("file_name", "category", "name", "known", "confidence", "stage", "sha256")
_FEATURES = Features(
    {
        "image": Image(),
        "category": Value("int64"),
        "name": Value("string"),
        "known": Value("string"),
        "confidence": Value("float32"),
        "stage": Value("int64"),
        "sha256": Value("string"),
    }
)


def export_csv(
    session: DiscoverySession, rows: Sequence[AssignmentRow], out: Path, file_names: bool = True
) -> Path:
    """``assignments.csv``: every file found, one line each, by the names that the rows have."""
    write_file(out / "assignments.csv", assignments_csv(rows))
    return out / "assignments.csv"


def export_image_folder(
    session: DiscoverySession, rows: Sequence[AssignmentRow], out: Path, file_names: bool = False
) -> Path:
    """``images/<id>-<name>/<hash>.jpg``, readable as an ImageFolder of `datasets`; one image per content.

    The pixels are exactly those that were grouped; no metadata comes along, see `promptccd.data.clean_images`. The
    folder is made anew: what an earlier export left is removed.

    Args:
        session: gives the images.
        rows: which image is in which group.
        out: where the folder goes.
        file_names: also say what the files were called.

    Raises:
        DiskError: it cannot be written, or a folder of that name was made by somebody else.
        DataError: a file has changed since it was grouped.
    """

    def fill(target: Path) -> None:
        listed: list[dict[str, Any]] = []
        for row in _grouped(rows):
            suffix, content = _clean(session, row)
            called = f"{_plain(Path(row.file).stem)}-" if file_names else ""
            place = Path(folder_name(row.category, row.name), f"{called}{row.sha256[:HASH_DIGITS]}{suffix}")
            (target / place).parent.mkdir(exist_ok=True)
            (target / place).write_bytes(content)
            named = {"original_file": row.file} if file_names else {}
            listed.append({"file_name": place.as_posix(), **_facts(row), **named})
        columns = (*_METADATA, "original_file") if file_names else _METADATA
        (target / "metadata.csv").write_text(csv_text(columns, listed), encoding="utf-8")

    return _replaced(out / "images", fill)


def export_dataset(
    session: DiscoverySession, rows: Sequence[AssignmentRow], out: Path, file_names: bool = False
) -> Path:
    """``dataset/data/train-00000-of-00001.parquet``: what ``load_dataset(folder)`` reads; one row per content.

    Args:
        session: gives the images.
        rows: which image is in which group.
        out: where the folder goes.
        file_names: also say what the files were called, in a column ``file``.

    Raises:
        DiskError: as for `export_image_folder`.
        DataError: as for `export_image_folder`.
    """
    features = Features({**_FEATURES, "file": Value("string")}) if file_names else _FEATURES

    def record(row: AssignmentRow) -> dict[str, Any]:
        suffix, content = _clean(session, row)
        image = {"bytes": content, "path": f"{row.sha256}{suffix}"}
        return {"image": image, **_facts(row), **({"file": row.file} if file_names else {})}

    def fill(target: Path) -> None:
        write_shards(target, "data", map(record, _grouped(rows)), features)

    return _replaced(out / "dataset", fill)


Export = Callable[[DiscoverySession, Sequence[AssignmentRow], Path, bool], Path]

EXPORTS: Mapping[str, Export] = {
    "csv": export_csv,
    "imagefolder": export_image_folder,
    "dataset": export_dataset,
}


def _replaced(target: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a folder that appears whole, in place of what an earlier export left and of nothing else."""
    if target.exists() and not (target / EXPORTED).exists():
        raise DiskError(
            f"{target} is there and was made by something else, so it is not replaced: give another --out, or move it "
            "away."
        )
    write_directory(target, fill, replace=True, sums_in=EXPORTED)
    return target


def folder_name(category: int | None, name: str) -> str:
    """``007-heron``: sorts by id, and holds nothing a file system or a shell takes offence at."""
    return f"{category:03d}-{_plain(name)}"


def _grouped(rows: Sequence[AssignmentRow]) -> Iterator[AssignmentRow]:
    return (row for row in rows if row.status == "used" and row.category is not None)


def _facts(row: AssignmentRow) -> dict[str, Any]:
    return {
        "category": row.category,
        "name": row.name,
        "known": row.known,
        "confidence": row.confidence,
        "stage": row.stage,
        "sha256": row.sha256,
    }


def _clean(session: DiscoverySession, row: AssignmentRow) -> tuple[str, bytes]:
    intake, file = session.file_of(row.sha256)
    clean = clean_image(intake.read_bytes(file))
    if clean is None:
        raise DataError(f"{file.name!r} could be decoded before and cannot be now.")
    return clean


def _plain(text: str) -> str:
    return re.sub(r"[^\w-]+", "_", text, flags=re.ASCII).strip("_")[:60] or "unnamed"

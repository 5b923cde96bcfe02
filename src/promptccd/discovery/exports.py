"""Groups to take away: a folder for each category, or a data set. Pictures without place, time and camera."""

import io
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]
from datasets import Features, Image, Value
from pyarrow.parquet import ParquetWriter  # type: ignore[import-untyped]

from promptccd.discovery.assignments import AssignmentRow, assignments_csv
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import DiskError
from promptccd.reports.spreadsheet import csv_text
from promptccd.training.checkpoints import TEMPORARY, write_file

JPEG_QUALITY = 95
HASH_DIGITS = 10  # of a file's hash in its name, so that no two files of a category collide
_ROWS_AT_ONCE = 100
_MARK = ".promptccd-export"  # what has it may be replaced by the next export
_METADATA = ("file_name", "category", "name", "known", "confidence", "stage", "original_file", "sha256")
_FEATURES = Features(
    {
        "image": Image(),
        "file": Value("string"),
        "category": Value("int64"),
        "name": Value("string"),
        "known": Value("string"),
        "confidence": Value("float32"),
        "stage": Value("int64"),
        "sha256": Value("string"),
    }
)


def export_csv(session: DiscoverySession, rows: Sequence[AssignmentRow], out: Path) -> Path:
    """``assignments.csv``: every file found, one line each."""
    write_file(out / "assignments.csv", assignments_csv(rows))
    return out / "assignments.csv"


def export_image_folder(session: DiscoverySession, rows: Sequence[AssignmentRow], out: Path) -> Path:
    """``images/<id>-<name>/<file>-<hash>.jpg``, readable as an ImageFolder of `datasets`; one image per content.

    Photographs are encoded again at quality 95 and other pictures without loss, so that no metadata comes along. The
    folder is made anew: what an earlier export left is removed.

    Raises:
        DiskError: it cannot be written, or a folder of that name was made by somebody else.
    """

    def fill(target: Path) -> None:
        listed: list[dict[str, Any]] = []
        for row in _grouped(rows):
            suffix, content = _encoded(session, row)
            place = Path(
                folder_name(row.category, row.name),
                f"{_plain(Path(row.file).stem)}-{row.sha256[:HASH_DIGITS]}{suffix}",
            )
            (target / place).parent.mkdir(exist_ok=True)
            (target / place).write_bytes(content)
            listed.append({"file_name": place.as_posix(), "original_file": row.file, **_facts(row)})
        (target / "metadata.csv").write_text(csv_text(_METADATA, listed), encoding="utf-8")

    return _replaced(out / "images", fill)


def export_dataset(session: DiscoverySession, rows: Sequence[AssignmentRow], out: Path) -> Path:
    """``dataset/data/train-00000-of-00001.parquet``: what ``load_dataset(folder)`` reads; one row per content.

    Raises:
        DiskError: as for `export_image_folder`.
    """

    def record(row: AssignmentRow) -> dict[str, Any]:
        suffix, content = _encoded(session, row)
        image = {"bytes": content, "path": f"{row.sha256}{suffix}"}
        return {"image": image, "file": row.file, **_facts(row)}

    def fill(target: Path) -> None:
        (target / "data").mkdir()
        schema, listed = _FEATURES.arrow_schema, list(_grouped(rows))
        with ParquetWriter(target / "data" / "train-00000-of-00001.parquet", schema) as writer:
            for start in range(0, len(listed), _ROWS_AT_ONCE):  # not all images in memory at once
                records = [record(row) for row in listed[start : start + _ROWS_AT_ONCE]]
                writer.write_table(pyarrow.Table.from_pylist(records, schema=schema))

    return _replaced(out / "dataset", fill)


Export = Callable[[DiscoverySession, Sequence[AssignmentRow], Path], Path]

EXPORTS: Mapping[str, Export] = {
    "csv": export_csv,
    "imagefolder": export_image_folder,
    "dataset": export_dataset,
}


def _replaced(target: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a folder that appears whole, in place of what an earlier export left and of nothing else."""
    if target.exists() and not (target / _MARK).exists():
        raise DiskError(
            f"{target} is there and was made by something else, so it is not replaced: give another --out, or move it "
            "away."
        )
    staging = target.with_name(f"{TEMPORARY}{target.name}")
    try:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        (staging / _MARK).touch()
        fill(staging)
        shutil.rmtree(target, ignore_errors=True)
        staging.rename(target)
    except OSError as error:
        raise DiskError(
            f"Could not write {target}: {error.strerror}. Free some space and try again."
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
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


def _encoded(session: DiscoverySession, row: AssignmentRow) -> tuple[str, bytes]:
    intake, file = session.file_of(row.sha256)
    picture, stream = intake.open(file), io.BytesIO()
    if intake.read_bytes(file).startswith(b"\xff\xd8\xff"):
        picture.save(stream, "JPEG", quality=JPEG_QUALITY, subsampling=0)
        return ".jpg", stream.getvalue()
    picture.save(stream, "PNG")
    return ".png", stream.getvalue()


def _plain(text: str) -> str:
    return re.sub(r"[^\w-]+", "_", text, flags=re.ASCII).strip("_")[:60] or "unnamed"

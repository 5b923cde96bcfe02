"""Groups to take away: a folder for each category, or a data set. Pictures without place, time and camera."""

import io
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Image, Value

from promptccd.discovery.assignments import AssignmentRow, assignments_csv
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import DiskError
from promptccd.reports.spreadsheet import csv_text

JPEG_QUALITY = 95
HASH_DIGITS = 10  # of a file's hash in its name, so that no two files of a category collide
_METADATA = ("file_name", "category", "name", "known", "confidence", "stage", "original_file", "sha256")


def export_csv(session: DiscoverySession, rows: Sequence[AssignmentRow], out: Path) -> Path:
    """``assignments.csv``: every file found, one line each."""
    path = out / "assignments.csv"
    path.write_text(assignments_csv(rows), encoding="utf-8")
    return path


def export_image_folder(session: DiscoverySession, rows: Sequence[AssignmentRow], out: Path) -> Path:
    """``images/<id>-<name>/<file>-<hash>.jpg``, readable as an ImageFolder of `datasets`; one image per content.

    Photographs are encoded again at quality 95 and other pictures without loss, so that no metadata comes along. The
    folder is made anew: what an earlier export left is removed.
    """
    target = out / "images"
    shutil.rmtree(target, ignore_errors=True)
    listed: list[dict[str, Any]] = []
    for row in _grouped(rows):
        suffix, content = _encoded(session, row)
        place = Path(
            folder_name(row.category, row.name),
            f"{_plain(Path(row.file).stem)}-{row.sha256[:HASH_DIGITS]}{suffix}",
        )
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        (target / place).write_bytes(content)
        listed.append({"file_name": place.as_posix(), "original_file": row.file, **_facts(row)})
    target.mkdir(parents=True, exist_ok=True)
    (target / "metadata.csv").write_text(csv_text(_METADATA, listed), encoding="utf-8")
    return target


def export_dataset(session: DiscoverySession, rows: Sequence[AssignmentRow], out: Path) -> Path:
    """``dataset/data/train-00000-of-00001.parquet``: what ``load_dataset(folder)`` reads; one row per content."""
    target = out / "dataset"
    shutil.rmtree(target, ignore_errors=True)
    (target / "data").mkdir(parents=True)

    def records() -> Iterator[dict[str, Any]]:
        for row in _grouped(rows):
            suffix, content = _encoded(session, row)
            image = {"bytes": content, "path": f"{row.sha256}{suffix}"}
            yield {"image": image, "file": row.file, **_facts(row)}

    features = Features(
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
    table = Dataset.from_list(list(records()), features=features)
    table.to_parquet(str(target / "data" / "train-00000-of-00001.parquet"))
    return target


Export = Callable[[DiscoverySession, Sequence[AssignmentRow], Path], Path]

EXPORTS: Mapping[str, Export] = {
    "csv": export_csv,
    "imagefolder": export_image_folder,
    "dataset": export_dataset,
}


def make_folder(out: str | Path) -> Path:
    """The folder to write to, made if it is not there.

    Raises:
        DiskError: it cannot be made.
    """
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(
            f"Cannot write to {str(out)!r}: {error.strerror}. Give --out another folder."
        ) from error
    return Path(out)


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

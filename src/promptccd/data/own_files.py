"""Image files that `datasets` would read wrongly or not at all: categories a folder deeper, and a list of paths."""

import csv
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from PIL import Image as Pillow

from promptccd.errors import DataError

LIST = ".csv"
PATHS = ("path", "file_name", "file", "filename", "image")  # what the columns of a list may be called
LABELS = ("label", "category", "class", "name")
_SPLITS = ("train", "validation", "valid", "val", "test")


def nested_table(folder: Path, require: Callable[[Path], None]) -> DatasetDict | None:
    """The images of ``<category>/images/*``, as TinyImageNet's archive has them; `None` for any other layout.

    `datasets` would take ``images`` for the category of all. Splits may lie above, ``train/<category>/images/*``; those
    that are laid out otherwise are left out.

    Args:
        folder: where the categories, or the splits, are.
        require: refuses a file that is not the data set's own.
    """
    splits = {name: folder / name for name in _SPLITS if (folder / name).is_dir()} or {"train": folder}
    rows = {name: _nested_rows(place) for name, place in splits.items()}
    if not rows.get("train"):
        return None
    for file, _ in (row for each in rows.values() for row in each):
        require(file)
    names = sorted({label for each in rows.values() for _, label in each})
    return DatasetDict({name: _table(each, names) for name, each in rows.items() if each})


def _nested_rows(folder: Path) -> list[tuple[Path, str]]:
    """Files and their categories; none unless every category has one folder, called alike, and no images beside it."""
    suffixes = _suffixes()
    rows: list[tuple[Path, str]] = []
    called = set()
    for category in _folders(folder):
        inner = _folders(category)
        if len(inner) != 1 or any(each.suffix.lower() in suffixes for each in category.iterdir()):
            return []
        called.add(inner[0].name)
        files = sorted(each for each in inner[0].iterdir() if each.suffix.lower() in suffixes)
        rows += [(each, category.name) for each in files]
    return rows if len(called) == 1 and len({label for _, label in rows}) > 1 else []


def listed_table(file: Path) -> DatasetDict:
    """The images that a CSV file lists, with their categories.

    Args:
        file: its first line names the columns, of `PATHS` and `LABELS`; paths are relative to its folder.

    Raises:
        DataError: it is no such list, or lists nothing.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            lines = csv.DictReader(stream)
            columns = [name.strip() for name in lines.fieldnames or ()]
            lines.fieldnames = columns
            path, label = (
                next((name for name in names if name in columns), None) for names in (PATHS, LABELS)
            )
            if path is None or label is None:
                raise DataError(
                    f"The first line of {file.name!r} names the columns {columns}: expected one of {', '.join(PATHS)} "
                    f"and one of {', '.join(LABELS)}, such as path,label."
                )
            rows = []
            for line in lines:
                place, name = line[path] or "", (line[label] or "").strip()
                if not place and not name:  # spreadsheets leave lines of commas
                    continue
                if not place or not name:
                    raise DataError(
                        f"Line {lines.line_num} of {file.name!r} has no {label if place else path}: name "
                        f"{'its category' if place else 'the image'}, or remove the line."
                    )
                rows.append((file.parent / place, name))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{file.name!r} is no CSV file in UTF-8: {error}. Save it as one, with the columns path,label."
        ) from error
    if not rows:
        raise DataError(f"{file.name!r} lists no image: give a line of path,label for each.")
    names = sorted({name for _, name in rows})
    in_order = sorted(names, key=int) if all(name.isdecimal() for name in names) else names
    return DatasetDict({"train": _table(rows, in_order)})


def _table(rows: Sequence[tuple[Path, str]], names: Sequence[str]) -> Dataset:
    number = {name: row for row, name in enumerate(names)}
    return Dataset.from_dict(
        {"image": [str(path) for path, _ in rows], "label": [number[name] for _, name in rows]},
        features=Features({"image": Image(), "label": ClassLabel(names=list(names))}),
    )


def _folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(Path(each.path) for each in entries if each.is_dir() and not each.name.startswith("."))


def _suffixes() -> set[str]:
    return set(Pillow.registered_extensions())

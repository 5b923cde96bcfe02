"""From a name to a table of images: a folder, a list, a workbook, a parquet file, a saved data set, or one of the Hub.

A data set is read from its own files and no others. `datasets` believes what a folder says of itself: a card may name
data files anywhere, a saved data set may call any file a part of it, and a file may be a link. So every name is checked
before the file is opened. Folders and lists are read here and not by `datasets`, which reads words in the names of
files as splits.
"""

import glob
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd
from datasets import ClassLabel, Dataset, Features, Image, Value, concatenate_datasets, load_dataset_builder
from huggingface_hub import constants
from sklearn.datasets import load_digits

from promptccd.data.folders import (
    IMAGE_SUFFIXES,
    FolderFiles,
    FolderSource,
    LabelledFolder,
    by_category,
    images_in,
)
from promptccd.data.hub import (
    CARDS,
    FILE_KINDS,
    built,
    data_files_of,
    load_hub,
    no_split,
    refuse_foreign,
    require_plain_card,
)
from promptccd.data.labels import (
    DETECTED,
    IMAGE_COLUMNS,
    LABEL,
    LABEL_COLUMNS,
    SPLIT_COLUMNS,
    SPLITS,
    STREAM,
    Layout,
    called,
    in_order,
    split_column_of,
)
from promptccd.data.names import display_name, is_of_windows
from promptccd.data.sources import is_below
from promptccd.data.spreadsheets import LISTS, WORKBOOKS, ForeignTableError, read_sheet
from promptccd.disk import PROJECT, parsed_json
from promptccd.errors import DataError, PromptCCDError, nothing_at
from promptccd.images.files import first_bytes
from promptccd.images.kinds import FIRST_BYTES, why_skipped
from promptccd.images.limits import IntakeLimits, SkippedFileError

logger = logging.getLogger(__name__)

_PARQUET = ".parquet"
ONE_FILE = (*LISTS, *WORKBOOKS, _PARQUET)  # suffixes of a data set in one file; some workbooks are refused
_TABLE_SUFFIXES = (_PARQUET, ".arrow")
_MAY_BE_READ = (*_TABLE_SUFFIXES, ".json", ".jsonl", ".tar")
_LOCAL_KINDS = tuple(kind for kind in FILE_KINDS if kind != "imagefolder")  # folders of images are read here
_NOTES = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")  # of ``save_to_disk``
_METADATA_FILES = ("metadata.csv", "metadata.jsonl")  # files of an ImageFolder of `datasets`
_TOO_DEEP = "not read: it lies in the folder of a category, which says what its images are; put it above these folders"
_NO_LABEL_COLUMNS = (
    "not read: it does not name images and their categories, as columns file_name and label would"
)
GROUPED = "assignments.csv"  # that a discovery writes next to its project
_GROUPS = {"picture", "category", "name", "known"}  # columns of `GROUPED`, and of no other list
_UNNAMED = r"discovered \d+"  # name there of a category that has none
_KNOWN = (*IMAGE_COLUMNS, *LABEL_COLUMNS, *SPLIT_COLUMNS, STREAM)
_PROBED = 50  # rows that tell what a column without a usual name holds
_GIVE = (
    "Give a folder of a sub-folder per category, a CSV of path,label, a parquet file, or a data set of the Hub as "
    "namespace/name; without a network, `promptccd train --config promptccd-digits` has images that come along."
)


def digits_dataset() -> Dataset:
    """1,797 grey 8 x 8 images of the digits 0 to 9 with columns ``image`` and ``label``."""
    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # the 17 grey levels 0..16 over 0..255
    names = [str(name) for name in bunch.target_names]
    return Dataset.from_dict(
        {"image": list(pixels), "label": bunch.target.astype(int).tolist()},
        features=Features({"image": Image(), "label": ClassLabel(names=names)}),
    )


def demo_dataset() -> Dataset:
    """The photographs of ``make demo``, 20 categories of Caltech-101, with columns ``image`` and ``label``."""
    files = sorted(Path(__file__).with_name("photographs").glob("*/*.jpg"))
    names = sorted({file.parent.name for file in files})
    return Dataset.from_dict(
        {
            "image": [{"bytes": file.read_bytes(), "path": None} for file in files],
            "label": [names.index(file.parent.name) for file in files],
        },
        features=Features({"image": Image(), "label": ClassLabel(names=names)}),
    )


@dataclass(frozen=True)
class BuiltIn:
    """A data set with a reserved name.

    Attributes:
        load: makes it, or raises a `DataError` that says why it is not available.
        words: what it is, for model cards.
        licence: of its pictures, as the Hub calls it; `None` if unknown.
        page: where it is described.
        credit: the attribution that its licence asks for, after the link.
    """

    load: Callable[[], Dataset]
    words: str
    licence: str | None = None
    page: str = ""
    credit: str = ""


IN_MEMORY = "in-memory"  # name that a run records for a data set given from Python


def _not_kept() -> Dataset:
    raise DataError(
        "This run was trained on a data set given from Python, of which no images are kept. Give --dataset a folder "
        "that dataset.save_to_disk(folder) wrote it to, or go on from Python with CategoryDiscoveryTrainer."
    )


BUILT_IN = {
    IN_MEMORY: BuiltIn(_not_kept, "a data set given from Python"),
    "digits": BuiltIn(
        digits_dataset,
        "scikit-learn's digits",
        licence="cc-by-4.0",
        page="https://scikit-learn.org/stable/modules/generated/sklearn.datasets.load_digits.html",
        credit=" by Alpaydin and Kaynak (1998), UCI Machine Learning Repository, CC BY 4.0",
    ),
    "caltech101-demo": BuiltIn(
        demo_dataset,
        "362 photographs of 20 categories of Caltech-101",
        licence="cc-by-4.0",
        page="https://doi.org/10.22002/D1.20086",
        credit=" by Li, Andreeto, Ranzato and Perona (2022), CC BY 4.0",
    ),
}


@dataclass(frozen=True)
class OpenedImages:
    """One split of an image data set.

    Attributes:
        table: its rows.
        left_out: why files of a folder are in no split, by path.
        name: of the folder or file; empty for a table from Python.
        layout: names of the columns of images and labels where the reader chose them.
    """

    table: Dataset
    left_out: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    layout: Layout = DETECTED


@dataclass(frozen=True)
class _Splits:
    """Tables of a data set by split, or by "" of one without splits; files that are no rows, and what to log.

    `refusals` says why splits are of no use.
    """

    tables: Mapping[str, Dataset]
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""
    layout: Layout = DETECTED
    refusals: Mapping[str, str] = field(default_factory=dict)


def load_images(dataset: str, split: str = "train") -> Dataset:
    """The rows of one split of an image data set; arguments and errors are those of `open_images`."""
    return open_images(dataset, split).table


def open_images(
    dataset: str,
    split: str = "train",
    roots: Sequence[str] = (),
    labelled: bool = True,
    layout: Layout | None = None,
) -> OpenedImages:
    """Open one split of an image data set, and log what else a folder holds.

    Args:
        dataset: a name in `BUILT_IN`, a local folder (of a sub-folder of images per category, with metadata files of an
            ImageFolder, written by ``save_to_disk``, or holding parquet files), a table of paths and labels as text or
            workbook, a parquet file, or the id of a data set on the Hub.
        split: name of the split, for example ``"train"``.
        roots: further folders that links in a folder of images may lead into.
        labelled: whether labels are wanted: without, all images of a folder and all rows of a list count, and a data
            set of one split is that split.
        layout: how the columns of tables are read; without a name, a column is found by usual names and its content.

    Raises:
        DataError: there is nothing to load, the data set names files that are not its own, or has no such split.
    """
    if dataset in BUILT_IN:
        return OpenedImages(BUILT_IN[dataset].load(), name=dataset)
    path = Path(os.path.expanduser(dataset))
    is_windows = is_of_windows(dataset)
    is_path = dataset.startswith((".", "/", "~")) or dataset.endswith("/") or dataset.count("/") > 1
    if (is_path or is_windows) and not path.exists():
        why = " It is a path of Windows." if is_windows and os.sep == "/" else ""
        raise DataError(f"{nothing_at(dataset)}{why} {_GIVE}")
    layout = layout or DETECTED
    with _in_one_line(dataset):
        found = _local(path, roots, labelled, layout) if path.exists() else _Splits(load_hub(dataset))
        found = _by_rows(found, path if path.is_dir() else path.parent, layout, labelled)
    if found.notes:
        logger.info("%s: %s.", dataset, found.notes)
    if "" in found.tables or (not labelled and len(found.tables) == 1):
        split = next(iter(found.tables))
    if split in found.refusals:
        raise DataError(found.refusals[split])
    if split not in found.tables:
        raise no_split(dataset, split, found.tables)
    return OpenedImages(found.tables[split], found.left_out, dataset, found.layout)


@contextmanager
def _in_one_line(dataset: str) -> Iterator[None]:
    """Report in one line why a data set cannot be loaded."""
    try:
        yield
    except PromptCCDError:
        raise
    except Exception as error:  # datasets raises many kinds here
        cause: BaseException = error
        while cause.__cause__ is not None and str(cause.__cause__):  # it tells more than "failed"
            cause = cause.__cause__
        first_line = display_name(str(cause).strip().split("\n")[0].rstrip("."))
        missing = "" if os.path.exists(os.path.expanduser(dataset)) else f" {nothing_at(dataset)}"
        raise DataError(f"Could not load dataset {dataset!r}: {first_line}.{missing} {_GIVE}") from error


def image_roots(place: str) -> tuple[str, ...]:
    """The folders that files named by the rows of a data set may be in; the place is a name for `open_images`."""
    folder, cache = os.path.realpath(os.path.expanduser(place)), os.path.realpath(constants.HF_HUB_CACHE)
    if not os.path.exists(folder):
        return (os.path.join(cache, f"datasets--{place.replace('/', '--')}"),)
    if is_below(folder, cache):  # a downloaded repository, whose files are links to its blobs
        return (os.path.join(cache, os.path.relpath(folder, cache).split(os.sep)[0]),)
    return (os.path.dirname(folder) if os.path.isfile(folder) else folder,)


def _local(place: Path, roots: Sequence[str], labelled: bool, layout: Layout) -> _Splits:
    """Read a folder or a file of this computer."""
    if (place / PROJECT).is_dir() and (place / GROUPED).is_file():
        place = _up_to_date(place / GROUPED)
    if not place.is_file():
        return _folder(
            place.resolve(), roots, labelled, layout
        )  # "." has no name, by which `datasets` calls it
    if place.suffix.lower() == _PARQUET:
        builder = load_dataset_builder("parquet", data_files=glob.escape(str(place)))
        return _Splits(built(builder, str(place)))
    if place.suffix.lower() in ONE_FILE:
        return _by_list(place, [*image_roots(str(place)), *roots], labelled, layout)
    raise DataError(
        f"{display_name(str(place))!r} is one file: give a folder of a sub-folder per category, a table of path,label "
        "(.csv, .tsv, .txt or .xlsx), or a parquet file. Unpack an archive first."
    )


def _up_to_date(grouped: Path) -> Path:
    """The table of a project, unless a person corrected the project after it was written."""
    corrections = grouped.parent / PROJECT / "categories.sqlite"
    if corrections.exists() and corrections.stat().st_mtime_ns > grouped.stat().st_mtime_ns:
        raise DataError(
            f"{display_name(str(grouped.parent))!r} was corrected after its {GROUPED} was written: give promptccd "
            "discover with the same --out once more, which brings it up to date, and then this."
        )
    return grouped


def _folder(folder: Path, roots: Sequence[str], labelled: bool, layout: Layout) -> _Splits:
    for name in CARDS:
        _require_own_file(folder / name, folder)
    if saved := saved_tables(folder):
        for table in chain.from_iterable(saved.values()):
            _require_own_file(table, folder)
        parts = {split: [Dataset.from_file(str(file)) for file in files] for split, files in saved.items()}
        return _Splits({split: concatenate_datasets(tables) for split, tables in parts.items()})
    for name in CARDS:
        require_plain_card(folder / name, str(folder))
    if not _is_of_the_hub(folder) and (images := _images_of(folder, roots, labelled, layout)) is not None:
        return images
    for archive in folder.rglob("*.zip"):  # the next line looks into archives
        _require_own_file(archive, folder)
    builder = load_dataset_builder(str(folder))
    for file in data_files_of(builder):
        _require_own_file(file, folder)
    return _Splits(built(builder, str(folder), _LOCAL_KINDS))


def _require_own_file(path: str | Path, folder: Path) -> None:
    """Refuse a path that leads out of a data set, by itself or through a link."""
    target = os.path.realpath(path)
    if "://" in str(path) or not any(is_below(target, root) for root in image_roots(str(folder))):
        refuse_foreign(str(folder), str(path))


def saved_tables(folder: Path) -> dict[str, list[Path]]:
    """The files of a data set that ``save_to_disk`` wrote, by split; none for any other folder.

    Notes that stray into a folder of images make no data set of it. A file that they name may be elsewhere.
    """
    found = {}
    for note in (folder / "state.json", *folder.glob("*/state.json")):
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # a note of another program
            if is_below(os.path.realpath(note), os.path.realpath(folder)):
                named = parsed_json(note.read_text(encoding="utf-8"))["_data_files"]
                split = "" if note.parent == folder else note.parent.name
                found[split] = [note.parent / each["filename"] for each in named]
    return found if any(map(os.path.lexists, chain.from_iterable(found.values()))) else {}


def _is_of_the_hub(folder: Path) -> bool:
    """Whether a folder is a data set of the Hub in tables: its pictures are those of its card, and no rows."""
    card = folder / "README.md"
    if not card.is_file() or card.read_bytes()[:3] != b"---":
        return False
    return any(each.suffix.lower() in _TABLE_SUFFIXES for at in ("*", "data/*") for each in folder.glob(at))


def _images_of(folder: Path, roots: Sequence[str], labelled: bool, layout: Layout) -> _Splits | None:
    """Image files in folders; `None` for a folder without any, in which `datasets` may find tables."""
    files = images_in(FolderSource(folder, [*image_roots(str(folder)), *roots]), IntakeLimits())
    files.require_readable(folder)
    if labelled and (described := _by_metadata(folder, files, layout)) is not None:
        return described
    found = (
        by_category(folder, files, layout.top_folders)
        if labelled
        else LabelledFolder({}, files.left_out, files.images)
    )
    names = in_order({name for rows in found.splits.values() for _, name in rows}) if found.splits else None
    splits = found.splits
    others = (path for path in folder.rglob("*") if path.name not in _NOTES) if not splits else ()
    suffixes = {path.suffix.lower() for path in others}
    if found.unlabelled and suffixes.isdisjoint(_TABLE_SUFFIXES):
        splits = {"train": [(path, "") for path in found.unlabelled]}
    if splits:
        tables = {
            split: _image_table([(folder / path, name) for path, name in rows], names)
            for split, rows in splits.items()
        }
        return _Splits(tables, found.left_out, str(found), refusals=_refusals(folder, splits))
    if not suffixes.isdisjoint(_MAY_BE_READ):
        return None
    remedy = "Put images into it, or leave it out."
    if labelled:
        remedy = "Put the images of each category into a sub-folder of it, or give another folder."
    raise DataError(
        f"Folder {display_name(str(folder))!r} holds no image that can be used. {found}. {remedy}"
    )


def _refusals(folder: Path, splits: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, str]:
    """Splits of one category where another has several, as in data sets of defects (MVTec): nothing to learn from."""
    names = {split: {name for _, name in rows} for split, rows in splits.items()}
    largest = max(names, key=lambda split: len(names[split]))
    place = os.path.commonpath([path for path, _ in splits[largest]]) if len(names) > 1 else ""
    return {
        split: f"The split {split!r} of {display_name(str(folder))!r} has the one category {next(iter(found))!r}, and "
        f"{largest!r} has {len(names[largest])}, as data sets of defects (MVTec) have: give --split {largest}, or "
        f"group its images without labels: promptccd discover photographs {folder / place} --out groups/"
        for split, found in names.items()
        if len(found) == 1 < len(names[largest])
    }


def _by_metadata(folder: Path, files: FolderFiles, layout: Layout) -> _Splits | None:
    """The images that metadata files name, with their categories; `None` if no such file names categories.

    A metadata file is in the folder or in those of its splits, and names files from its own place on. Images that it
    does not name are left out.
    """
    places = {"train": folder}
    places |= {
        SPLITS[each.name.casefold()]: each for each in folder.iterdir() if each.name.casefold() in SPLITS
    }
    tables, notes, left_out = dict[str, Dataset](), list[str](), dict(files.left_out)
    for split, place in places.items():
        for file in sorted(place.iterdir()) if place.is_dir() else ():
            if file.name.casefold() not in _METADATA_FILES:
                continue
            _require_own_file(file, folder)
            with suppress(ForeignTableError):
                found = _by_list(file, image_roots(str(folder)), True, layout, by_content=False)
                shown = display_name(os.path.relpath(file, folder))
                left_out.pop(shown, None)
                notes += [f"{shown}: {found.notes}"] * bool(found.notes)
                tables[split] = found.tables["train"]
    if not tables:
        unread = [name for name in left_out if Path(name).name.casefold() in _METADATA_FILES]
        files.left_out.update({name: _TOO_DEEP if "/" in name else _NO_LABEL_COLUMNS for name in unread})
        return None
    images = (table.cast_column("image", Image(decode=False))["image"] for table in tables.values())
    named = {os.path.relpath(each["path"], folder) for each in chain.from_iterable(images)}
    others = {display_name(path): "in no metadata file" for path in files.images if path not in named}
    counts = f"{len(named)} images that metadata files name; {len(others)} others are left out"
    # A named file that is no image is a row, which its stage reports.
    left_out = {path: reason for path, reason in left_out.items() if path not in named}
    return _Splits(tables, {**left_out, **others}, "; ".join([counts, *notes]), _CHOSEN)


_CHOSEN = Layout("image", LABEL)  # how the reader of lists calls its columns


def _columns_of(
    sheet: pd.DataFrame, name: str, layout: Layout, labelled: bool, by_content: bool
) -> tuple[str, str | None, list[str]]:
    """The columns of images and labels: the named ones, or else those with usual names or usual content; and notes.

    Raises:
        ForeignTableError: there are none.
    """
    names, notes = [*sheet.columns], list[str]()
    images = layout.find(layout.image, names, IMAGE_COLUMNS)
    if labelled and {*names} >= _GROUPS:
        labels = ["name"]  # its column category is a number
    else:
        labels = layout.find(layout.label, [each for each in names if each not in images[:1]], LABEL_COLUMNS)
    if by_content and not any(each.lower().endswith(IMAGE_SUFFIXES) for each in names):  # there is a heading
        if not images and (images := [each for each in names if _holds_files(sheet[each])]):
            notes.append(f"column {images[0]!r} is read as paths of images (--image_column sets another)")
        if images and not labels and labelled:
            used = {*images, *called(names, [*SPLIT_COLUMNS, STREAM, *IMAGE_COLUMNS]), ""}
            labels = [each for each in names if each not in used]
            labels = labels if len(labels) == 1 else []
            notes += [
                f"column {each!r} is read as the label (--label_column sets another)" for each in labels
            ]
    if not images or not (labels or not labelled):
        wanted = [IMAGE_COLUMNS[:5], *([LABEL_COLUMNS[:4]] if labelled else [])]
        listed = " and ".join(f"one of {', '.join(each)}" for each in wanted)
        raise ForeignTableError(
            f"The first line of {name!r} names the columns {[*map(display_name, names)]}: expected {listed}, such as "
            f"{','.join(each[0] for each in wanted)}; or set --image_column and --label_column."
        )
    for column, *others in (images, *([labels] if labelled else [])):
        notes += [f"column {column!r} is read and not {', '.join(map(repr, others))}"] * bool(others)
    if not labelled and labels:
        notes.append(f"{', '.join(map(repr, labels))} not looked at")
    return images[0], labels[0] if labelled else None, notes


def _holds_files(cells: Iterable[str]) -> bool:
    """Whether most cells are names of image files."""
    filled = [each for each in cells if each][:_PROBED]
    return 2 * sum(each.lower().endswith(IMAGE_SUFFIXES) for each in filled) > len(filled)


def _by_list(
    file: Path, roots: Sequence[str], labelled: bool, layout: Layout, by_content: bool = True
) -> _Splits:
    """The images that a table lists, with their categories if they are wanted; paths are relative to its folder.

    A file that cannot be read stays a row, so that stages are cut alike wherever the files are; it is counted and
    named. A row without a category has none in the table; columns of streams and splits stay.
    """
    shown, given = display_name(file.name), filter(None, (layout.image, layout.label))
    sheet = read_sheet(file, (*_KNOWN, *given))
    notes, twice = sheet.attrs["notes"], {*sheet.columns[sheet.columns.duplicated()]} - {""}
    notes = [*notes, *(f"of several columns {each!r} the first is read" for each in sorted(twice))]
    sheet = sheet.loc[:, ~sheet.columns.duplicated()]
    image, label, chosen = _columns_of(sheet, shown, layout, labelled, by_content)
    if sheet.empty:
        raise DataError(f"{shown!r} lists no image: give a line of path,label for each.")
    if (bare := sheet.index[sheet[image] == ""]).size:
        raise DataError(f"Line {bare[0]} of {shown!r} has no {image}: name the image, or remove the line.")
    if label is not None and {*sheet.columns} >= _GROUPS:
        sheet = sheet.assign(name=sheet["name"].mask(sheet["name"].str.fullmatch(_UNNAMED), ""))
    paths, said = _files_meant(file.parent, sheet[image].tolist(), [os.path.realpath(root) for root in roots])
    also = [*SPLIT_COLUMNS, *([] if label is None else [STREAM])]
    kept = {} if label is None else {LABEL: label}
    for each in called([*sheet.columns], also):
        if each not in (image, label):
            kept[STREAM if each.casefold() == STREAM else each] = each
    columns: dict[str, list[str | None]] = {"image": [*paths]}
    columns |= {name: [normalize("NFC", each) or None for each in sheet[kept[name]]] for name in kept}
    features = Features({"image": Image(), **dict.fromkeys(kept, Value("string"))})
    table = Dataset.from_dict(columns, features=features)
    return _Splits({"train": table}, notes="; ".join([*notes, *chosen, *said]), layout=_CHOSEN)


def _files_meant(folder: Path, names: Sequence[str], roots: Sequence[str]) -> tuple[list[str], list[str]]:
    """The file that each cell of a list means, and notes on files that are not there or no images.

    A bare name that is no file of the folder means the only image below it with that name, with or without suffix.
    """
    paths, notes, found = [_file_meant(folder, name) for name in names], list[str](), list[str]()
    bare = [
        row for row, path in enumerate(paths) if not os.path.lexists(path) and not {*"/\\"} & {*names[row]}
    ]
    by_name = _images_by_name(folder) if bare else {}
    for row in bare:
        if len(places := by_name.get(names[row], [])) == 1:
            paths[row] = str(places[0])
            found.append(
                f"{display_name(names[row])!r} is {display_name(os.path.relpath(places[0], folder))!r}"
            )
    if found:
        notes.append(f"{len(found)} of {len(paths)} files are found by their names, {found[0]}")
    gone, others = list[str](), list[str]()
    for name, path in zip(names, paths, strict=True):
        if not os.path.lexists(path):
            gone.append(repr(display_name(name)))
        elif reason := _why_no_image(path, roots):
            others.append(f"{display_name(name)!r} ({reason})")
    for wrong, what in ((gone, "not there"), (others, "no images")):
        notes += [f"{len(wrong)} of {len(paths)} files are {what}, the first is {wrong[0]}"] if wrong else []
    return paths, notes


def _images_by_name(folder: Path) -> Mapping[str, list[Path]]:
    """Images below a folder by their names, with and without suffix."""
    found = defaultdict(list)
    for place, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(".")]
        for name in names:
            stem, suffix = os.path.splitext(name)
            for key in {name, stem} if suffix.lower() in IMAGE_SUFFIXES else ():
                found[key].append(Path(place, name))
    return found


def _by_rows(found: _Splits, folder: Path, layout: Layout, labelled: bool) -> _Splits:
    """The same with a column of images, and cut by a column of splits where there is but one split."""
    tables = {split: _with_images(table, folder, layout) for split, table in found.tables.items()}
    notes, chosen = found.notes, found.layout
    if chosen == DETECTED:
        present = {each for table in tables.values() for each in table.column_names}
        chosen = layout
        if not layout.is_required:
            image, label = (each if each in present else None for each in (layout.image, layout.label))
            chosen = replace(layout, image=image, label=label)
    if labelled and len(tables) == 1:
        table = next(iter(tables.values()))
        texts = [each for each in called(table.column_names, SPLIT_COLUMNS) if each != chosen.label]
        plain_table = table.with_format(None)
        splits, note = split_column_of(texts, {each: plain_table[each][:] for each in texts})
        notes = "; ".join(filter(None, [notes, note]))
        if splits:
            tables = {
                split: table.select([row for row, each in enumerate(splits) if each == split])
                for split in in_order({*splits} - {""})
            }
    return replace(found, tables=tables, notes=notes, layout=chosen)


def _with_images(table: Dataset, folder: Path, layout: Layout) -> Dataset:
    """A table whose images are paths, bytes or structs of both, as a table with a column of images."""
    features = table.features
    given = [layout.image] if layout.image in features else []
    if any(isinstance(features[each], Image) for each in given or features):
        return table
    kinds = {name: _kind_of(feature) for name, feature in features.items()}
    usual = [each for each in called([*features], IMAGE_COLUMNS) if kinds[each]]
    bytes_first = sorted(usual, key=lambda each: kinds[each] == "path") or [
        each for each, kind in kinds.items() if kind == "bytes"
    ]
    texts = [each for each, kind in kinds.items() if kind == "path"]
    by_content = [each for each in texts if _holds_files(map(str, table[:_PROBED][each]))]
    column = next(iter([*given, *bytes_first, *by_content]), None)
    if column is None or not kinds[column]:
        return table  # refused with its columns where images are read
    if kinds[column] == "path":
        cells = [each and _file_meant(folder, each) for each in table[column][:]]
        table = table.remove_columns(column).add_column(column, cells)
    return table.cast_column(column, Image())


def _kind_of(feature: Any) -> str:
    """Whether a column can hold images as bytes or as paths; empty for neither."""
    if isinstance(feature, dict):
        return "bytes" if {"bytes", "path"} >= {*feature} and "bytes" in feature else ""
    kind = str(getattr(feature, "dtype", ""))
    if kind in ("binary", "large_binary", "binary_view"):
        return "bytes"
    return "path" if "string" in kind and isinstance(feature, Value) else ""


def _why_no_image(path: str, roots: Sequence[str]) -> str:
    """Why a file that a list names is no image, by its first bytes; empty for an image.

    A file elsewhere is not opened: reading its row refuses it.
    """
    target = os.path.realpath(path)
    if not any(is_below(target, root) for root in roots):
        return ""
    try:
        return why_skipped(first_bytes(target, FIRST_BYTES))
    except SkippedFileError as skipped:
        return str(skipped)


def _file_meant(folder: Path, name: str) -> str:
    """The file that a table means, which may have the separators and the form of accents of another system."""
    if "://" in name:  # an address, which is refused as a row
        return name
    here = name.replace("\\", "/") if is_of_windows(name) else name
    names = dict.fromkeys([name, name.replace("\\", "/")])
    names |= dict.fromkeys(normalize(form, each) for form in ("NFC", "NFD") for each in [*names])
    return str(folder / next((each for each in names if os.path.lexists(folder / each)), here))


def _image_table(rows: Sequence[tuple[Path, str]], names: Sequence[str] | None = None) -> Dataset:
    """Images with their categories, of which these are all names; by default without."""
    columns: dict[str, list[Any]] = {"image": [str(path) for path, _ in rows]}
    features = Features({"image": Image()})
    if names is not None:
        id_of = {name: number for number, name in enumerate(names)}  # none for an image without a category
        columns[LABEL] = [id_of.get(name) for _, name in rows]
        features[LABEL] = ClassLabel(names=list(names))
    return Dataset.from_dict(columns, features=features)

"""From a name to a table of images: a folder, a list, a workbook, a parquet file, a saved data set, or a Hub data set.

A data set is read only from its own files. `datasets` trusts the metadata of a folder: a card may name
data files anywhere, a saved data set may call any file a part of it, and a file may be a link. So every name is checked
before the file is opened. Folders and lists are read here and not by `datasets`, which reads words in the names of
files as splits.
"""

import glob
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image, Value, concatenate_datasets, load_dataset_builder
from huggingface_hub import constants
from sklearn.datasets import load_digits

from promptccd.data import hub
from promptccd.data.folders import FolderFiles, FolderSource, by_category, images_in
from promptccd.data.image_rows import ImageRows
from promptccd.data.labels import (
    BOTH,
    COLUMNS,
    DETECTED,
    LABEL,
    SPLIT,
    SPLITS,
    STREAM,
    Layout,
    in_order,
    read_columns,
)
from promptccd.data.names import display_name, is_of_windows
from promptccd.data.sources import is_below
from promptccd.data.spreadsheets import LISTS, WORKBOOKS, read_sheet
from promptccd.disk import PROJECT, parsed_json
from promptccd.errors import DataError, ForeignTableError, PromptCCDError, nothing_at
from promptccd.images.decode import Decoding
from promptccd.images.limits import IntakeLimits

logger = logging.getLogger(__name__)

_PARQUET = ".parquet"
ONE_FILE = (*LISTS, *WORKBOOKS, _PARQUET)  # suffixes of a data set in one file; some workbooks are refused
_TABLE_SUFFIXES = (_PARQUET, ".arrow")
_MAY_BE_READ = (*_TABLE_SUFFIXES, ".json", ".jsonl", ".tar")
# Folders of images are read here.
_LOCAL_KINDS = tuple(kind for kind in hub.FILE_KINDS if kind != "imagefolder")
_NOTES = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")  # of ``save_to_disk``
_METADATA_FILES = ("metadata.csv", "metadata.jsonl")  # files of an ImageFolder of `datasets`
GROUPED = "assignments.csv"  # that a discovery writes next to its project
_GROUPS = {"picture", "category", "name", "known"}  # columns of `GROUPED`, and of no other list
_UNNAMED = r"discovered \d+"  # name there of a category without a name
_GIVE = (
    "Give a folder of a sub-folder per category, a CSV of path,label, a parquet file, or a data set of the Hub as "
    "namespace/name; without a network, `promptccd train --config promptccd-digits` has bundled images."
)


def digits_dataset() -> Dataset:
    """1,797 grey 8 x 8 images of the digits 0 to 9 with columns ``image`` and ``label``."""
    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # the 17 grey levels 0..16 over 0..255
    return _labelled([*pixels], [*map(str, bunch.target)])


def demo_dataset() -> Dataset:
    """The photographs of ``make demo``, 20 categories of Caltech-101, with columns ``image`` and ``label``."""
    files = sorted(Path(__file__).with_name("photographs").glob("*/*.jpg"))
    images = [{"bytes": file.read_bytes(), "path": None} for file in files]
    return _labelled(images, [file.parent.name for file in files])


def _labelled(images: Sequence[Any], names: Sequence[str], **columns: Sequence[Any]) -> Dataset:
    """A table of images and further columns, and of their categories unless all names are empty."""
    features = Features({"image": Image(), **dict.fromkeys(columns, Value("string"))})
    columns["image"] = images
    if categories := in_order({*names} - {""}):
        columns[LABEL] = [categories.index(name) for name in names]
        features[LABEL] = ClassLabel(names=categories)
    return Dataset.from_dict(columns, features)


@dataclass(frozen=True)
class BuiltIn:
    """A data set with a reserved name.

    Attributes:
        load: makes it, or raises a `DataError` that says why it is not available.
        words: its description, for model cards.
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
        "that dataset.save_to_disk(folder) wrote it to, or continue in Python with CategoryDiscoveryTrainer."
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


class _Found(NamedTuple):
    """Rows with the columns of `read_columns`; ``left_out`` says why files are no rows."""

    table: Dataset
    left_out: Mapping[str, str] = {}


def load_images(dataset: str, split: str = "train") -> Dataset:
    """The rows of one split of an image data set; arguments and errors as in `open_images`."""
    return open_images(dataset, split).table


def open_images(
    place: str | Dataset,
    split: str = "train",
    roots: Sequence[str | os.PathLike[str]] | None = None,
    labelled: bool = True,
    layout: Layout = DETECTED,
    decoding: Decoding | None = None,
) -> ImageRows:
    """Open one split of an image data set, and log further content of a folder.

    Args:
        place: a name in `BUILT_IN`, a local folder (of a sub-folder of images per category, with metadata files of an
            ImageFolder, written by ``save_to_disk``, or holding parquet files), a table of paths and labels as text or
            workbook, a parquet file, the id of a data set on the Hub; or a data set from Python.
        split: name of the split, for example ``"train"``.
        roots: further folders that files and links may be in; `None` is the download folders for a data set from
            Python.
        labelled: whether labels are wanted: without, all images of a folder and all rows of a list count, and a data
            set of one split is that split.
        layout: how the columns of tables are read; without a name, a column is found by usual names and its content.
        decoding: how the images become pixels.

    Returns:
        The images; their table has the columns ``image``, and ``label`` and ``stream`` where labels are wanted.

    Raises:
        DataError: there is nothing to load, the data set is kept in files that are not its own, or has no such split.
    """
    name = display_name(place) if isinstance(place, str) else "the data set"
    if isinstance(place, Dataset):
        found = _Found(read_columns(place, name, layout, labelled))
    elif isinstance(place, str):
        further = [os.fspath(root) for root in roots or ()]
        found, roots = _opened(place, split, further, labelled, layout), [*image_roots(place), *further]
    else:
        raise DataError(
            f"Expected a datasets.Dataset or a name, got {type(place).__name__}. Give one split, such as "
            "dataset['train']; read a stream first: Dataset.from_generator(lambda: (yield from stream), "
            "features=stream.features)."
        )
    return ImageRows(found.table, roots, decoding, name, found.left_out)


def _opened(dataset: str, split: str, roots: Sequence[str], labelled: bool, layout: Layout) -> _Found:
    """A split of a data set by its name."""
    if dataset in BUILT_IN:
        return _Found(BUILT_IN[dataset].load())
    path = Path(os.path.expanduser(dataset))
    is_windows = is_of_windows(dataset)
    is_path = dataset.startswith((".", "/", "~")) or dataset.endswith("/") or dataset.count("/") > 1
    if (is_path or is_windows) and not path.exists():
        why = " It is a path of Windows." if is_windows and os.sep == "/" else ""
        raise DataError(f"{nothing_at(dataset)}{why} {_GIVE}")
    try:
        found = _local(path, dataset, roots, labelled, layout) if path.exists() else hub.load_hub(dataset)
        splits = ["train"] if isinstance(found, _Found) else [*found]
        is_any = splits == [""] or (not labelled and len(splits) == 1)  # any name is the only split
        chosen = splits[0] if len(splits) == 1 else split
        if not isinstance(found, _Found) and chosen in splits:
            folder = path if path.is_dir() else path.parent
            found = _Found(read_columns(found[chosen], dataset, layout, labelled, folder))
    except PromptCCDError:
        raise
    except Exception as error:  # datasets raises many kinds here
        raise _in_one_line(dataset, error) from error
    if isinstance(found, _Found):
        table = found.table
        if len(splits) == 1 and SPLIT in table.column_names:
            words, table = np.array(table[SPLIT][:], dtype=object), table.remove_columns(SPLIT)
            if labelled:
                splits, is_any = in_order({*words.tolist()} - {""}), False
                table = table.select(np.flatnonzero(words == split))
        if is_any or split in splits:
            return found._replace(table=table)
    raise DataError(f"Dataset {dataset!r} has no split {split!r}; it has {sorted(splits)}. Set --split.")


def _in_one_line(dataset: str, cause: BaseException) -> DataError:
    """Why a data set cannot be loaded."""
    while cause.__cause__ is not None and str(cause.__cause__):  # it tells more than "failed"
        cause = cause.__cause__
    first_line = display_name(str(cause).strip().split("\n")[0].rstrip("."))
    missing = "" if os.path.exists(os.path.expanduser(dataset)) else f" {nothing_at(dataset)}"
    return DataError(f"Could not load dataset {dataset!r}: {first_line}.{missing} {_GIVE}")


def image_roots(place: str) -> tuple[str, ...]:
    """The folders that files named by the rows of a data set may be in; the place is a name for `open_images`."""
    folder, cache = os.path.realpath(os.path.expanduser(place)), os.path.realpath(constants.HF_HUB_CACHE)
    if not os.path.exists(folder):
        return (os.path.join(cache, f"datasets--{place.replace('/', '--')}"),)
    if is_below(folder, cache):  # a downloaded repository, whose files are links to its blobs
        return (os.path.join(cache, os.path.relpath(folder, cache).split(os.sep)[0]),)
    return (os.path.dirname(folder) if os.path.isfile(folder) else folder,)


def _local(
    place: Path, name: str, roots: Sequence[str], labelled: bool, layout: Layout
) -> _Found | Mapping[str, Dataset]:
    """Read a folder or a file of this computer; tables by split, or by "" of one without splits, are read later."""
    if (place / PROJECT).is_dir() and (place / GROUPED).is_file():
        place, corrections = place / GROUPED, place / PROJECT / "categories.sqlite"
        name = os.path.join(name, GROUPED)
        if corrections.exists() and corrections.stat().st_mtime_ns > place.stat().st_mtime_ns:
            raise DataError(
                f"{display_name(str(place.parent))!r} was corrected after its {GROUPED} was written. Run promptccd "
                "discover with the same --out to update the table, then repeat the command."
            )
    if not place.is_file():
        named = place.resolve()  # `datasets` asks for the name of a folder, and "." has none
        return _folder(named, name, roots, labelled, layout)
    if place.suffix.lower() == _PARQUET:
        builder = load_dataset_builder("parquet", data_files=glob.escape(str(place)))
        return hub.built(builder, str(place))
    if place.suffix.lower() in ONE_FILE:
        return _Found(_listed(place, name, layout, labelled, BOTH))
    raise DataError(
        f"{display_name(str(place))!r} is one file: give a folder of a sub-folder per category, a table of path,label "
        "(.csv, .tsv, .txt or .xlsx), or a parquet file. Unpack an archive first."
    )


def _folder(
    folder: Path, name: str, roots: Sequence[str], labelled: bool, layout: Layout
) -> _Found | Mapping[str, Dataset]:
    for card in hub.CARDS:
        _require_own_file(folder / card, folder)
    if saved := saved_tables(folder):
        for table in chain.from_iterable(saved.values()):
            _require_own_file(table, folder)
        parts = {split: [Dataset.from_file(str(file)) for file in files] for split, files in saved.items()}
        return {split: concatenate_datasets(tables) for split, tables in parts.items()}
    for card in hub.CARDS:
        hub.require_plain_card(folder / card, str(folder))
    images = None if _is_of_the_hub(folder) else _images_of(folder, name, roots, labelled, layout)
    if images is not None:
        return images
    for archive in folder.rglob("*.zip"):  # the next line looks into archives
        _require_own_file(archive, folder)
    builder = load_dataset_builder(str(folder))
    for file in hub.data_files_of(builder):
        _require_own_file(file, folder)
    return hub.built(builder, str(folder), _LOCAL_KINDS)


def _require_own_file(path: str | Path, folder: Path) -> None:
    """Refuse a path that leads out of a data set, by itself or through a link."""
    target = os.path.realpath(path)
    if "://" in str(path) or not any(is_below(target, root) for root in image_roots(str(folder))):
        hub.refuse_foreign(str(folder), str(path))


def saved_tables(folder: Path) -> dict[str, list[Path]]:
    """The files of a data set that ``save_to_disk`` wrote, by split; empty for any other folder.

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
    """Whether a folder is a data set of the Hub in tables: its pictures belong to its card, and are no rows."""
    card = folder / "README.md"
    if not card.is_file() or card.read_bytes()[:3] != b"---":
        return False
    return any(each.suffix.lower() in _TABLE_SUFFIXES for at in ("*", "data/*") for each in folder.glob(at))


def _images_of(
    folder: Path, name: str, roots: Sequence[str], labelled: bool, layout: Layout
) -> _Found | None:
    """Image files in folders; `None` for a folder without any, in which `datasets` may find tables."""
    files = images_in(FolderSource(folder, [*image_roots(str(folder)), *roots]), IntakeLimits())
    files.require_readable(folder)
    if labelled and (described := _by_metadata(folder, name, files, layout)) is not None:
        return described
    rows = by_category(name, files, layout.top_folders) if labelled else None
    others = () if rows else (path for path in folder.rglob("*") if path.name not in _NOTES)
    suffixes = {path.suffix.lower() for path in others}
    if rows is None and suffixes.isdisjoint(_TABLE_SUFFIXES):
        rows = [(path, "", "train") for path in files.images]
    if rows:
        paths, names, splits = zip(*rows, strict=True)
        table = _labelled([str(folder / path) for path in paths], names, **{SPLIT: splits})
        logger.info("%s: %s.", display_name(name), files.summary(rows))
        return _Found(table, files.left_out)
    if not suffixes.isdisjoint(_MAY_BE_READ):
        return None
    remedy = "Put images into it, or leave it out."
    if labelled:
        remedy = "Put the images of each category into a sub-folder of it, or give another folder."
    raise DataError(
        f"Folder {display_name(str(folder))!r} holds no image that can be used. {files.summary(())}. {remedy}"
    )


def _by_metadata(folder: Path, name: str, files: FolderFiles, layout: Layout) -> _Found | None:
    """The images that metadata files name, with their categories; `None` if no such file names categories.

    A metadata file is in the folder or in a folder of a split, and names files from its own place on. Images that it
    does not name are left out.
    """
    places = [folder, *(each for each in sorted(folder.iterdir()) if each.name.casefold() in SPLITS)]
    tables, named, left_out = list[Dataset](), set[str](), dict(files.left_out)
    for file in (each for place in places if place.is_dir() for each in sorted(place.iterdir())):
        if file.name.casefold() not in _METADATA_FILES:
            continue
        _require_own_file(file, folder)
        shown = display_name(os.path.relpath(file, folder))
        with suppress(ForeignTableError):
            table = _listed(file, shown, layout, True, by_content=())
            if file.parent != folder or SPLIT not in table.column_names:
                table = table.remove_columns([*{SPLIT} & {*table.column_names}])
                word = SPLITS.get(file.parent.name.casefold(), "train") if file.parent != folder else "train"
                table = table.add_column(SPLIT, [word] * len(table))
            paths = table.cast_column("image", Image(decode=False))["image"]
            named |= {os.path.relpath(each["path"], folder) for each in paths}
            tables.append(table)
            left_out.pop(shown, None)
    if not tables:
        return None
    others = {display_name(path): "in no metadata file" for path in files.images if path not in named}
    counts = f"{len(named)} images that metadata files name; {len(others)} further images are left out"
    logger.info("%s: %s.", display_name(name), counts)
    # A named file that is no image is a row, which its stage reports.
    left_out = {path: reason for path, reason in left_out.items() if path not in named}
    return _Found(concatenate_datasets(tables), {**left_out, **others})


def _listed(file: Path, name: str, layout: Layout, labelled: bool, by_content: Sequence[str]) -> Dataset:
    """The columns of a list as `read_columns` gives them, null where they are empty.

    Labels, streams and splits are in one form of accents (NFC). Paths stay as written, since NFC changes some names.
    """
    shown, given = display_name(file.name), filter(None, (layout.image, layout.label))
    sheet = read_sheet(file, (*COLUMNS, *given))
    for each in sorted({*sheet.columns[sheet.columns.duplicated()]} - {""}):
        logger.info("%s: of several columns %r the first is read.", display_name(name), each)
    sheet = sheet.loc[:, ~sheet.columns.duplicated()]
    if {*sheet.columns} >= _GROUPS:  # its column category is a number
        named = sheet["name"].mask(sheet["name"].str.fullmatch(_UNNAMED), "")
        sheet = sheet.drop(columns="category").assign(name=named)
    if sheet.empty:
        raise DataError(
            f"{shown!r} lists no image: give a first line such as path,label, and a line for each image."
        )
    cells = {each: [text or None for text in sheet[each]] for each in sheet.columns}
    table = Dataset.from_dict(cells, Features({each: Value("string") for each in sheet.columns}))
    table = read_columns(table, name, layout, labelled, file.parent, by_content)
    for each in (LABEL, STREAM, SPLIT):
        cells = table[each][:] if each in table.column_names else []
        composed = [text and normalize("NFC", text) for text in cells]
        if composed != cells:
            table = table.remove_columns(each).add_column(each, composed, feature=Value("string"))
    return table

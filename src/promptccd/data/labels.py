"""Layout of a table of images: the columns of images, labels and splits, and the categories that labels name."""

import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

import numpy as np
import pandas as pd
from datasets import ClassLabel, Dataset, Image, Value
from pandas._libs.parsers import STR_NA_VALUES

from promptccd.data.names import IMAGE_SUFFIXES, display_name, is_of_windows
from promptccd.data.splits import UNUSED
from promptccd.errors import DataError, ForeignTableError

logger = logging.getLogger(__name__)

LABEL = "label"  # column with the category
SPLIT = "split"  # column that says of which split a row is
STREAM = "stream"  # column that names the stream with which an image without a label arrives
UNLABELLED = ("", "unlabelled", "unlabeled")  # words in place of a label, in any case
MISSING = frozenset(STR_NA_VALUES)  # words that pandas reads as a missing value, such as NA and null
# Names that columns have, in any case and without blanks, _ and -; in order of preference.
IMAGE_COLUMNS = (
    "path", "filename", "file", "image", "filepath", "imagepath", "imagefile", "imagename", "imagefilename",
    "imagefilepath", "img", "imgpath", "imgname", "imgfile", "picture", "photo", "photopath", "relativepath",
    "imageid", "imgid", "photoid", "fileid", "id",
)  # fmt: skip
LABEL_COLUMNS = (
    "label", "category", "class", "name", "labelname", "categoryname", "classname", "species", "target", "labels",
    "scientificname", "taxon", "taxonname", "type", "kind", "diagnosis", "dx", "y", "labelid", "categoryid", "classid",
    "targetname", "tag", "speciesname", "commonname", "breed", "finelabel",
)  # fmt: skip
SPLIT_COLUMNS = (
    "split", "subset", "fold", "partition", "set", "phase", "usage", "istrain", "istraining", "istrainingimage",
)  # fmt: skip
COLUMNS = (*IMAGE_COLUMNS, *LABEL_COLUMNS, *SPLIT_COLUMNS, STREAM)
_PATHS = "path of the image"  # column while a table is read
_PROBED = 50  # rows that determine the content of a column without a usual name
SPLITS = {
    "train": "train", "training": "train", "trn": "train", "test": "test", "testing": "test", "tst": "test",
    "val": "validation", "valid": "validation", "validation": "validation", "dev": "validation",
}  # fmt: skip
_YES_NO = {"1": "train", "true": "train", "yes": "train", "0": "test", "false": "test", "no": "test"}
_SEPARATORS = ("|", ";", ",")
_SURE_SEPARATORS = ("|", ";")  # hardly a part of a name
_LOOSE_SEPARATORS = ("/", "+", "&", " ")  # often a part of a name
_FEW_LABELS = 0.75  # per different cell; of lists of birds, each of whose words were a label, some 0.9
_VERY_FEW_LABELS = 0.25  # per different cell; of a few things in a few colours 0.5
_SHORTEST = 4  # letters of a name that may be a misspelling
_DIGITS = re.compile(r"\d+")
_LIST = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)
_CLOSE = 0.88  # similarity of two spellings of one name, by `difflib`: piza and pizza have 0.89
_NUMBER = re.compile(r"-?\d{1,300}(\.\d{1,300})?")


@dataclass(frozen=True)
class Layout:
    """How folders and the columns of tables are read.

    Attributes:
        image: name of the image column; `None` finds it by `IMAGE_COLUMNS`, or by its content.
        label: name of the label column; `None` finds it by `LABEL_COLUMNS`.
        na: words in place of a label; `None` means `MISSING`, and -1 among class ids.
        separator: separator of the labels of a cell, of which the first counts; empty if each cell is
            one label; `None` refuses cells that look like several labels.
        top_folders: whether the folders of the first level are splits or categories; `None` decides by their names and
            the names of their sub-folders.
        optional: columns, ``image`` or ``label``, that a table may lack although they are named.
    """

    image: str | None = None
    label: str | None = None
    na: tuple[str, ...] | None = None
    separator: str | None = None
    top_folders: Literal["splits", "categories"] | None = None
    optional: tuple[str, ...] = ()

    def named(self, what: Literal["image", "label"], columns: Sequence[str]) -> list[str]:
        """The column of images or of labels that has the given name; none without a name."""
        if (given := getattr(self, what)) is None:
            return []
        found = [each for each in columns if each == given] or called(columns, [given])
        if not found and what not in self.optional:
            raise DataError(
                f"No column {given!r}. Columns: {', '.join(map(display_name, columns))}. Set --{what}_column."
            )
        return found


DETECTED = Layout()  # no column is named
BOTH = ("image", LABEL)


def plain(name: str) -> str:
    """The name of a column without case, blanks, _ and -."""
    return re.sub(r"[\s_-]+", "", name.casefold())


def called(columns: Sequence[str], names: Iterable[str]) -> list[str]:
    """The columns with any of the names, in the order of these; case and blanks do not matter."""
    return [each for name in dict.fromkeys(map(plain, names)) for each in columns if plain(each) == name]


def image_column_of(dataset: Dataset) -> str:
    """Name of the only column of images.

    Raises:
        DataError: there is none, or several.
    """
    found = [name for name, feature in dataset.features.items() if isinstance(feature, Image)]
    if len(found) != 1:
        raise DataError(
            f"Expected one column of images, got {found}; all columns: {dataset.column_names}. Select one of them "
            "(dataset.select_columns), or make one of paths or bytes: dataset.cast_column(NAME, datasets.Image())."
        )
    return found[0]


def split_column_of(name: str, columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """The split of every row of a table by a column with words such as train and test, or no row."""
    for column, cells in columns.items():
        words = ["" if each is None else str(each).strip() for each in cells]
        known = _YES_NO if plain(column).startswith("istrain") else SPLITS
        if any(word.casefold() in known for word in words):
            splits = [known.get(word.casefold(), word) for word in words]
            counts = ", ".join(f"{each or 'empty'} {count}" for each, count in Counter(splits).most_common())
            logger.info("%s: column %r divides the rows: %s (--split chooses).", name, column, counts)
            return splits
        if 1 < len(set(words)) <= max(2, len(words) // 2):
            logger.info("%s: column %r names no train or test, and divides nothing.", name, column)
    return []


def read_columns(
    table: Dataset,
    name: str,
    layout: Layout = DETECTED,
    labelled: bool = True,
    folder: Path = Path(),
    by_content: Sequence[str] = ("image",),
) -> Dataset:
    """A table with the columns ``image``, ``label``, ``stream`` and `SPLIT`, as far as it has them.

    A column is found by its given name, else by a usual name, else by its content; a guess is logged. Images may be
    bytes, or paths below the folder. A file that cannot be read stays a row, so that stages are cut alike wherever the
    files are.

    Args:
        table: of any columns.
        name: of the table, for messages.
        layout: names of columns.
        labelled: whether labels are wanted.
        folder: place that paths are relative to.
        by_content: columns, of `BOTH`, that may be found by their content; labels only in a list, since the one further
            column of another table may hold captions.

    Raises:
        ForeignTableError: it has no column of images, or several, or none of labels.
        DataError: a named column is missing, or a row names no image.
    """
    name, kinds = display_name(name), {each: _kind_of(feature) for each, feature in table.features.items()}
    if any(each.lower().endswith(IMAGE_SUFFIXES) for each in kinds):  # there is no heading
        by_content = ()
    image = _image_column(table, name, kinds, layout, "image" in by_content)
    columns, others = {"image": image}, [each for each in kinds if each != image]
    if labelled:
        label = _label_column(table, name, kinds, others, layout, LABEL in by_content)
        others = [each for each in others if each != label]
        columns |= {LABEL: label} if label else {}
        columns |= {STREAM: each for each in called(others, [STREAM])[:1]}  # noqa: B035 - one, or none
    elif unread := layout.named("label", others) or called(others, LABEL_COLUMNS):
        shown = ", ".join(map(repr, unread))
        logger.info("%s: %s not looked at (--labels reads labels that came later).", name, shown)
    table, splits = table.with_format(None), list[str]()
    if labelled:
        splits = split_column_of(name, {each: table[each][:] for each in called(others, SPLIT_COLUMNS)})
    if kinds[image] == "path":
        paths = _files_meant(folder, table[image][:], name)
        table, columns["image"] = table.add_column(_PATHS, paths), _PATHS
    table = table.select_columns([*columns.values()])
    table = table.rename_columns({old: new for new, old in columns.items() if new != old})
    table = table.cast_column("image", Image())
    return table.add_column(SPLIT, splits) if splits else table


def _image_column(
    table: Dataset, name: str, kinds: Mapping[str, str], layout: Layout, by_content: bool
) -> str:
    """The column of images."""
    has_option = layout is not DETECTED  # `discover` has no options for columns
    found = layout.named("image", [*kinds]) or [each for each in kinds if kinds[each] == "image"]
    found.sort(key=lambda each: not called([each], ["image"]))
    if len(found) > 1 and not called(found, ["image"]):
        raise ForeignTableError(
            f"{name!r} has {len(found)} columns of images: {', '.join(map(display_name, found))}. Name "
            f"one of them image{', or set --image_column' * has_option}."
        )
    usual = [each for each in called([*kinds], IMAGE_COLUMNS) if kinds[each]]
    found = found or sorted(usual, key=lambda each: kinds[each] == "path")
    found = found or [each for each in kinds if kinds[each] == "bytes"]
    _report_preferred(name, found)
    if not found and by_content:
        found = [each for each in kinds if kinds[each] == "path" and _are_images(table[:_PROBED][each])]
        hint = " (--image_column sets another)" * has_option
        for each in found[:1]:
            logger.info("%s: column %r is read as paths of images%s.", name, each, hint)
    if not found or not kinds[found[0]]:
        raise _no_column(name, kinds, "images", IMAGE_COLUMNS, has_option)
    return found[0]


def _are_images(names: Sequence[str | None]) -> bool:
    """Whether most of the cells that are not empty are names of images."""
    given = [each for each in names if each]
    return 2 * sum(each.lower().endswith(IMAGE_SUFFIXES) for each in given) > len(given)


def _report_preferred(name: str, columns: Sequence[str]) -> None:
    if len(columns) > 1:
        others = ", ".join(map(repr, columns[1:]))
        logger.info("%s: column %r is read and not %s.", name, columns[0], others)


def _label_column(
    table: Dataset,
    name: str,
    kinds: Mapping[str, str],
    others: Sequence[str],
    layout: Layout,
    by_content: bool,
) -> str:
    """The column of labels among the others; empty for a table of images and nothing else."""
    classes = [each for each in others if isinstance(table.features[each], ClassLabel)]
    found = layout.named("label", others)
    found = found or (classes if len(classes) == 1 else called(others, [LABEL] if classes else LABEL_COLUMNS))
    _report_preferred(name, found)
    if not found and by_content:
        used = {*called(others, [*SPLIT_COLUMNS, STREAM, *IMAGE_COLUMNS]), ""}
        found = [each for each in others if each not in used]
        found = found if len(found) == 1 else []
        for each in found:
            logger.info("%s: column %r is read as the label (--label_column sets another).", name, each)
    if not found and (others or "image" not in kinds.values()):
        raise _no_column(name, kinds, "labels", LABEL_COLUMNS)
    return found[0] if found else ""


def _no_column(
    name: str, kinds: Mapping[str, str], what: str, usual: Sequence[str], has_option: bool = True
) -> ForeignTableError:
    option = f"; or set --{what.rstrip('s')}_column" if has_option else "; or give vectors as --features FILE"
    return ForeignTableError(
        f"Which column of {name!r} holds the {what}? Columns: {', '.join(map(display_name, kinds))}. "
        f"Expected {what} in one of them called {', '.join(usual[:5])}{option}."
    )


def _files_meant(folder: Path, names: Sequence[str | None], table: str) -> list[str]:
    """The file that each cell of a table means.

    A cell may have the separators and the form of accents of another system. A bare name that is no file of the folder
    means the only image below it with that name, with or without suffix.
    """
    if None in names:
        raise DataError(
            f"Row {names.index(None) + 1} of {table!r} names no image: name one, or remove the row."
        )
    paths, found, gone, by_name = list[str](), list[str](), list[str](), None
    for name in map(str, names):
        plain = name.replace("\\", "/")
        forms = (normalize(form, each) for form in ("NFC", "NFD") for each in (name, plain))
        spellings = {} if "://" in name else dict.fromkeys((name, plain, *forms))
        if place := next((each for each in spellings if os.path.lexists(folder / each)), ""):
            paths.append(str(folder / place))
            continue
        if by_name is None and not {*"/\\"} & {*name}:
            by_name = _images_by_name(folder)
        if len(places := (by_name or {}).get(name, [])) == 1:
            paths.append(str(places[0]))
            found.append(f"{display_name(name)!r} is {display_name(os.path.relpath(places[0], folder))!r}")
        else:  # an address is refused as a row
            paths.append(name if "://" in name else str(folder / (plain if is_of_windows(name) else name)))
            gone.append(repr(display_name(name)))
    for shown, what in ((found, "are found by their names,"), (gone, "are not there, the first is")):
        if shown:
            logger.info("%s: %d of %d files %s %s.", table, len(shown), len(paths), what, shown[0])
    return paths


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


def _kind_of(feature: Any) -> str:
    """Whether a column holds images, or can as bytes or as paths; empty for none of these."""
    if isinstance(feature, Image):
        return "image"
    if isinstance(feature, dict):
        return "bytes" if {"bytes", "path"} >= {*feature} and "bytes" in feature else ""
    kind = str(getattr(feature, "dtype", ""))
    if kind in ("binary", "large_binary", "binary_view"):
        return "bytes"
    return "path" if "string" in kind and isinstance(feature, Value) else ""


def read_categories(
    dataset: Dataset, label_column: str, layout: Layout = DETECTED
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Category id of every row, and the category names in the order of their ids.

    Ids are positions among the labels that occur: in the order of a class-label column, by value for integers and names
    that are numbers, alphabetical for other names. Gaps in the labels and class names without images are harmless.

    Args:
        dataset: the rows.
        label_column: name of the column.
        layout: says which words are no label, and what separates several labels.

    Returns:
        Ids ``(N,)`` int64 in ``0..C-1``, `UNUSED` for a row without a label; and C names.

    Raises:
        DataError: there is no such column or no row, or a label is several labels or neither an integer nor a string.
    """
    if label_column not in dataset.column_names:
        raise DataError(
            "Nothing says which category an image is of. To train, put the images into a sub-folder per category, or "
            "list them in a CSV file of path,label; give those without a label as --unlabelled FOLDER. To group "
            "images without labels: promptccd discover photographs FOLDER --out groups/"
        )
    if not len(dataset):
        raise DataError(
            "The data set has no row: there is nothing to cut into stages. Give a data set with images."
        )
    feature = dataset.features[label_column]
    cells, words, separator = dataset.with_format(None)[label_column][:], layout.na, layout.separator
    if isinstance(feature, ClassLabel):
        cells = [feature.int2str(each) if each is not None and each >= 0 else None for each in cells]
        words, separator = words or (), ""  # a class that a data set declares is one label, whatever its name
    rows = np.flatnonzero(~_without_label(cells, label_column, words))
    labels = _one_label_each([cells[row] for row in rows], label_column, separator)
    # Where some labels are missing, pandas makes fractions of whole numbers.
    labels = [int(each) if isinstance(each, float) and each.is_integer() else each for each in labels]
    kinds = {type(each) for each in labels}
    if not kinds <= {int, str} or len(kinds) > 1 or (kinds == {int} and min(labels) < 0):
        odd = next((each for each in labels if type(each) not in (int, str)), labels[:3])
        raise DataError(
            f"Column {label_column!r} holds {odd!r}: expected integers from 0 or names, and one kind of label. Mend "
            "the rows, or choose another --label_column."
        )
    values = in_order({*labels}) if kinds == {str} else sorted({*labels})
    if isinstance(feature, ClassLabel):
        values.sort(key=feature.str2int)
    ids = np.full(len(cells), UNUSED)
    ids[rows] = pd.Index(values, dtype=object).get_indexer(labels)
    return ids, tuple(map(str, values))


def _without_label(cells: Sequence[Any], column: str, na: Sequence[str] | None) -> np.ndarray:
    """Which cells ``(N,)`` are no label: null, NaN, -1, or a word of `UNLABELLED` and `na`."""
    words = MISSING if na is None else frozenset(na)
    texts = [each.strip() if isinstance(each, str) else each for each in cells]
    negative = {each for each in texts if isinstance(each, str) and re.match(r"-\d", each)}
    if na is None and negative == {"-1"}:  # and not a temperature
        words |= negative

    def is_missing(value: Any) -> bool:
        if isinstance(value, str):
            return value in words or value.casefold() in UNLABELLED
        return value in (None, []) or value != value or (value == -1 and na is None)

    missing = np.array([is_missing(each) for each in texts])
    found = Counter(str(texts[row]) for row in np.flatnonzero(missing) if texts[row] not in (None, ""))
    if found:
        logger.info(
            "Column %r: %d of %d rows have no label (%s); --label_na sets other words.",
            column, missing.sum(), len(missing), ", ".join(map(display_name, found)),
        )  # fmt: skip
    return missing


def _one_label_each(labels: Sequence[Any], column: str, separator: str | None) -> list[Any]:
    """One label for every cell, where some cells may be several labels, as a list or as a text."""
    if separator == "":
        return [*labels]
    mark = separator or _separator_of({each for each in labels if isinstance(each, str)})
    parts = [
        each if isinstance(each, list) else _parts(each, mark) if mark and isinstance(each, str) else [each]
        for each in labels
    ]
    several = [label for label, each in zip(labels, parts, strict=True) if len(each) > 1]
    if several and separator is None:
        raise DataError(
            f"Column {column!r} has several labels in {len(several)} of {len(labels)} rows, such as {several[0]!r}. An "
            f"image has one category: give one label in each row, or --label_separator {mark or 'any'!r} to use the "
            "first of them. --label_separator '' is for names that contain such a mark."
        )
    if several:
        logger.info(
            "Column %r: the first label counts in %d of %d rows, which name several.",
            column, len(several), len(labels),
        )  # fmt: skip
    return [each[0] for each in parts]


def _parts(cell: str, separator: str) -> list[str]:
    """The labels in a cell, which may be written as a list of Python or JSON; else the cell itself."""
    is_list = _LIST.fullmatch(cell.strip()) is not None
    texts = cell.strip()[1:-1].split(",") if is_list else cell.split(separator)
    return [part for each in texts if (part := each.strip().strip("'\"" if is_list else ""))] or [cell]


def _separator_of(texts: Collection[str]) -> str:
    """The mark whose cells are labels that other cells have too, most of them or, of a sure mark, any; or empty.

    A loose mark separates if some cells are one label, and all cells have far fewer labels than there are cells. Names
    such as "black cat" may have few words too: then some cell has to consist of labels that are cells as well.
    """
    if any(map(_LIST.fullmatch, texts)):
        return ","
    for mark in _SEPARATORS:
        parts = {each: _parts(each, mark) for each in texts if mark in each}
        uses = Counter(part for each in texts for part in set(parts.get(each, [each])))
        shared = [[uses[part] > 1 for part in each] for each in parts.values() if len(each) > 1]
        is_sure = mark in _SURE_SEPARATORS and any(map(any, shared))
        if is_sure or sum(map(all, shared)) > len(parts) / 2:
            return mark
    for mark in _LOOSE_SEPARATORS:
        words = [_parts(each, mark) for each in texts]
        count, joined = len({*chain(*words)}), [each for each in words if len(each) > 1]
        is_sure = count < _VERY_FEW_LABELS * len(texts) and len(joined) < len(words)
        if is_sure or (count < _FEW_LABELS * len(texts) and any(map({*texts}.issuperset, joined))):
            return mark
    return ""


def close_to(name: str, known: Iterable[str]) -> str:
    """The known name of which another is probably a misspelling, or empty. Numbers in names must be equal."""
    folded = {each.casefold(): each for each in known if _DIGITS.findall(each) == _DIGITS.findall(name)}
    if name in folded.values() or len(name) < _SHORTEST:
        return ""
    return next((folded[each] for each in get_close_matches(name.casefold(), folded, cutoff=_CLOSE)), "")


def in_order(names: Iterable[str]) -> list[str]:
    """Names of categories in the order of their ids: numbers by their value, or else all by their letters."""
    listed = sorted(names)
    return sorted(listed, key=float) if all(map(_NUMBER.fullmatch, listed)) else listed

"""From a name to a data set: a Hub id, a local folder or file, or a built-in data set."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from sklearn.datasets import load_digits

from promptccd.data.hub import all_published, published_split
from promptccd.data.hub_rows import HubRows
from promptccd.data.names import display_name, is_of_windows
from promptccd.data.table_files import in_order, load_table
from promptccd.errors import DataError, PromptCCDError, nothing_at

logger = logging.getLogger(__name__)


def digits_dataset() -> Dataset:
    """1,797 grey 8 x 8 images of the digits 0 to 9 with columns ``image`` and ``label``."""
    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # the 17 grey levels 0..16 over 0..255
    names = [str(name) for name in bunch.target_names]
    return Dataset.from_dict(
        {"image": list(pixels), "label": bunch.target.astype(int).tolist()},
        features=Features({"image": Image(), "label": ClassLabel(names=names)}),
    )


@dataclass(frozen=True)
class BuiltIn:
    """A data set with a reserved name.

    Attributes:
        load: makes it, or raises a `DataError` that says why it is not available.
        words: what it is, for model cards.
        licence: under which its pictures may be passed on, as the Hub calls it; `None`: no card may show one.
        page: where it is described.
        credit: what its licence asks to be said, after the link.
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
}


_GIVE = (
    "Give a folder of a sub-folder per category, a CSV of path,label, a parquet file, or a data set of the Hub as "
    "namespace/name; without a network, `promptccd train --config promptccd-digits` has images that come along."
)


@dataclass(frozen=True)
class OpenedImages:
    """One split of an image data set.

    Attributes:
        source: its rows, or what is on the Hub of them.
        left_out: why files of a folder are in no split, by path.
        name: what it is called; empty for one that was given from Python.
    """

    source: Dataset | HubRows
    left_out: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    @property
    def table(self) -> Dataset:
        """All rows with all columns."""
        return self.columns(self.source.column_names)

    def columns(self, names: Sequence[str], images_of: np.ndarray | None = None) -> Dataset:
        """These columns of all rows, or more of them; of the Hub, images of the rows ``(N,)`` that are wanted alone."""
        with _in_one_line(self.name):
            return self.source.read(names, images_of) if isinstance(self.source, HubRows) else self.source


def load_images(dataset: str, split: str = "train") -> Dataset:
    """The rows of one split of an image data set; arguments and errors are those of `open_images`."""
    return open_images(dataset, split).table


def open_images(
    dataset: str, split: str = "train", roots: Sequence[str] = (), labelled: bool = True
) -> OpenedImages:
    """Open one split of an image data set, and log what a folder holds besides.

    Args:
        dataset: a name in `BUILT_IN`, a local folder (written by ``save_to_disk``, holding parquet files, or
            one sub-folder of images per category), a CSV file of paths and labels, a parquet file, or the id of a
            data set on the Hub; of one that holds published stages, all their images.
        split: name of the split, for example ``"train"``.
        roots: further folders that links in a folder of images may lead into.
        labelled: whether labels are wanted: without, all images of a folder and all rows of a list count, and a data
            set of one split is that split.

    Raises:
        DataError: there is nothing to load, the data set names files that are not its own, or has no such split.
    """
    if dataset in BUILT_IN:
        return OpenedImages(BUILT_IN[dataset].load(), name=dataset)
    path = Path(os.path.expanduser(dataset))
    is_path = dataset.startswith((".", "/", "~")) or dataset.endswith("/") or dataset.count("/") > 1
    is_path = is_path or is_of_windows(dataset)
    if is_path and not path.exists():
        said = " It is a path of Windows." if is_of_windows(dataset) and os.sep == "/" else ""
        raise DataError(f"{nothing_at(dataset)}{said} {_GIVE}")
    if published_split(dataset) is not None:
        return OpenedImages(all_published(dataset), name=dataset)
    with _in_one_line(dataset):
        loaded = load_table(dataset, roots=roots, labelled=labelled, split=split)
    if loaded.said:
        logger.info("%s: %s.", dataset, loaded.said)
    if not labelled and isinstance(loaded.splits, DatasetDict) and len(loaded.splits) == 1:
        split = next(iter(loaded.splits))
    return OpenedImages(_one_split(loaded.splits, dataset, split), loaded.left_out, dataset)


@contextmanager
def _in_one_line(dataset: str) -> Iterator[None]:
    """Say in a line why a data set cannot be loaded."""
    try:
        yield
    except PromptCCDError:
        raise
    except Exception as error:  # datasets raises many kinds here
        first_line = display_name(str(_first_cause(error)).strip().split("\n")[0].rstrip("."))
        missing = "" if os.path.exists(os.path.expanduser(dataset)) else f" {nothing_at(dataset)}"
        raise DataError(f"Could not load dataset {dataset!r}: {first_line}.{missing} {_GIVE}") from error


def _first_cause(error: BaseException) -> BaseException:
    """The error below those of `datasets` that only say that something failed."""
    while error.__cause__ is not None and str(error.__cause__):
        error = error.__cause__
    return error


def _one_split(loaded: Any, dataset: str, split: str) -> Dataset | HubRows:
    if isinstance(loaded, DatasetDict):
        if split not in loaded:
            raise DataError(
                f"Dataset {dataset!r} has no split {split!r}; it has {sorted(loaded)}. Set --split."
            )
        loaded = loaded[split]
    if not isinstance(loaded, Dataset | HubRows):
        raise DataError(
            f"Dataset {dataset!r} is a stream without a length; stages need a data set that has one."
        )
    return loaded


def image_column_of(dataset: Dataset | HubRows, image_column: str | None) -> str:
    """Name of the image column: the given one, or the only one that holds images.

    Raises:
        DataError: it is missing, holds no images, or there are several to choose from.
    """
    found = [name for name, feature in dataset.features.items() if isinstance(feature, Image)]
    if image_column is None and len(found) == 1:
        return found[0]
    if image_column in found:
        return str(image_column)
    wanted = (
        "Which column holds the images?" if image_column is None else f"No image column {image_column!r}."
    )
    remedy = (
        "Set --image_column."
        if found
        else "A column of paths or bytes is made one of images in Python: dataset.cast_column(NAME, datasets.Image())."
    )
    raise DataError(f"{wanted} Image columns: {found}; all columns: {dataset.column_names}. {remedy}")


def label_column_of(dataset: Dataset | HubRows, label_column: str | None) -> str:
    """Name of the label column: the given one, or the only class-label column, or ``"label"``.

    Raises:
        DataError: it is missing or there are several to choose from.
    """
    if label_column is not None:
        if label_column in dataset.column_names:
            return label_column
        raise DataError(
            f"No label column {label_column!r}; the columns are {dataset.column_names}. Set --label_column."
        )
    found = [name for name, feature in dataset.features.items() if isinstance(feature, ClassLabel)]
    if len(found) == 1:
        return found[0]
    if "label" in dataset.column_names:
        return "label"
    if all(isinstance(feature, Image) for feature in dataset.features.values()):
        raise DataError(
            "Nothing says which category an image is of. To train, put the images into a sub-folder per category, or "
            "list them in a CSV file of path,label; give those without a label as --unlabelled FOLDER. To group "
            "images without labels: promptccd discover photographs FOLDER --out groups/"
        )
    raise DataError(
        f"Which column holds the labels? The columns are {dataset.column_names}. Set --label_column."
    )


UNLABELLED = ("", "unlabelled", "unlabeled")  # words that stand where a label would


def without_label(dataset: Dataset, label_column: str) -> np.ndarray:
    """Which rows ``(N,)`` say that they have no label: by none, by -1, or by one of the words `UNLABELLED`."""
    feature = dataset.features[label_column]
    values = dataset.with_format(None)[label_column][:]
    if isinstance(feature, ClassLabel):
        values = [feature.int2str(each) if each is not None and each >= 0 else each for each in values]
    return np.array(
        [
            each is None
            or (isinstance(each, str) and each.strip().casefold() in UNLABELLED)
            or (isinstance(each, int | float) and (each == -1 or each != each))
            for each in values
        ],
        dtype=bool,
    )


def read_categories(dataset: Dataset, label_column: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Category id of every row, and the category names in the order of their ids.

    Ids are positions among the labels that occur, in ascending order: by value for integers and names that are numbers,
    alphabetical for other names. Gaps in the labels and class names without images are therefore harmless.

    Returns:
        Ids ``(N,)`` int64 in ``0..C-1``, and C names.

    Raises:
        DataError: a label is missing, negative, or neither an integer nor a string; the row is named.
    """
    if not len(dataset):
        raise DataError("The data set has no row: there is nothing to cut into stages. Give one with images.")
    feature = dataset.features[label_column]
    values = dataset.with_format(None)[label_column][:]
    # Where some are missing, pandas makes fractions of whole numbers.
    whole = [int(each) if isinstance(each, float) and each.is_integer() else each for each in values]
    raw = np.asarray(whole, dtype=object)
    for row, value in enumerate(raw):
        if value in (None, -1, ""):
            raise DataError(
                f"Row {row} of column {label_column!r} has no label ({value!r}), and class_blocks need one for every "
                "image: they hide labels, to score by them. Leave --class_blocks out, and images without a label come "
                "as a stream of their own; or remove the row, or choose another --label_column."
            )
        if not isinstance(value, (int, str)) or isinstance(value, bool):
            raise DataError(
                f"Row {row} of column {label_column!r} has the label {value!r}; expected an integer from 0 or a "
                "name. Remove the row, or choose another --label_column."
            )
        if isinstance(value, int) and value < 0:
            raise DataError(
                f"Row {row} of column {label_column!r} has the negative label {value}; remove the row."
            )
    if len({type(value) for value in raw}) > 1:
        raise DataError(f"Column {label_column!r} mixes names and integers; use one kind of label.")
    values, ids = np.unique(raw, return_inverse=True)
    if isinstance(values[0], str):  # numbers that are written as names go by their value, too
        ordered = in_order(values.tolist())
        ids = np.asarray([ordered.index(value) for value in values])[ids]
        values = np.asarray(ordered, dtype=object)
    if isinstance(feature, ClassLabel):
        names = tuple(str(feature.int2str(int(value))) for value in values)
    else:
        names = tuple(str(value) for value in values)
    return ids.astype(np.int64), names

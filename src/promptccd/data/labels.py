"""Columns of a data set that hold images and labels, and the categories that labels name."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Image

from promptccd.errors import DataError

LABEL = "label"  # column with the category
STREAM = "stream"  # column that names the stream with which an image without a label arrives
UNLABELLED = ("", "unlabelled", "unlabeled")  # words in place of a label
_NUMBER = re.compile(r"-?\d{1,300}(\.\d{1,300})?")
_THOUSANDS = re.compile(r"-?[1-9]\d{0,2}(,\d{3})+")


def image_column_of(dataset: Dataset, image_column: str | None) -> str:
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


def label_column_of(dataset: Dataset, label_column: str | None) -> str:
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
    if LABEL in dataset.column_names:
        return LABEL
    if all(isinstance(feature, Image) for feature in dataset.features.values()):
        raise DataError(
            "Nothing says which category an image is of. To train, put the images into a sub-folder per category, or "
            "list them in a CSV file of path,label; give those without a label as --unlabelled FOLDER. To group "
            "images without labels: promptccd discover photographs FOLDER --out groups/"
        )
    raise DataError(
        f"Which column holds the labels? The columns are {dataset.column_names}. Set --label_column."
    )


def without_label(dataset: Dataset, label_column: str) -> np.ndarray:
    """Which rows ``(N,)`` have no label: null, NaN, -1, or one of the words `UNLABELLED`."""
    feature = dataset.features[label_column]
    values = dataset.with_format(None)[label_column][:]
    if isinstance(feature, ClassLabel):
        values = [feature.int2str(each) if each is not None and each >= 0 else each for each in values]

    def is_missing(value: Any) -> bool:
        if isinstance(value, str):
            return value.strip().casefold() in UNLABELLED
        return value is None or (isinstance(value, int | float) and (value == -1 or value != value))

    return np.array([is_missing(each) for each in values], dtype=bool)


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
    labels = dataset.with_format(None)[label_column][:]
    # Where some labels are missing, pandas makes fractions of whole numbers.
    labels = [int(each) if isinstance(each, float) and each.is_integer() else each for each in labels]
    for row, label in enumerate(labels):
        problem = ""
        if label in (None, -1, ""):
            problem = (
                f"has no label ({label!r}), and class_blocks need one for every image: they hide labels, to score by "
                "them. Leave --class_blocks out, and images without a label come as a stream of their own; or remove "
                "the row, or choose another --label_column."
            )
        elif not isinstance(label, int | str) or isinstance(label, bool):
            problem = (
                f"has the label {label!r}; expected an integer from 0 or a name. Remove the row, or choose another "
                "--label_column."
            )
        elif isinstance(label, int) and label < 0:
            problem = f"has the negative label {label}; remove the row."
        if problem:
            raise DataError(f"Row {row} of column {label_column!r} {problem}")
    if len({type(label) for label in labels}) > 1:
        raise DataError(f"Column {label_column!r} mixes names and integers; use one kind of label.")
    values = in_order(set(labels)) if isinstance(labels[0], str) else sorted(set(labels))
    id_of = {value: number for number, value in enumerate(values)}
    ids = np.array([id_of[label] for label in labels], dtype=np.int64)
    if isinstance(feature, ClassLabel):
        return ids, tuple(str(feature.int2str(value)) for value in values)
    return ids, tuple(map(str, values))


def in_order(names: Iterable[str]) -> list[str]:
    """Names of categories in the order of their ids: numbers by their value, or else all by their letters.

    A comma divides the fraction of a decimal number where one of them can mean nothing else: 1,000 may be a thousand.
    """
    listed = sorted(names)
    is_decimal = any("," in name and not _THOUSANDS.fullmatch(name) for name in listed)
    values = {name: name.replace(",", ".") if is_decimal else name for name in listed}
    are_numbers = all(map(_NUMBER.fullmatch, values.values())) and not (is_decimal and "." in "".join(listed))
    return sorted(listed, key=lambda name: float(values[name])) if are_numbers else listed

"""Streams: images without labels that arrive in sequence, after labelled images; and labels that come later.

Streams have no hidden labels and no scores: a stream is the content of a folder, a list, a table or a
data set, and the unlabelled images of a labelled table.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from datasets import Dataset

from promptccd.data.image_rows import ImageRows
from promptccd.data.labels import (
    DETECTED,
    LABEL,
    NO_CATEGORY,
    STREAM,
    Layout,
    in_order,
    read_categories,
)
from promptccd.data.names import display_name
from promptccd.data.tables import OpenedImages, image_roots, open_images, read_columns
from promptccd.errors import DataError
from promptccd.images.decode import Decoding
from promptccd.images.identity import digest_of

logger = logging.getLogger(__name__)

_Roots = Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Stream:
    """Images that arrive together.

    Attributes:
        name: their name in messages.
        images: undecoded.
        sample_ids: their rows in the labelled table, or numbers behind all rows before them, ``(N,)``.
        left_out: why files of a folder are no images, by path.
    """

    name: str
    images: ImageRows
    sample_ids: np.ndarray
    left_out: Mapping[str, str] = field(default_factory=dict)


def name_of_place(place: str | Dataset) -> str:
    """Names of images that were given by name or from Python."""
    return display_name(place) if isinstance(place, str) and place else "a data set given from Python"


def open_streams(
    places: Sequence[str | Dataset],
    split: str,
    roots: _Roots,
    decoding: Decoding,
    first_id: int,
    labelled_place: str = "",
    layout: Layout = DETECTED,
) -> list[Stream]:
    """Open streams, in order; every container of `open_images` is allowed, and labels in it are not read.

    Args:
        places: names that `open_images` takes, or data sets.
        split: split of each that has several.
        roots: further folders that files may be in.
        decoding: of the labelled images, so that all are shown by one rule.
        first_id: sample id of the first image.
        labelled_place: of the labelled images; empty for images that were given from Python.
        layout: how columns of tables are read.

    Raises:
        DataError: a stream cannot be opened, contains no image, names foreign files, or is given twice.
    """
    streams: list[Stream] = []
    seen = {_real(labelled_place): labelled_place} if labelled_place else {}
    for place in places:
        name = name_of_place(place)
        if isinstance(place, str):
            if (real := _real(place)) in seen:
                raise DataError(f"The stream {name!r} is {seen[real]!r} once more: give it once.")
            seen[real] = name
        opened, images = open_place(place, split, roots or None, decoding, layout, labelled=False)
        if not len(images):
            raise DataError(
                f"The stream {name!r} contains no image: give it when it has some, or leave it out."
            )
        sample_ids = np.arange(first_id, first_id + len(images), dtype=np.int64)
        streams.append(Stream(name, images, sample_ids, opened.left_out))
        first_id += len(images)
    return streams


def _real(place: str) -> str:
    return os.path.realpath(os.path.expanduser(place))


def open_place(
    place: str | Dataset,
    split: str = "train",
    roots: _Roots | None = None,
    decoding: Decoding | None = None,
    layout: Layout = DETECTED,
    labelled: bool = True,
) -> tuple[OpenedImages, ImageRows]:
    """A table, by a name that `open_images` takes or from Python, and its images.

    The roots are folders that may hold the files that rows name, besides that of a place that is given by name; `None`
    is the download folders for a table from Python. The other arguments are those of `open_images` and `ImageRows`.

    Raises:
        DataError: it cannot be opened, or names files that are not its own.
    """
    if isinstance(place, str):
        opened = open_images(place, split, [os.fspath(root) for root in roots or ()], labelled, layout)
        roots = [*image_roots(place), *(roots or ())]
    elif isinstance(place, Dataset):
        table, notes = read_columns(place, "the data set", layout, labelled)
        opened = OpenedImages(table)
        if notes:
            logger.info("The data set: %s.", "; ".join(notes))
    else:
        raise DataError(
            f"Expected a datasets.Dataset or a name, got {type(place).__name__}. Give one split, such as "
            "dataset['train']; read a stream first: Dataset.from_generator(lambda: (yield from stream), "
            "features=stream.features)."
        )
    images = ImageRows(opened.table, roots, decoding)
    images.require_own_files(repr(name_of_place(place)) if isinstance(place, str) else "the data set")
    return opened, images


def rest_of(table: Dataset, rows: np.ndarray, images: ImageRows, name: str) -> list[Stream]:
    """The images of a table that have no label, which are these rows: by its column `STREAM`, or as one stream."""
    words = np.full(len(table), "", dtype=object)
    if STREAM in table.column_names:
        words = np.array(["" if each is None else str(each) for each in table[STREAM][:]], dtype=object)
    present, streams = set(words[rows].tolist()), []
    for word in [""] * ("" in present) + in_order(present - {""}):
        own = rows[words[rows] == word]
        called = f"{name}, {STREAM} {word}" if word else f"{name}, without a label"
        streams.append(Stream(called, images.select(own), own))
    return streams


def read_labels(
    places: Sequence[str | Dataset],
    split: str,
    roots: _Roots,
    decoding: Decoding,
    layout: Layout = DETECTED,
) -> dict[bytes, str]:
    """Labels that came when their images had been grouped already, by their pixels (`digest_of`).

    Arguments and errors as in `open_streams`; where labels of a picture differ, the last one counts.
    """
    names: dict[bytes, str] = {}
    for place in places:
        opened, images = open_place(place, split, roots or None, decoding, layout)
        ids, categories = read_categories(opened.table, LABEL, layout)
        rows = np.flatnonzero(ids != NO_CATEGORY)
        if not len(rows):
            raise DataError(
                f"{name_of_place(place)!r} names no label: give a table of path,label, or leave it out."
            )
        found, twice, unread = dict[bytes, str](), dict[bytes, str](), 0
        for row, label in zip(rows.tolist(), ids[rows].tolist(), strict=True):
            if (picture := images.decode(row).image) is None:
                unread += 1
                continue
            digest, name = digest_of(np.asarray(picture)), categories[label]
            if found.get(digest, name) != name:
                twice[digest] = f"{found[digest]!r} and {name!r}"
            found[digest] = name
        names |= found
        if unread:
            logger.warning(
                "%s: %d of %d images cannot be read: their labels do not count. Mend them, and give them again.",
                name_of_place(place), unread, len(rows),
            )  # fmt: skip
        if twice:
            logger.warning(
                "%s: %d pictures are listed with two labels, such as %s; the last counts. Keep one label of each.",
                name_of_place(place), len(twice), next(iter(twice.values())),
            )  # fmt: skip
    return names

"""Streams: images without labels that arrive in sequence, after labelled images; and labels that come later.

Streams have no hidden labels and no scores: a stream is the content of a folder, a list, a table or a
data set, and the unlabelled images of a labelled table.
"""

import logging
from collections.abc import Sequence
from os import PathLike

import numpy as np
from datasets import Dataset

from promptccd.data.image_rows import ImageRows
from promptccd.data.labels import DETECTED, LABEL, NO_CATEGORY, STREAM, Layout, in_order, read_categories
from promptccd.data.tables import open_images
from promptccd.errors import DataError
from promptccd.images.decode import Decoding
from promptccd.images.identity import digest_of

logger = logging.getLogger(__name__)


def unlabelled_rows(
    images: ImageRows, table: Dataset, rows: np.ndarray
) -> list[tuple[ImageRows, np.ndarray]]:
    """The images of a table that have no label, which are these rows: by its column `STREAM`, or as one stream."""
    words = np.full(len(images), "", dtype=object)
    if STREAM in table.column_names:
        words = np.array(["" if each is None else str(each) for each in table[STREAM][:]], dtype=object)
    present, streams = set(words[rows].tolist()), []
    for word in [""] * ("" in present) + in_order(present - {""}):
        own = rows[words[rows] == word]
        name = f"{images.name}, {STREAM} {word}" if word else f"{images.name}, without a label"
        streams.append((images.select(own, name), own))
    return streams


def read_labels(
    places: Sequence[str | Dataset],
    split: str,
    roots: Sequence[str | PathLike[str]] | None,
    decoding: Decoding,
    layout: Layout = DETECTED,
) -> dict[bytes, str]:
    """Labels that came when their images had been grouped already, by their pixels (`digest_of`).

    Arguments and errors as in `open_images`; where labels of a picture differ, the last one counts.
    """
    names: dict[bytes, str] = {}
    for place in places:
        images = open_images(place, split, roots, layout=layout, decoding=decoding)
        ids, categories = read_categories(images.table, LABEL, layout)
        rows = np.flatnonzero(ids != NO_CATEGORY)
        if not len(rows):
            raise DataError(f"{images.name!r} names no label: give a table of path,label, or leave it out.")
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
                images.name, unread, len(rows),
            )  # fmt: skip
        if twice:
            logger.warning(
                "%s: %d pictures are listed with two labels, such as %s; the last counts. Keep one label of each.",
                images.name, len(twice), next(iter(twice.values())),
            )  # fmt: skip
    return names

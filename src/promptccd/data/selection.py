"""Which categories of a data set are used, in which order, and which rows of each."""

from collections.abc import Sequence

import numpy as np

from promptccd.data.randomness import numpy_generator
from promptccd.errors import DataError

UNUSED = -1  # label of a row that no stage gets

# One name, or all its spellings, the one to show first: copies of a data set spell some names differently.
CategoryName = str | tuple[str, ...]


def select_rows(
    labels: np.ndarray,
    categories: Sequence[str],
    *,
    class_order: Sequence[CategoryName] | None = None,
    num_classes: int | None = None,
    images_per_class: int | None = None,
    held_out: float = 0.0,
    held_out_only: bool = False,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Put the categories in order, and choose which of them and how many rows of each are used.

    Rows stay where they are: one that is not used gets the label `UNUSED`. The held-out rows of a category are drawn
    from all its rows and keyed by its name alone, so that the seed and the other options do not change them. Labels are
    category ids ``(N,)`` in ``0..C-1``, categories the C names; the options are those of `StageStream.from_dataset`.

    Returns:
        New ids ``(N,)`` int64, and the names of the categories that are used.

    Raises:
        DataError: the order does not name exactly the categories of the data set, or a number is out of range.
    """
    order, names = _ordered(categories, class_order)
    used = len(order) if num_classes is None else num_classes
    if not 1 <= used <= len(order):
        raise DataError(
            f"Expected num_classes in 1..{len(order)}, the categories of the data set, got {num_classes}."
        )
    if images_per_class is not None and images_per_class < 1:
        raise DataError(f"Expected images_per_class >= 1, got {images_per_class}.")
    if not 0.0 <= held_out < 1.0:
        raise DataError(f"Expected 0 <= held_out < 1, got {held_out}.")

    selected = np.full(len(labels), UNUSED, dtype=np.int64)
    for new, old in enumerate(order[:used]):
        rows = np.flatnonzero(labels == old)
        left_out = numpy_generator("held out", names[new]).permutation(rows)[: int(len(rows) * held_out)]
        wanted = np.sort(left_out) if held_out_only else np.setdiff1d(rows, left_out)
        selected[wanted[:images_per_class]] = new
    return selected, names[:used]


def _ordered(
    categories: Sequence[str], class_order: Sequence[CategoryName] | None
) -> tuple[list[int], tuple[str, ...]]:
    """The present ids in the order of the new ones, and the names to show."""
    if class_order is None:
        return list(range(len(categories))), tuple(categories)
    id_of = {name: index for index, name in enumerate(categories)}
    spellings = [(entry,) if isinstance(entry, str) else entry for entry in class_order]
    found = [[id_of[name] for name in names if name in id_of] for names in spellings]
    unknown = [names[0] for names, ids in zip(spellings, found, strict=True) if not ids]
    order = [index for ids in found for index in ids]
    missing = [name for index, name in enumerate(categories) if index not in order]
    twice = [categories[index] for index in sorted(set(order)) if order.count(index) > 1]
    wrong = [
        f"{what} {', '.join(names[:3])}{' ...' if len(names) > 3 else ''} ({len(names)})"
        for what, names in {
            "it lacks": unknown,
            "it has besides": missing,
            "the order repeats": twice,
        }.items()
        if names
    ]
    if wrong or len(order) != len(spellings):
        raise DataError(
            f"The class order names {len(spellings)} categories, but this data set differs: "
            f"{'; '.join(wrong) or 'it has two spellings of one name'}. Give the data set the order was made for, or "
            "class_order (in a recipe: benchmark) none."
        )
    return order, tuple(names[0] for names in spellings)

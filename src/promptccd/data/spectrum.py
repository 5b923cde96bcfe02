"""The spectrum protocol: how much is labelled, in categories and in images of each (paper, two-stage protocol).

The paper varies two shares, that of the categories which stage 0 labels and that of their images, and leaves the
rest of the split open. Here the images of known categories that are not labelled come in equal numbers with every
discovery stage, and the other categories arrive in two nearly equal blocks: the first with 70 % of its images at
stage 1 and the rest at stage 2, the second all at stage 2.
"""

import math
from fractions import Fraction

from promptccd.errors import DataError

DISCOVERY_STAGES = (1, 2)  # the paper's text and its caption can be read either way; two is our reading
_FIRST_BLOCK_SHARE = 0.7  # as in the split of four stages


def spectrum_split(
    num_categories: int, category_ratio: float, sample_ratio: float, discovery_stages: int = 2
) -> tuple[tuple[int, ...], tuple[tuple[float, ...], ...]]:
    """Class blocks and cuts of the spectrum protocol, as `promptccd.data.splits.split_by_category` takes them.

    Of 20 categories and the ratios 0.5 and 0.5, the first 10 are labelled, with half of their images.

    Args:
        num_categories: C.
        category_ratio: share of the categories that stage 0 labels, rounded down; above 0 and below 1.
        sample_ratio: share of their images that stage 0 holds, rounded down; above 0 and below 1.
        discovery_stages: unlabelled stages, 2 or 1; with 1 all that is not labelled comes at once.

    Returns:
        Block sizes that sum to C, and per block the share of the remainder that each stage takes.

    Raises:
        DataError: a value is out of its range, or stage 0 or a block of new categories would have none.
    """
    for name, ratio in (("category_ratio", category_ratio), ("sample_ratio", sample_ratio)):
        if not 0 < ratio < 1:
            raise DataError(f"Expected 0 < {name} < 1, got {ratio}: it is a share, 0.2 means 20 %.")
    if discovery_stages not in DISCOVERY_STAGES:
        raise DataError(f"Expected discovery_stages to be 1 or 2, got {discovery_stages}.")
    known = math.floor(_as_written(category_ratio) * num_categories)
    new = num_categories - known
    if known < 1 or new < discovery_stages:
        raise DataError(
            f"category_ratio {category_ratio} of {num_categories} categories labels {known} and leaves {new}; expected "
            f"at least 1 and {discovery_stages}, one per discovery stage. Set another category_ratio or num_classes."
        )
    labelled = _not_below_what_is_written(sample_ratio)
    if discovery_stages == 1:
        return (known, new), ((labelled, 1.0), (1.0,))
    first = math.ceil(new / 2)
    return (known, first, new - first), ((labelled, 0.5, 1.0), (_FIRST_BLOCK_SHARE, 1.0), (1.0,))


def _as_written(ratio: float) -> Fraction:
    """The decimal number a person wrote: 0.29, and not the float just below it, of which 100 times is 28."""
    return Fraction(repr(float(ratio)))


def _not_below_what_is_written(ratio: float) -> float:
    """The nearest float that is no less than the decimal number, because a cut is ``int(images * ratio)``.

    Products of floats are rounded to the nearest, so that one with such a ratio never falls below a whole number
    which the decimal reaches.
    """
    return ratio if Fraction(ratio) >= _as_written(ratio) else math.nextafter(ratio, 1.0)


__all__ = ["DISCOVERY_STAGES", "spectrum_split"]

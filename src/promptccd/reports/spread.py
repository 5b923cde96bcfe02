"""Mean and standard deviation over runs that differ in their seed alone, and numbers of categories with their range."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from promptccd.evaluation import StageScore

ABSENT = "\N{EN DASH}"  # what tables show where there is no number


@dataclass(frozen=True)
class Spread:
    """Values of several runs in two numbers.

    Attributes:
        mean: their mean; NaN where there is none.
        std: their standard deviation (n - 1); `None` for less than two values.
        count: how many there are.
    """

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread":
        """The spread of the values that exist: `None` and NaN are passed over."""
        given = [float(value) for value in values if value is not None and not math.isnan(value)]
        if not given:
            return cls(math.nan, None, 0)
        return cls(statistics.mean(given), statistics.stdev(given) if len(given) > 1 else None, len(given))

    def __str__(self) -> str:
        """As tables print it: one decimal, ``±`` only where there is a deviation."""
        if math.isnan(self.mean):
            return ABSENT
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


def count_range(rows: Iterable[StageScore]) -> tuple[int, int] | None:
    """The widest range of estimated numbers of categories of a stage; `None` where none was estimated.

    Clusters that ended empty got no category, so that what was found may lie below the estimate: it counts too.
    """
    ranges = [
        (min(row.count_range[0], row.num_categories), row.count_range[1]) for row in rows if row.count_range
    ]
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None


def count_text(rows: Sequence[StageScore]) -> str:
    """Mean number of categories that runs found at a stage, with that range; a dash where there is no run."""
    if not rows:
        return ABSENT
    mean = f"{statistics.mean(row.num_categories for row in rows):.1f}".removesuffix(".0")
    limits = count_range(rows)
    return mean if limits is None else f"{mean} ({limits[0]} to {limits[1]})"


def signed(value: float) -> str:
    """A difference with its sign, one decimal; a dash where there is none."""
    rounded = round(value, 1) + 0.0  # the sum turns -0.0 into 0.0
    return ABSENT if math.isnan(value) else f"{rounded:+.1f}".replace("-", "\N{MINUS SIGN}")

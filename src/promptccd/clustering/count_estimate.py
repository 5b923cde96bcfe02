"""An estimated number of categories, with its range; nothing here loads torch."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from promptccd.errors import DataError


@dataclass(frozen=True)
class CountEstimate:
    """An estimated number of categories. None is certain: its range has two numbers at least.

    Attributes:
        count: the estimate.
        low: smallest count whose score is within the margin.
        high: largest such count.
        method: how it was estimated, in a few words.
        margin: the meaning of the range, in a few words.

    Raises:
        DataError: not 1 <= low <= count <= high.
    """

    count: int
    low: int
    high: int
    method: str
    margin: str

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.count <= self.high:
            raise DataError(
                f"Expected 1 <= low <= count <= high, got {self.low}, {self.count} and {self.high}: "
                "the range of an estimated count must contain the count."
            )
        if self.is_estimate and self.low == self.high:
            object.__setattr__(self, "high", self.high + 1)

    @classmethod
    def known(cls, count: int) -> "CountEstimate":
        """A count that the data or a person gave, so that nothing was estimated."""
        return cls(count, count, count, "known", "nothing: given with the data")

    def including(self, count: int) -> "CountEstimate":
        """The same estimate with another count, in a range that contains it."""
        if not self.is_estimate:
            return self.known(count)
        return replace(self, count=count, low=min(self.low, count), high=max(self.high, count))

    @property
    def is_estimate(self) -> bool:
        """Whether the count was estimated and not given."""
        return self.method != "known"

    @property
    def range(self) -> tuple[int, int]:
        """``(low, high)``."""
        return self.low, self.high

    def __str__(self) -> str:
        if not self.is_estimate:
            return str(self.count)
        return f"{self.count} ({self.low} to {self.high}, within {self.margin})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; they are the arguments of the class."""
        return asdict(self)

"""What was forgotten and what was discovered: the figures M_all, M_o, M_f and M_d of PA-CGCD's setting."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptccd.errors import DataError
from promptccd.evaluation.continual import ContinualScore, stage_scores


def max_forgetting(known_before: Sequence[float], known_after: Sequence[float]) -> float:
    """M_f over several steps: the greatest loss of accuracy on initially known categories, in points.

    Below 0 where accuracy never fell. With one step it is that step's loss, ACC_0 - M_o.

    Args:
        known_before: accuracy of the model of stage 0 on the known images that each step is scored on, percent.
        known_after: accuracy on the same images after each step, percent.

    Raises:
        DataError: no step, or sequences of two lengths.
    """
    if len(known_before) != len(known_after) or not known_before:
        raise DataError(
            f"Expected one accuracy before for each after, at least one, got {len(known_before)} and "
            f"{len(known_after)}."
        )
    losses = [before - after for before, after in zip(known_before, known_after, strict=True)]
    return max((loss for loss in losses if not math.isnan(loss)), default=math.nan)


def final_discovery(new: Sequence[float]) -> float:
    """M_d over several steps as in Grow & Merge: accuracy on novel categories after the last step, percent.

    Raises:
        DataError: no step.
    """
    return _steps(new)[-1]


def mean_discovery(new: Sequence[float]) -> float:
    """M_d over several steps as in Happy: accuracy on novel categories, mean of the steps, percent.

    Raises:
        DataError: no step.
    """
    present = [value for value in _steps(new) if not math.isnan(value)]
    return sum(present) / len(present) if present else math.nan


@dataclass(frozen=True)
class ForgettingScore(ContinualScore):
    """PA-CGCD's figures beside All, Old and New, which are M_all, M_o and M_d of every step.

    Clusters are matched to categories once over all images of a step. ACC_0 is taken on the known ones among the same
    images, so that M_f never compares two sets. In a setting with one step the figures are those of its only row.

    Attributes:
        known_before: accuracy on the known images of every step under the model of stage 0, percent (ACC_0).
    """

    known_before: Sequence[float]

    @property
    def forgotten(self) -> list[float]:
        """What every step lost on known categories against stage 0, in points."""
        return [before - row.old for before, row in zip(self.known_before, self.stages, strict=True)]

    @property
    def m_all(self) -> float:
        """Accuracy over all images after the last step, percent."""
        return self.stages[-1].all

    @property
    def m_o(self) -> float:
        """Accuracy on known categories after the last step, percent."""
        return self.stages[-1].old

    @property
    def m_f(self) -> float:
        """`max_forgetting`, in points."""
        return max_forgetting(self.known_before, [row.old for row in self.stages])

    @property
    def m_d(self) -> float:
        """`final_discovery`, percent."""
        return final_discovery([row.new for row in self.stages])

    @property
    def columns(self) -> Mapping[str, Sequence[float]]:
        """ACC_0 and what was lost of it."""
        return {"known_before": self.known_before, "forgotten": self.forgotten}

    @property
    def summary(self) -> Mapping[str, float]:
        """The four figures, and M_d as the mean of the steps."""
        mean = mean_discovery([row.new for row in self.stages])
        return {"M_all": self.m_all, "M_o": self.m_o, "M_f": self.m_f, "M_d": self.m_d, "M_d_mean": mean}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ForgettingScore":
        """What `to_dict` wrote."""
        before = [math.nan if value is None else value for value in values["columns"]["known_before"]]
        return cls(values["protocol"], stage_scores(values["stages"]), before)


def _steps(values: Sequence[float]) -> Sequence[float]:
    if not values:
        raise DataError("Expected at least one step to score, got none.")
    return values

"""M_f and M_d by hand, and sessions of plain k-means."""

import math

import numpy as np
import pytest
import torch

from promptccd.cli.tables import score_table
from promptccd.evaluation import ContinualScore, StageScore, labelled_categories


def steps(before: list[float], rows: list[tuple[float, float, float]]) -> ContinualScore:
    """A score of PA-CGCD's setting with these ACC_0 and these All, Old and New."""
    return ContinualScore(
        "pa-cgcd",
        [
            StageScore(1, *row, 4, 10, figures={"known_before": known, "forgotten": known - row[1]})
            for known, row in zip(before, rows, strict=True)
        ],
    )


@pytest.mark.parametrize(
    ("before", "old", "new", "figures"),
    [
        ([80.0, 80.0, 80.0], [78.0, 70.0, 75.0], [10.0, 20.0, 60.0], (10.0, 60.0, 30.0)),
        ([80.0], [83.0], [20.0], (-3.0, 20.0, 20.0)),  # nothing was forgotten, something was learnt
        ([math.nan, 80.0], [math.nan, 79.0], [math.nan, 20.0], (1.0, 20.0, 20.0)),
    ],
)
def test_figures_by_hand(before: list[float], old: list[float], new: list[float], figures: tuple) -> None:
    summary = steps(before, list(zip([9.0] * len(old), old, new, strict=True))).summary
    assert (summary["M_f"], summary["M_d"], summary["M_d_mean"]) == figures
    assert (summary["M_all"], summary["M_o"]) == (9.0, old[-1])


def test_what_stage_zero_knows_assigns_by_its_means() -> None:
    known = labelled_categories(torch.tensor([[1.0, 0.0], [0.8, 0.0], [0.0, 1.0]]), np.array([4, 4, 9]))
    assert known.prototype_ids == [4, 9]
    torch.testing.assert_close(known.prototypes, torch.tensor([[0.9, 0.0], [0.0, 1.0]]))
    assert known.assign(torch.tensor([[0.1, 0.9], [0.6, 0.1]])).tolist() == [9, 4]


def test_figures_of_a_last_step_without_known_images_are_printed_as_absent() -> None:
    score = steps([math.nan], [(9.0, math.nan, 9.0)])
    assert score_table(score).endswith("M_all 9.0, M_o –, M_f –, M_d 9.0, M_d_mean 9.0")  # noqa: RUF001

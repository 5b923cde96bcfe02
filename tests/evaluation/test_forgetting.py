"""M_f and M_d by hand, and sessions of plain k-means."""

import math

import numpy as np
import pytest
import torch

from promptccd.cli.tables import score_table
from promptccd.errors import DataError
from promptccd.evaluation import (
    ContinualScore,
    StageScore,
    labelled_categories,
    session_accuracy,
)


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


def test_one_step_has_the_figures_of_its_row() -> None:
    score = steps([75.0], [(60.0, 70.0, 52.0)])
    assert score.summary == {"M_all": 60.0, "M_o": 70.0, "M_f": 5.0, "M_d": 52.0, "M_d_mean": 52.0}
    values = score.to_dict()
    assert list(values) == ["protocol", "unit", "stages", "average", "summary"]
    assert (values["stages"][0]["known_before"], values["stages"][0]["forgotten"]) == (75.0, 5.0)
    assert ContinualScore.from_dict(values) == score


def test_what_stage_zero_knows_assigns_by_its_means() -> None:
    known = labelled_categories(torch.tensor([[1.0, 0.0], [0.8, 0.0], [0.0, 1.0]]), np.array([4, 4, 9]))
    assert known.prototype_ids == [4, 9]
    torch.testing.assert_close(known.prototypes, torch.tensor([[0.9, 0.0], [0.0, 1.0]]))
    assert known.assign(torch.tensor([[0.1, 0.9], [0.6, 0.1]])).tolist() == [9, 4]


def test_sessions_use_no_label() -> None:
    """Features that hide the labels are grouped by the features, and scored so."""
    truth = [np.array([0, 1, 2] * 6), np.array([0, 1, 2, 3] * 6)]
    blind = [torch.eye(4)[torch.from_numpy(ids[::-1].copy()).sort().values] for ids in truth]
    seeing = [torch.eye(4)[torch.from_numpy(ids)] for ids in truth]
    options = {"num_known": 2, "restarts": 3, "seed": 0}
    perfect = session_accuracy(lambda session: seeing[session - 1], truth, [3, 4], **options)
    assert perfect.average == {"all": 100.0, "old": 100.0, "new": 100.0}
    assert perfect.as_published.average == perfect.average
    poor = session_accuracy(lambda session: blind[session - 1], truth, [3, 4], **options)
    assert poor.average["all"] < 50.0
    with pytest.raises(DataError, match="18"):
        session_accuracy(lambda session: seeing[session - 1], truth[:1], [19], **options)


def test_a_session_has_the_figures_of_both_assignments() -> None:
    """One cluster holds an old and a new category: jointly it is matched to one of them, separately to both."""
    truth = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2])
    looks = torch.eye(3)[torch.tensor([0, 0, 0, 1, 1, 1, 2, 0, 0])]
    score = session_accuracy(lambda session: looks, [truth], [3], num_known=2, restarts=3, seed=0)
    (row,) = score.stages
    assert (row.all, row.old, row.new) == pytest.approx((100 * 6 / 9, 100 * 6 / 7, 0.0))
    separate = {"all_v1": 100 * 8 / 9, "old_v1": 100 * 6 / 7, "new_v1": 100.0}
    assert {name: row.figures[name] for name in separate} == pytest.approx(separate)


def test_figures_of_a_last_step_without_known_images_are_printed_as_absent() -> None:
    score = steps([math.nan], [(9.0, math.nan, 9.0)])
    assert score_table(score).endswith("M_all 9.0, M_o –, M_f –, M_d 9.0, M_d_mean 9.0")  # noqa: RUF001

"""What a score tells trackers, files and tables, its figures by hand, and what k-means is given to make one."""

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from promptccd.cli.tables import score_table as printed
from promptccd.evaluation import ContinualScore, StageScore, labelled_categories, score_part_routing
from promptccd.evaluation.accuracy import FIGURES, normalised_mutual_information
from promptccd.evaluation.tables import markdown, over_runs, score_table, text_grid
from promptccd.reports.report import stage_table

ROWS = [
    StageScore(0, 99.0, 99.0, math.nan, 7, 9, None, (98.0, 97.0, math.nan)),
    StageScore(1, 80.12344, 90.0, math.nan, 8, 20, (7, 9), (70.0, 60.0, 50.0)),
    StageScore(2, 60.0, 70.0, 50.00006, 9, 30, None, (50.0, 40.0, 30.0)),
]


def test_figures_have_a_name_each_and_what_does_not_exist_has_none() -> None:
    average = {"cacc/average/all": 70.06172, "cacc/average/old": 80.0, "cacc/average/new": 50.00006}
    last = {
        "cacc/stage2/all": 60.0, "cacc/stage2/old": 70.0, "cacc/stage2/new": 50.00006,
        "cacc/stage2/num_categories": 9, "cacc/stage2/num_images": 30,
        "cacc/stage2/native_all": 50.0, "cacc/stage2/native_old": 40.0, "cacc/stage2/native_new": 30.0,
    }  # fmt: skip
    first = {
        "cacc/stage1/all": 80.12344, "cacc/stage1/old": 90.0,
        "cacc/stage1/num_categories": 8, "cacc/stage1/num_images": 20,
        "cacc/stage1/count_low": 7, "cacc/stage1/count_high": 9,
        "cacc/stage1/native_all": 70.0, "cacc/stage1/native_old": 60.0, "cacc/stage1/native_new": 50.0,
    }  # fmt: skip
    score = ContinualScore("cacc", ROWS[1:])
    assert score.metrics() == score.metrics(first=1) == pytest.approx(average | first | last)
    assert score.metrics(first=2) == pytest.approx(average | last)
    assert ContinualScore("cacc", ROWS).metrics()["cacc/stage0/native_old"] == 97.0
    without = ContinualScore("cacc", [replace(row, native=None) for row in ROWS[1:]])
    assert without.metrics(first=2).keys() == {name for name in average | last if "native" not in name}
    assert without.summary == {}
    lost = [
        replace(row, figures={"forgotten": each}) for row, each in zip(ROWS[1:], (5.0, math.nan), strict=True)
    ]
    steps = ContinualScore("pa-cgcd", lost).metrics()
    assert (steps["pa-cgcd/stage1/forgotten"], steps["pa-cgcd/M_f"]) == (5.0, 5.0)
    assert "pa-cgcd/stage2/forgotten" not in steps


def test_a_score_is_written_with_four_places_and_read_back() -> None:
    written = ContinualScore("cacc", ROWS).to_dict()
    first, second, _ = written["stages"]
    assert (first["native"], first["new"], second["all"]) == ([98.0, 97.0, None], None, 80.1234)
    again = ContinualScore.from_dict(written)
    assert again.to_dict() == written
    assert again.stages[2] == replace(ROWS[2], new=50.0001)
    assert again.stages[1].count_range == (7, 9)
    assert math.isnan(again.stages[0].new) and math.isnan(again.stages[0].native[2])
    assert "native" not in ContinualScore("gcd", [replace(ROWS[2], native=None)]).to_dict()["stages"][0]
    assert ContinualScore("cacc", []).to_dict()["stages"] == []


def test_the_paper_prints_sessions_by_separate_assignments_and_the_rest_as_it_is() -> None:
    for rows in (ROWS, list[StageScore]()):
        assert ContinualScore("cacc", rows).as_published.stages is rows
    separate = [(9.0, 8.0, 7.0), (6.0, 5.0, 4.0)]
    names = ("all_v1", "old_v1", "new_v1")
    rows = [
        replace(row, figures=dict(zip(names, each, strict=True)))
        for row, each in zip(ROWS[1:], separate, strict=True)
    ]
    score = ContinualScore("metagcd", rows)
    assert score.as_published == ContinualScore(
        "metagcd",
        [
            replace(ROWS[1], all=9.0, old=8.0, new=7.0, native=None),
            replace(ROWS[2], all=6.0, old=5.0, new=4.0, native=None),
        ],
    )
    table = score_table(score)
    assert table["all_v1"].tolist() == [9.0, 6.0, 7.5]
    assert table["native_old_v1"].tolist() == [60.0, 40.0, 50.0]
    assert "native_old" not in table
    assert ContinualScore.from_dict(score.to_dict()).stages[0].figures == rows[0].figures


def test_agreement_of_parts_is_summed_so_that_all_is_the_weighted_mean_to_nine_places() -> None:
    """Router and labels come in float32. The first id that is not known is New."""
    agreement = np.random.default_rng(0).random(3001, dtype=np.float32)
    ids = np.arange(3001) % 7
    score = score_part_routing(1, agreement, ids, 5, 8)
    share = np.mean(ids < 5)
    assert score.old == pytest.approx(100 * math.fsum(agreement[ids < 5]) / (ids < 5).sum(), abs=1e-9)
    assert score.all == pytest.approx(share * score.old + (1 - share) * score.new, abs=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the mean of nothing
        assert math.isnan(score_part_routing(1, agreement, ids, 7, 8).new)


# M_f and M_d by hand


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
    assert printed(score).endswith("M_all 9.0, M_o –, M_f –, M_d 9.0, M_d_mean 9.0")  # noqa: RUF001


# Tables


def test_a_new_figure_is_a_column_of_every_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FIGURES, "groups", ("Groups", lambda true, found: float(len(np.unique(found)))))
    true, found = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 1, 2, 3, 3])
    score = ContinualScore("cacc", [StageScore.of(1, true, found, num_known=2)])
    stored = json.loads(json.dumps(score.to_dict()))
    assert stored["stages"][0]["groups"] == 4.0
    assert ContinualScore.from_dict(stored).to_dict() == stored
    assert score.metrics()["cacc/stage1/groups"] == 4.0
    table = score_table(score)
    assert table["groups"][0] == 4.0
    assert over_runs(pd.concat([table, table]), ["stage"])["groups_std"][0] == 0.0
    assert text_grid(table)[0][-1] == "Groups"
    assert [row[-1] for row in text_grid(table)[1]] == ["4.0", ""]
    assert markdown(text_grid(table)).splitlines()[0].endswith("| NMI | Groups |")
    assert printed(score).splitlines()[0].endswith("NMI  Groups")
    assert stage_table({"ours": [score]})["groups"][0] == 4.0


def test_native_predictions_have_no_figures_of_another_grouping() -> None:
    true = np.array([0, 0, 1, 1])
    score = ContinualScore("cacc", [StageScore.of(1, true, true, 1, native_ids=np.array([0, 1, 0, 1]))])
    table = stage_table({"ours": [score]}).set_index("variant")["nmi"]
    assert table["ours"] == pytest.approx(100.0)
    assert np.isnan(table.drop("ours").item())


def test_mutual_information_of_the_same_and_of_unrelated_groups() -> None:
    true = np.repeat([0, 1], 4)
    assert normalised_mutual_information(true, 1 - true) == pytest.approx(100.0)
    assert normalised_mutual_information(true, np.tile([0, 1], 4)) == pytest.approx(0.0)

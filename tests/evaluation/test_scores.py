"""What a score tells trackers and files, and what k-means is given to make one."""

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from promptccd.evaluation import (
    ContinualScore,
    StageScore,
    continual,
    continual_accuracy,
    discover_categories,
    score_part_routing,
)
from promptccd.evaluation.tables import score_table

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
    score = ContinualScore("cacc", ROWS[1:])
    written = score.to_dict()
    assert written == {
        "protocol": "cacc",
        "unit": "percent",
        "stages": [
            {
                "stage": 1, "all": 80.1234, "old": 90.0, "new": None, "num_categories": 8, "num_images": 20,
                "count_range": [7, 9], "native": [70.0, 60.0, 50.0],
            },
            {
                "stage": 2, "all": 60.0, "old": 70.0, "new": 50.0001, "num_categories": 9, "num_images": 30,
                "count_range": None, "native": [50.0, 40.0, 30.0],
            },
        ],
        "average": {"all": 70.0617, "old": 80.0, "new": 50.0001},
    }  # fmt: skip
    again = ContinualScore.from_dict(written)
    assert again.to_dict() == written
    assert again.stages[1] == replace(ROWS[2], new=50.0001)
    assert (again.stages[0].count_range, math.isnan(again.stages[0].new)) == ((7, 9), True)
    plain = ContinualScore("gcd", [replace(ROWS[2], native=None)]).to_dict()
    assert plain.keys() == {"protocol", "unit", "stages", "average"}
    assert "native" not in plain["stages"][0]
    assert ContinualScore.from_dict(plain).to_dict() == plain
    assert ContinualScore("cacc", []).to_dict()["stages"] == []
    assert math.isnan(
        ContinualScore.from_dict(ContinualScore("cacc", ROWS[:1]).to_dict()).stages[0].native[2]
    )


def test_the_paper_prints_sessions_by_separate_assignments_and_the_rest_as_it_is() -> None:
    assert ContinualScore("cacc", ROWS).as_published.stages is ROWS
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


def test_every_stage_and_seed_has_a_random_state_of_32_bits_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of these bits are used; the restarts are those that were asked for."""
    given: list[tuple[int, int]] = []

    class Watched(continual.AnchoredKMeans):  # type: ignore[misc, name-defined]
        def fit(self, *points: Any) -> Any:
            given.append((self.n_init, self.random_state))
            return super().fit(*points)

    monkeypatch.setattr(continual, "AnchoredKMeans", Watched)
    labels, features = [np.arange(4)] * 9, [torch.eye(4)] * 9
    for seed in (1, 2):
        continual_accuracy(lambda t: features[: t + 1], labels, [4] * 9, num_known=4, restarts=3, seed=seed)
    restarts, states = zip(*given, strict=True)
    assert set(restarts) == {3}
    assert len(set(states)) == 16
    assert 2**31 < max(states) < 2**32
    assert min(states) >= 0


def test_of_new_categories_of_one_size_the_first_seen_comes_first() -> None:
    looks = torch.eye(41)
    order = np.random.default_rng(0).permutation(40)
    found = discover_categories(looks[1 + order.repeat(2)], looks[:1], np.array([0]), 41, restarts=1, seed=0)
    assert found.category_ids.tolist() == (1 + np.arange(40).repeat(2)).tolist()

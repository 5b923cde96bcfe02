"""Counting under priors that labelled categories teach, held against settings that nobody tuned anything to."""

import pytest
import torch

from benchmarks.bench_count import Setting, count, simulated
from promptccd.clustering import (
    CountCalibration,
    CountEstimate,
    calibrate,
    estimate_categories,
)
from promptccd.clustering.counting import trials
from promptccd.errors import DataError
from tests.messages import TEXT

SETTINGS = [
    Setting(known=12, new=6, images=30, imbalance=3, seed=1, width=96, power=0.0, within=0.6),
    Setting(known=20, new=0, images=25, imbalance=1, seed=2, width=96, power=1.0, within=0.5),
    Setting(known=15, new=10, images=40, imbalance=10, seed=3, width=768, power=0.7, within=0.7),
]


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.width}-{setting.power}")
def test_the_calibrated_count_is_near_whatever_the_spectrum(setting: Setting) -> None:
    truth = setting.known + setting.new
    found = count("calibrated", simulated(setting), setting.known, seed=0)
    assert abs(found.count - truth) <= 0.05 * truth
    assert found.low <= truth <= found.high


@pytest.mark.slow
def test_the_prior_of_the_paper_counts_its_own_expectation() -> None:
    """What the calibrated one is for: the same features, a third too many of them."""
    setting = Setting(known=58, new=27, images=25, imbalance=1, seed=1, width=96, power=0.0, within=0.66)
    features = simulated(setting)
    paper, calibrated = (count(prior, features, 58, seed=1).count for prior in ("paper", "calibrated"))
    assert paper > 95
    assert abs(calibrated - 85) <= 4


def test_of_scales_that_find_all_again_the_nearest_to_one_is_taken() -> None:
    labels = torch.arange(6).repeat_interleave(8)
    asked = []

    def found(trial, scale: float) -> int:
        asked.append(scale)
        return trial.known + trial.held_out + (scale > 1.2) - (scale == 1)

    taught = calibrate(torch.randn(48, 4), labels, 0, found)
    assert (taught.scale, taught.error, set(taught.rates)) == (0.7, 0, {1.0})
    assert set(asked) == {1.0, 0.7}
    alike = calibrate(torch.randn(48, 4), labels, 0, lambda trial, scale: trial.known + trial.held_out + 1)
    assert (alike.scale, len(alike.rates)) == (1.0, 6)


def test_trials_hold_categories_out_and_use_every_feature_once() -> None:
    sizes = [4, 9, 60, 3, 12, 7, 30, 2, 1, 20]
    labels = torch.arange(10).repeat_interleave(torch.tensor(sizes)) * 3  # with gaps
    features = torch.arange(len(labels)).float()[:, None]
    of_row = dict(enumerate(labels.tolist()))
    made = [*trials(features, labels, seed=5)]
    assert [trial.held_out for trial in made] == [2, 4, 5] * 2  # a fifth, 35 % and a half
    held = set()
    for trial in made:
        known_rows = [int(row) for row in trial.labelled[:, 0]]
        free_rows = [int(row) for row in trial.unlabelled[:, 0]]
        assert len({*known_rows, *free_rows}) == len(known_rows) + len(free_rows)
        named = dict(zip([of_row[row] for row in known_rows], trial.labels.tolist(), strict=True))
        assert sorted(named.values()) == list(range(trial.known))
        assert trial.known + trial.held_out == 10
        hidden = {of_row[row] for row in free_rows} - set(named)
        assert len(hidden) == trial.held_out
        for category, size in zip(range(0, 30, 3), sizes, strict=True):
            free, kept = (sum(of_row[row] == category for row in rows) for rows in (free_rows, known_rows))
            used = min(size, 50)
            expected = (0, used) if category in hidden else (max(1, used - max(1, used // 4)), None)
            assert kept == expected[0]
            assert free == used - kept
        held.add(frozenset(hidden))
    assert len(held) > 1
    assert all(
        torch.equal(one.labelled, other.labelled)
        for one, other in zip(made, trials(features, labels, 5), strict=True)
    )
    assert not torch.equal(made[0].labelled, next(trials(features, labels, 6)).labelled)


@pytest.mark.parametrize(
    ("rates", "low", "high"),
    [
        ((1.0, 1.0), 20, 22),  # that of the estimate itself
        ((2.0, 1.0), 12, 22),  # twice as many were found as there were: 10 found are a fourth at least
        ((0.5, 1.0, 1.0, 1.0, 1.0), 20, 50),
        ((0.0, 1.0, 1.0, 1.0), 20, 50),  # none found once: no more than one in four is assumed missed
        ((3.0, 0.8), 11, 26),
    ],
)
def test_a_range_holds_what_held_out_categories_were_miscounted_by(
    rates: tuple[float, ...], low: int, high: int
) -> None:
    widened = CountCalibration(1, rates, 0.1).widened(CountEstimate(20, 20, 22, "m", "x"), 10)
    assert (widened.low, widened.count, widened.high, widened.method) == (low, 20, high, "m")
    assert f"{len(rates)} counts" in widened.margin
    assert "unreliable" not in widened.margin
    assert "unreliable" not in CountCalibration(1, rates, 0.2).widened(widened, 10).margin
    assert TEXT["30-in-the-mean-unreliable"] in CountCalibration(1, rates, 0.3).widened(widened, 10).margin


@pytest.mark.parametrize("prior", ["matched", "calibrated"])
@pytest.mark.parametrize("fixed", [[-1] * 6, [0, 1, 2, 3, 4, 5]])
def test_without_two_images_of_a_known_category_there_is_nothing_to_learn(
    prior: str, fixed: list[int]
) -> None:
    with pytest.raises(DataError, match="two different images"):
        estimate_categories(torch.randn(6, 4), 2, fixed=torch.tensor(fixed), seed=0, prior=prior)

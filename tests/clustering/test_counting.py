"""Counting, also under priors that labelled categories teach, against settings that nobody tuned anything to."""

import pytest
import torch

from benchmarks.bench_count import Setting, count, simulated
from promptccd.clustering import CountCalibration, CountEstimate, calibrate, counting, estimate_categories
from promptccd.clustering.counting import estimate_by_split_merge, trials
from promptccd.errors import DataError
from tests.clustering.test_split_merge import blobs
from tests.messages import TEXT


def test_an_estimate_reads_as_a_range_which_another_count_stretches_and_a_given_one_stays_given():
    counted = CountEstimate(84, 80, 88, "k-means", TEXT["1-point-of-labelled-accuracy"])
    assert str(counted) == TEXT["84-80-to-88-within-1"]
    estimate = CountEstimate(5, 4, 6, "split_merge", "x")
    for number, low, high in ((5, 4, 6), (2, 2, 6), (9, 4, 9)):
        assert estimate.including(number) == CountEstimate(number, low, high, "split_merge", "x")
    assert CountEstimate.known(5).including(3) == CountEstimate.known(3)
    assert str(CountEstimate.known(3)) == "3"
    assert CountEstimate(5, 5, 5, "split_merge", "x").range == (5, 6), "no estimate is certain"


@pytest.mark.parametrize(("low", "high"), [(85, 90), (80, 83), (0, 84)])
def test_the_range_holds_the_count(low, high):
    with pytest.raises(DataError, match=TEXT["1-low-count-high"]):
        CountEstimate(84 if low else 0, low, high, "k-means", "1 point")


def test_new_images_of_settled_categories_found_nothing_new(monkeypatch):
    points, groups = blobs([40] * 6, spread=1.0)
    fixed = groups.where(torch.arange(240) % 2 == 0, -1)
    estimate = estimate_by_split_merge(points, 6, fixed=fixed, seed=0)
    assert (estimate.count, estimate.low) == (6, 6)
    # Merges and splits that cost little.
    monkeypatch.setattr(counting, "_affordable_moves", lambda *given: (2, 3))
    wider = estimate_by_split_merge(points, 6, fixed=fixed, seed=0)
    assert (wider.count, wider.low, wider.high) == (6, 4, 9)


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
    none_left_out = calibrate(torch.randn(16, 4), torch.arange(2).repeat(8), 0, found)
    assert none_left_out.rates == ()


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
def test_a_range_holds_what_held_out_categories_were_miscounted_by(rates, low, high) -> None:
    widened = CountCalibration(1, rates, 0.1).widened(CountEstimate(20, 20, 22, "m", "x"), 10)
    assert (widened.low, widened.count, widened.high, widened.method) == (low, 20, high, "m")
    assert f"{len(rates)} counts" in widened.margin
    assert "unreliable" not in widened.margin
    assert "unreliable" not in CountCalibration(1, rates, 0.2).widened(widened, 10).margin
    assert TEXT["30-in-the-mean-unreliable"] in CountCalibration(1, rates, 0.3).widened(widened, 10).margin


@pytest.mark.parametrize("prior", ["matched", "calibrated"])
@pytest.mark.parametrize("fixed", [[-1] * 6, [0, 1, 2, 3, 4, 5]])
def test_without_two_images_of_a_known_category_there_is_nothing_to_learn(prior, fixed) -> None:
    with pytest.raises(DataError, match="two different images"):
        estimate_categories(torch.randn(6, 4), 2, fixed=torch.tensor(fixed), seed=0, prior=prior)


@pytest.mark.slow
@pytest.mark.parametrize("known", [6, 9, 10])
def test_settled_categories_stay_whole_and_apart(known):
    """Sizes at which the prior alone would split or merge: replay of a settled category is one category."""
    sizes = [90, 130, 100, 110, 95, 140, 40, 45, 50, 55]
    points, groups = blobs(sizes, spread=1.0)
    fixed = groups.where(groups < known, -1)
    estimate = estimate_by_split_merge(points, known, fixed=fixed, seed=0)
    assert known <= estimate.low <= estimate.count
    assert estimate.count == 10


@pytest.mark.slow
def test_the_prior_of_the_paper_counts_its_own_expectation() -> None:
    """What the calibrated one is for: the same features, a third too many of them."""
    setting = Setting(known=58, new=27, images=25, imbalance=1, seed=1, width=96, power=0.0, within=0.66)
    features = simulated(setting)
    paper, calibrated = (count(prior, features, 58, seed=1).count for prior in ("paper", "calibrated"))
    assert paper > 95
    assert abs(calibrated - 85) <= 4


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

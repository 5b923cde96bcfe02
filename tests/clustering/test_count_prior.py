"""Counting under priors that labelled categories teach, held against settings that nobody tuned anything to."""

import math

import numpy as np
import pytest
import torch

from benchmarks.bench_count import Features, Setting, count, simulated
from promptccd.clustering import (
    CountCalibration,
    CountEstimate,
    calibrate,
    estimate_as_taught,
    estimate_by_split_merge,
    estimate_categories,
)
from promptccd.clustering import counting as module
from promptccd.clustering.counting import MOST_DIRECTIONS, PRIORS, Prior, trials
from promptccd.clustering.split_merge import NormalInverseWishart
from promptccd.errors import DataError

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


def heavy_tailed(seed: int) -> Features:
    """Categories that spread three times as far in some images as in others, which no Gaussian does."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(18, 32, generator=generator)

    def draw(category: int, images: int) -> torch.Tensor:
        far = 0.35 * (1 + 2.0 * (torch.rand(images, 1, generator=generator) < 0.25))
        points = centres[category] + far * torch.randn(images, 32, generator=generator)
        return torch.nn.functional.normalize(points, dim=-1)

    known, new = [draw(category, 40) for category in range(12)], [draw(each, 40) for each in range(12, 18)]
    more = [draw(category, 10) for category in range(12)]
    return Features(torch.cat(known), torch.arange(12).repeat_interleave(40), torch.cat([*more, *new]))


@pytest.mark.slow
def test_the_scale_is_the_one_that_finds_held_out_categories_again() -> None:
    features = heavy_tailed(0)
    taught = calibrate(features.labelled, features.labels, seed=0)
    by_hand = {}
    for scale in (0.2, taught.scale, 2.5):
        found = [
            estimate_categories(
                torch.cat([trial.labelled, trial.unlabelled]),
                trial.known,
                fixed=torch.cat([trial.labels, torch.full((len(trial.unlabelled),), -1)]),
                seed=0,
                prior="calibrated",
                scale=scale,
            ).count
            for trial in trials(features.labelled, features.labels, 0)
        ]
        by_hand[scale] = sum(abs(math.log(each / 12)) for each in found) / len(found)
    assert taught.error == pytest.approx(by_hand[taught.scale])
    assert taught.error == min(by_hand.values())


def test_a_scale_to_choose_is_near_whatever_the_true_one_is() -> None:
    """About the labelled variance itself, from a sixth of it to three times as much; none is off by a third."""
    scales = PRIORS["calibrated"].scales
    assert 1.0 in scales
    for truth in np.geomspace(1 / 6, 3, 60):
        assert min(max(scale / truth, truth / scale) for scale in scales) < 4 / 3


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
    made = trials(features, labels, seed=5)
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
    assert not torch.equal(made[0].labelled, trials(features, labels, 6)[0].labelled)


@pytest.fixture
def two_scales(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
    """A prior ``two`` that joins all categories at scale 1 and not at 0.5, and what it was asked; one trial alone."""
    asked = []

    def expectation(features: torch.Tensor, settled: torch.Tensor, scale: float):
        asked.append((features, settled, scale))
        return features, NormalInverseWishart(psi=40 * (0.01 if scale == 0.5 else 25.0), nu=40)

    monkeypatch.setitem(PRIORS, "two", Prior(expectation, (0.5, 1.0)))
    monkeypatch.setattr(module, "NUM_TRIALS", 1)
    return asked


def corners(each: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Six categories that lie apart in the plane: ``(6 * each, 2)`` and the category of each."""
    around = torch.arange(6) * math.pi / 3
    labels = torch.arange(6).repeat_interleave(each)
    noise = 0.05 * torch.randn(6 * each, 2, generator=torch.Generator().manual_seed(0))
    return torch.stack([around.cos(), around.sin()], dim=1)[labels] + noise, labels


@pytest.mark.moderate
def test_an_estimate_has_the_scale_and_the_range_that_the_trials_teach(two_scales, monkeypatch) -> None:
    points, groups = corners(12)
    labelled, labels = points[groups < 4][::2], groups[groups < 4][::2]
    settled = groups.where((groups < 4) & (torch.arange(72) % 2 == 0), -1)
    lesson = CountCalibration(0.5, (1.0, 2.0, 0.5, 1.0, 1.0), 0.1)

    def calibrated(features, of, seed, *, prior) -> CountCalibration:
        assert (features is labelled, of is labels, seed, prior) == (True, True, 7, "two")
        return lesson

    monkeypatch.setattr(module, "calibrate", calibrated)
    told = estimate_as_taught(points, 4, fixed=settled, labelled=labelled, labels=labels, seed=7, prior="two")
    # Two found beside the four known: half of one at least is one too many, and four times as many eight.
    assert (told.low, told.count, told.high) == (4, 6, 12)
    assert "5 counts of held-out" in told.margin
    paper = estimate_as_taught(
        points, 4, fixed=settled, labelled=labelled, labels=labels, seed=7, prior="paper"
    )
    assert paper == estimate_by_split_merge(points, 4, fixed=settled, seed=7)
    estimate_categories(points, 4, fixed=settled, seed=7, prior="two")
    assert [scale for _, _, scale in two_scales] == [0.5, 1.0]
    assert (PRIORS["matched"].scales, PRIORS["paper"].scales) == ((1.0,), ())


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
    told = CountCalibration(1, rates, 0.1).widened(CountEstimate(20, 20, 22, "m", "x"), 10)
    assert (told.low, told.count, told.high, told.method) == (low, 20, high, "m")
    assert f"{len(rates)} counts" in told.margin
    assert "unreliable" not in told.margin
    assert "unreliable" not in CountCalibration(1, rates, 0.2).widened(told, 10).margin
    assert "30% in the mean: unreliable" in CountCalibration(1, rates, 0.3).widened(told, 10).margin


def test_the_matched_prior_expects_the_spread_of_settled_categories() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[5.0, 0, 0], [0, 5.0, 0], [0, 0, 5.0]])
    labels = torch.arange(3).repeat_interleave(50)
    spread = torch.tensor([0.1, 0.2, 0.4])
    points = centres[labels] + spread * torch.randn(150, 3, generator=generator)
    settled = torch.where(torch.arange(150) % 50 < 30, labels, -1)
    same, prior = PRIORS["matched"].expectation(points, settled, 9.0)
    assert same is points
    of_category = torch.stack(
        [
            points[(settled == each)].double().sub(points[settled == each].mean(0)).square().sum(0)
            for each in range(3)
        ]
    )
    variance = float((of_category.sum(0) / (90 - 3)).mean())
    assert prior == NormalInverseWishart(psi=prior.psi, nu=60)
    assert prior.psi == pytest.approx(60 * variance)
    direct = estimate_by_split_merge(points, 3, fixed=settled, seed=0, prior=prior)
    assert estimate_categories(points, 3, fixed=settled, seed=0, prior="matched") == direct


@pytest.mark.slow
def test_the_calibrated_space_makes_settled_categories_round() -> None:
    features = simulated(SETTINGS[2])
    together = torch.cat([features.labelled, features.unlabelled])
    settled = torch.cat([features.labels, torch.full((len(features.unlabelled),), -1)])
    points, prior = PRIORS["calibrated"].expectation(together, settled, 0.5)
    assert points.shape == (len(together), MOST_DIRECTIONS)
    members = points[: len(features.labels)].double()
    spread = torch.cat(
        [members[features.labels == each] - members[features.labels == each].mean(0) for each in range(15)]
    )
    covariance = spread.T @ spread / (len(spread) - 15)
    # By numpy: the 48 leading directions, then every variance within categories over itself shrunk by a tenth.
    every = together.double().numpy()
    leading = np.linalg.svd(every - every.mean(0))[2][:48]
    groups = [
        every[: len(features.labels)][features.labels.numpy() == each] @ leading.T for each in range(15)
    ]
    within = sum(np.cov(each.T) * (len(each) - 1) for each in groups) / (len(features.labels) - 15)
    variances = np.linalg.eigvalsh(within)
    expected = np.sort(variances / (0.9 * variances + 0.1 * variances.mean()))
    np.testing.assert_allclose(torch.linalg.eigvalsh(covariance), expected, rtol=1e-4)
    assert prior is not None
    assert prior.psi == pytest.approx(0.5 * prior.nu * float(covariance.diagonal().mean()))
    # Everything said of it holds wherever the features lie and however they are turned.
    turn = torch.linalg.qr(torch.randn(768, 768, generator=torch.Generator().manual_seed(1))).Q
    turned, _ = PRIORS["calibrated"].expectation(together @ turn + 3, settled, 0.5)
    apart, apart_turned = ((each[:50, None] - each[:50]).norm(dim=2) for each in (points, turned))
    torch.testing.assert_close(apart_turned, apart, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("prior", ["matched", "calibrated"])
@pytest.mark.parametrize("settled", [[-1] * 6, [0, 1, 2, 3, 4, 5]])
def test_without_two_images_of_a_known_category_there_is_nothing_to_learn(
    prior: str, settled: list[int]
) -> None:
    with pytest.raises(DataError, match="two different images"):
        estimate_categories(torch.randn(6, 4), 2, fixed=torch.tensor(settled), seed=0, prior=prior)

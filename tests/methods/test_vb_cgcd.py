"""VB-CGCD: numbers worked by hand, a written-out reference, and stages that end twice."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import multivariate_normal

from promptccd.clustering import AnchoredKMeans
from promptccd.data.randomness import seed_of
from promptccd.methods import vb_cgcd
from promptccd.methods.vb_cgcd import (
    VBCGCDModel,
    VBCGCDObjective,
    log_densities,
    mean_determinant,
    shrunk_estimate,
    stopping_rule,
    svi_estimate,
    svi_rate,
)
from tests.conftest import TINY_HEAD, fresh
from tests.methods.steps import objective_of, of


@pytest.mark.parametrize(
    ("weight", "diagonal"), [(0.0, [2 / 3, 2]), (0.5, [0.714286, 1.857143]), (2.0, [0.8, 1.6])]
)
def test_shrunk_covariances_by_hand(weight: float, diagonal: list[float]) -> None:
    points = of([1, 0], [3, 0], [2, 3], [9, 9])
    found = shrunk_estimate(points, torch.tensor([0, 0, 0, 1]), 3, torch.eye(2).double(), weight)
    np.testing.assert_allclose(found[0], [[2, diagonal[0], 0], [1, 0, diagonal[1]]], atol=1e-6)
    np.testing.assert_allclose(found[2, :, 1:], np.eye(2))  # a class without images
    unseen = of([50, -50], [0, 0])
    assert log_densities(unseen, found[[0, 2]]).argmax(1).tolist() == [0, 0]


def test_rates_of_the_released_code() -> None:
    for step, rate in {0: 4e-6, 50: 2.2e-5, 100: 4e-5, 600: 3.4e-5, 999: 2.986450e-5}.items():
        assert svi_rate(step) == pytest.approx(rate, abs=1e-11)
    assert sum(map(svi_rate, range(1000))) == pytest.approx(0.0333995, abs=1e-7)


def written_out(points: torch.Tensor, groups: torch.Tensor, steps: int, batch: int, seed: int) -> np.ndarray:
    """Adam from N(0, I) on gradients as they are on paper."""
    generator, size = torch.Generator().manual_seed(seed), points.shape[1]
    state = np.stack([np.concatenate([np.zeros((size, 1)), np.eye(size)], axis=1)] * int(groups.max() + 1))
    first, second = np.zeros_like(state), np.zeros_like(state)
    for step in range(steps):
        rows, slope = torch.randint(len(points), (batch,), generator=generator), np.zeros_like(state)
        for point, group in zip(points[rows].numpy(), groups[rows].tolist(), strict=True):
            inverse = np.linalg.inv(state[group, :, 1:])
            rest = inverse @ (point - state[group, :, 0])
            slope[group, :, 0] += rest
            slope[group, :, 1:] += (np.outer(rest, rest) - inverse) / 2
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        rate = 4e-6 + (4e-5 - 4e-6) * step / 100 if step < 100 else 4e-5 * 0.85 ** ((step - 100) / 500)
        move = first / (1 - 0.9 ** (step + 1)) / (np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8)
        state = state + rate * move
    return state


def test_svi_is_the_one_on_paper() -> None:
    pair, start = of([1, 2], [0, -1]), of([0, 1, 0], [0, 0, 1])[None].requires_grad_()
    log_densities(pair, start).sum().backward()
    np.testing.assert_allclose(start.grad, [[[1, -0.5, 1], [1, 1, 1.5]]])
    moved = svi_estimate(pair, torch.tensor([0, 0]), 1, 1, 64, torch.Generator().manual_seed(1))
    step = (moved - start.detach()) / svi_rate(0)
    np.testing.assert_allclose(step, [[[1, -1, 1], [1, 1, 1]]], atol=1e-4)
    points = torch.randn(60, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    groups = torch.arange(60) % 4
    found = svi_estimate(points, groups, 4, 120, 6, torch.Generator().manual_seed(1))
    np.testing.assert_allclose(found, written_out(points, groups, 120, 6, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("old", "mean", "borders", "above"),
    [
        ([-2.0, -1.0, -3.0], -1.691006, (-1.873328, -0.795127), False),
        ([1.0, 2.0, 0.0], 1.308994, (1.491315, 0.413114), True),
    ],
)
def test_the_stopping_rule_by_hand(old, mean, borders, above) -> None:
    def of_logs(logs: list[float]) -> torch.Tensor:
        return torch.tensor([[[0.0, math.exp(each)]] for each in logs], dtype=torch.float64)

    assert mean_determinant(of_logs(old)) == pytest.approx(mean, abs=1e-6)
    for border, ratio in zip(borders, (60 / 50, (10 / 60) ** 0.5), strict=True):
        stops = stopping_rule(of_logs(old), ratio)
        for side in (-1e-5, 1e-5):
            assert stops(of_logs([border + side])) == ((side > 0) == above)


def test_svi_keeps_the_last_state_that_is_positive_definite(monkeypatch: pytest.MonkeyPatch) -> None:
    """At ten thousand times the rates a covariance is lost within 1,000 steps."""
    points = 0.03 * torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    groups = torch.arange(40) % 2
    monkeypatch.setattr("promptccd.methods.vb_cgcd.svi_rate", lambda step: 0.01)
    found = svi_estimate(points, groups, 2, 1_000, 16, torch.Generator().manual_seed(1))
    assert bool(log_densities(points, found).isfinite().all())


def test_svi_takes_the_step_before_the_rule_holds() -> None:
    points = torch.randn(60, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    groups, seen = torch.arange(60) % 2, []

    def run(steps: int, stop: object = None) -> torch.Tensor:
        return svi_estimate(points, groups, 2, steps, 16, torch.Generator().manual_seed(1), stop)

    def stop(state: torch.Tensor) -> bool:
        seen.append(state)
        return len(seen) == 3

    assert torch.equal(run(30, stop), run(11))  # asked from step 10 on; at the third time 12 steps are done
    assert torch.equal(run(30, lambda state: False), run(30))


@pytest.fixture(autouse=True)
def six_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of features as narrow as these."""
    monkeypatch.setattr(vb_cgcd, "MOST_DIRECTIONS", vb_cgcd.MOST_DIRECTIONS // 64)


def ended_stages(backbone: Path, **options: Any) -> tuple[VBCGCDModel, list[torch.Tensor]]:
    """A model after a stage of three labelled classes and a stream with two new ones, and the features of both."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(5, 32, dtype=torch.float64, generator=generator)
    labels = torch.arange(60) % 3
    truth = torch.cat([torch.arange(20) % 3, 3 + torch.arange(40) % 2])
    sets = [
        F.normalize(centres[ids] + 0.5 * torch.randn(len(ids), 32, dtype=torch.float64, generator=generator))
        for ids in (labels, truth)
    ]
    model = fresh(VBCGCDModel, backbone, **TINY_HEAD, **options).double()
    objective_of(VBCGCDObjective, model, sets[0], labels, 3).end_stage()
    model.set_categories(torch.zeros(3, 32), [0, 1, 2], list("abc"))
    model.config.num_known = 3
    objective_of(VBCGCDObjective, model, sets[1], count=5).end_stage()
    return model, sets


def test_stages_are_those_on_paper(backbone_folder: Path) -> None:
    """In float64: directions, shrinkage, densities and relabelling, from the same clusters."""
    model, (first, second) = ended_stages(backbone_folder)
    labels, old, new = np.arange(60) % 3, first.numpy(), second.numpy()
    values, axes = np.linalg.eigh(np.cov(old.T, ddof=0))
    scale = 1 / np.sqrt(values[-6:].mean())
    x, y = ((each - old.mean(0)) @ axes[:, -6:] * scale for each in (old, new))
    assert x.var(0).mean() == pytest.approx(1)
    within = sum(np.cov(x[labels == each].T, ddof=0) for each in range(3)) / 3
    shared = 0.9 * within + 0.1 * np.trace(within) / 6 * np.eye(6)
    nu = 16 * 6

    def fitted(points: np.ndarray) -> Any:
        covariance = (len(points) * np.cov(points.T, ddof=0) + nu * shared) / (len(points) + nu)
        return multivariate_normal(points.mean(0), covariance)

    known = [fitted(x[labels == each]) for each in range(3)]
    kmeans = AnchoredKMeans(2, 100, random_state=seed_of("vb-cgcd", 1, 1) % 2**32)
    clusters = np.asarray(kmeans.fit_predict(model.project(second)))
    found = [fitted(y[clusters == each]) for each in (0, 1)]
    best = np.stack([each.logpdf(y) for each in known + found]).argmax(0)
    assert 0 < np.mean(best < 3) < 0.5
    found = [fitted(y[(clusters == each) & (best >= 3)]) for each in (0, 1)]
    expected = np.stack([each.logpdf(y) for each in known + found], axis=1)
    densities = log_densities(model.project(second), model.class_gaussians)
    np.testing.assert_allclose(densities, expected, rtol=1e-9)
    assert model.assign_natively(second).tolist() == expected.argmax(1).tolist()


def test_earlier_gaussians_keep_every_bit_and_are_loaded_as_saved(backbone_folder, tmp_path) -> None:
    model, (_, second) = ended_stages(backbone_folder)
    before = model.class_gaussians.clone()
    for count in (5, 7):
        objective_of(VBCGCDObjective, model, second, count=count, index=2).end_stage()
        assert torch.equal(model.class_gaussians[:5], before) and len(model.class_gaussians) == count
    model.float().save_pretrained(tmp_path)
    again = VBCGCDModel.from_pretrained(tmp_path)
    assert torch.equal(again.class_gaussians, model.class_gaussians)
    assert again.assign_natively(second.float()).tolist() == model.assign_natively(second.float()).tolist()


@pytest.mark.parametrize("early_stop", [True, False])
def test_the_estimate_of_the_paper_ends_a_stage(backbone_folder, early_stop: bool, monkeypatch) -> None:
    """Its first fit is measured against labelled classes, the second against all earlier ones."""
    rules, rule, svi, sizes = [], vb_cgcd.stopping_rule, svi_estimate, set()
    monkeypatch.setattr(
        vb_cgcd, "svi_estimate", lambda *own: [sizes.add(own[3:5]), svi(*own[:3], 20, *own[4:])][1]
    )
    monkeypatch.setattr(
        vb_cgcd, "stopping_rule", lambda old, ratio: [rules.append((len(old), ratio)), rule(old, ratio)][1]
    )
    model, (first, second) = ended_stages(backbone_folder, estimate="svi", early_stop=early_stop)
    assert float((model.class_gaussians - torch.eye(7)[1:]).abs().max()) < 0.01
    assert np.mean(model.assign_natively(first).numpy() == np.arange(60) % 3) > 0.9
    objective_of(VBCGCDObjective, model, second, count=6, index=2).end_stage()
    expected = [(3, 5 / 3), (3, (2 / 5) ** 0.5), (3, 6 / 3), (5, (1 / 6) ** 0.5)]
    np.testing.assert_allclose(rules, expected if early_stop else [])
    assert sizes == {(1_000, 128)}  # steps and images of each, as in the released code


@pytest.mark.parametrize("images", [1, 4])
def test_equal_features_have_a_gaussian_too(backbone_folder, images: int) -> None:
    model, features = fresh(VBCGCDModel, backbone_folder, **TINY_HEAD).double(), of([32**-0.5] * 32)
    every, labels = features.repeat(images, 1), torch.zeros(images).long()
    objective_of(VBCGCDObjective, model, every, labels, 1).end_stage()
    assert model.config.num_directions == max(1, images - 1)
    assert log_densities(model.project(features), model.class_gaussians).isfinite().all()


def test_more_new_classes_than_images_and_images_that_all_leave(backbone_folder, monkeypatch) -> None:
    monkeypatch.setattr(vb_cgcd, "SVI_STEPS", 3)
    for options in ({}, {"estimate": "svi"}):
        model, (first, second) = ended_stages(backbone_folder, **options)
        objective_of(VBCGCDObjective, model, second[:2], count=9, index=2).end_stage()
        objective_of(VBCGCDObjective, model, first[:4], count=10, index=3).end_stage()
        assert bool(model.class_gaussians.isfinite().all())
        assert int(model.assign_natively(second).max()) < 9

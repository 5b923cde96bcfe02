"""The losses against the obvious loops, and against values worked out by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from promptccd.methods.contrastive import info_nce_loss, supervised_contrastive_loss


def similarities(rows: int) -> torch.Tensor:
    unit = F.normalize(torch.randn(rows, 7, generator=torch.Generator().manual_seed(0)), dim=1)
    return unit @ unit.T


def test_info_nce_equals_the_loop() -> None:
    s, tau, rows = similarities(10), 0.5, 10
    expected = 0.0
    for i in range(rows):
        partner = (i + 5) % 10
        logits = [s[i, partner]] + [s[i, n] for n in range(rows) if n not in (i, partner)]
        expected += float(-torch.log_softmax(torch.stack(logits) / tau, 0)[0]) / rows
    assert math.isclose(float(info_nce_loss(s, tau)), expected, rel_tol=1e-5)


def test_info_nce_of_two_identical_images() -> None:
    assert math.isclose(float(info_nce_loss(torch.ones(4, 4))), math.log(3), rel_tol=1e-6)


def test_supervised_contrastive_equals_the_loop() -> None:
    s, tau = similarities(10), 0.07
    labels = torch.tensor([0, 1, 0, 2, 1])
    both = labels.repeat(2)
    expected = 0.0
    for i in range(10):
        others = [n for n in range(10) if n != i]
        log_z = torch.logsumexp(s[i, others] / tau, 0)
        positives = [n for n in others if both[n] == both[i]]
        expected += float(-sum(s[i, p] / tau - log_z for p in positives) / len(positives)) / 10
    assert math.isclose(
        float(supervised_contrastive_loss(s, labels)), expected, rel_tol=1e-5
    )  # tau by default


def test_gradients_are_finite_and_pull_views_together() -> None:
    raw = torch.randn(8, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    unit = F.normalize(raw, dim=1)
    loss = info_nce_loss(unit @ unit.T) + supervised_contrastive_loss(unit @ unit.T, torch.arange(4))
    (gradient,) = torch.autograd.grad(loss, raw)
    assert torch.isfinite(gradient).all()
    with torch.no_grad():
        moved = F.normalize(raw - 0.1 * gradient, dim=1)
    assert float(info_nce_loss(moved @ moved.T)) < float(info_nce_loss((unit @ unit.T).detach()))


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_loss_of_embeddings_that_are_all_alike(temperature: float) -> None:
    similarities = torch.full((14, 14), 0.3)
    assert math.isclose(float(info_nce_loss(similarities, temperature)), math.log(13), rel_tol=1e-6)

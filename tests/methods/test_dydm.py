"""DYDM: numbers worked by hand, exact updates, and its discovery against Happy's."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from promptccd.methods import dydm
from promptccd.methods.dydm import DYDMModel, DYDMObjective, divergence
from tests.conftest import TINY_HEAD, fresh
from tests.messages import TEXT
from tests.methods.steps import begun, of


@pytest.fixture
def model(backbone_folder: Path) -> DYDMModel:
    """In float64, with two axes of a feature as they are: features with these values pass the expansion unchanged."""
    made = fresh(DYDMModel, backbone_folder, **TINY_HEAD, expansion_size=2).double()
    made.begin_memory(torch.eye(32, 2, dtype=torch.float64))
    return made


def test_rehearsal_by_hand() -> None:
    memory, discovery = of([1, 0.2]), of([0.5, 0.5])
    for tau, value in {1: 0.074026, 2: 0.078428}.items():
        assert tau**2 * float(divergence(memory / tau, discovery / tau)) == pytest.approx(value, abs=1e-6)


def test_updates_are_those_of_all_images_at_once_in_any_order(model, monkeypatch) -> None:
    """Also against the recursive update of the inverse, which the paper writes."""
    monkeypatch.setattr(dydm, "ROWS_AT_ONCE", 100)
    generator = torch.Generator().manual_seed(0)
    expansion = torch.randn(32, 50, dtype=torch.float64, generator=generator) / 6
    points = F.normalize(torch.randn(230, 32, dtype=torch.float64, generator=generator))
    classes = torch.randint(4, (230,), generator=generator)
    found = []
    for parts in ([slice(0, None)], [slice(150, None), slice(0, 150)], [classes < 2, classes >= 2]):
        model.begin_memory(expansion)
        for part in parts:
            model.remember(points[part], classes[part], int(classes[part].max()) + 1)
        found.append(model.readout)
    for each in found[1:]:
        np.testing.assert_allclose(found[0], each, atol=1e-9)
    old, new = (torch.relu(points[part] @ expansion) for part in (slice(150, None), slice(0, 150)))
    inverse = torch.linalg.inv(old.T @ old + 0.1 * torch.eye(50))
    weights = inverse @ old.T @ F.one_hot(classes[150:], 4).double()
    middle = torch.linalg.inv(torch.eye(150) + new @ inverse @ new.T)
    inverse = inverse - inverse @ new.T @ middle @ new @ inverse
    weights = weights + inverse @ new.T @ (F.one_hot(classes[:150], 4).double() - new @ weights)
    np.testing.assert_allclose(found[0], weights, atol=1e-8)
    scores = torch.relu(points @ expansion) @ weights
    np.testing.assert_allclose(model.memory_scores(points), scores, atol=1e-8)
    assert torch.equal(model.assign_natively(points), scores.argmax(1))


def test_a_stage_adds_the_images_that_the_discovery_classifier_calls_new(model, caplog) -> None:
    points = F.normalize(torch.rand(6, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    model.config.expansion_size = 7
    begun(DYDMObjective, model, points, torch.tensor([0, 1, 0, 1, 0, 1]), 2).end_stage()
    expanded, before = torch.relu(points @ model.expansion), model.squares
    made = begun(DYDMObjective, model, points, count=4)
    # All but image 0 are of an old class.
    rows = torch.stack([-points.mean(0), points[1], points[0], -points.mean(0)])
    model.classifier.weight = torch.nn.Parameter(rows)
    own = model.classifier(points).argmax(1)
    assert own.tolist() == [2, *own[1:].tolist()]
    with caplog.at_level(logging.WARNING, "promptccd"):
        made.end_stage()
    new = own >= 2
    np.testing.assert_allclose(model.squares - before, expanded[new].T @ expanded[new], atol=1e-12)
    assert TEXT["1-new-classes-got-no-image"] in caplog.text
    assert bool((model.readout[:, 3] == 0).all())

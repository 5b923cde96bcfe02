"""ORCA: its terms against written-out loops, its margin and its growth."""

from pathlib import Path

import pytest
import torch

from promptccd.data.randomness import torch_generator
from promptccd.methods.orca import ORCAModel, same_category
from promptccd.training.stage_trainer import restore_snapshot, snapshot
from tests.conftest import fresh
from tests.order_one import fill

LABELS = torch.tensor([2, 0, 2, 1, 0, 2])


@pytest.fixture
def trained(backbone_folder: Path) -> ORCAModel:
    """A model with a classifier of three classes."""
    model = fresh(ORCAModel, backbone_folder)
    model.grow(torch.randn(3, 32, generator=torch_generator("rows")))
    fill(model, only_learning=True)
    return model.train()


def test_a_partner_is_another_image_of_the_category_or_the_image_itself() -> None:
    seen = [set() for _ in LABELS]
    for step in range(60):
        chosen = same_category(LABELS, torch_generator("partners", step))
        assert torch.equal(chosen, same_category(LABELS, torch_generator("partners", step)))
        for image, partner in enumerate(chosen.tolist()):
            seen[image].add(partner)
    assert seen == [{2, 5}, {4}, {0, 5}, {3}, {1}, {0, 2}]


def test_a_stage_that_goes_on_inside_an_epoch_has_its_margin(trained: ORCAModel) -> None:
    learning = [each for each in trained.parameters() if each.requires_grad]
    trained.margin.fill_(0.25)
    saved = snapshot(trained, torch.optim.SGD(learning, lr=0.1))
    trained.margin.fill_(0.4)
    restore_snapshot(trained, torch.optim.SGD(learning, lr=0.1), saved)
    assert float(trained.margin) == 0.25

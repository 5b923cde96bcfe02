"""ORCA: its terms against written-out loops, its margin and its growth."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor

from promptccd.data.randomness import torch_generator
from promptccd.methods import LOSSES, StageContext
from promptccd.methods.orca import (
    METHOD,
    ORCAModel,
    ORCAObjective,
    agreement_loss,
    margin_loss,
    nearest_others,
    same_category,
)
from promptccd.models.backbone import blocks_of
from promptccd.training.batches import Batch, training_loss
from promptccd.training.options import TrainingArguments
from promptccd.training.stage_trainer import restore_snapshot, snapshot
from tests.conftest import fresh
from tests.order_one import fill
from tests.training.test_distributed import on_two_processes

LABELS = torch.tensor([2, 0, 2, 1, 0, 2])


@pytest.fixture
def trained(backbone_folder: Path) -> ORCAModel:
    """A model with a classifier of three classes."""
    model = fresh(ORCAModel, backbone_folder)
    model.grow(torch.randn(3, 32, generator=torch_generator("rows")))
    fill(model, only_learning=True)
    return model.train()


def objective_for(
    model: ORCAModel, labels: Tensor | None, features: Tensor | None = None, count: int = 3
) -> ORCAObjective:
    images: Any = SimpleNamespace(stage=SimpleNamespace(index=0 if labels is not None else 1))
    stage = StageContext(images, labels, num_categories=count)
    return ORCAObjective(model, stage, TrainingArguments(), Accelerator(cpu=True), lambda what: features)


def test_pairs_that_agree_cost_nothing_and_those_that_know_nothing_log_k() -> None:
    sure = F.one_hot(torch.tensor([0, 4, 2]), 5).float()
    assert float(agreement_loss(sure, sure)) == 0
    assert float(agreement_loss(torch.full((3, 5), 0.2), torch.full((3, 5), 0.2))) == pytest.approx(
        math.log(5)
    )
    assert float(agreement_loss(sure, sure.roll(1, 0))) == pytest.approx(-math.log(1e-7), rel=1e-5)


def test_a_margin_is_added_to_the_true_class() -> None:
    cosines = 2 * torch.rand(6, 3, generator=torch_generator("cosines")) - 1
    expected = 0.0
    for row, label in zip(cosines.tolist(), LABELS.tolist(), strict=True):
        logits = [10 * (cosine + 0.3 * (place == label)) for place, cosine in enumerate(row)]
        expected += (math.log(sum(map(math.exp, logits))) - logits[label]) / 6
    assert float(margin_loss(cosines, LABELS, 10, torch.tensor(0.3))) == pytest.approx(expected, rel=1e-5)


def test_a_partner_is_another_image_of_the_category_or_the_image_itself() -> None:
    seen = [set() for _ in LABELS]
    for step in range(60):
        chosen = same_category(LABELS, torch_generator("partners", step))
        assert torch.equal(chosen, same_category(LABELS, torch_generator("partners", step)))
        for image, partner in enumerate(chosen.tolist()):
            seen[image].add(partner)
    assert seen == [{2, 5}, {4}, {0, 5}, {3}, {1}, {0, 2}]


def test_the_nearest_other() -> None:
    features = torch.randn(8, 4, generator=torch_generator("features"))
    for image, nearest in enumerate(nearest_others(features).tolist()):
        cosines = {
            other: float(F.cosine_similarity(features[image], features[other], dim=0))
            for other in range(8)
            if other != image
        }
        assert nearest == max(cosines, key=cosines.__getitem__)


@pytest.mark.parametrize("labelled", [True, False])
def test_a_step(trained: ORCAModel, labelled: bool) -> None:
    objective = objective_for(trained, LABELS if labelled else None)
    objective.begin_stage()
    trained.margin.fill_(0.2)
    views = torch.randn(6, 2, 3, 16, 16, generator=torch_generator("views"))
    batch = Batch(views, LABELS if labelled else None, torch.arange(6))
    found = training_loss(trained, objective, batch, epoch=3, step=2)

    rows = F.normalize(trained.classifier.weight.detach(), dim=-1)
    first, second = (
        F.normalize(trained(views[:, view]).features.detach(), dim=-1) @ rows.T for view in (0, 1)
    )
    p, other = (10 * first).softmax(1), (10 * second).softmax(1)
    if labelled:
        partners = same_category(LABELS, torch_generator("objective", objective.arguments.seed, 0, 3, 2))
    else:
        partners = nearest_others(trained(views[:, 0]).features)
    pairs = -sum(float((p[i] @ other[j]).log()) for i, j in enumerate(partners.tolist())) / 6
    mean = p.mean(0)
    entropy = -float((mean * mean.log()).sum())
    values = {name: float(value.detach()) for name, value in found.items()}
    assert values["pairs"] == pytest.approx(pairs, rel=1e-4)
    assert values["entropy"] == pytest.approx(math.log(3) - entropy, rel=1e-4, abs=1e-6)
    expected = pairs + math.log(3) - entropy
    assert ("classification" in found) == labelled
    if labelled:
        raised = 10 * (first + 0.2 * F.one_hot(LABELS, 3))
        expected += float(F.cross_entropy(raised, LABELS))
    assert values["loss"] == pytest.approx(expected, rel=1e-4)
    assert found.keys() <= {**LOSSES, **METHOD.losses}.keys()  # titles of their curves
    found["loss"].backward()
    assert trained.classifier.weight.grad.isfinite().all() and trained.classifier.weight.grad.any()


@pytest.mark.parametrize("labelled", [True, False])
def test_two_processes_have_the_loss_and_the_gradient_of_one(
    trained: ORCAModel, labelled: bool, tmp_path: Path
) -> None:
    views = torch.randn(6, 2, 3, 16, 16, generator=torch_generator("views"))
    labels = LABELS if labelled else None

    def step(share: slice) -> tuple[float, list]:
        found = training_loss(
            trained, objective_for(trained, labels), Batch(views[share], labels, torch.arange(6)), 0
        )
        weight = blocks_of(trained.backbone)[-1].mlp.fc1.weight
        return float(found["loss"].detach()), torch.autograd.grad(found["loss"], weight)[0].tolist()

    loss, gradient = step(slice(None))
    both = on_two_processes(lambda rank: step((slice(0, 3), slice(3, 6))[rank]), tmp_path)
    assert [each[0] for each in both] == pytest.approx([loss, loss], rel=1e-5)
    mean = (torch.tensor(both[0][1]) + torch.tensor(both[1][1])) / 2  # as DistributedDataParallel takes it
    torch.testing.assert_close(mean, torch.tensor(gradient), rtol=1e-3, atol=1e-6)


def test_the_margin_is_the_mean_uncertainty_up_to_a_half(trained: ORCAModel) -> None:
    rows = F.normalize(trained.classifier.weight.detach(), dim=-1)
    near = F.normalize(rows[[0, 1, 2, 0]] + 0.02, dim=-1)
    objective_for(trained, LABELS, near).begin_epoch(4)
    chances = (10 * near @ rows.T).softmax(1).amax(1)
    assert float(trained.margin) == pytest.approx(1 - float(chances.mean()), rel=1e-4)
    assert 0 < float(trained.margin) < 0.5
    nowhere = torch.linalg.qr(torch.cat([rows, torch.eye(32)[:1]]).T)[0].T[3:]  # at right angles to all rows
    objective_for(trained, LABELS, nowhere).begin_epoch(5)
    assert float(trained.margin) == 0.5
    trained.margin.fill_(0.25)
    objective_for(trained, None, nowhere).begin_epoch(0)
    assert float(trained.margin) == 0.25, "without labels nobody needs it"


def test_a_stage_that_goes_on_inside_an_epoch_has_its_margin(trained: ORCAModel) -> None:
    learning = [each for each in trained.parameters() if each.requires_grad]
    trained.margin.fill_(0.25)
    saved = snapshot(trained, torch.optim.SGD(learning, lr=0.1))
    trained.margin.fill_(0.4)
    restore_snapshot(trained, torch.optim.SGD(learning, lr=0.1), saved)
    assert float(trained.margin) == 0.25


def test_new_rows_have_length_one_and_old_ones_every_bit(trained: ORCAModel, tmp_path: Path) -> None:
    before = trained.classifier.weight.detach().clone()
    objective_for(trained, None, count=5).begin_stage()
    assert torch.equal(trained.classifier.weight[:3], before)
    torch.testing.assert_close(trained.classifier.weight[3:].detach().norm(dim=1), torch.ones(2))
    trained.save_pretrained(tmp_path)
    assert torch.equal(ORCAModel.from_pretrained(tmp_path).classifier.weight, trained.classifier.weight)

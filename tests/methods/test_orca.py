"""ORCA: its terms against written-out loops, its partners and its margin."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from promptccd.data.randomness import torch_generator
from promptccd.methods.orca import LOGIT_SCALE, ORCAModel, ORCAObjective, same_category
from promptccd.training.stage_trainer import restore_snapshot, snapshot
from tests.conftest import fresh
from tests.methods.steps import objective_of
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


@pytest.mark.parametrize("labels", [LABELS, None], ids=["labelled", "unlabelled"])
def test_losses_are_the_formulas(trained: ORCAModel, labels: torch.Tensor | None) -> None:
    features = 0.3 * torch.randn(2, 6, 32, generator=torch_generator("features"))
    features += torch.randn(32, generator=torch_generator("mean"))
    labelled = None if labels is None else (features, labels)
    rows = SimpleNamespace(
        features=features, bottleneck=features, labels=labels, labelled=labelled, epoch=1, step=2
    )
    trained.margin.fill_(0.3)
    objective = objective_of(ORCAObjective, trained, labels=labels, count=3)
    with torch.no_grad():
        found, cosines = objective.losses(rows), trained.classifier(features)
    answers, chosen = (LOGIT_SCALE * cosines).softmax(-1), objective.partners(rows).tolist()
    if labels is None:
        near = [
            [float(F.cosine_similarity(one, other, dim=0)) for other in features[0]] for one in features[0]
        ]
        others = [[other for other in range(6) if other != image] for image in range(6)]
        assert chosen == [max(others[image], key=near[image].__getitem__) for image in range(6)]
    pairs = [-float((answers[0, image] @ answers[1, other]).log()) for image, other in enumerate(chosen)]
    assert float(found["pairs"]) == pytest.approx(sum(pairs) / 6, rel=1e-5)
    assert ("classification" in found) == (labels is not None)
    if labels is not None:
        raised = cosines[0].clone()
        raised[range(6), labels] += 0.3
        expected = -(LOGIT_SCALE * raised).log_softmax(1)[range(6), labels].mean()
        assert float(found["classification"]) == pytest.approx(float(expected), rel=1e-5)
    parts = sum(float(value) for name, value in found.items() if name != "loss")
    assert float(found["loss"]) == pytest.approx(parts, rel=1e-5)

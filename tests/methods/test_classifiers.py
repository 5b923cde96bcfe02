"""A classifier that grows: figures of SimGCD and Happy on paper, ORCA and FRoST against written-out loops."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from promptccd.data.randomness import torch_generator
from promptccd.methods import LOSSES, Rows
from promptccd.methods.classifier import (
    STUDENT_TEMPERATURE,
    LinearClassifier,
    SelfDistillationObjective,
    ramp,
    sampled_rows,
    share_of_pairs,
)
from promptccd.methods.frost import FrostModel, FrostObjective
from promptccd.methods.happy import METHOD, HappyModel, HappyObjective
from promptccd.methods.orca import LOGIT_SCALE, ORCAModel, ORCAObjective, same_category
from promptccd.models.backbone import blocks_of
from tests.conftest import TINY_HEAD, fresh
from tests.methods.steps import begun, drawn, objective_of
from tests.models.finished import fill


def happy_objective(
    backbone: Path, features: torch.Tensor, labels: torch.Tensor | None = None, count: int = 5, **options: Any
) -> HappyObjective:
    """The objective of a stage, labelled or the one after three classes, whose images have these features."""
    model = fresh(HappyModel, backbone, **TINY_HEAD, **options)
    if labels is None:
        model.grow(torch.randn(3, 32, generator=torch_generator("rows")))
        model.remember(F.normalize(model.classifier.weight.detach(), dim=-1))
        model.config.class_radius = 0.1
    return objective_of(HappyObjective, model.train(), features, labels, count)


def happy_step(backbone: Path, count: int = 5, **options: Any) -> tuple[HappyObjective, dict[str, float]]:
    """The objective after it grew from three classes to so many, and the losses of a step."""
    features = torch.randn(30, 32, generator=torch_generator("features"))
    objective = happy_objective(backbone, features, count=count, **options)
    model = objective.model
    objective.begin_stage()
    views = torch.randn(6, 2, 3, 16, 16, generator=torch_generator("views"))
    with torch.no_grad():
        before = F.normalize(model(views.flatten(0, 1)).features, dim=-1)
        blocks_of(model.backbone)[-1].mlp.fc2.bias += torch.randn(32, generator=torch_generator("moved"))
        squared = (F.normalize(model(views.flatten(0, 1)).features, dim=-1) - before).square().sum(1)
    rows = Rows.of(model, views, None, torch.arange(6), prompted=True, epoch=2, step=1)
    found = objective.losses(rows)
    drift = model.config.drift_weight * float(squared.mean())
    assert float(found["drift"].detach()) == pytest.approx(drift, rel=1e-4)
    return objective, {name: float(value.detach()) for name, value in found.items()}


def test_new_classes_of_happy_that_no_image_has_any_share_of_cost_what_they_can_at_most(
    backbone_folder: Path,
) -> None:
    """All answers are one old class: log 2 between old and new, log 3 within old ones, log 2 within new ones."""
    objective = happy_objective(backbone_folder, torch.eye(32))
    objective.begin_stage()
    logits = torch.tensor([100.0, -100, -100, -100, -100]).repeat(2, 4, 1).requires_grad_()
    entropy = objective.evenness_terms(logits)["entropy"] / objective.model.config.discovery_entropy_weight
    assert float(entropy.detach()) == pytest.approx(2 * math.log(2) + math.log(3), rel=1e-5)
    (gradient,) = torch.autograd.grad(entropy, logits)
    assert gradient.isfinite().all()
    objective.num_old = 2
    shares = torch.tensor([0.4, 0.3, 0.1, 0.2]).log() * STUDENT_TEMPERATURE
    terms = objective.evenness_terms(shares.repeat(2, 4, 1))
    assert float(terms["entropy"]) == pytest.approx(0.082283 + 0.010239 + 0.056633, abs=2e-6)


def around(directions: torch.Tensor, each: int) -> torch.Tensor:
    """So many unit rows next to every direction, those of one after those of the other."""
    noise = 0.05 * torch.randn(len(directions) * each, 32, generator=torch_generator("noise"))
    return F.normalize(F.normalize(directions, dim=-1).repeat_interleave(each, 0) + noise, dim=-1)


def test_new_classes_of_happy_start_where_images_lie_far_from_all_old_ones(backbone_folder: Path) -> None:
    """However long old rows are; as long as drawn rows in mean. With fewer images than classes the rest is drawn."""
    old = torch.tensor([[0.01], [1.0], [100.0]]) * torch.randn(3, 32, generator=torch_generator("rows"))
    new = torch.randn(2, 32, generator=torch_generator("new"))
    objective = happy_objective(backbone_folder, around(torch.cat([old, new]), 8))
    with torch.no_grad():
        objective.model.classifier.weight.copy_(old)
    objective.begin_stage()
    rows = objective.model.classifier.weight.detach()
    assert torch.equal(rows[:3], old)
    cosines = F.normalize(rows[3:], dim=-1) @ F.normalize(new, dim=-1).T
    assert sorted(cosines.argmax(1).tolist()) == [0, 1]
    assert float(cosines.amax(1).min()) > 0.99
    drawn = sampled_rows(2, 32, objective.generator())
    torch.testing.assert_close(rows[3:].norm(dim=1), drawn.norm(dim=1).mean().expand(2))

    lonely = happy_objective(backbone_folder, around(new[:1], 1))
    lonely.begin_stage()
    first, second = lonely.model.classifier.weight[3:].detach()
    assert float(F.cosine_similarity(first, around(new[:1], 1)[0], dim=0)) > 0.999
    assert torch.equal(second, drawn[1])


@pytest.mark.parametrize(("epoch", "expected"), [(0, 0.07), (10, 0.07 - 0.3 / 29), (29, 0.04), (200, 0.04)])
def test_teaching_predictions_get_sharper_for_thirty_epochs(epoch: int, expected: float) -> None:
    temperature = SelfDistillationObjective.teacher_temperature
    assert temperature(SimpleNamespace(), epoch) == pytest.approx(expected)
    assert ramp(epoch, 20) == pytest.approx(math.exp(-5 * (1 - min(epoch, 20) / 20) ** 2))


def test_each_part_of_happy_can_be_left_out(backbone_folder: Path) -> None:
    """The rows of its ablation: a part that is left out costs nothing, and the others what they cost before."""
    whole, every = happy_step(backbone_folder)
    assert every.keys() <= {**LOSSES, **METHOD.losses}.keys()  # titles of their curves
    drawn = sampled_rows(2, 32, whole.generator())
    assert not torch.equal(whole.model.classifier.weight[3:], drawn)
    for option, name in {
        "discovery_entropy_weight": "entropy",
        "replay_weight": "replay",
        "drift_weight": "drift",
    }.items():
        _, left = happy_step(backbone_folder, **{option: 0.0})
        assert left[name] == 0
        assert every[name] > 0
        _, twice = happy_step(backbone_folder, **{option: 2.0})
        assert twice[name] == pytest.approx(2 * every[name])
        others = every.keys() - {name, "loss"}
        assert {key: left[key] for key in others} == {key: every[key] for key in others}
        assert left["loss"] == pytest.approx(every["loss"] - every[name], rel=1e-5)
    plain, _ = happy_step(backbone_folder, clustered_rows=False)
    assert torch.equal(plain.model.classifier.weight[3:], drawn)


LABELS = torch.tensor([2, 0, 2, 1, 0, 2])


def test_a_partner_is_another_image_of_the_category_or_the_image_itself() -> None:
    seen = [set() for _ in LABELS]
    for step in range(60):
        chosen = same_category(LABELS, torch_generator("partners", step))
        assert torch.equal(chosen, same_category(LABELS, torch_generator("partners", step)))
        for image, partner in enumerate(chosen.tolist()):
            seen[image].add(partner)
    assert seen == [{2, 5}, {4}, {0, 5}, {3}, {1}, {0, 2}]


@pytest.mark.parametrize("labels", [LABELS, None], ids=["labelled", "unlabelled"])
def test_losses_are_the_formulas(backbone_folder: Path, labels: torch.Tensor | None) -> None:
    trained = fresh(ORCAModel, backbone_folder)
    trained.grow(torch.randn(3, 32, generator=torch_generator("rows")))
    fill(trained, only_learning=True)
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


@pytest.mark.parametrize("size", [1, 2, 41])
def test_the_share_of_positive_pairs_leaves_out_images_with_themselves(size: int) -> None:
    positive = torch.eye(size)
    if size > 1:
        positive[0, 1] = positive[1, 0] = 1
    assert float(share_of_pairs(positive)) == pytest.approx(2 / (size * (size - 1)) if size > 1 else 0)


def test_a_linear_head_grows_below_and_reads_directions_alone() -> None:
    head = LinearClassifier(0, 6)
    first, more = drawn(3, 6), drawn(2, 6)
    head.grow(first)
    assert head.bias.tolist() == [0, 0, 0]
    with torch.no_grad():
        head.bias.copy_(torch.tensor([0.5, -2.0, 1.0]))
    assert all(each.requires_grad for each in head.parameters())
    head.requires_grad_(False).grow(more)
    assert not any(each.requires_grad for each in head.parameters()), "it learns if it did before"
    assert head.bias.tolist() == [0.5, -2, 1, -3, -3]
    assert torch.equal(head.weight, torch.cat([first, more]))
    features = drawn(4, 6)
    expected = math.sqrt(6) * F.normalize(features, dim=1) @ head.weight.T + head.bias
    torch.testing.assert_close(head(features), expected)
    torch.testing.assert_close(head(3 * features), expected)


def test_frost_keeps_means_of_labels_and_then_of_what_the_novel_head_answers(backbone_folder: Path) -> None:
    model, labels = fresh(FrostModel, backbone_folder), torch.tensor([1, 0, 1, 2, 0])
    features = F.normalize(drawn(5, 32), dim=1)
    first = begun(FrostObjective, model, features, labels, 3)
    rows = Rows.of(model, drawn(5, 2, 3, 16, 16), labels, torch.arange(5), prompted=True)
    assert first.losses(rows).keys() == {"loss", "classification"}
    first.end_stage()
    groups = [features[each == labels] for each in range(3)]
    torch.testing.assert_close(model.class_means, torch.stack([each.mean(0) for each in groups]))
    spread = torch.stack([each.std(0, correction=0) for each in groups]).mean(0)
    torch.testing.assert_close(model.class_deviation, spread)

    later = begun(FrostObjective, model, features, count=5)
    own = model.novel(features).argmax(-1)
    later.end_stage()
    assert model.config.num_means == 5
    for each in own.unique():
        torch.testing.assert_close(model.class_means[3 + each], features[own == each].mean(0))
    nothing_new = begun(FrostObjective, model, features, count=5, index=2)
    with torch.no_grad():
        for each in blocks_of(model.backbone)[-1].parameters():
            each += 0.1 * torch.randn(each.shape, generator=torch.Generator().manual_seed(each.numel()))
    rows = Rows.of(model, drawn(5, 2, 3, 16, 16), None, torch.arange(5), prompted=True)
    losses = nothing_new.losses(rows)
    before, after = (each.detach().flatten() for each in (nothing_new.features_before(rows), rows.features))
    cosine = float(before @ after / (before.norm() * after.norm()))
    drift = model.config.drift_weight * math.sqrt(2 - 2 * cosine)  # between both as one unit vector
    assert 0.001 < drift == pytest.approx(float(losses["drift"].detach()), rel=1e-3)
    nothing_new.end_stage()
    assert model.config.num_means == 5

"""Figures of SimGCD and Happy that follow on paper, and a classifier that grows."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from promptccd.data.randomness import torch_generator
from promptccd.methods import LOSSES, Rows
from promptccd.methods.classifier import (
    STUDENT_TEMPERATURE,
    ClassifierModel,
    ClassifierObjective,
    SelfDistillationObjective,
    sampled_rows,
)
from promptccd.methods.happy import METHOD, HappyModel, HappyObjective
from promptccd.methods.orca import ORCAModel, ORCAObjective
from promptccd.methods.simgcd import SimGCDConfig, SimGCDModel
from promptccd.models.backbone import blocks_of
from promptccd.training.options import TrainingArguments
from promptccd.training.stage_trainer import BatchPlan
from tests.conftest import TINY_HEAD
from tests.methods.steps import begun, objective_of


def happy_objective(
    backbone: Path, features: torch.Tensor, labels: torch.Tensor | None = None, count: int = 5, **options: Any
) -> HappyObjective:
    """The objective of a stage, labelled or the one after three classes, whose images have these features."""
    torch.manual_seed(0)  # of the head
    model = HappyModel.from_pretrained(backbone, **TINY_HEAD, **options)
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


@pytest.mark.moderate
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


@pytest.mark.moderate
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


@pytest.mark.parametrize(
    ("kind", "objective"), [(SimGCDModel, SelfDistillationObjective), (ORCAModel, ORCAObjective)]
)
def test_a_classifier_grows_by_what_is_new_and_old_rows_keep_every_bit(
    kind: type[ClassifierModel], objective: type[ClassifierObjective], backbone_folder: Path, tmp_path: Path
) -> None:
    """New rows of ORCA have length 1."""
    model = kind.from_pretrained(backbone_folder, **TINY_HEAD)
    weights = []
    for index, count in enumerate((3, 3, 5)):
        begun(objective, model, count=count, index=index)
        assert model.config.num_classes == count
        weights.append(model.classifier.weight)
    assert weights[0] is weights[1]
    assert torch.equal(weights[2][:3], weights[0])
    if kind is ORCAModel:
        torch.testing.assert_close(weights[2].detach().norm(dim=1), torch.ones(5))
    model.save_pretrained(tmp_path)
    loaded = kind.from_pretrained(tmp_path)
    assert torch.equal(loaded.classifier.weight, weights[2])
    assert loaded.learning()["classifier"] == [loaded.classifier.weight]


@pytest.mark.parametrize(("classes", "learnt"), [(100, 6_372_608), (200, 6_449_408)])
def test_what_it_learns_beside_the_block_at_the_papers_sizes(classes: int, learnt: int) -> None:
    with torch.device("meta"):
        model = SimGCDModel(SimGCDConfig(num_classes=classes, vision_config={"model_type": "dinov2"}))
    model.freeze()
    parts = {"head": 6_295_808, "classifier": classes * 768}
    for part, size in parts.items():
        assert sum(each.numel() for each in getattr(model, part).parameters()) == size
    assert sum(parts.values()) == learnt


def test_a_last_batch_below_the_least_is_left_out_but_for_the_only_one() -> None:
    def steps(num_images: int, least: float = 0.0) -> int:
        return BatchPlan(num_images, 8, seed=1, stage=0, least=least).steps

    assert steps(26, 0.5) == 3
    assert steps(28, 0.5) == 4
    assert steps(26) == 4
    assert steps(3, 0.5) == 1
    shares = BatchPlan(26, 8, seed=1, stage=0, least=0.5).shares(2)
    assert [len(batch) for batch in shares] == [8] * 6


def test_unlabelled_stages_may_have_rates_of_their_own() -> None:
    arguments = TrainingArguments(
        epochs=4, learning_rate=0.1, discovery_learning_rate=0.02, final_learning_rate_factor=0.2,
        discovery_schedule="steps", falls_at=[2], fall_factor=0.5,
    )  # fmt: skip
    assert [arguments.rate_of(stage) for stage in range(3)] == [0.1, 0.02, 0.02]
    assert [TrainingArguments(learning_rate=0.1).rate_of(stage) for stage in range(2)] == [0.1, 0.1]
    shares = [[arguments.rate_share(stage, epoch) for epoch in (0, 2, 3)] for stage in range(3)]
    assert shares[0] == pytest.approx([1, 0.6, 0.6 - 0.4 * 0.5**0.5])
    assert shares[1:] == [[1, 0.5, 0.5]] * 2

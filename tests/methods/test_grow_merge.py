"""Grow & Merge against the obvious loops: what grows, what learns, and what looks known."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel

from promptccd.data.randomness import torch_generator
from promptccd.methods import Objective, Rows, classifier
from promptccd.methods.grow_merge import GrowMergeModel, GrowMergeObjective
from promptccd.models.backbone import blocks_of, class_attention, embed, run_prefix
from tests.conftest import TINY_HEAD, fresh
from tests.methods.steps import begun, drawn

KNOWN = torch.tensor([True, False, True, False, False, True])  # of the stage's images; exemplars are at -1
POSITIONS = torch.tensor([3, 0, 4, 1, 2])  # of those in the batch, without exemplars


@pytest.fixture
def grown(
    backbone_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[GrowMergeModel, GrowMergeObjective]:
    """A model whose second branch learns at stage 2, on six images of which the first, third and last look known."""
    monkeypatch.setattr(classifier, "TOP_RANKS", 1)
    model = fresh(GrowMergeModel, backbone_folder, **TINY_HEAD)
    model.head.reset_parameters(torch_generator("head"))
    model.remember(F.normalize(drawn(3, 32), dim=1))
    model.config.known_similarity = 0.9
    model.config.category_ids = [0, 1, 2]
    features = torch.where(KNOWN[:, None], model.class_means.repeat(2, 1), -model.class_means.repeat(2, 1))
    begun(GrowMergeObjective, model, features, count=5, index=1)
    turn(model, 0.03)
    return model, begun(GrowMergeObjective, model, features, count=5, index=2)


def turn(model: GrowMergeModel, step: float) -> None:
    with torch.no_grad():
        for parameter in model.last_block().parameters():
            parameter.add_(step)


def rows_of(model: GrowMergeModel, labels: torch.Tensor | None = None, exemplars: int = 0) -> Rows:
    positions = torch.cat([POSITIONS, torch.full((exemplars,), -1)])
    views = torch.randn(2, len(positions), 3, 16, 16, generator=torch_generator("views"))
    return Rows.of(model, views.transpose(0, 1), labels, positions, prompted=True)


def test_stage_0_is_gcds_and_leaves_means_and_how_near_to_them_most_images_lie(backbone_folder: Path) -> None:
    model = fresh(GrowMergeModel, backbone_folder, **TINY_HEAD)
    labels = torch.arange(40) % 3
    features = F.normalize(drawn(40, 32) + 3 * drawn(3, 32)[labels], dim=1)
    objective = begun(GrowMergeObjective, model, features, labels, 3)
    assert model.config.num_branches == 0
    batch = torch.tensor([0, 1, 1, 0, 2])
    parts = objective.losses(rows_of(model, batch))
    gcd = begun(Objective, model, features, labels, 3).losses(rows_of(model, batch))
    assert parts == gcd
    objective.begin_epoch(0)
    objective.end_stage()
    means = torch.stack([F.normalize(features[labels == each].mean(0), dim=0) for each in range(3)])
    torch.testing.assert_close(model.class_means, means)
    nearest = sorted(max(float(row @ mean) for mean in means) for row in features)
    place = 0.05 * 39
    below, above = nearest[math.floor(place)], nearest[math.ceil(place)]
    expected = below + (place - math.floor(place)) * (above - below)
    assert model.config.known_similarity == pytest.approx(expected, rel=1e-5)
    assert int(model.looks_known(features).sum()) == 38
    assert model.config.num_means == 3


def test_a_stage_opens_a_branch_where_the_last_one_ended_and_a_head_of_its_own(backbone_folder: Path) -> None:
    model = fresh(GrowMergeModel, backbone_folder, **TINY_HEAD)
    model.remember(drawn(3, 32))
    model.config.category_ids = [0, 1, 2]
    pixels = drawn(4, 3, 16, 16)
    static = model(pixels).features
    begun(GrowMergeObjective, model, drawn(6, 32), count=5, index=1)
    assert torch.equal(model(pixels).features, static)
    turn(model, 0.03)
    first = model(pixels).features
    assert not torch.allclose(first, static, atol=1e-3)
    assert torch.equal(model(pixels, prompted=False).features, static), "without branches"
    assert not any(each.training for each in model.train().branches.modules()), "as the rest of the backbone"
    model.config.category_ids = [0, 1, 2, 3, 4]
    begun(GrowMergeObjective, model, drawn(6, 32), count=6, index=2)
    assert torch.equal(model(pixels).features, first)
    assert (model.config.num_branches, model.config.num_clusters) == (2, 1)
    assert all(parameter.requires_grad for parameter in model.clusters.parameters())
    turn(model, 0.03)
    begun(GrowMergeObjective, model, drawn(6, 32), count=5, index=3)
    assert (model.config.num_branches, model.config.num_clusters) == (3, 0)
    assert not any(parameter.requires_grad for parameter in model.clusters.parameters())


@pytest.mark.parametrize("all_known", [True, False])
def test_where_all_look_known_or_none_does_the_other_term_is_zero_with_a_gradient(grown, all_known) -> None:
    """A process whose parameter has none would stop the others."""
    model, objective = grown
    objective.known = torch.full((6,), all_known)
    parts = objective.losses(rows_of(model))
    assert float(parts["pairs" if all_known else "drift"].detach()) == 0
    parts["loss"].backward()
    assert set(model.learning()) == {"model", "classifier"}
    assert all(each.grad is not None for each in model.parameters() if each.requires_grad)
    assert bool(model.clusters.weight.grad.any()) is not all_known
    for value in parts.values():
        assert torch.isfinite(value)


def test_a_checkpoint_holds_all_branches_and_looks_through_the_newest(grown, tmp_path: Path) -> None:
    model, _ = grown
    model.eval()
    model.set_categories(drawn(2, 32), [0, 1], ["zero", "one"])
    model.save_pretrained(tmp_path)
    pixels = drawn(4, 3, 16, 16)
    for loaded in (AutoModel.from_pretrained(tmp_path), GrowMergeModel.from_pretrained(tmp_path)):
        assert len(loaded.branches) == 2
        assert torch.equal(loaded(pixels).features, model(pixels).features)
        assert torch.equal(loaded.clusters.weight, model.clusters.weight)
        assert {name for name, each in loaded.named_parameters() if each.requires_grad} == {
            name for name, each in model.named_parameters() if each.requires_grad
        }
    entering = run_prefix(model.backbone, *embed(model.backbone, pixels))
    expected = class_attention(model.backbone, entering, model.branches[1])
    assert torch.equal(model.attention_row(pixels), expected)
    static = class_attention(model.backbone, entering, blocks_of(model.backbone)[-1])
    assert not torch.allclose(expected, static)

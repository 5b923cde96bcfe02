"""RankStats and FRoST against the obvious loops."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from promptccd.data.randomness import torch_generator
from promptccd.methods import Rows
from promptccd.methods.classifier import LinearClassifier
from promptccd.methods.frost import FrostModel, FrostObjective
from promptccd.methods.pairs import share_of_pairs
from promptccd.models.backbone import blocks_of
from tests.methods.steps import begun

LABELS = torch.tensor([1, 0, 1, 2, 0])


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch_generator("drawn", *shape))


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
    head.grow(more)
    assert head.bias.tolist() == [0.5, -2, 1, -3, -3]
    assert torch.equal(head.weight, torch.cat([first, more]))
    features = drawn(4, 6)
    expected = math.sqrt(6) * F.normalize(features, dim=1) @ head.weight.T + head.bias
    torch.testing.assert_close(head(features), expected)
    torch.testing.assert_close(head(3 * features), expected)


def test_frost_keeps_means_of_labels_and_then_of_what_the_novel_head_answers(backbone_folder: Path) -> None:
    model = FrostModel.from_pretrained(backbone_folder)
    features = F.normalize(drawn(len(LABELS), 32), dim=1)
    begun(FrostObjective, model, features, LABELS, 3).end_stage()
    groups = [features[each == LABELS] for each in range(3)]
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
    assert torch.isfinite(losses["loss"])
    before, after = (each.detach().flatten() for each in (nothing_new.features_before(rows), rows.features))
    cosine = float(before @ after / (before.norm() * after.norm()))
    drift = model.config.drift_weight * math.sqrt(2 - 2 * cosine)  # between both as one unit vector
    assert 0.001 < drift == pytest.approx(float(losses["drift"].detach()), rel=1e-3)
    nothing_new.end_stage()
    assert model.config.num_means == 5

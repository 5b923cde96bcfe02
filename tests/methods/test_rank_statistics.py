"""RankStats and FRoST against the obvious loops."""

import logging
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from promptccd.data.randomness import torch_generator
from promptccd.methods import LOSSES, Rows, StageContext, method_named
from promptccd.methods.classifier import LinearClassifier
from promptccd.methods.frost import FrostModel, FrostObjective, flat_distance
from promptccd.methods.pairs import (
    PairWatch,
    RankStatisticsObjective,
    disagreement,
    pair_loss,
    ramp,
    same_top_ranks,
)
from promptccd.methods.rankstats import RankStatsModel
from promptccd.models import CategoryDiscoveryOutput
from promptccd.models.backbone import blocks_of
from promptccd.training.options import TrainingArguments

LABELS = torch.tensor([1, 0, 1, 2, 0])


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch_generator("drawn", *shape))


def test_the_ramp_is_that_of_the_table() -> None:
    assert ramp(0, 300) == pytest.approx(0.006738, abs=1e-6)
    assert ramp(150, 300) == pytest.approx(0.286505, abs=1e-6)
    assert ramp(300, 300) == ramp(399, 300) == 1


def test_pairs_have_the_same_largest_dimensions_in_any_order() -> None:
    features = torch.tensor([[5.0, 4, 1, 0], [4, 5, 0, 1], [5, 1, 4, 0], [-3, -4, -9, -8]])
    largest = [set(each.topk(2).indices.tolist()) for each in features]
    expected = [[one == other for other in largest] for one in largest]
    assert same_top_ranks(features, 2).tolist() == expected
    assert expected[0] == [True, True, False, True]


def test_the_loss_of_pairs_equals_the_loop() -> None:
    logits, positive = drawn(2, 5, 3), drawn(5, 5) > 0
    answers = logits.softmax(-1)
    expected = 0.0
    for i in range(5):
        for j in range(5):
            together = float(answers[0, i] @ answers[1, j])
            expected -= math.log(together if positive[i, j] else 1 - together)
    assert float(pair_loss(logits, positive)) == pytest.approx(expected / 25, rel=1e-5)


def test_a_pair_in_a_thousand_is_enough_on_average_over_an_epoch(caplog: pytest.LogCaptureFixture) -> None:
    """Two images are alike: of 41 they are one pair in 820, of 50 one in 1225, of 20 one in 190."""

    def epoch(watch: PairWatch, *sizes: int) -> int:
        for size in sizes:
            positive = torch.eye(size)
            positive[0, 1] = positive[1, 0] = 1
            assert float(watch.share(positive)) == pytest.approx(2 / (size * (size - 1)))
        watch.check()
        return len(caplog.records)

    watch = PairWatch(16, may_warn=True)
    with caplog.at_level(logging.WARNING):
        assert epoch(watch, 41) == epoch(watch) == epoch(watch, 50, 20) == 0
        assert epoch(watch, 50, 50) == 1, "epochs before it do not count"
        assert epoch(watch, 50) == 1, "it is said once"
        assert epoch(PairWatch(16, may_warn=False), 50) == 1, "by one process"
    assert "Only 0.0816 %" in caplog.text


def test_a_novel_head_of_one_class_gives_numbers() -> None:
    logits = torch.zeros(2, 4, 1, requires_grad=True)
    loss = pair_loss(logits, torch.eye(4, dtype=torch.bool))
    loss.backward()
    assert torch.isfinite(loss)
    assert not logits.grad.any()


def test_a_head_that_is_told_of_pairs_finds_their_classes() -> None:
    classes = torch.arange(30) % 3
    points = F.normalize(3 * torch.eye(8)[classes] + drawn(2, 30, 8), dim=-1)
    head = LinearClassifier(0, 8)
    head.grow(drawn(3, 8) / 8**0.5)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    for _ in range(100):
        optimizer.zero_grad()
        pair_loss(head(points), classes[:, None] == classes).backward()
        optimizer.step()
    answers = head(points[0]).argmax(1)
    assert torch.equal(answers[:, None] == answers, classes[:, None] == classes)


def test_the_distance_of_unit_rows_is_the_root_of_their_mean_square() -> None:
    before, after = F.normalize(drawn(7, 6), dim=1), F.normalize(drawn(7, 6) + 1, dim=1)
    expected = (before - after).square().sum(1).mean().sqrt()
    torch.testing.assert_close(flat_distance(before, after), expected)
    same = before.clone().requires_grad_()
    flat_distance(before, same).backward()
    assert not same.grad.any(), "no distance has no direction"


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


def stage(index: int, labels: torch.Tensor | None, count: int) -> StageContext:
    images = SimpleNamespace(stage=SimpleNamespace(index=index))
    return StageContext(images, labels, num_categories=count)


def begun(
    kind: type, model: RankStatsModel, context: StageContext, features: torch.Tensor | None = None
) -> RankStatisticsObjective:
    accelerator = SimpleNamespace(is_main_process=True, autocast=torch.no_grad)
    objective = kind(model, context, TrainingArguments(), accelerator, lambda what: features)
    objective.begin_stage()
    return objective


def rows_of(model: RankStatsModel, labels: torch.Tensor | None, epoch: int = 8) -> Rows:
    views = torch.randn(2, 5, 3, 16, 16, generator=torch_generator("views"))
    output = model(views.flatten(0, 1), project=True)
    return Rows(output, output.bottleneck.unflatten(0, (2, 5)), labels, torch.arange(5), epoch)


KINDS = [(RankStatisticsObjective, RankStatsModel), (FrostObjective, FrostModel)]


@pytest.mark.parametrize(("kind", "model_kind"), KINDS)
def test_losses_of_both_stages_are_sums_of_the_formulas(
    kind: type, model_kind: type, backbone_folder: Path
) -> None:
    model = model_kind.from_pretrained(backbone_folder, top_ranks=2, ramp_epochs=10)
    frost = kind is FrostObjective
    features = F.normalize(drawn(len(LABELS), 32), dim=1)
    first = begun(kind, model, stage(0, LABELS, 3), features)
    rows = rows_of(model, LABELS)
    logits = model.classifier(rows.features)
    rise = math.exp(-5 * 0.2**2)
    expected = F.cross_entropy(logits.flatten(0, 1), LABELS.repeat(2))
    if not frost:
        expected = expected + 25 * rise * (logits[0].softmax(-1) - logits[1].softmax(-1)).square().mean()
    torch.testing.assert_close(first.losses(rows)["loss"], expected)
    first.end_stage()
    assert model.novel is None

    later = begun(kind, model, stage(1, None, 5), features)
    assert (model.config.num_classes, model.novel.num_classes) == (5, 2)
    if frost:
        rows = rows_of(model, None)
        assert torch.equal(later.features_before(rows), rows.output.features), (
            "no drift yet, not even by rounding"
        )
    with torch.no_grad():
        for parameter in blocks_of(model.backbone)[-1].parameters():
            parameter.add_(0.05)
    rows = rows_of(model, None)
    parts = later.losses(rows)
    assert (
        parts.keys() <= {**LOSSES, **method_named(model.config.model_type).losses}.keys()
    )  # titles of their curves
    joint, novel = model.classifier(rows.features), model.novel(rows.features)
    pairs = pair_loss(novel, same_top_ranks(rows.features[0], 2))
    pseudo = F.cross_entropy(joint.flatten(0, 1), 3 + novel.argmax(-1).flatten())
    steady = disagreement(novel) if frost else disagreement(novel) + disagreement(joint)
    expected = pairs + (0.01 if frost else 0.05) * rise * pseudo + 25 * rise * steady
    if frost:
        generator = later.generator(8, 0)
        replayed = model.class_means.repeat(2, 1) + model.class_deviation * torch.randn(
            6, 32, generator=generator
        )
        expected = expected + F.cross_entropy(model.classifier(replayed), torch.arange(3).repeat(2))
        before = later.features_before(rows).unflatten(0, (2, 5))
        assert flat_distance(before, rows.features) > 1e-3
        expected = expected + 10 * flat_distance(before, rows.features)
    torch.testing.assert_close(parts["loss"], expected)
    assert later.losses(rows_of(model, None))["loss"] == parts["loss"], "the same step draws the same"
    parts["loss"].backward()
    for name, parameter in model.named_parameters():
        assert not parameter.requires_grad or parameter.grad is not None, name

    later.end_stage()
    assert "novel.weight" not in model.state_dict()
    answers = model.assign_natively(features)
    assert torch.equal(answers, model.classifier(features).argmax(-1))


def test_frost_keeps_means_of_labels_and_then_of_what_the_novel_head_answers(backbone_folder: Path) -> None:
    model = FrostModel.from_pretrained(backbone_folder)
    features = F.normalize(drawn(len(LABELS), 32), dim=1)
    begun(FrostObjective, model, stage(0, LABELS, 3), features).end_stage()
    groups = [features[each == LABELS] for each in range(3)]
    torch.testing.assert_close(model.class_means, torch.stack([each.mean(0) for each in groups]))
    spread = torch.stack([each.std(0, correction=0) for each in groups]).mean(0)
    torch.testing.assert_close(model.class_deviation, spread)

    later = begun(FrostObjective, model, stage(1, None, 5), features)
    own = model.novel(features).argmax(-1)
    later.end_stage()
    assert model.config.num_means == 5
    for each in own.unique():
        torch.testing.assert_close(model.class_means[3 + each], features[own == each].mean(0))
    nothing_new = begun(FrostObjective, model, stage(2, None, 5), features)
    assert torch.isfinite(nothing_new.losses(rows_of(model, None))["loss"])
    nothing_new.end_stage()
    assert model.config.num_means == 5


def test_frost_rehearses_a_class_without_images_from_its_row_and_all_others_count_alike(
    backbone_folder: Path,
) -> None:
    """How far features are drawn around means is one figure for all classes, of as many as have had images."""
    model = FrostModel.from_pretrained(backbone_folder)
    features = F.normalize(drawn(len(LABELS), 32), dim=1)
    begun(FrostObjective, model, stage(0, LABELS, 3), features).end_stage()
    first = model.class_deviation.clone()
    later = begun(FrostObjective, model, stage(1, None, 5), features)
    with torch.no_grad():
        model.novel.bias.copy_(torch.tensor([100.0, 0.0]))  # it answers the first new class, whatever it sees
    later.end_stage()
    torch.testing.assert_close(model.class_means[3], features.mean(0))
    row = model.classifier.weight[4].detach()
    torch.testing.assert_close(model.class_means[4], row / row.norm())
    stacked = torch.stack([first, first, first, features.std(0, correction=0)])
    torch.testing.assert_close(model.class_deviation, stacked.mean(0))


def test_too_few_positive_pairs_are_said_once(
    backbone_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = RankStatsModel.from_pretrained(backbone_folder, top_ranks=16)
    objective = begun(RankStatisticsObjective, model, stage(1, None, 2))
    features = drawn(10, 32)
    rows = Rows(CategoryDiscoveryOutput(features), drawn(2, 5, 32), None, torch.arange(5))
    with caplog.at_level(logging.WARNING):
        for epoch in range(3):
            objective.begin_epoch(epoch)
            assert len(caplog.records) == min(1, epoch)  # as soon as an epoch is over
            assert float(objective.losses(rows)["positive_pairs"]) == 0
        objective.end_stage()
        assert [record.getMessage().startswith("Only 0.0000 %") for record in caplog.records] == [True]
        objective = begun(RankStatisticsObjective, model, stage(2, None, 4))
        objective.losses(rows)
        objective.end_stage()  # of one epoch
    assert len(caplog.records) == 2

    model.config.top_ranks = 32
    caplog.clear()
    again = begun(RankStatisticsObjective, model, stage(3, None, 5))
    assert float(again.losses(rows)["positive_pairs"]) == 1
    again.end_stage()
    assert not caplog.records

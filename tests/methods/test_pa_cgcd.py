"""PA-CGCD: its loss against written-out loops, its split and its pseudo-labels on features made for them."""

import copy
import itertools
import math
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor

from promptccd.data.randomness import torch_generator
from promptccd.methods import LOSSES, StageContext, pa_cgcd
from promptccd.methods.pa_cgcd import (
    PACGCDConfig,
    PACGCDModel,
    PACGCDObjective,
    chance_of_low,
    new_classes,
    proxy_anchor_loss,
    split_old_and_new,
)
from promptccd.models.backbone import blocks_of
from promptccd.runs import train_run
from promptccd.training.batches import Batch, training_loss
from promptccd.training.options import TrainingArguments
from tests.conftest import fresh
from tests.order_one import fill
from tests.runs.test_variants import Signals, in_a_fork, in_folder, listen, merged, stage_bytes
from tests.training import reference_proxies
from tests.training.test_distributed import on_two_processes

NUM_OLD, WIDTH = 3, 32


def written_out(cosines: Tensor, labels: list[int], scale: float, margin: float) -> float:
    pulls, pushes = [], []
    for proxy in range(cosines.shape[1]):
        column = cosines[:, proxy].tolist()
        own = [s for s, label in zip(column, labels, strict=True) if label == proxy]
        if own:
            pulls.append(math.log(1 + sum(math.exp(-scale * (s - margin)) for s in own)))
        others = [s for s, label in zip(column, labels, strict=True) if label != proxy]
        pushes.append(math.log(1 + sum(math.exp(scale * (s + margin)) for s in others)))
    return sum(pulls) / len(pulls) + sum(pushes) / len(pushes)


def test_one_image_on_its_proxy_and_another_proxy_at_a_right_angle() -> None:
    loss = proxy_anchor_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), 32, 0.1)
    assert float(loss) == pytest.approx(1.619977, abs=1e-6)


def test_the_loss_is_that_of_the_loops_over_proxies() -> None:
    """Also where a batch is of one class alone, whose pull then counts whole."""
    cosines = 2 * torch.rand(9, 5, generator=torch_generator("cosines")) - 1
    for labels in ([0, 1, 1, 4, 0, 0, 1, 4, 4], [2] * 9):
        for scale, margin in ((32.0, 0.1), (3.0, 0.4)):
            loss = proxy_anchor_loss(cosines, torch.tensor(labels), scale, margin)
            expected = written_out(cosines.double(), labels, scale, margin)
            assert float(loss) == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def trained(backbone_folder: Path) -> PACGCDModel:
    """A model with proxies, as stage 0 may have left it."""
    model = fresh(PACGCDModel, backbone_folder)
    model.grow(2 * proxies())
    model.feature_deviations.copy_(torch.linspace(0.05, 0.2, WIDTH))
    return model.train()


def proxies() -> Tensor:
    return F.normalize(torch.randn(NUM_OLD, WIDTH, generator=torch_generator("proxies")), dim=-1)


def around(centres: Tensor, count: int, noise: float = 0.02) -> Tensor:
    drawn = noise * torch.randn(len(centres) * count, WIDTH, generator=torch_generator("around", count))
    return F.normalize(centres.repeat_interleave(count, 0) + drawn, dim=-1)


def stream(similarity_of_new: float = -0.2) -> Tensor:
    """Unit features: 60 of old classes, then 80 of two new ones, whose nearest old proxy is so near."""
    old = proxies()
    apart = torch.linalg.qr(torch.cat([old, torch.eye(WIDTH)[:3]]).T)[0].T[NUM_OLD : NUM_OLD + 2]
    towards = F.normalize(torch.linalg.pinv(old) @ torch.ones(NUM_OLD), dim=0)  # as near to all old proxies
    share = similarity_of_new / float((old @ towards).max())
    return torch.cat([around(old, 20), around(share * towards + (1 - share**2) ** 0.5 * apart, 40)])


def objective_for(
    model: PACGCDModel,
    features: Tensor | None = None,
    count: int = NUM_OLD + 2,
    labels: Tensor | None = None,
    **arguments: Any,
) -> PACGCDObjective:
    images: Any = SimpleNamespace(stage=SimpleNamespace(index=0 if labels is not None else 1))
    stage = StageContext(images, labels, num_categories=count)
    return PACGCDObjective(
        model, stage, TrainingArguments(**arguments), Accelerator(cpu=True), lambda what: features
    )


@pytest.mark.parametrize("similarity_of_new", [-0.2, 0.2])
def test_a_stream_is_split_by_the_threshold_or_by_its_own_two_humps(similarity_of_new: float) -> None:
    features = stream(similarity_of_new)
    similarity = (features @ proxies().T).amax(1)
    assert (similarity[60:] < -0.03).float().mean() > 0.9 or (similarity[60:] > 0.03).float().mean() > 0.9
    assert similarity[:60].min() > similarity[60:].max()
    old, new = split_old_and_new(features, similarity, PACGCDConfig(), torch_generator("split"))
    assert not (old & new).any()
    assert old[:60].float().mean() > 0.9 and new[60:].float().mean() > 0.9
    assert not old[60:].any() and not new[:60].any()


@pytest.mark.parametrize(("below", "found"), [(5, 5), (4, 50)])
def test_two_humps_decide_where_the_threshold_finds_fewer_than_5_percent(below: int, found: int) -> None:
    """Of 100 images half lie near old proxies, some below the threshold, and the others between."""
    similarity = torch.cat(
        [torch.full((50,), 0.9), torch.full((50 - below,), 0.1), torch.full((below,), -0.1)]
    )
    first_sight = PACGCDConfig(split_rounds=0)
    old, new = split_old_and_new(torch.eye(100), similarity, first_sight, torch_generator("split"))
    assert torch.equal(new, torch.arange(100) >= 100 - found)
    assert torch.equal(old, ~new)


def test_the_net_learns_what_is_clear_as_that_of_the_reference_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both of two rounds of three epochs: 129 clear images make two steps of 64, and one waits.

    Batch norm follows: of biases before it, and what it keeps of them, the gradient is rounding, and steps are not.
    """
    config = PACGCDConfig(split_rounds=2, split_epochs=3, split_learning_rate=0.05, clear_chance=0.8)
    features = torch.cat([stream(0.0), stream(0.2)[:8]])
    similarity = (torch.arange(148) < 75).float() - 0.5
    similarity[::8] = 0.0  # neither
    assert int((similarity != 0).sum()) == 129
    nets: list[dict[str, Tensor]] = []
    for module, name in ((pa_cgcd, "split_net"), (reference_proxies, "net_of_three")):
        made = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *of, made=made: nets.append(made(*of)) or nets[-1])
    reference = object.__new__(reference_proxies.ProxyReference)
    reference.nets, reference.t, reference.stage = SimpleNamespace(model=config), SimpleNamespace(seed=1), 1
    expected = reference.split(features.double(), similarity.double())
    found = split_old_and_new(features, similarity, config, torch_generator("objective", 1, 1))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    theirs, ours = (net.state_dict() for net in nets)
    for name in theirs.keys() - {"0.bias", "1.running_mean", "3.bias", "4.running_mean"}:
        torch.testing.assert_close(ours[name].double(), theirs[name].double(), rtol=5e-4, atol=1e-5)


def test_where_nothing_looks_new_the_net_learns_nothing_and_all_stay_old() -> None:
    features = F.normalize(torch.randn(100, WIDTH, generator=torch_generator("features")), dim=-1)
    old, new = split_old_and_new(features, torch.full((100,), 0.9), PACGCDConfig(), torch_generator("split"))
    assert old.all() and not new.any()


def test_the_chance_of_the_lower_gaussian() -> None:
    chance = chance_of_low(torch.cat([torch.linspace(2.0, 2.2, 30), torch.linspace(7.0, 7.3, 20)]))
    assert (chance[:30] > 0.99).all() and (chance[30:] < 0.01).all()
    assert chance_of_low(torch.full((5,), 0.3)).isfinite().all()


def em_by_hand(
    points: np.ndarray, most: int, rest: float, floor: float
) -> tuple[np.ndarray, np.ndarray, int]:
    """Chances ``(N, 2)`` and means ``(2, D)`` of two Gaussians, and after how many steps, `most` or what it rested at.

    It starts at two means, and rests where the mean log-likelihood changes by less than `rest`.
    """
    centres = points[[0, -1]]
    for _ in range(100):
        own = ((points[:, None] - centres) ** 2).sum(2).argmin(1)
        centres = np.stack([points[own == each].mean(0) for each in (0, 1)])
    chances, before, rests = np.eye(2)[own], -math.inf, False
    for step in itertools.count():
        joint, means = np.empty_like(chances), (chances.T @ points) / chances.sum(0)[:, None]
        for each, (mass, mean) in enumerate(zip(chances.sum(0), means, strict=True)):
            apart = points - mean
            covariance = (chances[:, each, None] * apart).T @ apart / mass + floor * np.eye(points.shape[1])
            exponents = -(apart @ np.linalg.inv(covariance) * apart).sum(1) / 2
            volume = math.sqrt(np.linalg.det(2 * math.pi * covariance))
            joint[:, each] = mass / len(points) * np.exp(exponents) / volume
        chances, likelihood = joint / joint.sum(1, keepdims=True), np.log(joint.sum(1)).mean()
        if step == most or rests:
            break
        rests, before = abs(likelihood - before) < rest, likelihood
    return chances, means, step


@pytest.mark.parametrize(("power", "steps"), [(2.5, 2), (4.0, 10)])
def test_the_chance_of_the_lower_gaussian_is_that_of_em_by_hand(power: float, steps: int) -> None:
    values = np.linspace(0, 1, 50) ** power  # no humps: each step changes the answer
    chances, _, taken = em_by_hand(values[:, None], most=10, rest=1e-2, floor=5e-4)
    assert taken == steps
    np.testing.assert_allclose(chance_of_low(torch.from_numpy(values)), chances[:, 0], atol=1e-9)


def test_new_proxies_are_means_of_em_by_hand_that_came_to_rest() -> None:
    noise = np.random.default_rng(0).standard_normal(60)
    points = np.stack([np.linspace(0, 1, 60) ** 3, noise / 2], axis=1)  # a cloud that is hard to cut in two
    chances, means, taken = em_by_hand(points, most=1000, rest=1e-4, floor=1e-6)
    assert taken > 100
    own, proxies = new_classes(torch.from_numpy(points), 2)
    assert own.dtype == torch.int64 and proxies.dtype == torch.float64
    expected = means / np.linalg.norm(means, axis=1, keepdims=True)
    order = np.argsort(-expected @ proxies.numpy().T, axis=1)[:, 0]
    np.testing.assert_allclose(proxies[order], expected, atol=1e-3)  # it may start a point from there
    np.testing.assert_array_equal(own, order[chances.argmax(1)])


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_a_covariance_is_full_where_every_class_has_images_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = []

    class Noted(pa_cgcd.GaussianMixture):
        def fit_predict(self, *args: Any) -> Any:
            kinds.append(self.covariance_type)
            return super().fit_predict(*args)

    monkeypatch.setattr(pa_cgcd, "GaussianMixture", Noted)
    for each in (WIDTH, WIDTH - 1):
        own, centres = new_classes(around(torch.eye(WIDTH)[:2], each), 2)
        assert torch.equal(own, own[0] + (torch.arange(2 * each) >= each) * (1 - 2 * own[0]))
        torch.testing.assert_close(centres.norm(dim=1), torch.ones(2))
        assert (centres @ torch.eye(WIDTH)[:2].T).amax(0).min() > 0.99
        assert centres.dtype == torch.float32
    new_classes(
        torch.eye(WIDTH)[:1].repeat(WIDTH + 1, 1), 2
    )  # all the same: one of the two classes has no image
    assert kinds == ["full", "diag", "diag"]
    assert len(new_classes(around(torch.eye(WIDTH)[:1], 3), 5)[1]) == 3


@pytest.mark.moderate
def test_a_stage_begins_with_the_same_labels_whenever_it_does_and_leaves_old_rows_alone(
    trained: PACGCDModel, tmp_path: Path
) -> None:
    before, features = trained.classifier.weight.detach().clone(), stream()
    begun = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = copy.deepcopy(trained)
        state = torch.get_rng_state()
        begun.append(objective_for(model, features))
        begun[-1].begin_stage()
        assert torch.equal(torch.get_rng_state(), state), "something drew from the global generator"
    first, again = begun
    assert torch.equal(first.old_labels, again.old_labels)
    assert torch.equal(first.new_labels, again.new_labels)
    assert torch.equal(first.model.classifier.weight, again.model.classifier.weight)
    assert first.model.config.num_classes == NUM_OLD + 2
    assert torch.equal(first.model.classifier.weight[:NUM_OLD], before)
    first.model.save_pretrained(tmp_path)
    loaded = PACGCDModel.from_pretrained(tmp_path)
    assert torch.equal(loaded.classifier.weight, first.model.classifier.weight)
    assert torch.equal(loaded.feature_deviations, trained.feature_deviations)


def test_pseudo_labels_and_new_proxies(trained: PACGCDModel, monkeypatch: pytest.MonkeyPatch) -> None:
    features = stream()
    clear = torch.arange(140) % 5 != 0  # every fifth image is in doubt

    def told(features: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        is_old = torch.arange(140) < 60
        return is_old & clear, ~is_old & clear

    monkeypatch.setattr(pa_cgcd, "split_old_and_new", told)
    objective = objective_for(trained, features)
    objective.begin_stage()
    old, new = objective.old_labels, objective.new_labels
    nearest = (features @ proxies().T).argmax(1)
    assert torch.equal(old[:60], torch.arange(NUM_OLD).repeat_interleave(20))
    assert torch.equal(old == -1, clear & (torch.arange(140) >= 60))
    assert torch.equal(old[60:][~clear[60:]], nearest[60:][~clear[60:]])
    assert torch.equal(new == -1, clear & (torch.arange(140) < 60))
    assert set(new[new >= 0].tolist()) == {NUM_OLD, NUM_OLD + 1}
    added = trained.classifier.weight[NUM_OLD:].detach()
    torch.testing.assert_close(added.norm(dim=1), torch.ones(2))


def test_a_new_class_has_the_two_strangest_images_where_all_are_clearly_old(
    trained: PACGCDModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = stream()
    every = torch.ones(140, dtype=torch.bool)
    monkeypatch.setattr(pa_cgcd, "split_old_and_new", lambda *_: (every, ~every))
    objective = objective_for(trained, features, count=NUM_OLD + 1)
    objective.begin_stage()
    strangest = (features @ proxies().T).amax(1).argsort(stable=True)[:2]
    assert (objective.new_labels >= 0).nonzero().flatten().tolist() == sorted(strangest.tolist())


def moved(model: PACGCDModel) -> None:
    """Let training have moved all that learns."""
    with torch.no_grad():
        for parameter in (parameter for parameter in model.parameters() if parameter.requires_grad):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch_generator("moved")))


def test_a_step_on_labels_reads_the_first_view(trained: PACGCDModel) -> None:
    labels = torch.tensor([0, 2, 2, 1, 0])
    objective = objective_for(trained, count=NUM_OLD, labels=labels)
    objective.begin_stage()
    views = torch.randn(5, 2, 3, 16, 16, generator=torch_generator("views"))
    found = training_loss(trained, objective, Batch(views, labels, torch.arange(5)), epoch=0)
    unit = F.normalize(trained(views[:, 0]).features, dim=-1)
    cosines = (unit @ F.normalize(trained.classifier.weight, dim=-1).T).double().detach()
    loss = float(found["loss"].detach())
    assert loss == pytest.approx(written_out(cosines, labels.tolist(), 32, 0.1), rel=1e-5)
    assert torch.equal(found["anchor"], found["loss"])


def test_a_step_on_pseudo_labels(trained: PACGCDModel) -> None:
    """Images in doubt count twice, drawn features as old, and only new ones are held where they were."""
    fill(blocks_of(trained.backbone)[-1])
    objective = objective_for(trained, stream())
    objective.begin_stage()
    before = trained.classifier.weight.detach().clone()
    objective.old_labels = torch.tensor([-1, 2, -1, 0, 1, 0])
    objective.new_labels = torch.tensor([3, -1, 4, 4, -1, -1])
    positions = torch.tensor([4, 0, 3, 2, 1])
    views = torch.randn(5, 2, 3, 16, 16, generator=torch_generator("views"))
    here = F.normalize(trained(views[:, 0]).features, dim=-1).detach()
    moved(trained)
    found = training_loss(trained, objective, Batch(views, None, positions), epoch=2, step=7)

    now = F.normalize(trained(views[:, 0]).features, dim=-1).detach()
    generator = torch_generator("objective", objective.arguments.seed, 1, 2, 7)
    drawn = torch.randint(NUM_OLD, (3,), generator=generator)  # images 4, 3 and 1 have an old label
    noise = torch.randn(3, WIDTH, generator=generator)
    replayed = torch.stack(
        [before[c] + trained.feature_deviations * e for c, e in zip(drawn, noise, strict=True)]
    )
    rows = torch.cat([now[[0, 2, 4]], now[[1, 2, 3]], F.normalize(replayed, dim=-1)])
    labels = [1, 0, 2, 3, 4, 4, *drawn.tolist()]
    cosines = (rows @ F.normalize(trained.classifier.weight.detach(), dim=-1).T).double()
    anchor = written_out(cosines, labels, 32, 0.1)
    new, was = now[[1, 2, 3]], here[[1, 2, 3]]
    drift = 10 * float((new - was).square().sum(1).mean().sqrt())
    flattened = F.normalize(new.flatten(), dim=0) - F.normalize(was.flatten(), dim=0)
    assert drift == pytest.approx(10 * float(flattened.norm()), rel=1e-4), "the released code's way"
    assert drift > 0.1
    assert found.keys() <= {**LOSSES, **pa_cgcd.METHOD.losses}.keys()  # titles of their curves
    values = {name: float(value.detach()) for name, value in found.items()}
    expected = {"loss": anchor + drift, "anchor": anchor, "drift": drift}
    assert values == pytest.approx(expected, rel=1e-4)


def test_nothing_has_moved_at_the_first_step_and_the_gradient_is_a_number(trained: PACGCDModel) -> None:
    objective = objective_for(trained, stream())
    objective.begin_stage()
    views = torch.randn(6, 2, 3, 16, 16, generator=torch_generator("views"))
    training_loss(trained, objective, Batch(views, None, torch.arange(60, 66)), 0)["loss"].backward()
    learning = [each for parameters in trained.learning().values() for each in parameters]
    assert all(each.grad is not None and each.grad.isfinite().all() for each in learning)


@pytest.mark.parametrize(("labelled", "warm"), [(True, 5), (False, 10)])
def test_proxies_alone_learn_at_first_and_gradients_are_cut_at_stage_0(
    trained: PACGCDModel, labelled: bool, warm: int
) -> None:
    labels = torch.zeros(4, dtype=torch.long) if labelled else None
    objective = objective_for(trained, stream(), count=NUM_OLD, labels=labels, epochs=60)
    for epoch in (0, warm - 1, warm, 59):
        for parameter in trained.parameters():
            parameter.grad = torch.full_like(parameter, 30.0) if parameter.requires_grad else None
        objective.adjust_gradients(epoch)
        learning, largest = trained.learning(), 10.0 if labelled else 30.0
        assert all((each.grad == largest).all() for each in learning["classifier"])
        assert all((each.grad is None) == (epoch < warm) for each in learning["model"])
        assert all(each.grad is None or (each.grad == largest).all() for each in learning["model"])


def test_the_spread_of_features_is_that_of_stage_0(trained: PACGCDModel) -> None:
    features = stream()
    objective_for(trained, features, labels=torch.zeros(140)).end_stage()
    expected = (features - features.mean(0)).square().sum(0).div(139).sqrt()
    torch.testing.assert_close(trained.feature_deviations, expected)
    objective_for(trained, 2 * features).end_stage()
    torch.testing.assert_close(trained.feature_deviations, expected)


@pytest.mark.moderate
def test_two_processes_have_the_loss_and_the_gradient_of_one(trained: PACGCDModel, tmp_path: Path) -> None:
    """Although the second one's features are others, and it would label their images otherwise."""
    views = torch.randn(5, 2, 3, 16, 16, generator=torch_generator("views"))

    def step(rank: int, share: slice) -> list[Any]:
        model = copy.deepcopy(trained)
        objective = objective_for(model, stream().roll(rank, 1))
        objective.begin_stage()
        moved(model)
        found = training_loss(model, objective, Batch(views[share], None, torch.arange(58, 63)), 0)
        found["loss"].backward()
        gradients = [model.classifier.weight.grad, blocks_of(model.backbone)[-1].mlp.fc1.weight.grad]
        return [
            objective.new_labels.tolist(),
            float(found["loss"].detach()),
            *(each.tolist() for each in gradients),
        ]

    alone = step(0, slice(None))
    both = on_two_processes(lambda rank: step(rank, (slice(0, 2), slice(2, 5))[rank]), tmp_path)
    for labels, loss, *_ in both:
        assert labels == alone[0]
        assert loss == pytest.approx(alone[1], rel=1e-5)
    for place in (2, 3):  # DistributedDataParallel takes the mean
        mean = (torch.tensor(both[0][place]) + torch.tensor(both[1][place])) / 2
        torch.testing.assert_close(mean, torch.tensor(alone[place]), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_a_kill_inside_a_warmup_leaves_no_trace(
    recipe_values: dict[str, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the optimiser of this method, which keeps nothing of what does not learn yet."""
    shares = {"warmup_share": 0.7, "discovery_warmup_share": 0.7}
    training = {"optimizer": "adamw", "learning_rate": 1e-4, "classifier_learning_rate": 0.01}
    changes = {"model": {"variant": "pa-cgcd", "options": shares}, "training": training}
    values = merged(recipe_values, changes)
    whole = train_run(in_folder(values, tmp_path / "whole"))

    def train_until_killed() -> None:
        listen(Signals(every=7, numbers=[signal.SIGKILL]), monkeypatch)
        train_run(in_folder(values, tmp_path / "killed"))

    kills = 0
    while (code := in_a_fork(train_until_killed)) == -signal.SIGKILL:
        kills += 1
    assert code == 0 and kills >= 3
    assert stage_bytes(tmp_path / "killed") == stage_bytes(tmp_path / "whole")
    assert train_run(in_folder(values, tmp_path / "killed")).to_dict() == whole.to_dict()

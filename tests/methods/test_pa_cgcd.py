"""PA-CGCD: its loss against written-out loops, its split and its pseudo-labels on features made for them."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from promptccd.data.randomness import torch_generator
from promptccd.methods import Rows, pa_cgcd
from promptccd.methods.pa_cgcd import PACGCDModel, PACGCDObjective, chance_of_low, split_old_and_new
from tests.conftest import fresh
from tests.methods.steps import objective_of

NUM_OLD, WIDTH = 3, 32


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
    model: PACGCDModel, features: Tensor | None = None, count: int = NUM_OLD + 2, **given: Any
) -> PACGCDObjective:
    return objective_of(PACGCDObjective, model, features, count=count, **given)


@pytest.mark.parametrize("similarity_of_new", [-0.2, 0.2])
def test_a_stream_is_split_by_the_threshold_or_by_its_own_two_humps(similarity_of_new: float) -> None:
    features = stream(similarity_of_new)
    similarity = (features @ proxies().T).amax(1)
    assert (similarity[60:] < -0.03).float().mean() > 0.9 or (similarity[60:] > 0.03).float().mean() > 0.9
    assert similarity[:60].min() > similarity[60:].max()
    old, new = split_old_and_new(features, similarity, torch_generator("split"))
    assert not (old & new).any()
    assert old[:60].float().mean() > 0.9 and new[60:].float().mean() > 0.9
    assert not old[60:].any() and not new[:60].any()


def test_where_nothing_looks_new_the_net_learns_nothing_and_all_stay_old() -> None:
    features = F.normalize(torch.randn(100, WIDTH, generator=torch_generator("features")), dim=-1)
    old, new = split_old_and_new(features, torch.full((100,), 0.9), torch_generator("split"))
    assert old.all() and not new.any()


def test_the_chance_of_the_lower_gaussian() -> None:
    chance = chance_of_low(torch.cat([torch.linspace(2.0, 2.2, 30), torch.linspace(7.0, 7.3, 20)]))
    assert (chance[:30] > 0.99).all() and (chance[30:] < 0.01).all()
    assert chance_of_low(torch.full((5,), 0.3)).isfinite().all()


def test_a_stage_begins_with_the_same_labels_whenever_it_does_and_leaves_old_rows_alone(
    trained: PACGCDModel,
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


def test_pseudo_labels_and_new_proxies(trained: PACGCDModel, monkeypatch: pytest.MonkeyPatch) -> None:
    features = stream()
    clear = torch.arange(140) % 5 != 0  # every fifth image is in doubt

    def split(features: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        is_old = torch.arange(140) < 60
        return is_old & clear, ~is_old & clear

    monkeypatch.setattr(pa_cgcd, "split_old_and_new", split)
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


def test_where_no_image_looks_new_the_two_least_like_old_classes_are(trained, monkeypatch) -> None:
    """One alone makes no Gaussian."""
    old = torch.ones(60, dtype=torch.bool)
    monkeypatch.setattr(pa_cgcd, "split_old_and_new", lambda *_: (old, ~old))
    objective = objective_for(trained, around(proxies(), 20), NUM_OLD + 1)
    objective.begin_stage()
    assert sorted(objective.new_labels.tolist()) == [-1] * 58 + [NUM_OLD] * 2


def test_nothing_has_moved_at_the_first_step_and_the_gradient_is_a_number(trained: PACGCDModel) -> None:
    objective = objective_for(trained, stream())
    objective.begin_stage()
    views = torch.randn(6, 2, 3, 16, 16, generator=torch_generator("views"))
    rows = Rows.of(trained, views, None, torch.arange(60, 66), prompted=True)
    assert [objective.drift(rows, torch.arange(each)) > 0 for each in (1, 2)] == [False, True]
    objective.losses(rows)["loss"].backward()
    learning = [each for parameters in trained.learning().values() for each in parameters]
    assert all(each.grad is not None and each.grad.isfinite().all() for each in learning)


@pytest.mark.parametrize(("labelled", "warm"), [(True, 5), (False, 10)])
def test_proxies_alone_learn_at_first_and_gradients_are_cut_at_stage_0(trained, labelled, warm) -> None:
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

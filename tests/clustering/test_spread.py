"""The metric in which known categories are round, held to fresh images of worlds whose truth is known."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.metrics import roc_auc_score
from torch import Tensor

from promptccd.clustering.spread import measure_spread
from promptccd.data.randomness import torch_generator
from promptccd.models import CategorySpread
from promptccd.models.assignment import assign


class World:
    """Known and new categories that all spread alike, and far more in some directions than in others.

    Args:
        known: categories with a prototype.
        new: others.
        width: of the features.
        seed: of centres and covariance.
        apart: how far centres lie from each other, against the spread within.
    """

    def __init__(self, known: int, new: int, width: int, seed: int, apart: float = 1.0):
        generator = torch.Generator().manual_seed(seed)
        self.scales = 0.3 * torch.logspace(0, -1.5, width)
        self.turn = torch.linalg.qr(torch.randn(width, width, generator=generator)).Q
        centres = torch.randn(known + new, width, generator=generator)
        # As far apart in every direction as images spread there: the wide ones hide what the narrow ones show.
        self.centres = (1.6 * apart * centres * self.scales) @ self.turn
        self.prototypes = self.centres[:known]

    def draw(self, categories: Iterable[int], images: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """So many images of each category ``(N, D)``, and which category they are of."""
        labels = torch.tensor(list(categories)).repeat_interleave(images)
        generator = torch.Generator().manual_seed(1000 + seed)
        noise = torch.randn(len(labels), self.centres.shape[1], generator=generator)
        return self.centres[labels] + (noise * self.scales) @ self.turn, labels


def test_it_tells_known_from_new_and_one_from_another_where_distances_of_features_do_not() -> None:
    world = World(known=12, new=6, width=32, seed=3, apart=0.6)
    spread = measure_spread(*world.draw(range(12), 60), world.prototypes, seed=0)
    fresh, truth = world.draw(range(18), 100, seed=4)
    plain, measured = (
        assign(fresh, world.prototypes, range(12), temperature=0.1, spread=each) for each in (None, spread)
    )
    is_new = (truth >= 12).numpy()
    right = [(each.category_ids == truth)[truth < 12].double().mean() for each in (plain, measured)]
    assert right[1] > right[0] + 0.1
    assert roc_auc_score(is_new, measured.distances) > 0.95 > roc_auc_score(is_new, plain.distances) + 0.1
    assert measured.novel[truth >= 12].double().mean() > 0.8
    assert measured.novel[truth < 12].double().mean() < 0.05
    assert not plain.novel.any()


@pytest.mark.parametrize("tails", [None, 3])
def test_confidences_mean_what_they_say_on_fresh_images(tails: int | None) -> None:
    """Of categories that overlap: of those that are called right at 70 %, about 70 % are.

    With heavy tails, as photographs have, a soft-max over squared distances would be off by 0.068 (this by 0.017).
    """
    world = World(known=10, new=0, width=12, seed=5, apart=0.7)

    def drawn(images: int, seed: int) -> tuple[Tensor, Tensor]:
        features, rows = world.draw(range(10), images, seed=seed)
        if tails is None:
            return features, rows
        generator, means = torch.Generator().manual_seed(seed), world.prototypes[rows]
        chi = torch.randn(len(rows), tails, generator=generator).square().mean(1, keepdim=True)
        return means + 0.6 * (features - means) / chi.sqrt(), rows

    spread = replace(measure_spread(*drawn(80, 1), world.prototypes, seed=0), border=1e6)
    fresh, truth = drawn(300, 6)
    found = assign(fresh, world.prototypes, range(10), temperature=0.1, spread=spread)
    right, bins = found.category_ids == truth, (found.confidences * 10).long().clamp(max=9)
    assert 0.5 < right.double().mean() < 0.95
    errors = [
        (found.confidences[bins == each].mean() - right[bins == each].double().mean()).abs()
        * (bins == each).double().mean()
        for each in bins.unique()
    ]
    assert float(torch.stack(errors).sum()) < 0.03


@pytest.mark.parametrize(("apart", "nearer"), [(0.7, 1.0), (1.4, 0.5)])
def test_everything_measured_is_as_plain_sums_over_images_left_out_say(apart: float, nearer: float) -> None:
    """With two images of one category and one of another, which a fold leaves without any."""
    world = World(known=4, new=0, width=6, seed=11, apart=apart)
    features, rows = world.draw(range(4), 40)
    kept = torch.cat([torch.arange(82), torch.arange(120, 121)])
    features, rows = features[kept], rows[kept]
    spread = measure_spread(features, rows, world.prototypes, seed=3)
    points, prototypes = features.double().numpy(), world.prototypes.double().numpy()
    fold = (torch.randperm(83, generator=torch_generator("spread", 3)) % 5).numpy()
    of = rows.numpy()
    shrinkage = max(0.01, ledoit_wolf_shrinkage(points - prototypes[of], assume_centered=True))
    distances = np.zeros((83, 4))
    for image in range(83):
        others = [each for each in range(83) if fold[each] != fold[image]]
        means = []
        for category in range(4):
            members = [points[each] for each in others if of[each] == category]
            means.append(sum(members) / len(members) if members else prototypes[category])
        residuals = np.array([points[each] - means[of[each]] for each in others])
        covariance = residuals.T @ residuals / (len(others) - 4)
        covariance = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / 6 * np.eye(6)
        for category in range(4):
            away = points[image] - means[category]
            distances[image, category] = away @ np.linalg.inv(covariance) @ away / 6
    own = distances[np.arange(83), of]
    assert spread.typical == pytest.approx(own.mean(), rel=1e-9)
    assert (spread.spreads.shape, spread.spreads.dtype) == ((4,), torch.float32)
    assert (spread.whitener.shape, spread.whitener.dtype) == ((6, 6), torch.float32)
    np.testing.assert_allclose(spread.spreads.numpy(), own.mean(), rtol=1e-6)
    relative = distances / own.mean()
    own = relative[np.arange(83), of]
    assert spread.reach == pytest.approx(np.quantile(own, 0.95), rel=1e-9)
    without = np.where(np.arange(4) == of[:, None], np.inf, relative).min(1)
    nearest = relative.min(1)
    pairs = [(0.5 * (far == near) + (far > near)) for far in without for near in nearest]
    assert spread.separation == pytest.approx(np.mean(pairs))
    assert spread.tells_new == (nearer == 0.5)
    losses = {}
    for temperature in 10 ** np.linspace(-3, 1, 41):
        logits = -np.sqrt(relative) / temperature
        losses[temperature] = np.mean(np.logaddexp.reduce(logits, axis=1) - logits[np.arange(83), of])
    assert spread.temperature == pytest.approx(min(losses, key=losses.get), rel=1e-9)
    assert 0.01 < spread.temperature < 5
    # A logistic regression is the likeliest where what it says of either kind adds up to what there is of it.
    nearest, others = np.sqrt(nearest), np.sqrt(1 + nearer * np.maximum(without - 1, 0))
    strangers = 0.25 * 83 / 4 / np.bincount(of)[of]  # every category counts alike among those
    missed = 1 / (1 + np.exp(spread.slope * (spread.border - nearest)))
    taken = strangers / (1 + np.exp(spread.slope * (others - spread.border)))
    assert missed.sum() == pytest.approx(taken.sum(), abs=0.1)
    assert (nearest * missed).sum() == pytest.approx((others * taken).sum(), abs=0.1)


def test_how_sure_an_answer_is_only_labels_say() -> None:
    """An image that was assigned lies nearest to its own category by definition, and says nothing."""
    world = World(known=8, new=0, width=32, seed=15, apart=0.1)
    features, truth = world.draw(range(8), 60)
    measured = partial(measure_spread, features, prototypes=world.prototypes, seed=0)
    right = measured(truth)
    labelled = torch.arange(480) % 60 < 15
    rows = torch.where(labelled, truth, right.squared(features, world.prototypes).argmin(1))
    sure, labelled_fit = measured(rows), measured(rows, labelled=labelled)
    assert sure.temperature < 0.6 * right.temperature < 0.6 * labelled_fit.temperature
    nobody = measured(rows, labelled=torch.zeros(480, dtype=torch.bool))
    assert nobody.temperature == sure.temperature
    placed = torch.where(labelled, -1, rows)
    without = measured(placed, labelled=labelled)  # of none that counts
    assert without.temperature == measured(placed).temperature


def test_of_too_few_images_nothing_is_said() -> None:
    features = F.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    assert measure_spread(features, torch.zeros(6).long(), features[:1], seed=0) is None
    assert measure_spread(features, torch.arange(6), features, seed=0) is None
    two_of_each = measure_spread(features[:4], torch.tensor([0, 0, 1, 1]), features[[0, 2]], seed=0)
    assert two_of_each is not None
    assert measure_spread(features[:3], torch.tensor([0, 0, 1]), features[[0, 2]], seed=0) is None
    alike = features[:2].repeat_interleave(3, 0)
    assert measure_spread(alike, torch.arange(2).repeat_interleave(3), features[:2], seed=0) is None


def test_what_nobody_measured_spreads_wider_than_what_was_trained() -> None:
    spread = CategorySpread(torch.eye(2), torch.tensor([0.5, 2.0]), 1.0, 1.5, 2.0, 4.0, 0.1, 1.0)
    assert spread.of([1, None, 0]).spreads.tolist() == pytest.approx([2.0, 1.4, 0.5])
    chances = spread.known_probability(torch.tensor([[2.0, 9.0], [0.5, 8.0], [9.0, 18.0]]))
    assert chances.tolist() == pytest.approx([0.5, 1 / (1 + np.exp(-4)), 1 / (1 + np.exp(4))])


def test_features_in_which_new_categories_do_not_stand_out_say_so() -> None:
    separations = []
    for apart in (0.1, 0.25, 1.0):
        world = World(known=10, new=10, width=32, seed=13, apart=apart)
        spread = measure_spread(*world.draw(range(10), 60), world.prototypes, seed=0)
        fresh, truth = world.draw(range(20), 100, seed=14)
        distances = spread.squared(fresh, world.prototypes).amin(1)
        separations.append(spread.separation)
        assert spread.separation == pytest.approx(roc_auc_score(truth >= 10, distances), abs=0.05)
        assert spread.tells_new == (apart == 1.0)
    assert separations == sorted(separations)

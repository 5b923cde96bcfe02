"""k-means beside prototypes that stay: the tree of merges, its cuts, their silhouettes, and very many images."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.metrics import adjusted_rand_score, silhouette_score

from promptccd.clustering import GroupingConstraints
from promptccd.clustering.spread import measure_spread
from promptccd.clustering.stream import EarlierImages
from promptccd.discovery.grouping import group_tree
from promptccd.discovery.grouping.group_tree import GIVEN_UP, in_nearest, lloyd
from promptccd.discovery.grouping.open_grouping import KnownCategories, group_images
from promptccd.discovery.grouping.silhouettes import estimate_by_silhouette, log_likelihood, silhouette
from promptccd.discovery.grouping.units import make_units
from tests.clustering.test_split_merge import blobs
from tests.discovery.grouping.conftest import groups_of, homes, keys_of, prototypes_of, satisfied


def inertia(points, weights, groups, held):
    """Squared distances to the group's mean, or to the nearest held prototype for those in none."""
    total = 0.0
    for group in set(groups.tolist()):
        mine, mass = points[groups == group], weights[groups == group]
        if group == GIVEN_UP:
            total += (mass * ((mine[:, None] - held[None]) ** 2).sum(2).min(1)).sum()
        else:
            centre = (mass[:, None] * mine).sum(0) / mass.sum()
            total += (mass * ((mine - centre) ** 2).sum(1)).sum()
    return total


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("num_fixed", "num_opened"), [(0, 0), (2, 0), (1, 2)])
def test_every_merge_is_the_one_that_raises_the_inertia_least(num_fixed, num_opened, seed):
    """Held against all merges there are, each with its inertia summed up anew.

    Giving a group up is priced by its mean, which is what of its cost depends on which group it is.
    """
    rng = np.random.default_rng(seed)
    seeds, masses = rng.normal(size=(9, 3)), rng.integers(1, 6, 9).astype(float)
    held, fewest = rng.normal(size=(num_fixed, 3)), max(1, num_fixed + num_opened)
    merges = group_tree._cheapest_merges(seeds, masses, held, num_opened, fewest)
    assert len(merges) == num_fixed + 9 - fewest
    groups = np.arange(9)
    for kept, gone in merges:
        present = sorted(set(groups.tolist()) - {GIVEN_UP})
        before = inertia(seeds, masses, groups, held)
        costs = {}
        for one, two in itertools.combinations(present, 2):
            if two >= num_opened:
                after = np.where(groups == two, one, groups)
                costs[one, two] = inertia(seeds, masses, after, held) - before
        for group in present[num_opened:] if num_fixed else []:
            mass = masses[groups == group]
            centre = mass @ seeds[groups == group] / mass.sum()
            costs[GIVEN_UP, group] = mass.sum() * ((held - centre) ** 2).sum(1).min()
        assert costs[kept, gone] == pytest.approx(min(costs.values()))
        groups[groups == gone] = kept


def test_units_that_people_place_cost_what_their_own_centre_does():
    points, centres = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.eye(3)
    keys = keys_of(points)
    said = GroupingConstraints(pinned={keys[0]: 1}, forbidden={key: {0, 2} for key in keys[1:3]})
    found = in_nearest(make_units(points, keys, said, lambda category: category), centres)
    assert found.labels[:3].tolist() == [1, 1, 1]
    torch.testing.assert_close(found.costs, (points - centres[found.labels]).square().sum(1))


def test_more_groups_than_seeds_are_found_where_so_many_are_asked_for():
    points, groups = blobs([3] * 100, width=32, spread=0.1)
    found, _ = groups_of(points, num_categories=100)
    assert adjusted_rand_score(groups, found.category_ids) == 1


@pytest.mark.slow
def test_a_thousand_categories_are_counted():
    """More than the first tree holds: it is made again with more seeds, until the curve has come down."""
    points, groups = blobs([6] * 1_000, width=16, spread=0.15)
    found, estimate = groups_of(points)
    assert abs(estimate.count - 1_000) <= 20
    assert adjusted_rand_score(groups, found.category_ids) > 0.97


# More images than a tree is made of: groups are those of fewer.

GROUPS, EACH, WIDTH = 8, 80, 32


@pytest.fixture
def few(monkeypatch):
    """As few images make a tree beside those below as do beside millions."""

    def most(number: int) -> None:
        monkeypatch.setattr(group_tree, "MOST_SAMPLED", number)

    most(250)
    return most


def known_of(points, groups, kind):
    """Nothing, categories beside which new ones open, or what a stream has brought before; and the next id."""
    if kind == "nothing":
        return KnownCategories.none(WIDTH), 0
    old, known = groups < 4, prototypes_of(points, groups, range(4))
    spread = measure_spread(points[old], groups[old], known.prototypes, seed=1)
    earlier = None
    if kind == "stream":
        near = points[old] + 0.01
        earlier = EarlierImages(near, groups[old], torch.zeros(len(near), dtype=torch.int64), 1)
    return KnownCategories(known.ids, known.prototypes, spread, earlier), 4


@pytest.mark.parametrize("kind", ["nothing", "open set", "stream"])
def test_they_are_grouped_as_fewer_are_in_any_order(few, kind):
    """Images of eight categories, and what people said of some."""
    points, groups = blobs([EACH] * GROUPS, width=WIDTH, spread=0.3)
    keys, (one, two) = keys_of(points), (groups.eq(each).nonzero()[:, 0].tolist() for each in (2, 3))
    said = GroupingConstraints(
        must_link=[(keys[one[0]], keys[two[0]])],
        cannot_link=[(keys[one[1]], keys[one[2]])],
        pinned={keys[one[3]]: 30},
        forbidden={keys[two[1]]: {30}},
    )
    moments = np.arange(len(keys))
    moments[two[5:8]] = two[5]
    known, next_id = known_of(points, groups, kind)
    options = {"constraints": said, "seed": 3, "first_of": moments}
    options["num_categories"] = GROUPS + 1 if kind == "nothing" else None
    few(len(points))
    fewer, count = groups_of(points, known, next_id, **options)
    few(250)
    found, again = groups_of(points, known, next_id, **options)
    assert count.count == again.count == len(found.ids) > GROUPS / 2
    assert adjusted_rand_score(fewer.category_ids, found.category_ids) == 1
    of = homes(found)
    assert satisfied(said, of)
    assert all(of[keys[row]] == of[keys[moment]] for row, moment in enumerate(moments.tolist()))
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))
    # The first image of the moment stays the one that stands for it.
    options["first_of"] = order.argsort().numpy()[moments[order]]
    mixed = [keys[row] for row in order]
    shuffled, _ = group_images(points[order], mixed, known, next_id=next_id, **options)
    assert torch.equal(found.category_ids[order], shuffled.category_ids)


def test_k_means_of_very_many_does_not_wait_for_the_last_one_in_a_thousand(few):
    points = torch.linspace(0, 1, 4_000)[:, None]
    start = torch.tensor([[0.0], [0.6]])
    units = make_units(points, keys_of(points), GroupingConstraints(), lambda category: category)
    found = lloyd(units, start, 0)
    few(4_000)
    rest = lloyd(units, start, 0)
    moved = (found.labels != rest.labels).sum()
    assert 0 < moved < 20
    assert torch.equal(found.labels, torch.cdist(points, found.centres).argmin(1))


# Silhouettes and likelihoods of cuts, and the number of groups


@pytest.mark.parametrize("sizes", [[12, 9, 15], [12, 9], [2, 9, 1]])
def test_silhouette_is_that_of_the_images_behind_the_centres(sizes):
    points, groups = blobs(sizes, width=16, spread=0.8)
    points = points.double()
    centres = torch.stack([points[groups == each].mean(0) for each in range(len(sizes))])
    expected = silhouette_score(torch.cdist(points, points).square().numpy(), groups, metric="precomputed")
    assert silhouette(points, groups, centres, points.new_empty(0)) == pytest.approx(expected, abs=1e-6)


def test_silhouette_counts_the_images_behind_known_prototypes():
    """Those of one known category are not here: an image's distances to them follow from their mean and variance."""
    points, groups = blobs([60, 30, 30], width=16, spread=0.8)
    points = points.double()
    behind = points[groups == 0]
    centres = torch.stack([points[groups == each].mean(0) for each in range(3)])
    here = torch.cat([behind[:20], points[groups > 0]])
    labels = torch.cat([torch.zeros(20, dtype=torch.int64), groups[groups > 0]])
    spread = (behind - behind.mean(0)).square().sum(1).mean()
    values = []
    for point, label in zip(here, labels.tolist(), strict=True):
        to = [(point - points[groups == each]).square().sum(1) for each in range(3)]
        sizes = [len(behind), *(int((groups == each).sum()) - (label == each) for each in (1, 2))]
        means = [float(each.sum() / size) for each, size in zip(to, sizes, strict=True)]
        others = min(mean for each, mean in enumerate(means) if each != label)
        values.append((others - means[label]) / max(others, means[label]))
    expected = sum(values) / len(values)
    assert silhouette(here, labels, centres, spread[None]) == pytest.approx(expected, abs=1e-6)


def test_the_likelihood_is_that_of_round_groups_of_one_variance():
    """Written out point by point, with the variance that fits best."""
    points, groups = blobs([30, 20, 10], width=4, spread=0.5)
    points = points.double()
    centres = torch.stack([points[groups == each].mean(0) for each in range(3)])
    costs = (points - centres[groups]).square().sum(1)
    variance = float(costs.sum() / (4 * 57))
    expected = -3 * 5 / 2 * np.log(60)
    for point, group in zip(points, groups.tolist(), strict=True):
        expected += np.log(float((groups == group).double().mean()))
        expected += scipy.stats.norm.logpdf(point.numpy(), centres[group].numpy(), np.sqrt(variance)).sum()
    # The variance is unbiased, so that images and dimensions do not quite cancel to N D / 2.
    expected += 4 * 57 / 2 - 4 * 60 / 2
    assert log_likelihood(costs, groups, 3, 4) == pytest.approx(float(expected))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("likeliest", [3, 5, 7, 9])
def test_where_groups_overlap_the_likeliest_number_within_the_range_counts(likeliest, overlap):
    scores = {2: 0.3, 3: 0.45, 4: 0.499, 5: 0.5, 7: 0.46, 9: 0.2}  # 5 is not enough better than 4
    scores = {each: score / 2 if overlap else score for each, score in scores.items()}
    likelihoods = {each: -abs(each - likeliest) for each in scores}
    found = estimate_by_silhouette(scores, likelihoods)
    assert (found.low, found.high) == (3, 7)
    assert found.count == (min(likeliest, 7) if overlap else 4)


def test_without_structure_the_smallest_number_counts():
    scores = {1: 0.0, 2: 0.049, 3: 0.01, 4: -0.02}
    found = estimate_by_silhouette(scores, dict.fromkeys(scores, 0.0))
    assert (found.count, found.low, found.high) == (1, 1, 2)

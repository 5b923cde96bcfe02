"""k-means beside prototypes that stay: the tree of merges, its cuts, and what is done where images are very many."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch.nn.functional import normalize

from promptccd.clustering import GroupingConstraints
from promptccd.discovery.grouping import KnownCategories, group_images, group_tree, silhouettes, units
from promptccd.discovery.grouping.group_tree import GIVEN_UP, GroupTree, lloyd, means
from promptccd.discovery.grouping.units import make_units
from promptccd.errors import DataError
from tests.clustering.test_split_merge import blobs


def keys_of(points):
    return [f"{each:05d}" for each in range(len(points))]


def units_of(points, constraints=None):
    return make_units(
        points, keys_of(points), constraints or GroupingConstraints(), lambda category: category
    )


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
    seeds, masses, held = (
        rng.normal(size=(9, 3)),
        rng.integers(1, 6, 9).astype(float),
        rng.normal(size=(num_fixed, 3)),
    )
    fewest = max(1, num_fixed + num_opened)
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


def test_the_share_of_the_variance_that_the_components_hold():
    torch.manual_seed(0)
    noise = torch.randn(600, 500)
    shares = [GroupTree(units_of(each), each[:0], 0, 5, seed=0).share for each in (noise, noise[:, :4])]
    spread = torch.linalg.svdvals(noise - noise.mean(0)).square()
    assert shares == pytest.approx([float(spread[:48].sum() / spread.sum()), 1], abs=1e-3)
    assert GroupTree(units_of(torch.ones(3, 4)), noise[:0, :4], 0, 2, seed=0).share == 1


def test_a_cut_is_a_fixed_point_of_k_means_beside_what_is_held():
    points, groups = blobs([30, 20, 25, 15, 40], width=12, spread=0.5)
    held = torch.stack([points[groups == each].mean(0) for each in (0, 1)]) + 0.01
    tree = GroupTree(units_of(points), held, 0, 30, seed=0)
    for found in (tree.cut(5), tree.best(5)):
        assert torch.equal(found.centres[:2], tree.fixed)
        squared = torch.cdist(tree.units.points, found.centres).square()
        assert torch.equal(found.labels, squared.argmin(1))
        for group in range(2, 5):
            torch.testing.assert_close(found.centres[group], tree.units.points[found.labels == group].mean(0))
        assert adjusted_rand_score(groups, found.labels) == 1


@pytest.mark.slow
def test_random_starts_help_where_the_cheapest_merges_mislead():
    points, _ = blobs([8] * 30, width=4, spread=2.0)
    tree = GroupTree(units_of(points), points[:0], 0, 90, seed=0)
    gains = [float(tree.cut(count).costs.sum() - tree.best(count).costs.sum()) for count in range(2, 30)]
    assert min(gains) >= 0
    assert max(gains) > 0.01


def test_weights_and_means_are_those_of_the_images():
    points = torch.tensor([[1.0, 0], [3, 0], [0, 2], [0, 4], [0, 9]])
    linked = units_of(points, GroupingConstraints(must_link=(("00000", "00001"),)))
    assert linked.points[:, 0].tolist() == [2, 0, 0, 0]
    assert linked.weights.tolist() == [10, 1, 1, 1]  # of an image that people spoke of: five times
    assert linked.sizes.tolist() == [2, 1, 1, 1]
    centres, weights = means(linked, torch.tensor([0, 0, 2, 2]), 3)
    assert weights.tolist() == [11, 0, 2]
    torch.testing.assert_close(centres[0], (10 * torch.tensor([2.0, 0]) + torch.tensor([0, 2.0])) / 11)
    assert centres[1].tolist() == [0, 0]
    torch.testing.assert_close(centres[2], torch.tensor([0, 6.5]))


def test_an_empty_group_keeps_its_centre():
    points = normalize(torch.eye(3), dim=1)
    centres = torch.cat([points[:2], torch.full((1, 3), 9.0)])
    found = lloyd(units_of(points), centres, 0)
    assert found.centres[2].tolist() == [9, 9, 9]
    assert sorted(found.labels.tolist()) == [0, 0, 1] or sorted(found.labels.tolist()) == [0, 1, 1]


@pytest.fixture(scope="module")
def crowd():
    """960 images of twelve categories, four of them known, and a group that people have opened."""
    points, groups = blobs([80] * 12, width=64, spread=0.4)
    known = KnownCategories(
        tuple(range(4)), torch.stack([points[groups == each].mean(0) for each in range(4)])
    )
    rows = [int((groups == 7).nonzero()[each]) for each in (3, 60)]
    pins = GroupingConstraints(pinned={keys_of(points)[row]: 40 for row in rows})
    return points, groups, known, pins


def grouped(crowd, **options):
    points, _, known, pins = crowd
    return group_images(points, keys_of(points), known, next_id=4, constraints=pins, **options)


@pytest.mark.slow
def test_a_sample_finds_what_all_images_do(crowd, monkeypatch):
    everything, count = grouped(crowd)
    monkeypatch.setattr(group_tree, "MOST_SAMPLED", 300)
    sampled, again = grouped(crowd)
    assert count.count == again.count == 12
    assert (everything.category_ids[crowd[1] == 7] == 40).all()
    assert adjusted_rand_score(everything.category_ids, sampled.category_ids) == 1
    torch.testing.assert_close(everything.prototypes[:5], sampled.prototypes[:5])
    nearest = torch.cdist(crowd[0], sampled.prototypes).argmin(1)
    assert torch.equal(torch.tensor(sampled.ids)[nearest], sampled.category_ids)


def test_tables_are_held_block_by_block_and_nothing_depends_on_the_blocks(crowd, monkeypatch):
    whole, _ = grouped(crowd, num_categories=12)
    monkeypatch.setattr(units, "TABLE_ELEMENTS", 1_000)
    blocks, _ = grouped(crowd, num_categories=12)
    assert torch.equal(whole.category_ids, blocks.category_ids)
    torch.testing.assert_close(whole.prototypes, blocks.prototypes)


def test_answers_take_the_place_of_other_groups_where_the_number_is_given():
    """Four categories stand apart, but people keep five images of one apart: their answers come first."""
    points, groups = blobs([20] * 4, width=16, spread=0.3)
    keys = keys_of(points)
    rivals = [keys[row] for row in (groups == 0).nonzero()[:4, 0].tolist()]
    apart = GroupingConstraints(cannot_link=tuple(itertools.combinations(rivals, 2)))
    found, _ = group_images(
        points, keys, KnownCategories.none(16), num_categories=4, next_id=0, constraints=apart
    )
    of = dict(zip(keys, found.category_ids.tolist(), strict=True))
    assert len({of[key] for key in rivals}) == 4
    five = GroupingConstraints(cannot_link=tuple(itertools.combinations([*rivals, keys[-1]], 2)))
    with pytest.raises(DataError, match="cannot be kept apart with 4"):
        group_images(points, keys, KnownCategories.none(16), num_categories=4, next_id=0, constraints=five)


def test_more_groups_than_seeds_are_found_where_so_many_are_asked_for():
    points, groups = blobs([3] * 100, width=32, spread=0.1)
    found, _ = group_images(points, keys_of(points), KnownCategories.none(32), num_categories=100, next_id=0)
    assert adjusted_rand_score(groups, found.category_ids) == 1


@pytest.mark.slow
def test_more_categories_than_the_first_tree_holds_are_counted(monkeypatch):
    """It is made again with more seeds, as long as the curve has not come down or shows nothing yet."""
    points, groups = blobs([6] * 70, width=16, spread=0.15)
    monkeypatch.setattr(silhouettes, "FIRST_SEEDS", 24)
    found, estimate = group_images(points, keys_of(points), KnownCategories.none(16), next_id=0)
    assert abs(estimate.count - 70) <= 2
    assert adjusted_rand_score(groups, found.category_ids) > 0.95


@pytest.mark.slow
def test_a_thousand_categories_are_counted():
    points, groups = blobs([6] * 1_000, width=16, spread=0.15)
    found, estimate = group_images(points, keys_of(points), KnownCategories.none(16), next_id=0)
    assert abs(estimate.count - 1_000) <= 20
    assert adjusted_rand_score(groups, found.category_ids) > 0.97

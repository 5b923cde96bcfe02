"""k-means beside prototypes that stay: the tree of merges, its cuts, and what is done where images are very many."""

import itertools

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from promptccd.clustering import GroupingConstraints
from promptccd.discovery.grouping import KnownCategories, group_images, group_tree
from promptccd.discovery.grouping.group_tree import GIVEN_UP
from promptccd.discovery.grouping.units import make_units
from promptccd.errors import DataError
from tests.clustering.test_split_merge import blobs
from tests.discovery.grouping.conftest import keys_of
from tests.messages import TEXT


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
    with pytest.raises(DataError, match=TEXT["cannot-be-kept-apart-with-4"]):
        group_images(points, keys, KnownCategories.none(16), num_categories=4, next_id=0, constraints=five)


def test_more_groups_than_seeds_are_found_where_so_many_are_asked_for():
    points, groups = blobs([3] * 100, width=32, spread=0.1)
    found, _ = group_images(points, keys_of(points), KnownCategories.none(32), num_categories=100, next_id=0)
    assert adjusted_rand_score(groups, found.category_ids) == 1


@pytest.mark.slow
def test_a_thousand_categories_are_counted():
    """More than the first tree holds: it is made again with more seeds, until the curve has come down."""
    points, groups = blobs([6] * 1_000, width=16, spread=0.15)
    found, estimate = group_images(points, keys_of(points), KnownCategories.none(16), next_id=0)
    assert abs(estimate.count - 1_000) <= 20
    assert adjusted_rand_score(groups, found.category_ids) > 0.97

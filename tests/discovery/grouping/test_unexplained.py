"""New groups beside known categories whose spread is known: nothing known is cut up, what is new is found."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from promptccd.clustering import GroupingConstraints
from promptccd.clustering.spread import measure_spread
from promptccd.discovery.grouping.open_grouping import KnownCategories
from promptccd.errors import DataError
from promptccd.models.assignment import assign
from tests.clustering.test_spread import World
from tests.discovery.grouping.conftest import groups_of, homes, keys_of
from tests.messages import TEXT

WORLD = World(known=8, new=4, width=32, seed=11)


def known_of(world: World) -> KnownCategories:
    """Prototypes and spread, of unit features as a checkpoint has them."""
    features, rows = world.draw(range(8), 60)
    features = F.normalize(features, dim=1)
    prototypes = torch.stack([features[rows == each].mean(0) for each in range(8)])
    return KnownCategories(tuple(range(8)), prototypes, measure_spread(features, rows, prototypes, seed=0))


KNOWN = known_of(WORLD)
HIDDEN = replace(KNOWN, spread=replace(KNOWN.spread, separation=0.8))  # new categories do not stand out


@pytest.mark.parametrize("images", [1, 3, 30])
@pytest.mark.parametrize("categories", [range(8), range(1), range(2, 5)])
def test_of_known_categories_alone_nothing_is_new(images: int, categories: range) -> None:
    features, truth = WORLD.draw(categories, images, seed=images)
    found, estimate = groups_of(features, KNOWN, next_id=8)
    assert found.category_ids.tolist() == truth.tolist()
    assert estimate.count == 8
    assert found.prototypes.shape == (8, 32)


def test_one_style_of_a_category_is_not_a_category() -> None:
    """Half of the spread in one direction: the images that lie to one side of the prototype."""
    features, truth = WORLD.draw([0], 400, seed=2)
    side = (features - WORLD.prototypes[0]) @ WORLD.turn[0]
    features = features[side > 0.5 * side.std()]
    assert len(features) > 100
    found, _ = groups_of(features, KNOWN, next_id=8)
    assert found.category_ids.unique().tolist() == [0]


@pytest.mark.parametrize(
    ("known", "images", "seed", "low"),
    [(KNOWN, 8, 3, 9), (KNOWN, 40, 3, 9), (KNOWN, 150, 3, 9), (HIDDEN, 20, 10, 8)],
    ids=["8", "40", "150", "hidden: silhouettes propose them"],
)
def test_new_categories_are_found_whole(known: KnownCategories, images: int, seed: int, low: int) -> None:
    features, truth = WORLD.draw(range(12), images, seed=seed)
    found, estimate = groups_of(features, known, next_id=20)
    assert found.ids == (*range(8), 20, 21, 22, 23)
    assert (found.category_ids[truth < 8] == truth[truth < 8]).double().mean() > 0.98
    named = [found.category_ids[truth == each].mode().values for each in range(8, 12)]
    assert sorted(named) == [20, 21, 22, 23]
    assert low <= estimate.low <= 12 == estimate.count <= estimate.high <= 13
    assert (estimate.method == "silhouette") == (known is HIDDEN)
    if known is HIDDEN:
        assert estimate.low == low
        return
    right = [
        (found.category_ids[truth == each] == name).double().mean()
        for each, name in zip(range(8, 12), named, strict=True)
    ]
    assert min(right) > 0.9
    assert not found.novel.double().mean() > 0.05
    # The prototype of a new category is the mean of its images' unit features, as everywhere.
    group = 8 + [20, 21, 22, 23].index(int(named[0]))
    mean = F.normalize(features, dim=1)[found.category_ids == named[0]].mean(0)
    torch.testing.assert_close(found.prototypes[group], mean, rtol=0, atol=0.02)


def test_the_largest_new_group_comes_first_and_a_few_strangers_are_no_group() -> None:
    sizes = {8: 10, 9: 60, 10: 30, 11: 3}
    parts = [WORLD.draw([each], size, seed=each) for each, size in {0: 20, **sizes}.items()]
    features, truth = (torch.cat(each) for each in zip(*parts, strict=True))
    found, estimate = groups_of(features, KNOWN, next_id=8)
    assert estimate.count == 11
    assert [int(found.category_ids[truth == each].mode().values) for each in (9, 10, 8)] == [8, 9, 10]
    lone = truth == 11
    assert found.category_ids[lone].max() < 8
    assert found.novel[lone].all()
    assert found.confidences[lone].max() < 0.5


def test_an_image_forbidden_everywhere_opens_a_group() -> None:
    features, _ = WORLD.draw(range(8), 3, seed=7)
    key = keys_of(features)[0]
    nowhere = GroupingConstraints(forbidden={key: frozenset(range(8))})
    found, estimate = groups_of(features, KNOWN, next_id=8, constraints=nowhere)
    assert (homes(found)[key], estimate.count) == (8, 9)
    with pytest.raises(DataError, match=TEXT["forbidden-in-each-of-the-8"]):
        groups_of(features, KNOWN, num_categories=8, next_id=8, constraints=nowhere)


@pytest.mark.moderate
@pytest.mark.parametrize("num_categories", [1, 2, pytest.param(8, marks=pytest.mark.slow)])
def test_nor_is_a_known_category_cut_up_there(num_categories: int) -> None:
    """The parts of a folder that holds one kind of thing stand apart from each other as well as silhouettes ask."""
    features, truth = WORLD.draw(range(num_categories), 180, seed=2)
    found, estimate = groups_of(features, HIDDEN, next_id=8)
    assert estimate.count == 8
    assert estimate.range == (8, 9)  # unsure of some, and of less than a category's worth
    assert (found.category_ids == truth).double().mean() > 0.98


@pytest.mark.moderate
def test_nor_is_a_known_category_of_several_kinds() -> None:
    """Tight heaps within its reach, which silhouettes take for groups; the range still holds the truth."""
    heaps = WORLD.prototypes[0] + 0.9 * (WORLD.draw([0], 6, seed=5)[0] - WORLD.prototypes[0])
    noise = WORLD.draw([0], 180, seed=6)[0] - WORLD.prototypes[0]
    features = heaps.repeat_interleave(30, 0) + 0.1 * noise
    bare, _ = groups_of(features, replace(KNOWN, spread=None), next_id=8)
    assert len(bare.category_ids.unique()) > 3
    found, estimate = groups_of(features, HIDDEN, next_id=8)
    assert found.category_ids.unique().tolist() == [0]
    assert estimate.low <= estimate.count == 8 <= estimate.high
    assert estimate.margin.endswith("unreliable")


@pytest.mark.parametrize("separation", [0.8, 0.95])
def test_known_images_are_named_as_a_checkpoint_names_them(separation: float) -> None:
    """Not by the spreads of their categories, of which one is the widest."""
    spreads = KNOWN.spread.typical * torch.linspace(0.4, 2, 8)
    spread = replace(KNOWN.spread, spreads=spreads, separation=separation)
    world = World(known=8, new=4, width=32, seed=11, apart=1.0)
    features, _ = world.draw(range(8), 20, seed=12)
    features = features + 0.5 * (features - world.prototypes.repeat_interleave(20, 0))
    found, _ = groups_of(features, replace(KNOWN, spread=spread), next_id=8)
    plain = assign(F.normalize(features, dim=1), KNOWN.prototypes, KNOWN.ids, temperature=1, spread=spread)
    stays = found.category_ids < 8
    assert stays.double().mean() > 0.5
    assert torch.equal(found.category_ids[stays], plain.category_ids[stays])


@pytest.mark.parametrize(
    ("images", "apart", "count", "between"),
    [
        (400, 0.1, 9, (9, 10)),
        (400, 0.18, 9, (9, 10)),
        (400, 0.25, 10, (9, 10)),
        (400, 0.4, 10, None),
        (400, 0.55, 10, (9, 10)),
        (400, 0.7, 10, (10, 11)),
        # A small group beside a large one must lie farther off: its images are rather odd ones of one category.
        (20, 0.4, 9, None),
        (20, 0.8, 10, None),
    ],
)
def test_the_range_reaches_from_3_4_to_3_times_the_distance_at_which_groups_open(
    images, apart, count, between
):
    """Two new categories that lie a share of what known ones do from each other; groups open from 0.2 on."""
    first, _ = WORLD.draw([9], 400, seed=5)
    second, _ = WORLD.draw([9], images, seed=6)
    whitener = KNOWN.spread.whitener
    held = KNOWN.prototypes @ whitener
    usual = torch.cdist(held, held).fill_diagonal_(torch.inf).amin(1).square().median()
    away = torch.linalg.solve(whitener.T, torch.eye(32)[0] * (apart * usual).sqrt())
    found, estimate = groups_of(torch.cat([first, second + away]), KNOWN, next_id=8)
    assert (estimate.count, estimate.range) == (count, between or estimate.range)
    assert found.category_ids.unique().tolist() == list(range(8, count))


@pytest.mark.parametrize(("beyond", "opened"), [(0.8, False), (1.25, True)])
def test_a_new_group_needs_images_that_are_out_of_reach(beyond: float, opened: bool) -> None:
    """Twenty images in one heap, which silhouettes propose: within the reach of a known category they are of it."""
    spread, whitener = HIDDEN.spread, KNOWN.spread.whitener
    step = (beyond * spread.reach * spread.typical) ** 0.5
    heap = KNOWN.prototypes[0] + torch.linalg.solve(whitener.T, step * torch.eye(32)[5])
    noise = 0.05 * (WORLD.draw([0], 20, seed=3)[0] - WORLD.prototypes[0])
    features = torch.cat([WORLD.draw(range(8), 20, seed=4)[0], heap + noise])
    found, _ = groups_of(features, HIDDEN, next_id=8)
    assert found.category_ids[160:].unique().tolist() == [8 if opened else 0]


def test_groups_that_were_joined_do_not_join_all_others() -> None:
    """At the lower end of the range, where a group of three categories is three times as large as the rest."""
    world = World(known=8, new=30, width=32, seed=11)
    features, _ = world.draw(range(38), 20, seed=3)
    _, estimate = groups_of(features, known_of(world), next_id=8)
    assert estimate.count == 38
    assert estimate.low > 8


@pytest.mark.parametrize("known", [KNOWN, HIDDEN], ids=["stand out", "hidden"])
def test_the_range_counts_categories_of_which_there_are_too_few_images_for_a_group(known) -> None:
    """Twelve images of nothing known are as many as three of the known categories have."""
    parts = [WORLD.draw(range(8), 4, seed=1), WORLD.draw(range(8, 12), 3, seed=2)]
    features = torch.cat([part for part, _ in parts])
    found, estimate = groups_of(features, known, next_id=8)
    assert (len(found.ids), estimate.low) == (8, 8)
    assert 11 <= estimate.high <= 12
    placed = GroupingConstraints(pinned={f"{row:05d}": 0 for row in range(32, 44)})  # which hides nothing
    assert groups_of(features, KNOWN, next_id=8, constraints=placed)[1].range == (8, 9)
    plenty = groups_of(WORLD.draw(range(8), 20, seed=1)[0], known, next_id=8)[1]
    assert plenty.low == 8 <= plenty.high <= 9

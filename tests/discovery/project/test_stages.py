"""Stages come and are grouped again: ids, names and edits stay, and nobody's id goes to another."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from promptccd.discovery.project import (
    GROUPING,
    CategoryRegistry,
    CategoryState,
    StageChange,
    StageGroups,
    edits,
)
from promptccd.discovery.project.features import Features
from promptccd.errors import RegistryError
from tests.discovery.project.streams import (
    CENTRES,
    WIDTH,
    Edit,
    Images,
    can_undo,
    do,
    give_features,
    known_registry,
    random_edit,
    sizes_add_up,
)
from tests.messages import TEXT

S1 = Images("s1", {0: 6, 3: 12, 4: 8, 5: 7})
S2 = Images("s2", {1: 5, 3: 6, 5: 6, 6: 9, 7: 10}, seed=1)
S3 = Images("s3", {2: 5, 4: 6, 6: 6, 8: 11, 9: 4}, seed=2)
KNOWN = {0: 0, 1: 1, 2: 2}


def mean_of(images: Images, keys: list[str]) -> np.ndarray:
    return images.features[[images.keys.index(key) for key in keys]].mean(0)


def snapshot(registry: CategoryRegistry) -> dict:
    return {
        "names": {
            each.id: (each.name, each.state, each.merged_into) for each in registry.categories.values()
        },
        "members": dict(registry.members),
        "constraints": registry.constraints(),
    }


def in_none(groups: StageGroups, change: StageChange) -> list[str]:
    """Images of clusters that became no category."""
    clusters = zip(groups.keys, groups.clusters.tolist(), strict=True)
    return [key for key, cluster in clusters if change.cluster_ids[cluster] is None]


@pytest.fixture
def lived() -> CategoryRegistry:
    """Three stages with renames, merges, splits, a move and a rejection in between."""
    registry = give_features(known_registry(), S1, S2, S3)
    registry.observe(1, S1.groups(KNOWN, seed=1))  # 3: truth 3, 4: truth 4, 5: truth 5
    edits.rename(registry, 3, "heron")
    edits.split(registry, 3, S1.of(3)[:5], "young heron")  # 6
    edits.move(registry, S1.of(0)[:2], 4)
    registry.observe(2, S2.groups(KNOWN, seed=2))  # 7: truth 7, 8: truth 6
    edits.rename(registry, 8, "newt")
    edits.merge(registry, [7, 5])
    registry.observe(3, S3.groups(KNOWN, seed=3))  # 9: truth 8, 10: truth 9
    edits.rename(registry, 9, "owl")
    edits.dissolve(registry, 10, to_nearest=False)
    edits.merge(registry, [8, 4])
    edits.split(registry, 9, S3.of(8)[:4])  # 11
    edits.rename(registry, 11, "owlet")
    return registry


def test_three_stages_with_edits(lived: CategoryRegistry) -> None:
    assert {each.id: each.name for each in lived.active} == {
        0: "ant", 1: "bee", 2: "cat", 3: "heron", 4: "newt", 5: "discovered 5", 6: "young heron", 9: "owl",
        11: "owlet",
    }  # fmt: skip
    assert lived.members_of(6) == sorted(S1.of(3)[:5])
    assert set(S2.of(3)) <= set(lived.members_of(3))
    assert set(S2.of(5)) | set(S2.of(7)) <= set(lived.members_of(5))
    assert lived.unassigned == S3.of(9)
    assert sizes_add_up(lived)
    assert [entry.number for entry in lived.log] == list(range(lived.next_number))


def test_what_was_rejected_stays_rejected_by_its_images_whatever_they_look_like_now(lived) -> None:
    """A new model puts them elsewhere, with one more image: most of the cluster was rejected as a category."""
    before, images = snapshot(lived), Images("s3", {2: 5, 4: 6, 6: 6, 8: 11, 9: 5}, seed=2)
    assert images.of(9)[:4] == S3.of(9)
    groups = images.groups(KNOWN)
    elsewhere = np.random.default_rng(0).normal(size=groups.prototypes.shape)
    change = lived.observe(3, replace(groups, prototypes=elsewhere))
    assert in_none(groups, change) == images.of(9)
    assert (change.new, lived.unassigned) == ((), images.of(9))
    assert lived.categories[10].state is CategoryState.RETIRED
    assert snapshot(lived)["names"] == before["names"]
    assert sizes_add_up(lived)


def test_a_finer_grouping_gives_new_ids_to_the_smaller_halves_only() -> None:
    registry = known_registry()
    registry.observe(1, S1.groups(KNOWN, together=(3, 4)))
    assert registry.category(3).size == 20
    change = registry.observe(1, S1.groups(KNOWN))
    assert change.new == (5,)
    assert registry.members_of(3) == sorted(S1.of(3))
    assert registry.members_of(5) == S1.of(4)


def test_a_category_that_a_coarser_grouping_lost_comes_back_with_its_id_and_name() -> None:
    registry = known_registry()
    registry.observe(1, S1.groups(KNOWN))
    edits.rename(registry, 4, "stork")
    change = registry.observe(1, S1.groups(KNOWN, together=(3, 4)))
    assert change.emptied == (4,)
    assert 4 not in registry.active_prototypes().ids
    registry.observe(1, S1.groups(KNOWN))
    assert registry.category(4).name == "stork"
    assert registry.members_of(4) == S1.of(4)


def test_a_category_of_several_clusters_has_the_mean_of_all_their_images() -> None:
    registry = known_registry()
    registry.observe(1, S1.groups(KNOWN))
    edits.merge(registry, [3, 4])  # 12 images and 8
    registry.observe(1, S1.groups(KNOWN))
    survivor = registry.category(registry.members[S1.of(3)[0]])
    assert registry.members[S1.of(4)[0]] == survivor.id
    expected = mean_of(S1, S1.of(3, 4))
    np.testing.assert_allclose(registry.prototypes[survivor.prototype_row], expected, atol=1e-6)


@pytest.mark.parametrize(("new", "home"), [(8, 3), (9, 6)])
def test_a_cluster_half_of_which_was_merged_does_not_come_apart(new: int, home: int) -> None:
    registry = known_registry()
    registry.observe(1, S1.groups(KNOWN))
    edits.merge(registry, [3, 4])
    keys = [*S1.of(3), *S1.of(4), *(f"s2:{number}" for number in range(new))]
    clusters = np.repeat([0, 1], [12, 8 + new])
    assert registry.observe(2, StageGroups(keys, clusters, CENTRES[30:32])).cluster_ids == (3, home)


def small_registry() -> CategoryRegistry:
    """Category 0 with the images a, b, c and d, and category 1 with e, f, g and h."""
    registry = CategoryRegistry()
    registry.observe(0, StageGroups(list("abcdefgh"), np.repeat([0, 1], 4), CENTRES[:2]))
    return registry


def one_group(keys: str) -> StageGroups:
    """Images in one cluster that looks like nothing before."""
    return StageGroups(list(keys), np.zeros(len(keys)).astype(int), CENTRES[30:31])


@pytest.mark.parametrize(
    ("made", "keys", "home"),
    [
        ([], "ax", 0),  # half of the cluster
        ([], "axy", 2),  # less
        ([], "abvwxyz", 0),  # half of the category
        ([(edits.dissolve, 0)], "abvwxyz", None),  # half of what was rejected is rejected again
        ([(edits.dissolve, 0)], "axy", 2),
        # Pinned images count towards a half and break ties. Here two that are pinned and one that is not are half:
        ([(edits.confirm, [*"ab"])], "abcxyz", 0),
        ([(edits.confirm, [*"ab"])], "abcwxyz", 0),  # less, but more than half of the category
        ([(edits.confirm, [*"a"])], "abxy", 0),
        ([(edits.confirm, [*"a"])], "abvwxyz", 0),
        ([(edits.confirm, [*"a"])], "awxyz", 2),
        ([(edits.confirm, [*"e"])], "abefg", 1),  # two free images of each: the pinned one decides
        # Three free images of one are more than one of the other, whatever is pinned.
        ([(edits.confirm, [*"eg"])], "abcefg", 0),
    ],
)
def test_half_of_a_cluster_or_of_a_category_says_what_the_cluster_is(made, keys, home) -> None:
    registry = small_registry()
    for edit in made:
        do(registry, edit)
    assert registry.observe(1, one_group(keys)).cluster_ids == (home,)


@pytest.mark.parametrize(("last", "home"), [(1.0, 0), (1.01, 1)])
def test_a_cosine_of_nine_tenths_is_near_enough(last: float, home: int) -> None:
    registry = CategoryRegistry()
    registry.observe(0, StageGroups(["a"], np.array([0]), np.array([[2.0, 0, 0, 0]])))
    looks = np.array([[9.0, 3, 3, last]])  # the cosine of 9, 3, 3, 1 is 9 / 10
    assert registry.observe(1, StageGroups(["b"], np.array([0]), looks)).cluster_ids == (home,)


def turned(groups: StageGroups) -> StageGroups:
    """The same groups in features that have nothing to do with the earlier ones."""
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(WIDTH, WIDTH)))[0]
    return replace(groups, prototypes=groups.prototypes @ rotation)


@pytest.mark.parametrize("turn", [lambda groups: groups, turned], ids=["alike", "other features"])
@pytest.mark.parametrize("again", [(1, 2, 3), (3, 1, 2)])
def test_a_repeated_stage_keeps_everything(lived, again, turn) -> None:
    before, free, stage = snapshot(lived), lived.next_id, lived.stage
    for number, stage_again in enumerate(again):
        images = {1: S1, 2: S2, 3: S3}[stage_again]
        change = lived.observe(stage_again, turn(images.groups(KNOWN, seed=10 + number)))
        assert (change.new, change.moved, change.retired) == ((), {}, ())
        assert snapshot(lived) == before
    assert (lived.next_id, lived.stage) == (free, stage)
    assert sizes_add_up(lived)


def test_a_repeated_stage_is_undone_like_an_edit_and_a_new_one_is_not(lived: CategoryRegistry) -> None:
    lived.observe(3, S3.groups(KNOWN, seed=5))
    entry, before = lived.log[-1], lived.state_hash()
    lived.observe(3, S3.groups(KNOWN, together=(2, 4)))  # another grouping: two categories as one
    assert lived.log[-1].kind == GROUPING
    assert lived.state_hash() != before
    lived.undo()
    assert lived.state_hash() == before
    length = len(lived.log)
    lived.observe(3, S3.groups(KNOWN, seed=6))  # the same groups are no entry, and can be redone after them
    assert (len(lived.log), lived.log[-1], len(lived.redo_stack)) == (length, entry, 1)
    while can_undo(lived):
        lived.undo()
    with pytest.raises(RegistryError, match="stage 3 was grouped since"):
        lived.undo()


def test_new_images_of_found_merged_and_rejected_categories(lived: CategoryRegistry) -> None:
    """7 was merged into 5, and 10 was rejected."""
    images = Images("s4", {3: 5, 5: 6, 7: 6, 8: 6, 9: 6, 20: 7}, seed=4)
    groups, named = images.groups(), lived.copy()
    change = lived.observe(4, groups)
    assert (change.new, change.cluster_ids.count(5)) == ((12,), 2)
    assert set(images.of(3)) <= set(lived.members_of(3)) | set(lived.members_of(6))
    assert set(images.of(8)) <= set(lived.members_of(9)) | set(lived.members_of(11))
    assert in_none(groups, change) == images.of(9)
    assert lived.unassigned == sorted([*S3.of(9), *images.of(9)])
    assert lived.categories[10].state is CategoryState.RETIRED
    groups = Images("s4", {7: 4, 9: 4}, seed=4).groups({7: 7, 9: 10})
    assert set(named.observe(4, groups).cluster_ids) == {5, None}


@pytest.mark.parametrize(
    ("made", "keys", "expected_ids"),
    [
        ([(partial(edits.answer, same=False), "a", "h")], "bcdh", "a0 h1"),  # h goes back
        ([(edits.move, ["a"], None)], "abcd", "b0 c0 d0"),
        ([(edits.move, ["a"], None), (edits.merge, [0, 1])], "abcdefgh", "b0 e0 h0"),
        ([(edits.move, list("abcd"), 1)], "abcd", "a1 b1 c1 d1"),  # the cluster itself does not take 1 with it
    ],
)  # fmt: skip
def test_what_people_said_holds_in_the_next_grouping(made: list[Edit], keys: str, expected_ids: str) -> None:
    registry = small_registry()
    for edit in made:
        do(registry, edit)
    registry.observe(1, one_group(keys))
    expected = {each[0]: int(each[1]) for each in expected_ids.split()}
    assert {key: registry.members[key] for key in expected} == expected


def test_groups_with_ids_are_fixed_where_the_registry_has_them() -> None:
    groups = StageGroups.of(
        ["a", "b", "c"],
        np.array([7, 2, 7]),
        [2, 7],
        CENTRES[:2],
        fixed={2},
        confidences=np.array([0.1, 0.2, 0.3]),
        features=CENTRES[3:6],
    )
    assert (groups.clusters.tolist(), groups.ids) == ([1, 0, 1], [2, None])
    assert groups.confidences.tolist() == [0.1, 0.2, 0.3]
    assert groups.features is not None and len(groups.features) == 3
    empty = StageGroups.of([], np.zeros(0, np.int64), [2], CENTRES[:1], fixed=())
    assert empty.clusters.dtype.kind == "i"


def test_edited_categories_take_the_mean_of_their_own_images() -> None:
    registry = known_registry()
    registry.observe(1, S1.groups(KNOWN))
    part = S1.of(3)[:4]
    registry.features = lambda needed=False: Features(
        S1.of(3), torch.eye(WIDTH)[(torch.arange(12) >= 4).long()]
    )
    edits.split(registry, 3, part)
    given = registry.prototypes[[registry.category(each).prototype_row for each in (6, 3)]]
    kept = registry.copy()
    kept.observe(1, S1.groups(KNOWN))
    registry.observe(1, S1.groups(KNOWN, features=S1.features))
    for identity, keys in ((3, S1.of(3)[4:]), (6, part)):
        row = registry.category(identity).prototype_row
        np.testing.assert_allclose(registry.prototypes[row], mean_of(S1, keys), atol=1e-6)
    fixed = kept.prototypes[[kept.category(each).prototype_row for each in (6, 3)]]
    np.testing.assert_array_equal(fixed, given)


def test_what_is_like_a_category_that_is_set_aside_comes_to_it_and_changes_nothing_of_it() -> None:
    registry = known_registry()
    registry.observe(1, S1.groups(KNOWN, seed=1))
    before = registry.copy()
    edits.set_aside(registry, 5)
    row = registry.category(5).prototype_row
    prototype = registry.prototypes[row].copy()
    change = registry.observe(2, S2.groups({**KNOWN, 5: 5}, seed=2, features=S2.features))
    assert registry.members_of(5) == sorted([*S1.of(5), *S2.of(5)])
    assert registry.put_aside == set(S1.of(5))
    assert (registry.prototypes[registry.category(5).prototype_row] == prototype).all()
    apart = registry.copy()
    apart.observe(2, replace(S2.groups({**KNOWN, 5: 5}, seed=2), features=S2.features[::-1].copy()))
    assert (apart.prototypes[apart.category(5).prototype_row] == prototype).all()
    assert 5 not in change.grown
    since = registry.changes_since(before)
    assert 5 not in {*since.grown, *since.new, *since.retired, *since.emptied}
    assert 3 in since.grown


def test_what_changed_since_the_last_stage() -> None:
    registry = known_registry()
    registry.observe(1, S1.groups(KNOWN, confidences=np.full(len(S1.keys), 0.9)))
    earlier = registry.copy()
    edits.rename(registry, 3, "heron")
    edits.merge(registry, [4, 5])
    both = Images("s1", {0: 6, 3: 12, 4: 8, 5: 7})
    both.keys = [*S1.keys[:-1], "s2:0"]
    confidences = np.full(len(both.keys), 0.9)
    confidences[0] = 0.2
    registry.observe(2, both.groups(KNOWN, confidences=confidences))
    change = registry.changes_since(earlier)
    assert change.stage == 2
    assert change.renamed == {3: ("discovered 3", "heron")}
    assert change.retired == (5,)
    assert change.grown == {4: (8, 16)}
    assert change.unsure == (both.keys[0],)
    assert set(change.moved.values()) == {(5, 4)}
    assert (change.shrunk, change.unassigned) == ({}, 0)
    edits.move(registry, both.of(3)[:5], None)
    change = registry.changes_since(earlier)
    assert (change.shrunk, change.unassigned) == ({3: (12, 7)}, 5)


def test_a_category_that_came_and_went_is_no_change() -> None:
    registry = known_registry()
    earlier = registry.copy()
    registry.observe(1, S1.groups(KNOWN))
    grouped = registry.copy()
    edits.rename(registry, 4, "stork")
    registry.observe(1, S1.groups(KNOWN, together=(3, 4)))
    assert registry.category(4).dormant
    change = registry.changes_since(earlier)
    assert change.new == (3, 5)
    named = (change.grown, change.shrunk, change.renamed, change.retired, change.emptied)
    assert not any(4 in each for each in named)
    change = registry.changes_since(grouped)
    assert (change.emptied, change.grown, change.shrunk) == ((4,), {3: (12, 20)}, {4: (8, 0)})
    asleep = registry.copy()
    registry.observe(1, S1.groups(KNOWN))
    assert registry.changes_since(earlier).new == (3, 4, 5)
    change = registry.changes_since(asleep)
    assert (change.new, change.grown, change.emptied) == ((), {4: (0, 8)}, ())


@pytest.mark.parametrize("seed", range(3))
def test_stages_and_any_edits_then_the_stages_again(seed: int) -> None:
    generator, registry = np.random.default_rng(seed), known_registry()
    given: dict[int, int] = {}
    for stage, images in ((1, S1), (2, S2), (3, S3)):
        registry.observe(stage, images.groups(KNOWN, seed=seed))
        for _ in range(8):
            try:
                do(registry, random_edit(registry, generator))
            except RegistryError:
                continue
        for each in registry.categories.values():
            assert given.setdefault(each.id, each.born) == each.born
    before = snapshot(registry)
    for stage, images in ((1, S1), (2, S2), (3, S3)):
        registry.observe(stage, images.groups(KNOWN, seed=seed + 1))
    after = snapshot(registry)
    assert {key: after["names"][key] for key in before["names"]} == before["names"]
    assert after["constraints"] == before["constraints"]
    assert {after["members"][key] for key in before["constraints"].pinned} <= set(registry.categories)
    for key, identity in before["constraints"].pinned.items():
        assert after["members"][key] == identity
    assert sizes_add_up(registry)


GROUPS = S1.groups()
WRONG: dict[str, tuple[dict, str]] = {
    "an unknown id": ({"ids": [0, 77, None, None]}, "category 77, which was never registered"),
    "NaN in a prototype": ({"prototypes": GROUPS.prototypes * np.nan}, "Expected a prototype of .* with NaN"),
    "another width": ({"prototypes": GROUPS.prototypes[:, :5]}, "another backbone"),
    "a confidence above 1": ({"confidences": np.full(33, 1.5)}, "contradict"),
    "a key without end": ({"keys": ["k" * 1001, *S1.keys[1:]]}, "contradict"),
}


@pytest.mark.parametrize("values", WRONG.values(), ids=WRONG.keys())
def test_a_grouping_that_does_not_fit_changes_nothing(values: tuple[dict, str]) -> None:
    registry = known_registry()
    before = registry.state_hash()
    with pytest.raises(RegistryError, match=values[1]):
        registry.observe(1, replace(GROUPS, **values[0]))
    assert (registry.state_hash(), registry.stage, len(registry.log)) == (before, 0, 0)


def test_an_empty_stage_changes_nothing() -> None:
    registry = known_registry()
    edits.rename(registry, 0, "emmet")
    change = registry.observe(1, StageGroups([], np.zeros(0), CENTRES[:3], [0, 1, 2]))
    assert (change.new, change.cluster_ids) == ((), (0, 1, 2))
    assert registry.stage == 1
    assert [entry.kind for entry in registry.log] == ["rename", GROUPING]
    assert not can_undo(registry)
    assert sizes_add_up(registry)
    nothing = CategoryRegistry()
    assert nothing.observe(0, StageGroups([], np.zeros(0), np.zeros((0, WIDTH)))).cluster_ids == ()
    assert (nothing.stage, nothing.active) == (0, [])


def test_of_two_look_alikes_only_the_nearest_is_the_category() -> None:
    registry = known_registry()
    registry.observe(1, S1.groups(KNOWN))
    row = registry.prototypes[registry.category(3).prototype_row]
    near, nearer = row + 0.1 * CENTRES[30], row + 0.05 * CENTRES[30]
    groups = StageGroups(["a", "b"], np.array([0, 1]), np.stack([near, nearer]))
    assert registry.observe(2, groups).cluster_ids == (6, 3)


def test_a_new_stage_drops_the_prototypes_that_nobody_refers_to(lived: CategoryRegistry) -> None:
    kept = {each.id: lived.prototypes[list(each.rows)] for each in lived.categories.values()}
    for _ in range(3):
        edits.merge(lived, [3, 6])
        lived.undo()
    lived.observe(4, StageGroups([], np.zeros(0, np.int64), np.zeros((0, WIDTH))))
    rows = [row for each in lived.categories.values() for row in each.rows]
    assert sorted(set(rows)) == list(range(len(lived.prototypes)))
    for each in lived.categories.values():
        np.testing.assert_array_equal(lived.prototypes[list(each.rows)], kept[each.id])


def test_prototypes_are_replaced_after_training(lived: CategoryRegistry) -> None:
    before = snapshot(lived)
    lived.replace_prototypes({3: np.eye(WIDTH)[3], 0: np.eye(WIDTH)[0]})
    ids, _, matrix = lived.active_prototypes()
    np.testing.assert_array_equal(matrix[ids.index(3)], np.eye(WIDTH)[3])
    np.testing.assert_array_equal(matrix[ids.index(0)], np.eye(WIDTH)[0])
    assert snapshot(lived) == before
    assert not can_undo(lived)
    state = lived.state_hash()
    with pytest.raises(RegistryError, match=TEXT["category-10-was-rejected-as-a"]):
        lived.replace_prototypes({3: np.eye(WIDTH)[5], 10: np.eye(WIDTH)[3]})
    assert lived.state_hash() == state

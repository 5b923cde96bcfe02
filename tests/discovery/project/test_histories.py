"""Corrections and stages, one after the other: whatever they change in any row is held by ``golden/histories.json``.

Every history says in its name what is to be seen in it.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from promptccd.discovery.project import CategoryRegistry, StageGroups, edits
from promptccd.errors import RegistryError
from tests.discovery.project.streams import CENTRES, WIDTH, Edit, Images, do, give_features, random_edit
from tests.kept import kept

S0, S1 = Images("s0", dict.fromkeys(range(3), 10)), Images("s1", {0: 6, 3: 12, 4: 8, 5: 7})
S2 = Images("s2", {1: 5, 3: 6, 5: 6, 6: 9, 7: 10}, seed=1)
S3 = Images("s3", {2: 5, 4: 6, 6: 6, 8: 11, 9: 4}, seed=2)
S4 = Images("s4", {3: 5, 5: 6, 7: 6, 8: 6, 9: 6, 20: 7}, seed=4)
KNOWN = {0: 0, 1: 1, 2: 2}
THREE, FOUR, FIVE = S1.of(3), S1.of(4), S1.of(5)  # the images of these categories
KEPT_APART = [(partial(edits.answer, same=False), THREE[place], FIVE[place]) for place in (0, 1)]
EMPTIED = (edits.move, FIVE, 3)
ELSEWHERE = np.random.default_rng(0).normal(size=(7, WIDTH))  # nothing to do with the earlier ones
NOTHING = StageGroups([], np.zeros(0, int), np.zeros((0, WIDTH)))
observe, undo, redo = CategoryRegistry.observe, CategoryRegistry.undo, CategoryRegistry.redo


def labelled() -> CategoryRegistry:
    """Three known categories of 10 images each, of which there are no features."""
    means = np.stack([S0.features[S0.truths == each].mean(0) for each in range(3)])
    members = dict(zip(S0.keys, S0.truths.tolist(), strict=True))
    known = CategoryRegistry.from_categories(range(3), ["ant", "bee", "cat"], 3, means, members=members)
    return give_features(known, S1, S2, S3)


def found() -> CategoryRegistry:
    """The known 0, 1, 2; the discovered 3 (12 images), 4 (8) and 5 (7), which new ids are given to, largest first."""
    registry = labelled()
    observe(registry, 1, S1.groups(KNOWN, confidences=np.full(len(S1.keys), 0.9)))
    return registry


def lived() -> CategoryRegistry:
    """Three stages with renames, merges, splits, a move and a rejection in between."""
    registry = found()
    for edit in (
        (edits.rename, 3, "heron"),
        (edits.split, 3, THREE[:5], "young heron"),  # 6
        (edits.move, S1.of(0)[:2], 4),
        (observe, 2, S2.groups(KNOWN, seed=2)),  # 7: truth 7, 8: truth 6
        (edits.rename, 8, "newt"),
        (edits.merge, [7, 5]),
        (observe, 3, S3.groups(KNOWN, seed=3)),  # 9: truth 8, 10: truth 9
        (edits.rename, 9, "owl"),
        (partial(edits.dissolve, to_nearest=False), 10),
        (edits.merge, [8, 4]),
        (edits.split, 9, S3.of(8)[:4]),  # 11
    ):
        do(registry, edit)
    return registry


def alone() -> CategoryRegistry:
    """Two discovered categories of four images and no other."""
    registry = give_features(CategoryRegistry(), S1)
    observe(registry, 0, StageGroups([*THREE[:4], *FIVE[:4]], np.repeat([0, 1], 4), CENTRES[:2]))
    return registry


def two_like(category: int) -> StageGroups:
    """Two single images that look like a category, the second more so."""
    look = found().active_prototypes().matrix[category]
    near = np.stack([look + 0.1 * CENTRES[30], look + 0.05 * CENTRES[30]])
    return StageGroups(["a", "b"], np.array([0, 1]), near)


def half_merged(new: int) -> StageGroups:
    """Two clusters, of which the second has images of a merged category and so many new ones."""
    keys = [*THREE, *FOUR, *(f"s2:{number}" for number in range(new))]
    return StageGroups(keys, np.repeat([0, 1], [12, 8 + new]), CENTRES[30:32])


HISTORIES: dict[str, tuple[Callable[[], CategoryRegistry], Sequence[Edit]]] = {
    "a merge keeps the least id, the mean by images, and the name of a known category": (
        found, [(edits.merge, [4, 2, 5])]),
    "the name that a person gave": (found, [(edits.rename, 5, "heron"), (edits.merge, [5, 3])]),
    "the first of two such names": (
        found, [(edits.rename, 3, "heron"), (edits.rename, 4, "stork"), (edits.merge, [4, 3])]),
    "a known category keeps even a default name": (
        found, [(edits.rename, 5, "heron"), (edits.rename, 2, "discovered 2"), (edits.merge, [2, 5])]),
    "the name of one of them": (found, [(edits.rename, 5, "heron"), (edits.merge, [2, 5], "heron")]),
    "another name": (found, [(edits.merge, [3, 4], "both")]),
    "a ban outlives a merge, but for images that are inside": (
        found, [(edits.move, THREE[:2], None), (edits.move, THREE[:1], 4), (edits.merge, [3, 4])]),
    "a split where the features suggest it": (found, [(edits.split, 3)]),
    "the part of a category of an earlier stage leaves its prototype": (found, [(edits.split, 0, S1.of(0)[:2])]),
    "single images that are ignored: the first of them is the prototype": (
        found, [(edits.set_images_aside, THREE[:3]), (edits.set_images_aside, FIVE[:1])]),
    "images of an ignored category stay in it; a name that is taken gets a number": (
        found, [
            (edits.set_images_aside, THREE[:1]), (edits.set_aside, 5),
            (edits.set_images_aside, [FIVE[0], FOUR[0]]), (edits.rename, 6, "blurred"),
            (edits.rename, 3, "set aside"), (edits.set_images_aside, S1.of(0)[:1]),
        ]),
    "a category without images rests": (found, [EMPTIED]),
    "and may be merged": (found, [EMPTIED, (edits.merge, [3, 5])]),
    "or dissolved": (found, [EMPTIED, (edits.dissolve, 5)]),
    "or ignored, and then does not rest": (found, [EMPTIED, (edits.set_aside, 5)]),
    "or restored": (found, [EMPTIED, (edits.set_aside, 5), (edits.restore, 5)]),
    "and comes back with its first image": (found, [EMPTIED, (edits.move, FIVE[:1], 5)]),
    "known categories without images do not rest, and weigh the same in a merge": (
        labelled, [(edits.move, S0.of(1), 0), (edits.move, S0.of(2), 0), (edits.merge, [1, 2])]),
    "images of a dissolved category go to the nearest that they were not taken out of": (
        found, [*((edits.move, FIVE[2:3], home) for home in (4, None, 5)), (edits.dissolve, 5)]),
    "not to one without images": (found, [(edits.move, FOUR, 3), (edits.dissolve, 5)]),
    "not to one that is ignored": (found, [(edits.set_aside, 4), (edits.dissolve, 5)]),
    "or to none": (found, [(partial(edits.dissolve, to_nearest=False), 5)]),
    "those of the only category become unassigned": (alone, [(edits.dissolve, 0), (edits.dissolve, 1)]),
    "ignored categories merge": (found, [(edits.set_aside, 5), (edits.set_aside, 4), (edits.merge, [4, 5])]),
    "an image is where another one is": (found, [(partial(edits.answer, same=True), FOUR[2], THREE[2])]),
    "an image is not of the category of both": (
        found, [(partial(edits.answer, same=False), THREE[1], THREE[2])]),
    "two images are kept apart": (found, KEPT_APART),
    "an image is kept apart from two": (
        found, [*KEPT_APART[:1], (partial(edits.answer, same=False), THREE[0], FIVE[1])]),
    "an undone answer takes no other one along": (
        found, [*KEPT_APART[:1], (partial(edits.answer, same=False), THREE[1], FIVE[0]), (undo,)]),
    "a merge overrules the answer": (found, [*KEPT_APART[:1], (edits.merge, [3, 5])]),
    "a move overrules it": (found, [*KEPT_APART, (edits.move, [THREE[0], FIVE[0]], 4)]),
    "gathering overrules it": (found, [*KEPT_APART, (edits.gather, [THREE[0], FIVE[0]])]),
    "sorting overrules it": (found, [*KEPT_APART, (edits.sort, [THREE[0], FIVE[0]], [3, 3])]),
    "ignoring overrules it": (found, [*KEPT_APART, (edits.set_images_aside, [THREE[0], FIVE[0]])]),
    "forgotten images leave no trace": (
        found, [*KEPT_APART, (edits.move, THREE[:1], None), (edits.forget, [THREE[0], FIVE[1]])]),
    "the id of an undone split is given to no other": (
        found, [(edits.split, 3, THREE[:2]), (undo,), (edits.split, 3, THREE[:2])]),
    "but again to the same": (found, [(edits.split, 3, THREE[:2]), (undo,), (redo,)]),
    "three stages, and corrections between them": (lived, []),
    "the first stage again": (lived, [(observe, 1, S1.groups(KNOWN, seed=11))]),
    "what was rejected stays rejected by its images, whatever they look like": (
        lived, [(observe, 3, replace(
            Images("s3", {2: 5, 4: 6, 6: 6, 8: 11, 9: 5}, seed=2).groups(KNOWN), prototypes=ELSEWHERE))]),
    "another grouping of a stage": (lived, [(observe, 3, S3.groups(KNOWN, together=(2, 4)))]),
    "new images of found, merged and rejected categories": (lived, [(observe, 4, S4.groups())]),
    "categories that were merged or rejected, by their ids": (
        lived, [(observe, 4, Images("s4", {7: 4, 9: 4}, seed=4).groups({7: 7, 9: 10}))]),
    "a new stage drops the prototypes that nobody refers to": (
        lived, [(edits.merge, [3, 6]), (undo,), (edits.merge, [3, 6]), (undo,), (observe, 4, NOTHING)]),
    "prototypes after training": (
        lived, [(CategoryRegistry.replace_prototypes, {each: np.eye(WIDTH)[each] for each in (3, 0)})]),
    "an empty stage": (labelled, [
        (edits.rename, 0, "emmet"), (observe, 1, StageGroups([], np.zeros(0), CENTRES[:3], [0, 1, 2]))]),
    "nothing at all": (CategoryRegistry, [(observe, 0, NOTHING)]),
    "a finer grouping gives a new id to the smaller half": (
        labelled, [(observe, 1, S1.groups(KNOWN, together=(3, 4))), (observe, 1, S1.groups(KNOWN))]),
    "a coarser one leaves a category empty": (
        found, [(edits.rename, 4, "stork"), (observe, 1, S1.groups(KNOWN, together=(3, 4)))]),
    "which comes back with its id and name": (
        found, [(edits.rename, 4, "stork"), (observe, 1, S1.groups(KNOWN, together=(3, 4))),
                (observe, 1, S1.groups(KNOWN))]),
    "a merged category of several clusters has the mean of all": (
        found, [(edits.merge, [3, 4]), (observe, 1, S1.groups(KNOWN))]),
    "a cluster half of which was merged does not come apart": (
        found, [(edits.merge, [3, 4]), (observe, 2, half_merged(8))]),
    "a smaller share does": (found, [(edits.merge, [3, 4]), (observe, 2, half_merged(9))]),
    "corrected categories keep their prototypes": (
        found, [(edits.split, 3, THREE[:4]), (observe, 1, S1.groups(KNOWN))]),
    "or take the mean of their own images": (
        found, [(edits.split, 3, THREE[:4]), (observe, 1, S1.groups(KNOWN, features=S1.features))]),
    "what is like an ignored category comes to it and changes nothing of it": (
        found, [(edits.set_aside, 5), (observe, 2, S2.groups({**KNOWN, 5: 5}, features=S2.features[::-1]))]),
    "of two look-alikes only the nearest is the category": (found, [(observe, 2, two_like(3))]),
    "not one that the grouping gave to another cluster": (
        found, [(observe, 2, replace(two_like(3), ids=[3, None]))]),
    "what changed since the last stage": (found, [
        (edits.rename, 3, "heron"), (edits.merge, [4, 5]), (edits.move, THREE[:2], None),
        (observe, 2, replace(S1.groups(KNOWN, confidences=np.linspace(0, 1, len(S1.keys))),
                             keys=[*S1.keys[:-1], "s2:0"])),
    ]),
}  # fmt: skip
ROWS = {
    "categories": "select id, name, state, born, size, vector, dormant, merged_into, earlier from category order by id",
    "images": "select key, stage, category, confidence, pinned, reviewed, was, unseen from image order by key",
    "bans": "select key, forbidden.category from forbidden join image on image.id = image order by 1, 2",
    "answers": "select one.key, two.key from link join image one on one.id = a join image two on two.id = b order by 1",
    "log": "select number, kind, what, stage, undone, final from log order by number",
    "state": "select num_known, stage, next_id, next_number from state",
}


def rows_of(registry: CategoryRegistry) -> dict[str, list[str]]:
    """Every row of a registry as text; of prototypes the first numbers."""
    rows = {name: [" ".join(map(str, row)) for row in registry.run(query)] for name, query in ROWS.items()}
    prototypes = [" ".join(f"{each:z.3f}" for each in row[:4]) for row in registry.prototypes]
    return rows | {"prototypes": prototypes}


def keys_by(values: Mapping[str, object]) -> dict[str, str]:
    """Keys of images by what is said of them."""
    keys = defaultdict[str, list[str]](list)
    for key, value in values.items():
        keys[str(value)].append(key)
    return {value: " ".join(each) for value, each in keys.items()}


def outcome(registry: CategoryRegistry, before: CategoryRegistry) -> dict[str, Any]:
    """The rows that were not in an earlier state, and what changed since."""
    earlier, rows = rows_of(before), rows_of(registry)
    left: dict[str, Any] = {}
    for name, each in rows.items():
        left[name] = [row for row in each if row not in earlier[name]]
    left["images"] = keys_by(dict(row.split(" ", 1) for row in left["images"]))
    change = registry.changes_since(before)
    left |= asdict(change) | {"moved": keys_by(change.moved)}
    return {name: each for name, each in json.loads(json.dumps(left)).items() if each}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_ends_as_it_did_and_is_undone_and_redone(name: str) -> None:
    begin, history = HISTORIES[name]
    registry = begin()
    reached = {registry.state_hash()}
    for edit in history:
        do(registry, edit)
        reached.add(registry.state_hash())
    left = outcome(registry, begin() if history else CategoryRegistry())
    assert left == kept("histories.json", left, name)
    registry.require_whole()
    last, num_undone = registry.state_hash(), 0
    while registry.newest and num_undone < len(history):
        registry.undo()
        assert registry.state_hash() in reached
        num_undone += 1
    for _ in range(num_undone):
        registry.redo()
    assert registry.state_hash() == last


# Stages that are grouped again keep ids, names and edits; which cluster is which category


@pytest.mark.parametrize(
    ("made", "keys", "homes"),
    [
        ([], "ax", "00"),  # half of the cluster
        ([], "axy", "222"),  # less
        ([], "abvwxyz", "0000000"),  # half of the category
        ([(edits.dissolve, 0)], "abvwxyz", "-------"),  # half of what was rejected is rejected again
        ([(edits.dissolve, 0)], "axy", "222"),
        # Pinned images count towards a half and break ties. Here two that are pinned and one that is not are half:
        ([(edits.confirm, [*"ab"])], "abcxyz", "000000"),
        ([(edits.confirm, [*"ab"])], "abcwxyz", "0000000"),  # less, but more than half of the category
        ([(edits.confirm, [*"a"])], "abxy", "0000"),
        ([(edits.confirm, [*"a"])], "abvwxyz", "0000000"),
        ([(edits.confirm, [*"a"])], "awxyz", "02222"),
        ([(edits.confirm, [*"e"])], "abefg", "11111"),  # two free images of each: the pinned one decides
        # Three free images of one are more than one of the other, whatever is pinned.
        ([(edits.confirm, [*"efg"])], "abcefgh", "0001110"),
        # What people said holds in the next grouping.
        ([(partial(edits.answer, same=False), "a", "h")], "bcdh", "0001"),  # h goes back
        ([(edits.move, ["a"], None)], "abcd", "-000"),
        ([(edits.move, ["a"], None), (edits.merge, [0, 1])], "abcdefgh", "-0000000"),
        ([(edits.move, [*"abcd"], 1)], "abcd", "1111"),  # the cluster itself does not take 1 with it
    ],
)
def test_half_of_a_cluster_or_of_a_category_says_what_the_cluster_is(made, keys, homes) -> None:
    """Category 0 has the images a, b, c and d, and category 1 e, f, g and h; the cluster looks like nothing before."""
    registry = CategoryRegistry()
    observe(registry, 0, StageGroups([*"abcdefgh"], np.repeat([0, 1], 4), CENTRES[:2]))
    for edit in made:
        do(registry, edit)
    observe(registry, 1, StageGroups([*keys], np.zeros(len(keys), int), CENTRES[30:31]))
    assert "".join(str(registry.members.get(key, "-")) for key in keys) == homes


@pytest.mark.parametrize(("last", "home"), [(1.0, 0), (1.01, 1)])
def test_a_cosine_of_nine_tenths_is_near_enough(last: float, home: int) -> None:
    registry = CategoryRegistry()
    observe(registry, 0, StageGroups(["a"], np.array([0]), np.array([[2.0, 0, 0, 0]])))
    looks = np.array([[9.0, 3, 3, last]])  # the cosine of 9, 3, 3, 1 is 9 / 10
    assert observe(registry, 1, StageGroups(["b"], np.array([0]), looks)).cluster_ids == (home,)


@pytest.mark.parametrize("seed", range(3))
def test_stages_and_any_edits_then_the_stages_again(seed: int) -> None:
    generator, registry = np.random.default_rng(seed), labelled()
    given: dict[int, int] = {}

    def names() -> dict[int, tuple[object, ...]]:
        return {each.id: (each.name, each.state, each.merged_into) for each in registry.categories.values()}

    for stage, images in ((1, S1), (2, S2), (3, S3)):
        observe(registry, stage, images.groups(KNOWN, seed=seed))
        for _ in range(8):
            with suppress(RegistryError):
                do(registry, random_edit(registry, generator))
        for each in registry.categories.values():
            assert given.setdefault(each.id, each.born) == each.born
    before, said = names(), registry.constraints()
    for stage, images in ((1, S1), (2, S2), (3, S3)):
        observe(registry, stage, images.groups(KNOWN, seed=seed + 1))
    assert before.items() <= names().items()
    assert registry.constraints() == said
    assert said.pinned.items() <= registry.members.items()
    registry.require_whole()


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
    registry = labelled()
    before = registry.state_hash()
    with pytest.raises(RegistryError, match=values[1]):
        registry.observe(1, replace(GROUPS, **values[0]))
    assert (registry.state_hash(), registry.stage, len(registry.log)) == (before, 0, 0)

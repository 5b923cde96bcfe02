"""Corrections and stages, one after the other: whatever they change in any row is held by ``golden/histories.json``.

Every history says in its name what is to be seen in it.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from promptccd.discovery.project import CategoryRegistry, StageGroups, edits
from tests.discovery.project.streams import CENTRES, WIDTH, Edit, Images, do, give_features, known_registry
from tests.kept import kept

S0, S1 = Images("s0", dict.fromkeys(range(3), 10)), Images("s1", {0: 6, 3: 12, 4: 8, 5: 7})
S2 = Images("s2", {1: 5, 3: 6, 5: 6, 6: 9, 7: 10}, seed=1)
S3 = Images("s3", {2: 5, 4: 6, 6: 6, 8: 11, 9: 4}, seed=2)
S4 = Images("s4", {3: 5, 5: 6, 7: 6, 8: 6, 9: 6, 20: 7}, seed=4)
KNOWN = {0: 0, 1: 1, 2: 2}
THREE, FOUR, FIVE = S1.of(3), S1.of(4), S1.of(5)  # the images of these categories
KEPT_APART = [(partial(edits.answer, same=False), THREE[place], FIVE[place]) for place in (0, 1)]
EMPTIED = (edits.move, FIVE, 3)
NOTHING = StageGroups([], np.zeros(0, int), np.zeros((0, WIDTH)))
observe, undo, redo = CategoryRegistry.observe, CategoryRegistry.undo, CategoryRegistry.redo


def labelled() -> CategoryRegistry:
    """Three known categories of 10 images each."""
    return give_features(known_registry(), S1, S2, S3)


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


def elsewhere(groups: StageGroups) -> StageGroups:
    """The same groups in features that have nothing to do with the earlier ones."""
    return replace(groups, prototypes=np.random.default_rng(0).normal(size=groups.prototypes.shape))


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
        lived, [(observe, 3, elsewhere(Images("s3", {2: 5, 4: 6, 6: 6, 8: 11, 9: 5}, seed=2).groups(KNOWN)))]),
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


def made(name: str) -> tuple[dict[str, Any], CategoryRegistry, set[str]]:
    """What a history leaves, the registry, and the hashes of the states on the way."""
    begin, history = HISTORIES[name]
    registry = begin()
    reached = {registry.state_hash()}
    for edit in history:
        do(registry, edit)
        reached.add(registry.state_hash())
    return outcome(registry, begin() if history else CategoryRegistry()), registry, reached


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_ends_as_it_did_and_is_undone_and_redone(name: str) -> None:
    left, registry, reached = made(name)
    assert left == kept("histories.json", left, name)
    registry.require_whole()
    last, num_undone = registry.state_hash(), 0
    while registry.newest and num_undone < len(HISTORIES[name][1]):
        registry.undo()
        assert registry.state_hash() in reached
        num_undone += 1
    for _ in range(num_undone):
        registry.redo()
    assert registry.state_hash() == last

"""Stages that are grouped again keep ids, names and edits; which cluster is which category."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from promptccd.discovery.project import CategoryRegistry, StageGroups, edits
from promptccd.errors import RegistryError
from tests.discovery.project.streams import CENTRES, Edit, do, known_registry, random_edit
from tests.discovery.project.test_histories import KNOWN, S1, S2, S3


def snapshot(registry: CategoryRegistry) -> dict:
    categories = registry.categories.values()
    return {
        "names": {each.id: (each.name, each.state, each.merged_into) for each in categories},
        "members": dict(registry.members),
        "constraints": registry.constraints(),
    }


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
    registry = known_registry()
    before = registry.state_hash()
    with pytest.raises(RegistryError, match=values[1]):
        registry.observe(1, replace(GROUPS, **values[0]))
    assert (registry.state_hash(), registry.stage, len(registry.log)) == (before, 0, 0)

import itertools

import numpy as np
import pytest

from promptccd.clustering import GroupingConstraints
from promptccd.errors import DataError


def test_the_same_said_in_another_order_is_equal():
    one = GroupingConstraints((("b", "a"), ("a", "b")), [["c", "d"]], {"a": 1}, {"c": {1}, "d": set()})
    two = GroupingConstraints((("a", "b"),), (("d", "c"),), {"a": 1}, {"c": frozenset({1})})
    assert one == two
    assert one.keys == {"a", "b", "c", "d"}


def test_what_is_said_of_one_image_holds_for_those_it_must_be_with():
    said = GroupingConstraints(
        must_link=(("a", "b"), ("d", "e")),
        cannot_link=(("b", "e"), ("c", "e")),
        pinned={"b": 4},
        forbidden={"a": {1}, "b": {2}, "c": {3}},
    )
    assert said.component_bans() == {"a": {1, 2}, "c": {3}}
    assert said.component_pins() == {"a": 4}
    assert said.component_rivals() == {("a", "d"), ("c", "d")}


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"must_link": [("a", "b"), ("b", "c")], "cannot_link": [("c", "a")]}, "a and c cannot .* must"),
        ({"must_link": [("a", "b"), ("b", "c")], "pinned": {"a": 1, "c": 2}}, "a and c must .* 1 and 2"),
        ({"must_link": [("a", "b")], "pinned": {"a": 1}, "forbidden": {"b": {1}}}, "Image b .* category 1"),
        ({"cannot_link": [("a", "b")], "pinned": {"a": 1, "b": 1}}, "a and b .* category 1"),
        ({"cannot_link": [("a", "a")]}, r"a and a cannot"),
    ],
)
def test_contradictions_name_the_images(said, named):
    with pytest.raises(DataError, match=named):
        GroupingConstraints(**said)


@pytest.mark.parametrize("seed", range(30))
def test_accepts_exactly_what_some_grouping_satisfies(seed):
    """Pins, bans and links of five images in four categories, against all 1,024 groupings.

    Links that need more categories than there are is a matter of the grouping, so four are always enough here.
    """
    rng = np.random.default_rng(seed)
    keys = "abcde"
    pairs = list(itertools.combinations(keys, 2))
    must = [pairs[each] for each in rng.choice(10, 2, replace=False)]
    cannot = [pairs[rng.integers(10)]]
    pinned = {str(key): int(rng.integers(2)) for key in rng.choice(list(keys), 2, replace=False)}
    forbidden = {"abcde"[rng.integers(5)]: {int(rng.integers(2))}}
    possible = False
    for categories in itertools.product(range(4), repeat=5):
        of = dict(zip(keys, categories, strict=True))
        possible |= (
            all(of[one] == of[two] for one, two in must)
            and all(of[one] != of[two] for one, two in cannot)
            and all(of[key] == category for key, category in pinned.items())
            and all(of[key] not in each for key, each in forbidden.items())
        )
    if possible:
        GroupingConstraints(tuple(must), tuple(cannot), pinned, forbidden)
    else:
        with pytest.raises(DataError):
            GroupingConstraints(tuple(must), tuple(cannot), pinned, forbidden)

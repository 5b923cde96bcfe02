"""Labels that come after a grouping: they name, move and open categories, and change nothing the second time."""

import numpy as np
import pytest

from promptccd.discovery.project import CategoryRegistry, apply_labels

FOUND = {"a": 0, "b": 0, "c": 1, "d": 2, "e": 2, "f": 2, "g": 3, "h": 3, "i": 3}


@pytest.fixture
def registry() -> CategoryRegistry:
    """Two known categories and two found ones, of images that came at stage 1."""
    names = ["cat", "dog", "discovered 2", "discovered 3"]
    return CategoryRegistry.from_categories(range(4), names, 2, np.eye(4), stage=1, members=FOUND)


@pytest.mark.parametrize(
    ("labels", "moved", "named", "new"),
    [
        ({"a": "dog", "d": "moth", "e": "moth", "f": "cat"}, 2, ("moth",), ()),
        ({"d": "moth", "e": "moth", "f": "fly"}, 1, ("moth",), ("fly",)),  # two of three
        ({"d": "moth", "e": "fly"}, 2, (), ("fly", "moth")),  # one of two is not most
        ({"a": "moth", "b": "moth"}, 2, (), ("moth",)),  # a known category keeps its name
        ({"d": "moth", "g": "moth", "h": "moth"}, 1, ("moth",), ()),
    ],
)
def test_labels_name_what_most_of_them_are_in_and_move_what_was_wrong(
    registry: CategoryRegistry, labels: dict[str, str], moved: int, named: tuple[str], new: tuple[str]
) -> None:
    before = dict(registry.members)
    assert apply_labels(registry, labels | {"unknown": "moth"}) == (len(labels), moved, named, new)
    assert {key: registry.category(registry.members[key]).name for key in labels} == labels
    assert {key: registry.members[key] for key in before.keys() - labels} == {
        key: before[key] for key in before.keys() - labels
    }
    assert registry.pinned.keys() == labels.keys()
    state, log = registry.state_hash(), registry.log
    assert apply_labels(registry, labels) == (len(labels), 0, (), ())
    assert (registry.state_hash(), registry.log) == (state, log)


def test_images_that_were_labelled_from_the_first_are_not_pinned_for_it() -> None:
    members = {"a": 0, "b": 0, "c": 1}
    registry = CategoryRegistry.from_categories(range(2), ["cat", "dog"], 2, np.eye(2), members=members)
    assert apply_labels(registry, {"a": "cat", "b": "dog"}) == (2, 1, (), ())
    assert set(registry.pinned) == {"b"}


def test_a_new_category_begins_between_those_its_images_were_in(registry: CategoryRegistry) -> None:
    apply_labels(registry, {"a": "bee", "c": "bee"})
    vector = registry.prototypes[registry.category(4).prototype_row]
    assert registry.category(4).name == "bee"
    assert vector / np.linalg.norm(vector) == pytest.approx(np.array([1, 1, 0, 0]) / np.sqrt(2))

"""Labels that come after a grouping: they name, move and open categories, and change nothing the second time."""

import numpy as np
import pytest

from promptccd.discovery.project import CategoryRegistry, apply_labels

FOUND = {"a": 0, "b": 0, "c": 1, "d": 2, "e": 2, "f": 2, "g": 3, "h": 3, "i": 3}


def grouped() -> CategoryRegistry:
    """Two known categories and two found ones, of images that came at stage 1."""
    names = ["cat", "dog", "discovered 2", "discovered 3"]
    return CategoryRegistry.from_categories(
        range(4), names, 2, np.eye(4, dtype=np.float32), stage=1, members=FOUND
    )


def names_of(registry: CategoryRegistry) -> dict[str, str]:
    return {key: registry.categories[each].name for key, each in registry.members.items()}


def test_labels_name_what_was_found_and_move_what_was_wrong() -> None:
    registry = grouped()
    said = apply_labels(registry, {"a": "dog", "d": "moth", "e": "moth", "f": "cat", "zzz": "moth"})
    assert said == (4, 2, ("moth",), ())
    assert names_of(registry) == {
        **{"a": "dog", "b": "cat", "c": "dog", "d": "moth", "e": "moth", "f": "cat"},
        **dict.fromkeys("ghi", "discovered 3"),
    }
    assert set(registry.pinned) == {"a", "d", "e", "f"}


def test_the_same_labels_again_change_nothing() -> None:
    registry = grouped()
    labels = {"a": "dog", "d": "moth", "g": "fly"}
    apply_labels(registry, labels)
    state, log = registry.state_hash, len(registry.log)
    assert apply_labels(registry, labels).moved == 0
    assert (registry.state_hash, len(registry.log)) == (state, log)


@pytest.mark.parametrize(
    ("labels", "named", "new"),
    [
        ({"d": "moth", "e": "moth", "f": "fly"}, ("moth",), ("fly",)),  # two of three
        ({"d": "moth", "e": "fly"}, (), ("fly", "moth")),  # one of two is not most
        ({"a": "moth", "b": "moth"}, (), ("moth",)),  # a known category keeps its name
        ({"d": "moth", "g": "moth", "h": "moth"}, ("moth",), ()),
    ],
)
def test_a_name_goes_where_most_labels_are(
    labels: dict[str, str], named: tuple[str, ...], new: tuple[str, ...]
) -> None:
    registry = grouped()
    said = apply_labels(registry, labels)
    assert (said.named, said.new) == (named, new)
    assert {key: names_of(registry)[key] for key in labels} == labels


def test_images_that_were_labelled_from_the_first_are_not_pinned_for_it() -> None:
    registry = CategoryRegistry.from_categories(
        range(2), ["cat", "dog"], 2, np.eye(2, dtype=np.float32), stage=0, members={"a": 0, "b": 0, "c": 1}
    )
    assert apply_labels(registry, {"a": "cat", "b": "dog"}) == (2, 1, (), ())
    assert set(registry.pinned) == {"b"}


def test_a_new_category_begins_between_those_its_images_were_in() -> None:
    registry = grouped()
    apply_labels(registry, {"a": "bee", "c": "bee"})
    bee = next(each for each in registry.active if each.name == "bee")
    vector = registry.prototypes[bee.prototype_row]
    assert vector / np.linalg.norm(vector) == pytest.approx(np.array([1, 1, 0, 0]) / np.sqrt(2))

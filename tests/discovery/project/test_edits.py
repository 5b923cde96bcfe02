"""Edits do what a model of dictionaries does; what they refuse, names and labels. `test_histories` holds all rows."""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest

from promptccd.discovery.project import CategoryRegistry, LogEntry, apply_labels, edits
from promptccd.errors import RegistryError
from tests.discovery.project.streams import Edit, do, give_features, random_edit
from tests.discovery.project.test_histories import S0, S1, found
from tests.messages import TEXT


@pytest.fixture
def registry() -> CategoryRegistry:
    """Known 0, 1, 2; discovered 3 (12 images), 4 (8) and 5 (7)."""
    return found()


def mean(keys: list[str]) -> np.ndarray:
    """The mean feature of images."""
    return S1.features[[S1.keys.index(key) for key in keys]].mean(0)


def prototype(registry: CategoryRegistry, identity: int) -> np.ndarray:
    return registry.prototypes[registry.categories[identity].prototype_row]


class Model:
    """What corrections do, as dictionaries: the category of each image, pins, bans, reviews and sets aside."""

    def __init__(self, members: dict[str, int]):
        self.home: dict[str, int | None] = dict(members)
        self.pinned, self.reviewed, self.aside = set[str](), set[str](), set[int]()
        self.banned: dict[str, set[int]] = {key: set() for key in members}
        self.place: int | None = None  # of single images that are set aside

    def put(self, key: str, to: int | None, *, reviewed: bool = True) -> None:
        before, self.home[key] = self.home[key], to
        self.reviewed |= {key} if reviewed else set()
        if to is None:
            self.pinned.discard(key)
            self.banned[key] |= {before} - {None}
        else:
            self.pinned.add(key)
            self.banned[key].discard(to)

    def inside(self, *categories: int) -> set[str]:
        return {key for key, home in self.home.items() if home in categories}

    def apply(self, entry: LogEntry, new: int) -> None:
        """Do what an entry says; `new` is the next id."""
        values = {name: value for name, value in entry.what.items() if name not in ("kind", "name")}
        getattr(self, entry.kind)(new, **values)

    def rename(self, new: int, category: int) -> None:
        pass

    def move(self, new: int, images: list[str], to: int | None) -> None:
        self.sort(new, images, [to] * len(images))

    def sort(self, new: int, images: list[str], to: list[int | None]) -> None:
        for key, target in zip(images, to, strict=True):
            self.put(key, target)

    def gather(self, new: int, images: list[str]) -> None:
        self.move(new, images, new)

    def split(self, new: int, images: list[str], category: int) -> None:
        for key in images:
            self.put(key, new, reviewed=False)

    def confirm(self, new: int, images: list[str]) -> None:
        self.sort(new, images, [self.home[key] for key in images])

    def set_aside(self, new: int, category: int) -> None:
        self.aside.add(category)
        self.pinned |= self.inside(category)

    def restore(self, new: int, category: int) -> None:
        self.aside.discard(category)

    def set_images_aside(self, new: int, images: list[str]) -> None:
        self.place = self.place if self.place in self.aside else new
        self.aside.add(self.place)
        homes = [self.home[key] for key in images]
        self.sort(new, images, [home if home in self.aside else self.place for home in homes])

    def answer(self, new: int, first: str, second: str, same: bool) -> None:
        if same or self.home[first] == self.home[second]:
            self.put(first, self.home[second] if same else None)

    def dissolve(self, new: int, category: int, to_nearest: bool) -> None:
        inside = self.inside(category)
        self.reviewed -= inside
        for key in inside:
            self.put(key, None, reviewed=False)

    def forget(self, new: int, images: list[str]) -> None:
        for key in images:
            self.home.pop(key), self.banned.pop(key)
        self.pinned -= set(images)
        self.reviewed -= set(images)

    def merge(self, new: int, categories: list[int]) -> None:
        survivor, merged = min(categories), set(categories)
        inside = self.inside(*merged)
        for key, banned in self.banned.items():
            if banned & merged:
                banned -= merged
                banned |= set() if key in inside else {survivor}
        self.home |= dict.fromkeys(inside, survivor)

    def state(self) -> tuple[Any, ...]:
        members = {key: home for key, home in self.home.items() if home is not None}
        bans, sizes = {key: each for key, each in self.banned.items() if each}, Counter(members.values())
        return members, self.pinned, bans, self.reviewed, sizes, set(self.home), self.aside


def state_of(registry: CategoryRegistry) -> tuple[Any, ...]:
    sizes = {each.id: each.size for each in registry.categories.values() if each.size}
    bans = {key: set(each) for key, each in registry.forbidden.items()}
    aside, members = {each.id for each in registry.aside}, registry.members
    return members, set(registry.pinned), bans, set(registry.reviews), sizes, set(registry.images), aside


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.moderate) for each in (1, 2))])
def test_any_corrections_do_what_a_model_of_dictionaries_does_in_a_file_and_in_memory(seed, tmp_path) -> None:
    generator, memory = np.random.default_rng(seed), found()
    memory.write_to(tmp_path / "categories.sqlite")
    ours = CategoryRegistry.open(tmp_path / "categories.sqlite")
    both = [give_features(each, S0, S1) for each in (ours, memory)]
    model, past = Model(dict(ours.members)), [(ours.state_hash(), state_of(ours))]
    for _ in range(80):
        edit, free, given = random_edit(ours, generator), ours.next_id, set(ours.categories)
        outcomes = set()
        for each in both:
            try:
                outcomes.add(str(entry := do(each, edit)))
            except RegistryError as error:
                outcomes.add(str(error))
        theirs = CategoryRegistry.open(ours.path)
        if len(ours.log) > len(past):
            model.apply(entry, free)
            past.append((ours.state_hash(), state_of(ours)))
        assert len(outcomes) == 1
        assert state_of(ours) == past[-1][1] == model.state(), outcomes
        assert {each.state_hash() for each in (*both, theirs)} == {past[-1][0]}
        assert (theirs.log, theirs.redo_stack) == (memory.log, memory.redo_stack)
        assert all(each >= free for each in set(ours.categories) - given)
        ours.require_whole()
        if len(past) > 1 and generator.random() < 0.3:  # there and back
            ours.undo()
            assert (ours.state_hash(), state_of(ours)) == past[-2]
            ours.redo()
            assert ours.state_hash() == past[-1][0]
    assert len(past) > 40
    for step, states in ((CategoryRegistry.undo, past[-2::-1]), (CategoryRegistry.redo, past[1:])):
        for expected, _ in states:
            for each in both:
                step(each)
                assert each.state_hash() == expected


def test_categories_get_the_means_of_their_images(registry: CategoryRegistry) -> None:
    part, rest, five = S1.of(3)[:4], S1.of(3)[4:], S1.of(5)
    for edit, gains, loses in (
        ((edits.split, 3, part, "small ones"), (6, part), (3, rest)),
        ((edits.gather, [*part, *five], "small ones"), (7, [*part, *five]), (3, rest)),
        ((edits.move, part, 4), (4, [*part, *S1.of(4)]), (3, rest)),
        ((edits.sort, part, [4, 2, 4, 2]), (4, [*part[::2], *S1.of(4)]), (3, rest)),
        ((edits.set_images_aside, part), (10, part[:1]), (3, rest)),
    ):
        known = [prototype(registry, each) for each in range(3)]
        what = do(registry, edit).what
        assert what["images"] == (part if edit[0] is edits.split else edit[1])
        new = registry.next_id - 1 if gains[0] > 5 else gains[0]
        assert "name" not in what or registry.category(new).name == "small ones"
        for category, keys in ((new, gains[1]), loses):
            np.testing.assert_allclose(prototype(registry, category), mean(keys), atol=1e-6)
        assert np.array_equal(known, [prototype(registry, each) for each in range(3)])
        registry.undo()
    edits.split(registry, 0, S1.of(0)[:2])
    assert np.array_equal(prototype(registry, 0), known[0]), "that of an earlier stage stays"
    edits.merge(registry, [3, 4])
    np.testing.assert_allclose(prototype(registry, 3), mean(S1.of(3, 4)), atol=1e-6)


def test_rename(registry: CategoryRegistry) -> None:
    edits.rename(registry, 3, "  grey heron ")
    assert registry.category(3).name == "grey heron"
    edits.rename(registry, 3, "grey heron")  # its own name is no other's
    with pytest.raises(RegistryError, match=TEXT["category-3-is-called-grey-heron"]):
        edits.rename(registry, 4, "grey heron")
    edits.rename(registry, 3, "h\u00e9ron")
    with pytest.raises(RegistryError, match=TEXT["category-3-is-called"]):
        edits.rename(registry, 4, "he\u0301ron")  # the accent is a character of its own


NO_NAMES = ["", " \t ", "a\nb", "nul\0", "line\u2028separator", "half\ud800", "x" * 101, 7]
REFUSED: list[tuple[Edit, str]] = [
    *(((edits.rename, 3, name), "Expected (a|the) name") for name in NO_NAMES),
    ((edits.rename, 99, "x"), "no category 99. There are: 0, 1, 2, 3, 4, 5"),
    ((edits.merge, [3]), "at least two"),
    ((edits.merge, [3, 3]), "at least two"),
    ((edits.merge, [3, 5]), TEXT["only-some-of-the-categories-are"]),
    ((edits.rename, 6, "owl"), "was merged into category 4"),
    ((edits.merge, [0, 1], "discovered 3"), "Category 3 is called"),
    ((edits.split, 1), "none of the images of category 1 here"),
    ((edits.split, 3, ["s1:0"]), "1 of the 1 images are not in category 3"),
    ((edits.split, 3, S1.of(3)), "All 12 images"),
    ((edits.split, 3, ["s1:6"], "bee"), "Category 1 is called 'bee' already"),
    ((edits.gather, ["s0:0"]), "has features here"),
    ((edits.gather, ["s0:0"], None, np.ones(5)), "a prototype of 24 finite numbers, got shape"),
    ((edits.gather, ["s0:0"], None, np.full(24, np.nan)), "NaN or infinity"),
    ((edits.move, ["nowhere"], 3), "never seen, the first is 'nowhere'"),
    ((edits.sort, ["s1:6", "s1:6"], [3, 4]), "a category for each of 2 images"),
    ((edits.dissolve, 1), "labelled at stage 0"),
    ((partial(edits.answer, same=True), "s1:0", "s1:0"), "got 's1:0' twice"),
    ((partial(edits.answer, same=True), "s1:6", "s1:1"), TEXT["in-no-group-any-more"]),
    ((edits.confirm, ["s1:1", "s1:6"]), "'s1:1' is in no category: move it into one first"),
    ((edits.set_aside, 1), "Category 1 was labelled at stage 0: set its images aside"),
    ((edits.set_images_aside, ["s0:0"]), "has features here"),
    ((edits.restore, 4), "Category 4 is not ignored"),
    ((edits.forget,), "No image is missing"),
    ((CategoryRegistry.resolve, 99), "There never was a category 99: ids go up to 6"),
    ((CategoryRegistry.replace_prototypes, {3: np.ones(24), 6: np.ones(24)}), "was merged into category 4"),
]


@pytest.mark.parametrize(("edit", "reason"), REFUSED)
def test_a_refused_edit_changes_nothing(registry: CategoryRegistry, edit: Edit, reason: str) -> None:
    edits.move(registry, ["s1:1"], None)
    edits.set_aside(registry, 5)
    edits.gather(registry, ["s1:2"])
    edits.merge(registry, [4, 6])
    before = registry.state_hash(), registry.next_id, len(registry.log), len(registry.prototypes)
    with pytest.raises(RegistryError, match=reason):
        do(registry, edit)
    assert (registry.state_hash(), registry.next_id, len(registry.log), len(registry.prototypes)) == before


def test_undo_says_when_there_is_nothing(registry: CategoryRegistry) -> None:
    reasons = TEXT["nothing-to-undo-stage-1-was"], TEXT["nothing-was-edited-yet"]
    for each, said in zip((registry, CategoryRegistry()), reasons, strict=True):
        with pytest.raises(RegistryError, match=said):
            each.undo()


# Labels that come after a grouping

FOUND = {"a": 0, "b": 0, "c": 1, "d": 2, "e": 2, "f": 2, "g": 3, "h": 3, "i": 3}


@pytest.fixture
def labelled() -> CategoryRegistry:
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
def test_labels_name_what_most_of_them_are_in_and_move_what_was_wrong(labelled, labels, moved, named, new):
    before = dict(labelled.members)
    assert apply_labels(labelled, labels | {"unknown": "moth"}) == (len(labels), moved, named, new)
    assert {key: labelled.category(labelled.members[key]).name for key in labels} == labels
    others = {key: home for key, home in before.items() if key not in labels}
    assert others.items() <= labelled.members.items()
    assert labelled.pinned.keys() == labels.keys()
    state, log = labelled.state_hash(), labelled.log
    assert apply_labels(labelled, labels) == (len(labels), 0, (), ())
    assert (labelled.state_hash(), labelled.log) == (state, log)


def test_images_that_were_labelled_from_the_first_are_not_pinned_for_it() -> None:
    members = {"a": 0, "b": 0, "c": 1}
    labelled = CategoryRegistry.from_categories(range(2), ["cat", "dog"], 2, np.eye(2), members=members)
    assert apply_labels(labelled, {"a": "cat", "b": "dog"}) == (2, 1, (), ())
    assert set(labelled.pinned) == {"b"}


def test_a_new_category_begins_between_those_its_images_were_in(labelled: CategoryRegistry) -> None:
    apply_labels(labelled, {"a": "bee", "c": "bee"})
    vector = labelled.prototypes[labelled.category(4).prototype_row]
    assert labelled.category(4).name == "bee"
    assert vector / np.linalg.norm(vector) == pytest.approx(np.array([1, 1, 0, 0]) / np.sqrt(2))

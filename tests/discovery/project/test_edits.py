"""What each edit does, what it refuses, and that every one is taken back to the same state."""

import numpy as np
import pytest

from promptccd.discovery.project import (
    Answer,
    CategoryRegistry,
    CategoryState,
    Confirm,
    Edit,
    Gather,
    Merge,
    Move,
    NotACategory,
    Rename,
    SetAside,
    SetImagesAside,
    Split,
    TakeBack,
)
from promptccd.discovery.project.rows import Rows
from promptccd.errors import RegistryError
from tests.discovery.project.streams import WIDTH, Images, can_undo, known_registry, random_edit, sizes_add_up

ONE, TWO = np.eye(WIDTH)[:2]


@pytest.fixture
def images() -> Images:
    return Images("s1", {0: 6, 3: 9, 4: 5, 5: 7})


@pytest.fixture
def registry(images: Images) -> CategoryRegistry:
    """Known 0, 1, 2; discovered 3 (9 images), 4 (7) and 5 (5)."""
    registry = known_registry()
    registry.observe(1, images.groups({0: 0}))
    return registry


def test_new_ids_go_to_the_largest_first(registry: CategoryRegistry) -> None:
    assert [(each.id, each.name, each.size) for each in registry.active] == [
        (0, "ant", 16), (1, "bee", 10), (2, "cat", 10),
        (3, "discovered 3", 9), (4, "discovered 4", 7), (5, "discovered 5", 5),
    ]  # fmt: skip
    assert [each.born for each in registry.active] == [0, 0, 0, 1, 1, 1]
    assert [each.settled(1) for each in registry.active] == [True] * 3 + [False] * 3
    assert all(each.settled(2) for each in registry.active)


def test_rename(registry: CategoryRegistry) -> None:
    registry.edit(Rename(3, "  grey heron "))
    assert registry.category(3).name == "grey heron"
    registry.edit(Rename(3, "grey heron"))  # its own name is no other's
    with pytest.raises(RegistryError, match="Category 3 is called 'grey heron' already: .* merge"):
        registry.edit(Rename(4, "grey heron"))
    registry.edit(Rename(3, "h\u00e9ron"))
    with pytest.raises(RegistryError, match="Category 3 is called"):  # the accent is a character of its own
        registry.edit(Rename(4, "he\u0301ron"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "at least one character"),
        (" \t ", "at least one character"),
        ("a\nb", r"got '\\n'"),
        ("nul\0", r"got '\\x00'"),
        ("line\u2028separator", "on one line"),
        ("half\ud800", "control characters"),
        ("x" * 101, "at most 100 characters, got 101"),
        (7, "to be text, got 7"),
    ],
)
def test_names_that_are_refused(registry: CategoryRegistry, name: object, reason: str) -> None:
    with pytest.raises(RegistryError, match=reason):
        registry.edit(Rename(3, name))


@pytest.mark.parametrize("name", ["<img onerror=alert(1)>", "=cmd()", "\u202eabc", "x" * 100, "鷺", "a b"])
def test_names_are_kept_as_written(registry: CategoryRegistry, name: str) -> None:
    registry.edit(Rename(3, name))
    assert registry.category(3).name == name


def test_merge_keeps_the_known_one_and_the_mean(registry: CategoryRegistry) -> None:
    rows = {each.id: registry.prototypes[each.prototype_row] for each in registry.active}
    registry.edit(Merge([4, 2, 5]))
    assert registry.category(2).size == 22
    assert [registry.resolve(each) for each in (4, 5)] == [2, 2]
    assert registry.categories[4].state is CategoryState.RETIRED
    mean = (10 * rows[2] + 7 * rows[4] + 5 * rows[5]) / 22
    np.testing.assert_allclose(registry.prototypes[registry.category(2).prototype_row], mean, atol=1e-6)
    with pytest.raises(RegistryError, match="Category 4 was merged into category 2"):
        registry.edit(Rename(4, "heron"))


def test_merge_keeps_pins_and_makes_none(registry: CategoryRegistry, images: Images) -> None:
    registry.edit(Confirm(images.of(4)[:2]))
    registry.edit(Merge([3, 4, 5]))
    assert dict(registry.pinned) == dict.fromkeys(images.of(4)[:2], 3)


def test_a_known_category_keeps_its_name_whatever_it_is(registry: CategoryRegistry) -> None:
    registry.edit(Rename(5, "heron"))
    registry.edit(Rename(2, "discovered 2"))
    registry.edit(Merge([2, 5]))
    assert registry.category(2).name == "discovered 2"


def test_merge_keeps_the_oldest_id_and_the_name_a_person_gave(registry: CategoryRegistry) -> None:
    registry.edit(Rename(5, "heron"))
    registry.edit(Merge([5, 3]))
    assert registry.category(3).name == "heron"
    registry.edit(Rename(4, "stork"))
    registry.edit(Merge([4, 3]))
    assert registry.category(3).name == "heron"
    assert registry.resolve(5) == registry.resolve(4) == 3


def test_a_merge_gets_the_chosen_name_in_one_entry(registry: CategoryRegistry) -> None:
    before = registry.state_hash()
    registry.edit(Rename(5, "heron"))
    registry.edit(Merge([2, 5], "heron"))
    assert (registry.resolve(5), registry.category(2).name) == (2, "heron")
    assert registry.log[-1].what == {"kind": "merge", "categories": [2, 5], "name": "heron"}
    registry.edit(Merge([3, 4]))
    assert registry.log[-1].what == {"kind": "merge", "categories": [3, 4], "name": None}
    with pytest.raises(RegistryError, match="called 'heron' already"):
        registry.edit(Merge([0, 1], "heron"))
    assert registry.resolve(1) == 1
    for _ in range(3):
        registry.undo()
    assert registry.state_hash() == before


def test_images_from_anywhere_become_a_category(registry: CategoryRegistry, images: Images) -> None:
    nowhere, two, three = images.of(3)[0], images.of(3)[1], images.of(4)[0]
    registry.edit(Move([nowhere], None))
    before = registry.state_hash()
    registry.edit(Gather([nowhere, two, three], ONE, {3: TWO}, "odd ones"))
    assert registry.log[-1].what == {"kind": "gather", "images": [nowhere, two, three], "name": "odd ones"}
    assert registry.members_of(6) == sorted([nowhere, two, three])
    assert registry.category(6).name == "odd ones"
    assert dict(registry.constraints().pinned) == dict.fromkeys([nowhere, two, three], 6)
    np.testing.assert_array_equal(registry.prototypes[registry.category(6).prototype_row], ONE)
    np.testing.assert_array_equal(registry.prototypes[registry.category(3).prototype_row], TWO)
    assert sizes_add_up(registry)
    registry.undo()
    assert registry.state_hash() == before


def test_merge_overrules_answers_between_the_two(registry: CategoryRegistry, images: Images) -> None:
    three, five, four = images.of(3), images.of(4), images.of(5)
    registry.edit(Answer(three[0], five[0], False))
    registry.edit(Answer(three[0], three[1], False))
    registry.edit(Answer(three[2], four[0], False))
    registry.edit(Answer(three[3], five[1], True))
    registry.edit(Merge([3, 5]))
    assert set(registry.constraints().cannot_link) == {(three[0], three[1]), (four[0], three[2])}
    assert registry.constraints().must_link == ((five[1], three[3]),)


def test_what_was_taken_out_stays_out_of_the_survivor(registry: CategoryRegistry, images: Images) -> None:
    out, back, *_ = images.of(4)  # of category 5
    registry.edit(Move([out, back], None))
    registry.edit(Move([back], 4))
    bans = [{out: {5}, back: {5}}]
    elsewhere = images.of(3)[0]  # its ban has to do with none of the merges
    registry.edit(Move([elsewhere], 0))
    registry.edit(Move([elsewhere], None))
    states, bans = [registry.state_hash()], [{**bans[0], elsewhere: {0}}]
    for merged, banned in (([4, 5], 4), ([3, 4], 3)):
        registry.edit(Merge(merged))
        states.append(registry.state_hash())
        bans.append({out: {banned}, elsewhere: {0}})
    assert registry.members[back] == 3
    for state, said in zip(reversed(states), reversed(bans), strict=True):
        assert (registry.state_hash(), registry.constraints().forbidden) == (state, said)
        registry.undo()


def test_a_merge_overrules_an_answer_that_contradicts_it(registry: CategoryRegistry, images: Images) -> None:
    out, partner = images.of(4)[0], images.of(5)[0]
    registry.edit(Move([out], None))
    registry.edit(Confirm([partner]))
    registry.edit(Answer(out, partner, True))
    registry.edit(Merge([4, 5]))
    assert registry.constraints().forbidden == {out: {4}}
    assert not registry.constraints().must_link


def test_split_gives_a_new_id_to_the_selected_images_alone(
    registry: CategoryRegistry, images: Images
) -> None:
    part = images.of(3)[:4]
    registry.edit(Split(3, part, ONE, TWO, "small ones"))
    assert registry.log[-1].what == {"kind": "split", "category": 3, "images": part, "name": "small ones"}
    assert registry.members_of(6) == part
    assert registry.members_of(3) == images.of(3)[4:]
    assert registry.category(6).name == "small ones"
    np.testing.assert_array_equal(registry.prototypes[registry.category(6).prototype_row], ONE)
    np.testing.assert_array_equal(registry.prototypes[registry.category(3).prototype_row], TWO)
    assert dict(registry.constraints().pinned) == dict.fromkeys(part, 6)


def test_move_takes_only_the_selected_images(registry: CategoryRegistry, images: Images) -> None:
    moved = images.of(3)[2:5]
    registry.edit(Move(moved, 1, {3: ONE}))
    assert registry.log[-1].what == {"kind": "move", "images": moved, "to": 1}
    assert [registry.members[key] for key in images.of(3)] == [3, 3, 1, 1, 1, 3, 3, 3, 3]
    registry.edit(Move(moved[:1], None))
    assert registry.unassigned == moved[:1]
    assert registry.constraints().forbidden == {moved[0]: frozenset({1})}
    registry.edit(Move(moved[:1], 1))
    assert not registry.constraints().forbidden
    for home in (4, None, 5, None, 4):  # taken out of two, and put back into one of them
        registry.edit(Move(moved[:1], home))
    assert registry.constraints().forbidden == {moved[0]: frozenset({5})}
    assert sizes_add_up(registry)


def test_a_category_without_images_rests_until_it_gets_some(
    registry: CategoryRegistry, images: Images
) -> None:
    registry.edit(Move(images.of(4), 3))
    assert registry.category(5).dormant
    assert 5 not in registry.active_prototypes().ids
    registry.edit(Move(images.of(4)[:1], 5))
    assert 5 in registry.active_prototypes().ids


def test_not_a_category(registry: CategoryRegistry, images: Images) -> None:
    members = images.of(4)
    registry.edit(NotACategory(5, {members[0]: 3}))
    assert registry.categories[5].state is CategoryState.RETIRED
    assert registry.resolve(5) is None
    assert registry.members[members[0]] == 3
    assert registry.unassigned == members[1:]
    assert registry.constraints().forbidden[members[1]] == {5}


def test_images_that_nobody_gave_a_category_go_to_the_nearest(
    registry: CategoryRegistry, images: Images
) -> None:
    members = images.of(4)  # of 5, whose prototype is nearest to 0's, then to 4's, then to 1's
    registry.edit(Move(members[2:3], 0))
    registry.edit(Move(members[2:3], None))  # taken out of 0
    registry.edit(Move(members[2:3], 5))
    before = registry.state_hash()
    registry.edit(NotACategory(5, {members[0]: 3, members[2]: 0}, rest_to_nearest=True))
    assert [registry.members[key] for key in members] == [3, 0, 4, 0, 0]
    registry.undo()
    assert registry.state_hash() == before
    registry.edit(Move(images.of(5), 3))
    assert registry.category(4).dormant  # no image goes to one that has none
    registry.edit(NotACategory(5, rest_to_nearest=True))
    assert [registry.members[key] for key in members] == [0, 0, 1, 0, 0]


def test_images_of_the_only_category_become_unassigned(images: Images) -> None:
    registry = CategoryRegistry()
    registry.observe(0, images.groups(together=(0, 3, 4, 5)))
    registry.edit(NotACategory(0, rest_to_nearest=True))
    assert registry.unassigned == sorted(images.keys)


def test_a_category_that_is_set_aside_keeps_its_images_and_is_none_of_the_result(
    registry: CategoryRegistry, images: Images
) -> None:
    before, row, members = registry.state_hash(), registry.category(5).prototype_row, images.of(4)
    entry = registry.edit(SetAside(5))
    assert entry.what == {"kind": "set_aside", "category": 5}
    assert [each.id for each in registry.active] == registry.active_prototypes().ids == [0, 1, 2, 3, 4]
    assert [(each.id, each.size, each.prototype_row) for each in registry.aside] == [(5, 5, row)]
    assert registry.members_of(5) == members
    assert registry.put_aside == set(members)
    assert registry.resolve(5) == 5
    registry.undo()
    assert registry.state_hash() == before
    registry.redo()
    registry.edit(TakeBack(5))
    assert not registry.aside
    assert registry.active[-1].id == 5
    assert not registry.category(5).dormant
    assert registry.pinned.keys() == set(members)


def test_images_without_a_category_of_their_own_are_set_aside_together(
    registry: CategoryRegistry, images: Images
) -> None:
    one, two, three = images.of(3)[0], images.of(4)[0], images.of(5)[0]
    mean = np.full(WIDTH, 0.5, np.float32)
    registry.edit(SetImagesAside([one], ONE, {3: mean}))
    (place,) = registry.aside
    assert (place.id, place.name, place.size, place.born) == (6, "set aside", 1, 1)
    assert (registry.prototypes[registry.category(3).prototype_row] == mean).all()
    registry.edit(SetAside(5))
    entry = registry.edit(SetImagesAside([two, three], TWO))
    assert entry.what == {"kind": "set_images_aside", "images": [two, three]}
    assert registry.put_aside == {one, three, *images.of(4)}
    assert [registry.members[each] for each in (one, two, three)] == [6, 5, 6]
    assert (registry.prototypes[registry.category(6).prototype_row] == ONE).all()
    assert registry.next_id == 7
    registry.edit(Rename(6, "blurred"))
    registry.edit(SetImagesAside(images.of(0)[:1], TWO))
    assert registry.category(7).name == "set aside"


def test_a_name_that_is_taken_is_not_given_to_what_is_set_aside(registry: CategoryRegistry) -> None:
    registry.edit(Rename(3, "set aside"))
    registry.edit(SetImagesAside(["s1:0"], ONE))
    assert registry.category(6).name == "set aside (2)"


def test_an_answer_that_setting_aside_contradicts_is_dropped(
    registry: CategoryRegistry, images: Images
) -> None:
    one, other = images.of(4)[0], images.of(3)[0]
    registry.edit(Move([other], 3))
    registry.edit(Answer(one, other, True))
    registry.edit(SetAside(5))
    assert registry.constraints().must_link == ()
    registry.undo()
    registry.edit(SetImagesAside([one], ONE))
    assert registry.constraints().must_link == ()


def test_what_is_set_aside_merges_with_its_like_alone(registry: CategoryRegistry) -> None:
    registry.edit(SetAside(4))
    with pytest.raises(RegistryError, match=r"\[3, 4\] only some are set aside"):
        registry.edit(Merge([3, 4]))
    registry.edit(SetAside(5))
    registry.edit(Merge([4, 5]))
    assert [(each.id, each.size) for each in registry.aside] == [(4, 12)]


def test_no_image_of_a_dissolved_category_goes_to_one_that_is_set_aside(
    registry: CategoryRegistry, images: Images
) -> None:
    for to in (0, None, 5):  # out of 0, which is nearest to 5; then come 4 and 1
        registry.edit(Move(images.of(4), to))
    registry.edit(SetAside(4))
    registry.edit(NotACategory(5, rest_to_nearest=True))
    assert {registry.members[key] for key in images.of(4)} == {1}
    registry.edit(NotACategory(4, rest_to_nearest=True))
    assert registry.resolve(4) is None


def test_an_empty_category_is_set_aside_and_taken_back_dormant(
    registry: CategoryRegistry, images: Images
) -> None:
    registry.edit(Move(images.of(4), 3))
    registry.edit(SetAside(5))
    assert not registry.category(5).dormant
    registry.edit(TakeBack(5))
    assert registry.category(5).dormant


def test_answers_become_constraints_and_can_be_taken_back(registry: CategoryRegistry, images: Images) -> None:
    a, b, c = images.keys[:3]
    registry.edit(Answer(b, a, True))
    registry.edit(Answer(b, c, False))
    assert registry.constraints().must_link == ((a, b),)
    assert registry.constraints().cannot_link == ((b, c),)
    with pytest.raises(RegistryError, match="cannot be together, but they must be together"):
        registry.edit(Answer(a, c, True))
    registry.edit(Answer(b, c, None))
    registry.edit(Answer(a, c, True))
    assert len(registry.constraints().must_link) == 2


def test_a_placement_by_hand_overrules_an_older_answer(registry: CategoryRegistry, images: Images) -> None:
    a, b = images.of(3)[0], images.of(4)[0]
    elsewhere = tuple(images.of(5)[:2])
    registry.edit(Answer(a, b, True))
    registry.edit(Answer(*elsewhere, True))
    registry.edit(Move([a], 3))
    registry.edit(Move([b], 5))  # contradicts the answer, and is newer
    assert registry.constraints().must_link == (elsewhere,)
    assert dict(registry.constraints().pinned) == {a: 3, b: 5}


@pytest.mark.parametrize("edit", [Gather, Confirm])
def test_every_word_about_a_place_overrules_an_older_answer(
    registry: CategoryRegistry, images: Images, edit: type[Gather] | type[Confirm]
) -> None:
    a, b = images.of(3)[0], images.of(4)[0]
    registry.edit(Confirm([a]))
    registry.edit(Answer(a, b, True))
    registry.edit(Confirm([b]) if edit is Confirm else Gather([b], ONE))
    assert registry.constraints().must_link == ()


def test_confirmed_images_are_pinned(registry: CategoryRegistry, images: Images) -> None:
    registry.edit(Confirm(images.of(3)[:2]))
    assert dict(registry.constraints().pinned) == dict.fromkeys(images.of(3)[:2], 3)
    registry.edit(Move(images.of(3)[:1], None))
    with pytest.raises(RegistryError, match="is in no category: move it into one first"):
        registry.edit(Confirm(images.of(3)[:2]))


def test_a_category_that_rests_can_be_merged_and_rejected(registry: CategoryRegistry, images: Images) -> None:
    registry.edit(Move(images.of(4), 3))
    assert registry.category(5).dormant
    for edit in (Merge([3, 5]), NotACategory(5)):
        other = registry.copy()
        other.edit(edit)
        assert other.categories[5].state is CategoryState.RETIRED
        other.copy()  # a state that may be


def test_a_known_category_without_images_does_not_rest(images: Images) -> None:
    registry = known_registry(per_category=2)
    registry.observe(1, images.groups({0: 0}))
    registry.edit(Move(registry.members_of(1), 2))
    assert (registry.category(1).size, registry.category(1).dormant) == (0, False)
    registry.edit(Merge([0, 1]))
    registry.undo()
    row = registry.category(1).prototype_row
    registry.edit(Move(registry.members_of(2), 0))
    registry.edit(Merge([1, 2]))  # neither has an image that would weigh its prototype
    mean = registry.prototypes[[row, registry.categories[2].prototype_row]].mean(0)
    np.testing.assert_allclose(registry.prototypes[registry.category(1).prototype_row], mean, atol=1e-6)


REFUSED: list[tuple[Edit, str]] = [
    (Rename(99, "x"), "no category 99. There are: 0, 1, 2, 3, 4, 5"),
    (Merge([3]), "at least two"),
    (Merge([3, 3]), "at least two"),
    (Split(3, [], ONE, TWO), "at least one image"),
    (Split(3, ["s1:0"], ONE, TWO), "1 of the 1 images are not in category 3"),
    (Split(3, [f"s1:{number}" for number in range(6, 15)], ONE, TWO), "All 9 images"),
    (Split(3, ["s1:6"], ONE[:5], TWO), "a prototype of 24 finite numbers, got shape"),
    (Split(3, ["s1:6"], ONE * np.nan, TWO), "NaN or infinity"),
    (Split(3, ["s1:6"], ONE, TWO, "bee"), "Category 1 is called 'bee' already"),
    (Move(["nowhere"], 3), "never seen, the first is 'nowhere'"),
    (Move("s1:6", 99), "no category 99"),
    (NotACategory(1), "labelled at stage 0"),
    (NotACategory(5, {"s1:0": 3}), "'s1:0' is not in category 5"),
    (NotACategory(5, {"s1:15": 5}), "is being retired"),
    (Answer("s1:0", "s1:0", True), "got 's1:0' twice"),
    (SetAside(1), "Category 1 was labelled at stage 0: set its images aside"),
    (SetAside(99), "no category 99"),
    (SetImagesAside(["nowhere"], ONE), "never seen, the first is 'nowhere'"),
    (SetImagesAside(["s1:0"]), "has features here"),
    (TakeBack(5), "Category 5 is not set aside"),
]


@pytest.mark.parametrize(("edit", "reason"), REFUSED, ids=lambda value: getattr(value, "kind", None))
def test_a_refused_edit_changes_nothing(registry: CategoryRegistry, edit: Edit, reason: str) -> None:
    before = registry.state_hash(), registry.next_id, len(registry.log), len(registry.prototypes)
    with pytest.raises(RegistryError, match=reason):
        registry.edit(edit)
    assert (registry.state_hash(), registry.next_id, len(registry.log), len(registry.prototypes)) == before


def test_numbers_of_numpy_are_numbers(registry: CategoryRegistry, images: Images) -> None:
    other = registry.copy()
    three, five = np.int64(3), np.int64(5)
    for one, two in (
        (Rename(three, "heron"), Rename(3, "heron")),
        (Move(np.array(images.of(4)[:2]), three, {three: ONE}), Move(images.of(4)[:2], 3, {3: ONE})),
        (NotACategory(five, {images.of(4)[2]: three}), NotACategory(5, {images.of(4)[2]: 3})),
        (Answer(images.keys[0], images.keys[1], np.True_), Answer(images.keys[0], images.keys[1], True)),
    ):
        assert registry.edit(one) == other.edit(two)
        assert registry.log[-1] == other.log[-1]
    assert registry.state_hash() == other.state_hash()


def test_time_is_in_the_log_but_not_in_the_hash(registry: CategoryRegistry) -> None:
    other = registry.copy()
    registry.edit(Rename(3, "heron"), time="2026-01-01T00:00:00Z")
    other.edit(Rename(3, "heron"))
    assert registry.log[-1].time == "2026-01-01T00:00:00Z"
    assert registry.state_hash() == other.state_hash()


def test_copies_are_independent(registry: CategoryRegistry) -> None:
    other, before = registry.copy(), registry.state_hash()
    other.edit(Merge([3, 4]))
    other.undo()
    assert other.redo_stack and not registry.redo_stack
    other.edit(Rename(0, "wasp"))
    assert registry.state_hash() == before
    assert not can_undo(registry)


def test_an_undone_id_is_not_given_to_anything_else(registry: CategoryRegistry, images: Images) -> None:
    split = Split(3, images.of(3)[:2], ONE, TWO)
    registry.edit(split)
    registry.undo()
    assert 6 not in registry.categories
    assert registry.copy().next_id == registry.next_id == 7
    registry.redo()
    assert registry.members_of(6) == images.of(3)[:2]
    registry.undo()
    registry.edit(split)
    assert 6 not in registry.categories
    assert registry.category(7).size == 2
    assert not registry.redo_stack


def test_undo_and_redo_say_when_there_is_nothing(registry: CategoryRegistry) -> None:
    with pytest.raises(RegistryError, match="nothing to undo since stage 1"):
        registry.undo()
    with pytest.raises(RegistryError, match="nothing to redo"):
        registry.redo()
    with pytest.raises(RegistryError, match="nothing was edited yet"):
        CategoryRegistry().undo()


def test_what_became_of_an_id_is_known_of_those_that_were_given(registry: CategoryRegistry) -> None:
    assert registry.resolve(5) == 5
    with pytest.raises(RegistryError, match="There never was a category 6: ids go up to 5"):
        registry.resolve(6)


@pytest.mark.parametrize("seed", range(12))
def test_any_sequence_is_undone_and_redone_to_the_same_states(registry: CategoryRegistry, seed: int) -> None:
    generator = np.random.default_rng(seed)
    hashes, given = [registry.state_hash()], set(registry.categories)
    while len(hashes) < 26:
        try:
            free = registry.next_id
            registry.edit(random_edit(registry, generator))
        except RegistryError:
            assert registry.state_hash() == hashes[-1]
            continue
        born = set(registry.categories) - given
        assert all(each >= free for each in born)
        given |= born
        assert sizes_add_up(registry)
        registry.copy()  # which looks at everything, where an edit looked at what it changed
        hashes.append(registry.state_hash())
    for expected in hashes[-2::-1]:
        registry.undo()
        assert registry.state_hash() == expected
    for expected in hashes[1:]:
        registry.redo()
        assert registry.state_hash() == expected


def test_the_first_prototype_says_how_long_all_are() -> None:
    rows = Rows()
    for wrong in (3.0, np.zeros((2, 2)), np.zeros(0)):
        with pytest.raises(RegistryError, match="finite numbers, got shape"):
            rows.append_prototype(wrong)
    assert rows.append_prototype(np.ones(4)) == 0
    with pytest.raises(RegistryError, match="a prototype of 4 finite numbers"):
        rows.append_prototype(np.ones(5))

"""The file of a project or of a model: whole after any death, the same for every process; a stranger's runs nothing."""

import gc
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptccd import systems
from promptccd.discovery.project import (
    CategoryRegistry,
    Project,
    StageGroups,
    edits,
    has_registry,
    load_registry,
    save_registry,
    store,
)
from promptccd.discovery.project.store import CATEGORIES, CATEGORY, stored_key
from promptccd.errors import DiskError, RegistryError
from tests.discovery.project.streams import WIDTH, do
from tests.discovery.project.test_histories import S1, S2, lived
from tests.messages import TEXT


@pytest.fixture(scope="module")
def registry() -> CategoryRegistry:
    """One with something in every table, a log of both kinds of entries, and something to redo."""
    registry = lived()
    edits.rename(registry, 9, "鷺 \u202e <b>")
    edits.answer(registry, S1.keys[0], S1.keys[30], same=False)
    edits.confirm(registry, S2.keys[:2])
    do(registry, (edits.rename, 6, "wren"), time="2026-01-01T00:00:00Z")
    registry.undo()
    return registry


@pytest.fixture
def path(registry: CategoryRegistry, tmp_path: Path) -> Path:
    save_registry(registry, tmp_path)
    return tmp_path / CATEGORIES


def altered(path: Path, statement: str, *values: object) -> bytes:
    """Change a file without its checks; returns its bytes then."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma ignore_check_constraints = on")
        database.execute(statement, values) if values else database.executescript(statement)
        database.commit()
    return path.read_bytes()


# Several processes


def ids_of(registry: CategoryRegistry, keys: Iterable[str]) -> set[int]:
    return {registry.one("select id from image where key = ?", stored_key(key)) for key in keys}


def test_who_has_the_file_open_learns_what_others_changed(path: Path) -> None:
    ours, theirs = CategoryRegistry.open(path), CategoryRegistry.open(path)
    seen, moved = ours.revision, S1.of(3)[4:6]
    edits.move(theirs, moved, 0)
    assert ours.changes_after(seen) == ids_of(ours, moved)
    assert ours.members[moved[0]] == 0 and ours.categories[0].size == theirs.categories[0].size
    seen = ours.revision
    theirs.undo()
    edits.rename(theirs, 0, "wasp")  # what was undone is gone, and with it what it had changed
    assert ours.changes_after(seen) is None
    seen = ours.revision
    edits.set_aside(theirs, 3)
    edits.rename(theirs, 0, "wren")
    assert ours.changes_after(seen) == ids_of(ours, ours.members_of(3))
    seen = ours.revision
    edits.restore(theirs, 3)  # which changes no image
    assert ours.changes_after(seen) == ids_of(ours, ours.members_of(3))
    seen = ours.revision
    edits.forget(theirs, moved[:1])
    assert ours.changes_after(seen) is None
    theirs.replace_prototypes({0: np.ones(WIDTH)})
    assert ours.changes_after(seen + 1) is None
    assert ours.changes_after(ours.revision) == set()


def test_a_refused_edit_within_a_transaction_leaves_the_rest_of_it(path: Path) -> None:
    registry = CategoryRegistry.open(path)
    with registry.transaction():
        edits.rename(registry, 3, "owl")
        with pytest.raises(RegistryError):
            edits.merge(registry, [3, 3])
        assert registry.categories[3].name == "owl"
    before = registry.state_hash()
    with pytest.raises(ZeroDivisionError), registry.transaction():
        edits.rename(registry, 3, "stork")
        assert registry.categories[3].name == "stork"
        raise ZeroDivisionError
    assert registry.categories[3].name == "owl"
    assert registry.state_hash() == before == CategoryRegistry.open(path).state_hash()


def test_a_file_is_replaced_whole(path: Path, tmp_path: Path) -> None:
    opened = CategoryRegistry.open(path)
    later = opened.copy()
    edits.answer(later, S1.keys[0], S1.keys[1], same=False)
    assert later.state_hash() != opened.state_hash()
    later.write_to(path)
    assert opened.state_hash() == later.state_hash()
    opened.undo()
    later.undo()
    assert opened.state_hash() == later.state_hash()
    with pytest.raises(DiskError):
        later.write_to(tmp_path / "missing" / CATEGORIES)
    assert [each.name for each in tmp_path.iterdir()] == [CATEGORIES]


def test_a_new_file_reaches_the_disk_before_it_has_its_name(registry, tmp_path, monkeypatch) -> None:
    calls: list[tuple[Callable[..., None], Path]] = []
    for name in ("flush", "rename"):
        act = getattr(systems, name)
        monkeypatch.setattr(store, name, lambda *paths, act=act: (calls.append((act, paths[0])), act(*paths)))
    registry.write_to(tmp_path / CATEGORIES)
    made = calls[0][1]
    assert calls == [(systems.flush, made), (systems.rename, made), (systems.flush, tmp_path)]


@pytest.mark.parametrize("is_network", [True, False])
def test_a_closed_file_is_whole_without_its_log(path, is_network, monkeypatch) -> None:
    monkeypatch.setattr(systems, "is_network_drive", lambda folder: is_network)
    registry = CategoryRegistry.open(path)
    for name in ("owl", "stork", "wren"):
        edits.rename(registry, 3, name)
    assert (registry.one("pragma journal_mode") == "wal") != is_network
    (folder := path.parent / "copy").mkdir()
    for each in path.parent.glob(f"{path.name}*"):
        shutil.copy(each, folder)
    state = registry.state_hash()
    assert CategoryRegistry.open(folder / path.name).state_hash() == state
    del registry
    gc.collect()
    assert not any(each.stat().st_size for each in path.parent.glob(f"{path.name}-*"))
    alone = Path(shutil.copy(path, path.with_name("alone")))
    assert CategoryRegistry.open(alone).state_hash() == state


# Next to a model


def test_it_comes_back_as_it_was_with_what_can_be_undone(registry: CategoryRegistry, path: Path) -> None:
    before, found, other = path.read_bytes(), load_registry(path.parent), registry.copy()
    assert (found.log, found.redo_stack, found.next_id) == (other.log, other.redo_stack, other.next_id)
    (link := path.parent / "link").mkdir()
    (link / CATEGORIES).symlink_to(path)  # as in the cache of the Hub
    assert load_registry(link).state_hash() == found.state_hash() == other.state_hash()
    while other.newest:
        assert found.undo() == other.undo()
        assert found.state_hash() == other.state_hash()
    assert path.read_bytes() == before


def test_equal_registries_give_equal_bytes(registry: CategoryRegistry, tmp_path: Path) -> None:
    one, other = registry.copy(), registry.copy()
    edits.dissolve(one, 3)
    edits.rename(other, 3, "of no account")
    other.undo()
    edits.dissolve(other, 3)
    other.run("update log set number = number - 1 where number = ?", other.log[-1].number)
    other.run("update change set entry = entry - 1 where entry = ?", other.log[-1].number + 1)
    other.run("update state set next_number = next_number - 1")
    contents = set()
    for each in (one, other):
        save_registry(each, tmp_path)
        contents.add((tmp_path / CATEGORIES).read_bytes())
    save_registry(load_registry(tmp_path), tmp_path)
    assert contents == {(tmp_path / CATEGORIES).read_bytes()}
    assert [each.name for each in tmp_path.iterdir()] == [CATEGORIES]


def test_an_empty_registry_is_one_too(tmp_path: Path) -> None:
    save_registry(CategoryRegistry(), tmp_path)
    for registry in (CategoryRegistry(), load_registry(tmp_path)):
        assert (registry.num_known, registry.stage, registry.next_id, registry.next_number) == (0, -1, 0, 0)
        assert (registry.prototypes.shape, registry.active_prototypes().ids) == ((0, 0), [])
        assert registry.state_hash() == CategoryRegistry().state_hash()
        with pytest.raises(RegistryError, match=TEXT["no-category-0-there-are-none"]):
            registry.category(0)
    registry.replace_prototypes({})  # an entry before the first stage
    save_registry(registry, tmp_path)
    assert load_registry(tmp_path).log == registry.log


def test_any_key_comes_back_and_one_of_a_hash_takes_half_of_its_length(tmp_path: Path) -> None:
    keys = [sha256(bytes([number])).hexdigest() for number in range(100)]
    odd = ["row:5", "A" * 64, "鷺", keys[0].upper(), keys[0][1:]]
    registry = CategoryRegistry()
    registry.observe(0, StageGroups(keys, np.arange(100) % 3, np.eye(3, dtype=np.float32)))
    registry.observe(300, StageGroups(odd, np.zeros(5, int), np.eye(3, dtype=np.float32)[:1]))
    save_registry(registry, tmp_path)
    found = load_registry(tmp_path)
    assert (found.images, found.state_hash()) == (registry.images, registry.state_hash())
    assert keys[1].encode() not in (tmp_path / CATEGORIES).read_bytes()


def test_a_model_without_a_registry_gets_one(tmp_path: Path) -> None:
    names, members = ["ant", "bee", "cat", "discovered 3", "owl"], {"row:1": 0, "row:2": 3}
    found = CategoryRegistry.from_categories(range(5), names, 3, np.eye(5), stage=2, members=members)
    save_registry(found, tmp_path)
    found = load_registry(tmp_path)
    ids, kept, matrix = found.active_prototypes()
    assert (ids, kept) == ([0, 1, 2, 3, 4], names)
    np.testing.assert_array_equal(matrix, np.eye(5))
    assert [(each.size, each.born) for each in found.active] == [(1, 0), (0, 0), (0, 0), (1, 2), (0, 2)]
    assert (found.stage, found.next_id, found.unassigned) == (2, 5, [])
    for wrong, reason in (
        ({"members": {"x": 9}}, "contradict"),
        ({"ids": [0, 0], "names": ["a", "b"], "prototypes": np.eye(2)}, "contradict"),
        ({"prototypes": np.full((1, 1), np.nan)}, "Expected a prototype of"),
        ({"prototypes": np.ones(1)}, "Expected a prototype of"),
        ({"prototypes": np.ones((1, 0))}, "Expected a prototype of"),
    ):
        values: dict[str, Any] = {"ids": [0], "names": ["a"], "num_known": 1, "prototypes": np.eye(1)}
        with pytest.raises(RegistryError, match=reason):
            CategoryRegistry.from_categories(**values | wrong)


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["x" * 99 + " y"], ["x" * 99]),
        (["  a\tb ", " a "], ["a b", "a"]),
        (["ant"] * 4, ["ant", "ant (2)", "ant (3)", "ant (4)"]),
        (["x" * 100] * 2, ["x" * 100, "x" * 96 + " (2)"]),
        (["x" * 95 + " yyyy"] * 2, ["x" * 95 + " yyyy", "x" * 95 + " (2)"]),
        (["", "\n"], ["category 0", "category 1"]),
    ],
    ids=["too long", "blanks", "often", "too long with a number", "a blank before the number", "none"],
)
def test_names_are_mended_as_little_as_makes_them_allowed(names: list[str], kept: list[str]) -> None:
    found = CategoryRegistry.from_categories(range(len(names)), names, len(names), np.eye(len(names)))
    assert [each.name for each in found.active] == kept


# Files of strangers


def test_what_is_no_file_of_categories(registry: CategoryRegistry, path: Path, tmp_path: Path) -> None:
    folder, content = tmp_path / "other", path.read_bytes()
    folder.mkdir()
    assert not has_registry(folder)
    for read in (CategoryRegistry.open, lambda place: load_registry(place.parent)):
        with pytest.raises(RegistryError, match=f"no file {CATEGORIES}"):
            read(folder / CATEGORIES)
        assert not any(folder.iterdir())
        for damaged in (b"", b"text", content[:5000], b"\0" * 9000, b"SQLite format 3\0" + bytes(5000)):
            (folder / CATEGORIES).write_bytes(damaged)
            with pytest.raises(RegistryError, match="is refused"):
                read(folder / CATEGORIES)
            assert (folder / CATEGORIES).read_bytes() == damaged
        (folder / CATEGORIES).unlink()
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(RegistryError, match="link"):
        CategoryRegistry.open(tmp_path / "link")
    with pytest.raises(DiskError):
        save_registry(registry, tmp_path / "missing")


ALWAYS_REFUSED = {
    "a trigger": "create trigger evil after update on image begin delete from image; end",
    "a view": "create view evil as select * from image",
    "an index": "create index evil on image(stage)",
    "a table": "create table evil(a)",
    "a newer format": "pragma user_version = 99",
    "a table less": "drop table link",
    "a name over two lines": "update category set name = 'a' || char(10) || 'b' where id = 3",
    "no such prototype": "update category set vector = 999 where id = 3",
    "no such earlier prototype": "update category set earlier = '[999]' where id = 3",
    "no list of prototypes": "update category set earlier = '{' where id = 3",
    "no such state": "update category set state = 'alive' where id = 3",
    "a merge in a circle": "update category set merged_into = 3, state = 'retired', size = 0 where id = 3",
    "retired with images": "update category set state = 'retired' where id = 3",
    "known by mistake": "update state set num_known = 5",
    "an id beyond the next": "update state set next_id = 6",
    "a name twice": "drop index one_name; update category set name = 'ant'",
}
REFUSED_NEXT_TO_A_MODEL = {  # which is checked whole
    "a wrong size": "update category set size = 4 where id = 3",
    "no state": "delete from state",
    "a stage as text": "update state set stage = 'x'",
    "an answer about strangers": "insert into link values(0, 999)",
    "a log that is no JSON": "update log set what = '{'",
    "a change of nothing known": "update change set tab = 'sqlite_master'",
    "an image in another category": "update image set category = 1 where id = 40",
    "a confidence above 1": "update image set confidence = 1.5",
}


@pytest.mark.parametrize("name", [*ALWAYS_REFUSED, *REFUSED_NEXT_TO_A_MODEL])
def test_a_forged_file_is_refused_in_a_line_and_left_alone(path: Path, name: str) -> None:
    before = altered(path, (ALWAYS_REFUSED | REFUSED_NEXT_TO_A_MODEL)[name])
    for read, place in ((load_registry, path.parent), (CategoryRegistry.open, path), (Project, path.parent)):
        if read == load_registry or name in ALWAYS_REFUSED:
            with pytest.raises(RegistryError) as refused:
                read(place)
            assert "\n" not in str(refused.value)
        elif name == "a wrong size":
            read(place)  # images are not counted where there may be millions
        assert path.read_bytes() == before


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_changed_in_the_file_it_is_refused_or_whole(path: Path, seed: int) -> None:
    generator, content, refused = np.random.default_rng(seed), path.read_bytes(), 0
    odd = [None, -1, 0, 3, 10**12, 0.5, "", "s1:0", "[]", "{}", b"x"]
    odd.append('[3, "x", "known", 0, 0, 0, 0, null, "[]"]')
    for _ in range(40):
        path.write_bytes(content)
        with closing(sqlite3.connect(path)) as database:
            table = str(generator.choice(["state", "vector", "category", "image", "link", "log", "change"]))
            names = [row[1] for row in database.execute(f"pragma table_info({table})")]
            row = generator.integers(database.execute(f"select count(*) from {table}").fetchone()[0])
            column = names[generator.integers(len(names))]
            first = database.execute(f"select {names[0]} from {table} limit 1 offset {row}").fetchone()[0]
        try:
            value = odd[generator.integers(len(odd))]
            altered(path, f"update {table} set {column} = ? where {names[0]} = ?", value, first)
        except sqlite3.Error:
            continue
        try:
            found = load_registry(path.parent)
            while found.newest:
                found.undo()
                assert sum(each.size for each in found.categories.values()) == len(found.members)
        except RegistryError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize(
    ("side", "place", "value"),
    [
        ("after", "size", 0),
        ("after", "id", 7),
        ("after", "earlier", "{"),
        ("after", "name", "ant"),
        ("after", "state", "alive"),
        ("before", "name", "a name that it never had"),
    ],
)
def test_a_forged_log_is_refused_when_it_is_used(path: Path, side: str, place: str, value: Any) -> None:
    column = f"$[{CATEGORY.split(', ').index(place)}]"
    newest = "(select max(number) from log)"  # it renamed category 6, and was undone
    altered(path, f"update change set {side} = json_set({side}, ?, ?) where entry = {newest}", column, value)
    found = load_registry(path.parent)
    before = found.state_hash()
    with pytest.raises(RegistryError):
        found.redo()
    assert found.state_hash() == before


def test_a_grouping_is_undone_where_confidences_have_more_digits_than_the_log(path: Path) -> None:
    registry = CategoryRegistry.open(path)
    registry.run("update image set confidence = 0.1234567890123456789 where stage = 1")
    before = registry.categories, registry.members
    registry.observe(1, replace(S1.groups({}, seed=1), confidences=np.full(len(S1.keys), 0.5)))
    assert set(registry.confidences.values()) == {0.5}
    registry.undo()
    assert (registry.categories, registry.members) == before
    assert registry.confidences[S1.keys[0]] == pytest.approx(0.123456789)

"""A registry next to a model: the same state and the same bytes anywhere, and a forged file is refused."""

import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptccd.discovery.project import (
    CategoryRegistry,
    StageGroups,
    edits,
    has_registry,
    load_registry,
    save_registry,
)
from promptccd.discovery.project.store import CATEGORIES
from promptccd.errors import DiskError, RegistryError
from tests.discovery.project.streams import (
    Images,
    can_undo,
    do,
    give_features,
    known_registry,
    sizes_add_up,
)

S1 = Images("s1", {0: 6, 3: 12, 4: 8, 5: 7})
S2 = Images("s2", {1: 5, 3: 6, 6: 9}, seed=1)


@pytest.fixture(scope="module")
def registry() -> CategoryRegistry:
    """One with something in every table, a log of both kinds of entries, and something to redo."""
    registry = known_registry()
    registry.observe(1, S1.groups(confidences=np.linspace(0, 1, len(S1.keys))))
    do(registry, (edits.rename, 3, "heron"), time="2026-01-01T00:00:00Z")
    registry.observe(2, S2.groups())
    give_features(registry, S1)
    edits.split(registry, 3, S1.of(3)[:3], "鷺 \u202e <b>")
    edits.answer(registry, S1.keys[0], S1.keys[30], same=False)
    edits.merge(registry, [1, 4])
    edits.move(registry, S1.of(0)[:1], None)
    edits.dissolve(registry, 5, to_nearest=False)
    edits.confirm(registry, S2.keys[:2])
    edits.rename(registry, 6, "newt")
    registry.undo()
    return registry


@pytest.fixture
def folder(registry: CategoryRegistry, tmp_path: Path) -> Path:
    save_registry(registry, tmp_path)
    return tmp_path


def test_it_comes_back_as_it_was_with_what_can_be_undone(
    registry: CategoryRegistry, folder: Path, tmp_path: Path
) -> None:
    before = (folder / CATEGORIES).read_bytes()
    found, other = load_registry(folder), registry.copy()
    assert (found.log, found.redo_stack, found.next_id) == (other.log, other.redo_stack, other.next_id)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / CATEGORIES).symlink_to(folder / CATEGORIES)  # as in the cache of the Hub
    assert load_registry(tmp_path / "link").state_hash() == found.state_hash() == other.state_hash()
    while can_undo(other):
        other.undo()
        found.undo()
        assert found.state_hash() == other.state_hash()
    while other.redo_stack:
        other.redo()
        found.redo()
        assert found.state_hash() == other.state_hash()
    assert (folder / CATEGORIES).read_bytes() == before


def test_equal_registries_give_equal_bytes(registry: CategoryRegistry, tmp_path: Path) -> None:
    one, other = registry.copy(), registry.copy()
    edits.dissolve(one, 3)
    edits.rename(other, 3, "of no account")
    other.undo()
    edits.dissolve(other, 3)
    other.run("update log set number = number - 1 where number = ?", other.log[-1].number)
    other.run("update change set entry = entry - 1 where entry = ?", other.log[-1].number + 1)
    other.run("update state set next_number = next_number - 1")
    contents = []
    for each in (one, other):
        save_registry(each, tmp_path)
        contents.append((tmp_path / CATEGORIES).read_bytes())
    assert contents[0] == contents[1]
    save_registry(load_registry(tmp_path), tmp_path)
    assert (tmp_path / CATEGORIES).read_bytes() == contents[0]
    assert [each.name for each in tmp_path.iterdir()] == [CATEGORIES]


def test_folders_without_a_registry(registry: CategoryRegistry, tmp_path: Path) -> None:
    assert not has_registry(tmp_path)
    with pytest.raises(RegistryError, match=f"no file {CATEGORIES}"):
        load_registry(tmp_path)
    with pytest.raises(DiskError):
        save_registry(registry, tmp_path / "missing")
    for content in (b"", b"text", b"SQLite format 3\0" + bytes(5000)):
        (tmp_path / CATEGORIES).write_bytes(content)
        with pytest.raises(RegistryError, match="is refused"):
            load_registry(tmp_path)


def test_a_model_without_a_registry_gets_one(tmp_path: Path) -> None:
    names = ["ant", "ant", "\ta\nb\n", "discovered 3", "x" * 120]
    found = CategoryRegistry.from_categories(
        range(5), names, 3, np.eye(5), stage=2, members={"row:1": 0, "row:2": 3}
    )
    save_registry(found, tmp_path)
    found = load_registry(tmp_path)
    ids, kept, matrix = found.active_prototypes()
    assert ids == [0, 1, 2, 3, 4]
    assert kept == ["ant", "ant (2)", "a b", "discovered 3", "x" * 100]
    np.testing.assert_array_equal(matrix, np.eye(5))
    assert [each.size for each in found.active] == [1, 0, 0, 1, 0]
    assert [each.born for each in found.active] == [0, 0, 0, 2, 2]
    assert (found.stage, found.next_id, found.unassigned) == (2, 5, [])
    with pytest.raises(RegistryError, match="contradict"):
        CategoryRegistry.from_categories([0], ["a"], 1, np.eye(1), members={"x": 9})
    with pytest.raises(RegistryError, match="contradict"):
        CategoryRegistry.from_categories([0, 0], ["a", "b"], 2, np.eye(2))
    for odd in (np.full((1, 1), np.nan), np.ones(1)):
        with pytest.raises(RegistryError, match="Expected a prototype of"):
            CategoryRegistry.from_categories([0], ["a"], 1, odd)


def test_an_empty_registry_is_one_too(tmp_path: Path) -> None:
    save_registry(CategoryRegistry(), tmp_path)
    for registry in (CategoryRegistry(), load_registry(tmp_path)):
        assert (registry.num_known, registry.stage, registry.next_id, registry.next_number) == (0, -1, 0, 0)
        assert (registry.prototypes.shape, registry.active_prototypes().ids) == ((0, 0), [])
        assert registry.state_hash() == CategoryRegistry().state_hash()
        with pytest.raises(RegistryError, match="no category 0. There are: none yet"):
            registry.category(0)
    registry.replace_prototypes({})  # an entry before the first stage
    save_registry(registry, tmp_path)
    assert load_registry(tmp_path).log == registry.log


FORGED = {
    "a trigger": "create trigger evil after update on image begin delete from image; end",
    "a view": "create view evil as select * from image",
    "a newer format": "pragma user_version = 2",
    "a state nobody knows": "update category set state = 'alive' where id = 3",
    "a wrong size": "update category set size = 4 where id = 3",
    "a name twice": "drop index one_name; update category set name = 'ant'",
    "a name over two lines": "update category set name = 'a' || char(10) || 'b' where id = 3",
    "a row out of range": "update category set vector = 999 where id = 3",
    "an earlier row out of range": "update category set earlier = '[999]' where id = 3",
    "earlier rows as a number": "update category set earlier = '{' where id = 3",
    "a merge in a circle": "update category set merged_into = 4 where id = 4",
    "retired with images": "update category set state = 'retired' where id = 3",
    "known by mistake": "update state set num_known = 5",
    "an id beyond the next": "update state set next_id = 6",
    "no state": "delete from state",
    "a stage as text": "update state set stage = 'x'",
    "an answer about strangers": "insert into link values(0, 999)",
    "a log that is no JSON": "update log set what = '{'",
    "a change of nothing known": "update change set tab = 'sqlite_master'",
    "an image in another category": "update image set category = 1 where id = 40",
    "a confidence above 1": "update image set confidence = 1.5",
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_registry_is_refused_in_a_line(folder: Path, forged: str) -> None:
    with closing(sqlite3.connect(folder / CATEGORIES)) as database:
        database.executescript(f"pragma ignore_check_constraints = on; {forged}")
    before = (folder / CATEGORIES).read_bytes()
    with pytest.raises(RegistryError) as refused:
        load_registry(folder)
    assert "\n" not in str(refused.value)
    assert (folder / CATEGORIES).read_bytes() == before


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_changed_in_the_file_it_is_refused_or_whole(folder: Path, seed: int) -> None:
    generator, content, refused = np.random.default_rng(seed), (folder / CATEGORIES).read_bytes(), 0
    odd = [
        None,
        -1,
        0,
        3,
        10**12,
        0.5,
        "",
        "s1:0",
        "[]",
        "{}",
        '[3, "x", "known", 0, 0, 0, 0, null, "[]"]',
        b"x",
    ]
    for _ in range(40):
        (folder / CATEGORIES).write_bytes(content)
        with closing(sqlite3.connect(folder / CATEGORIES)) as database:
            table = str(generator.choice(["state", "vector", "category", "image", "link", "log", "change"]))
            names = [row[1] for row in database.execute(f"pragma table_info({table})")]
            row = generator.integers(database.execute(f"select count(*) from {table}").fetchone()[0])
            column = names[generator.integers(len(names))]
            first = database.execute(f"select {names[0]} from {table} limit 1 offset {row}").fetchone()[0]
            database.execute("pragma ignore_check_constraints = on")
            try:
                database.execute(
                    f"update {table} set {column} = ? where {names[0]} = ?",
                    (odd[generator.integers(len(odd))], first),
                )
            except sqlite3.Error:
                continue
            database.commit()
        try:
            found = load_registry(folder)
            while can_undo(found):
                found.undo()
                assert sizes_add_up(found)
        except RegistryError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize(
    ("place", "value"), [("size", 0), ("id", 7), ("earlier", "{"), ("name", "ant"), ("state", "alive")]
)
def test_a_forged_log_is_refused_when_it_is_used(folder: Path, place: str, value: Any) -> None:
    names = ["id", "name", "state", "born", "size", "vector", "dormant", "merged_into", "earlier"]
    with closing(
        sqlite3.connect(folder / CATEGORIES)
    ) as database:  # the newest renamed category 6, and was undone
        database.execute(
            "update change set after = json_set(after, ?, ?) where entry = (select max(number) from log)",
            (f"$[{names.index(place)}]", value),
        )
        database.commit()
    found = load_registry(folder)
    before = found.state_hash()
    with pytest.raises(RegistryError):
        found.redo()
    assert found.state_hash() == before


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
    count = len(names)
    found = CategoryRegistry.from_categories(range(count), names, count, np.eye(count))
    assert [each.name for each in found.active] == kept

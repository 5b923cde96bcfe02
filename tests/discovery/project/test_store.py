"""The file of a project: whole after any death, the same for every process, and a stranger's runs nothing."""

import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptccd import systems
from promptccd.discovery.project import (
    Answer,
    CategoryRegistry,
    Confirm,
    Edit,
    Forget,
    Gather,
    Merge,
    Move,
    NotACategory,
    Rename,
    SetAside,
    Sort,
)
from promptccd.discovery.project.store import Store
from promptccd.errors import DiskError, RegistryError
from tests.discovery.project.streams import WIDTH, Images, can_undo, known_registry, random_edit

S1 = Images("s1", {0: 6, 3: 12, 4: 8, 5: 7})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    registry = known_registry()
    registry.observe(1, S1.groups(confidences=np.linspace(0, 1, len(S1.keys))))
    registry.edit(Rename(3, "heron"), time="2026-01-01T00:00:00Z")
    registry.store.write_to(tmp_path / "categories.sqlite")
    return tmp_path / "categories.sqlite"


@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_edits_is_there_for_who_opens_the_file(path: Path, seed: int) -> None:
    generator, ours = np.random.default_rng(seed), CategoryRegistry.open(path)
    in_memory = ours.copy()
    for _ in range(40):
        if generator.random() < 0.3:
            steps: list[Any] = [lambda each: each.undo(), lambda each: each.redo()]
            step = steps[generator.integers(2)]
        else:
            edit = random_edit(ours, generator)
            step = lambda each, edit=edit: each.edit(edit)  # noqa: E731
        outcomes = []
        for each in (ours, in_memory):
            try:
                outcomes.append(str(step(each)))
            except RegistryError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        theirs = CategoryRegistry.open(path)
        assert theirs.state_hash() == ours.state_hash() == in_memory.state_hash()
        assert (theirs.log, theirs.redo_stack) == (in_memory.log, in_memory.redo_stack)


@dataclass
class Model:
    """What the simplest corrections do, as dictionaries: the category of each image, pins, and bans."""

    home: dict[str, int | None]
    pinned: set[str] = field(default_factory=set)
    banned: dict[str, set[int]] = field(default_factory=dict)

    def put(self, key: str, to: int | None) -> None:
        before, self.home[key] = self.home[key], to
        if to is None:
            self.pinned.discard(key)
            if before is not None:
                self.banned.setdefault(key, set()).add(before)
        else:
            self.pinned.add(key)
            self.banned.get(key, set()).discard(to)

    def apply(self, edit: Edit, identity: int) -> None:
        values, kind = edit.values, edit.kind
        if kind in ("move", "sort"):
            to = values["to"] if kind == "sort" else [values["to"]] * len(values["images"])
            for key, target in zip(values["images"], to, strict=True):
                self.put(key, target)
        elif kind == "confirm":
            self.pinned |= set(values["images"])
        elif kind == "set_aside":
            self.pinned |= self.inside(values["category"])
        elif kind == "forget":
            self.forget(values["images"])
        elif kind in ("gather", "not_a_category"):
            for key in values["images"] if kind == "gather" else self.inside(values["category"]):
                self.put(key, identity if kind == "gather" else None)
        elif kind == "merge":
            self.merge(*sorted(set(values["categories"])))

    def forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.home.pop(key)
            self.pinned.discard(key)
            self.banned.pop(key, None)

    def inside(self, *categories: int) -> set[str]:
        return {key for key, home in self.home.items() if home in categories}

    def merge(self, survivor: int, *others: int) -> None:
        merged = {survivor, *others}
        inside = self.inside(*merged)
        for key in inside:
            self.home[key] = survivor
        for key, banned in self.banned.items():
            if banned & merged:
                banned -= merged
                banned |= set() if key in inside else {survivor}


def state_of(registry: CategoryRegistry) -> tuple[Any, ...]:
    sizes = {each.id: each.size for each in registry.categories.values() if each.size}
    bans = {key: set(each) for key, each in registry.forbidden.items()}
    return dict(registry.members), set(registry.pinned), bans, sizes, set(registry.images)


def state_of_model(model: Model) -> tuple[Any, ...]:
    members = {key: home for key, home in model.home.items() if home is not None}
    bans = {key: each for key, each in model.banned.items() if each}
    return members, model.pinned, bans, dict(Counter(members.values())), set(model.home)


@pytest.mark.parametrize("seed", range(4))
def test_corrections_do_what_a_model_of_dictionaries_does(seed: int) -> None:
    generator, registry = np.random.default_rng(seed), known_registry(4, 12)
    registry.observe(1, S1.groups({0: 0}))
    model = Model(dict(registry.members))
    past: list[tuple[Any, ...]] = []
    for number in range(60):
        keys = sorted(model.home)
        some = [keys[each] for each in generator.permutation(len(keys))[: generator.integers(1, 6)]]
        living = [each.id for each in registry.active]
        one, two = (int(each) for each in generator.choice(living, 2, replace=False))
        found = [each for each in living if not registry.category(each).known]
        choices: list[Edit] = [
            Rename(one, f"name {number}"), Move(some, one), Move(some, None), Gather(some, np.ones(WIDTH)),
            Sort(some, [int(generator.choice([one, two])) for _ in some]), Forget(some[:1]),
            Confirm([key for key in keys if model.home[key] is not None][:3]),
            *([Merge([one, two]), SetAside(found[0]), NotACategory(found[-1])] if len(found) > 2 else []),
        ]  # fmt: skip
        before = state_of(registry)
        edit, identity = choices[generator.integers(len(choices))], registry.next_id
        registry.edit(edit)
        model.apply(edit, identity)
        assert state_of(registry) == state_of_model(model), edit.to_dict()
        past.append(before)
        if generator.random() < 0.3:  # there and back
            registry.undo()
            assert state_of(registry) == before
            registry.redo()
            assert state_of(registry) == state_of_model(model)
    while can_undo(registry):
        registry.undo()
        assert state_of(registry) == past.pop()
    assert not past


def test_who_has_the_file_open_learns_what_others_changed(path: Path) -> None:
    ours, theirs = CategoryRegistry.open(path), CategoryRegistry.open(path)
    seen, moved = ours.store.revision, S1.of(3)[:2]
    theirs.edit(Move(moved, 0))
    changes = ours.store.changes_since(seen)
    assert changes is not None
    assert (changes.images, changes.forgotten) == (set(moved), False)
    assert ours.members[moved[0]] == 0 and ours.categories[0].size == theirs.categories[0].size
    seen = ours.store.revision
    theirs.undo()
    theirs.edit(Rename(0, "wasp"))  # what was undone is gone, and with it what it had changed
    assert ours.store.changes_since(seen) is None
    seen = ours.store.revision
    theirs.edit(SetAside(3))
    changes = ours.store.changes_since(seen)
    assert changes is not None and changes.turned == {3}
    seen = ours.store.revision
    theirs.edit(Forget(moved[:1]))
    changes = ours.store.changes_since(seen)
    assert changes is not None and changes.forgotten
    seen = ours.store.revision
    theirs.replace_prototypes({0: np.ones(WIDTH)})
    assert ours.store.changes_since(seen) is None
    assert ours.store.changes_since(ours.store.revision) is not None


def test_a_refused_edit_within_a_transaction_leaves_the_rest_of_it(path: Path) -> None:
    registry = CategoryRegistry.open(path)
    with registry.store.transaction():
        registry.edit(Rename(4, "owl"))
        with pytest.raises(RegistryError):
            registry.edit(Merge([4, 4]))
        assert registry.categories[4].name == "owl"
    before = registry.state_hash()
    with pytest.raises(ZeroDivisionError), registry.store.transaction():
        registry.edit(Rename(4, "newt"))
        assert registry.categories[4].name == "newt"
        raise ZeroDivisionError
    assert registry.categories[4].name == "owl"
    assert registry.state_hash() == before == CategoryRegistry.open(path).state_hash()


@pytest.mark.slow
def test_killed_at_any_time_every_edit_is_there_whole_or_not_at_all(path: Path) -> None:
    """The names count up, so that what is there tells which edits were made."""
    code = (
        "import sys; from pathlib import Path; from promptccd.discovery.project import CategoryRegistry, Rename, Move\n"
        "registry = CategoryRegistry.open(Path(sys.argv[1])); keys = sorted(registry.images)\n"
        "print('open', flush=True)\n"
        "for number in range(10**6):\n"
        "    registry.edit(Rename(3, f'name {number}')); registry.edit(Move(keys[:20], number % 3)); registry.undo()\n"
    )
    generator = np.random.default_rng(1)
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline()
        time.sleep(float(generator.uniform(0, 0.3)))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        registry = CategoryRegistry.open(path)
        assert registry.store.all("pragma integrity_check") == [("ok",)]
        registry.require_whole()
        assert not registry.store.all("pragma foreign_key_check")
        for entry in registry.log:
            if entry.kind == "rename":
                newest = entry.what["name"]
        assert registry.category(3).name == newest


HOSTILE = {
    "a trigger": "create trigger evil after update on image begin delete from image; end",
    "a view": "create view evil as select * from image",
    "an index": "create index evil on image(stage)",
    "a table": "create table evil(a)",
    "a newer format": "pragma user_version = 99",
    "a table less": "drop table link",
}


@pytest.mark.parametrize("statement", HOSTILE.values(), ids=HOSTILE)
def test_a_file_with_other_tables_is_refused_and_left_alone(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()
    before = path.read_bytes()
    with pytest.raises(RegistryError, match="refused|has format 99") as refused:
        CategoryRegistry.open(path)
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "statement",
    [
        "update category set name = 'a' || char(10) || 'b' where id = 3",
        "update category set vector = 99 where id = 3",
        "update category set earlier = '{' where id = 3",
        "update category set state = 'alive' where id = 3",
        "update category set merged_into = 3, state = 'retired', size = 0 where id = 3",
        "update category set id = 99 where id = 3",
    ],
)
def test_values_of_a_stranger_are_refused_in_a_line(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as database:
        database.execute("pragma ignore_check_constraints = on")
        database.execute(statement)
    database.close()
    with pytest.raises(RegistryError) as refused:
        CategoryRegistry.open(path)
    assert "\n" not in str(refused.value)


def test_what_is_no_file_of_a_project(path: Path, tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="no file absent"):
        CategoryRegistry.open(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(RegistryError, match="link"):
        CategoryRegistry.open(tmp_path / "link")
    content = path.read_bytes()
    for number, damaged in enumerate((b"", b"text", content[:5000], b"\0" * 9000)):
        other = tmp_path / str(number)
        other.write_bytes(damaged)
        with pytest.raises(RegistryError):
            CategoryRegistry.open(other)
        assert other.read_bytes() == damaged


def test_a_file_is_replaced_whole(path: Path, tmp_path: Path) -> None:
    opened = CategoryRegistry.open(path)
    later = opened.copy()
    later.edit(Answer(S1.keys[0], S1.keys[1], True))
    assert later.state_hash() != opened.state_hash()
    later.store.write_to(path)
    assert opened.state_hash() == later.state_hash()
    opened.undo()
    later.undo()
    assert opened.state_hash() == later.state_hash()
    with pytest.raises(DiskError):
        later.store.write_to(tmp_path / "missing" / "categories.sqlite")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["categories.sqlite"]


@pytest.mark.parametrize("is_network", [True, False])
def test_a_closed_file_is_whole_without_its_log(
    path: Path, is_network: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systems, "is_network_drive", lambda folder: is_network)
    registry = CategoryRegistry.open(path)
    for name in ("owl", "newt", "wren"):
        registry.edit(Rename(4, name))
    assert (registry.store.one("pragma journal_mode") == "wal") != is_network
    (folder := path.parent / "copy").mkdir()
    for each in path.parent.glob(f"{path.name}*"):
        shutil.copy(each, folder)
    assert CategoryRegistry.open(folder / path.name).state_hash() == registry.state_hash()
    state = registry.state_hash()
    del registry
    gc.collect()
    assert not any(each.stat().st_size for each in path.parent.glob(f"{path.name}-*"))
    alone = Path(shutil.copy(path, path.with_name("alone")))
    assert CategoryRegistry.open(alone).state_hash() == state


def test_the_same_content_is_the_same_bytes_however_it_came_about(path: Path, tmp_path: Path) -> None:
    other = Path(shutil.copy(path, tmp_path / "other"))
    one, two = CategoryRegistry.open(path), CategoryRegistry.open(other)
    one.edit(Rename(4, "owl"))
    two.edit(Rename(4, "owl"))
    two = CategoryRegistry.open(other)
    for number, each in enumerate((one, two)):
        each.edit(Move(S1.of(4)[:3], None))
        each.store.run(f"vacuum into '{tmp_path / f'copy{number}'}'")
    assert (tmp_path / "copy0").read_bytes() == (tmp_path / "copy1").read_bytes()


def test_keys_of_hashes_take_half_of_their_length() -> None:
    store = Store.in_memory()
    store.run(
        "insert into image(key, stage, pinned, unseen, quarter) values(?, 0, 0, 0, 0)",
        bytes.fromhex("ab" * 32),
    )
    assert list(CategoryRegistry(store).images) == ["ab" * 32]
    assert CategoryRegistry(store).images["ab" * 32] == 0
    assert "AB" * 32 not in CategoryRegistry(store).images

"""The file of a project: whole after any death, the same for every process, and a stranger's runs nothing."""

import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from promptccd import systems
from promptccd.discovery.project import CategoryRegistry, edits
from promptccd.errors import DiskError, RegistryError
from tests.discovery.project.streams import WIDTH, Images, do, known_registry

S1 = Images("s1", {0: 6, 3: 12, 4: 8, 5: 7})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    registry = known_registry()
    registry.observe(1, S1.groups(confidences=np.linspace(0, 1, len(S1.keys))))
    do(registry, (edits.rename, 3, "heron"), time="2026-01-01T00:00:00Z")
    registry.write_to(tmp_path / "categories.sqlite")
    return tmp_path / "categories.sqlite"


def test_who_has_the_file_open_learns_what_others_changed(path: Path) -> None:
    ours, theirs = CategoryRegistry.open(path), CategoryRegistry.open(path)
    seen, moved = ours.revision, S1.of(3)[:2]
    edits.move(theirs, moved, 0)
    changes = ours.changes_after(seen)
    assert changes is not None
    assert (changes.images, changes.forgotten) == (set(moved), False)
    assert ours.members[moved[0]] == 0 and ours.categories[0].size == theirs.categories[0].size
    seen = ours.revision
    theirs.undo()
    edits.rename(theirs, 0, "wasp")  # what was undone is gone, and with it what it had changed
    assert ours.changes_after(seen) is None
    seen = ours.revision
    edits.set_aside(theirs, 3)
    changes = ours.changes_after(seen)
    assert changes is not None and changes.turned == {3}
    seen = ours.revision
    edits.forget(theirs, moved[:1])
    changes = ours.changes_after(seen)
    assert changes is not None and changes.forgotten
    seen = ours.revision
    theirs.replace_prototypes({0: np.ones(WIDTH)})
    assert ours.changes_after(seen) is None
    assert ours.changes_after(ours.revision) is not None


def test_a_refused_edit_within_a_transaction_leaves_the_rest_of_it(path: Path) -> None:
    registry = CategoryRegistry.open(path)
    with registry.transaction():
        edits.rename(registry, 4, "owl")
        with pytest.raises(RegistryError):
            edits.merge(registry, [4, 4])
        assert registry.categories[4].name == "owl"
    before = registry.state_hash()
    with pytest.raises(ZeroDivisionError), registry.transaction():
        edits.rename(registry, 4, "newt")
        assert registry.categories[4].name == "newt"
        raise ZeroDivisionError
    assert registry.categories[4].name == "owl"
    assert registry.state_hash() == before == CategoryRegistry.open(path).state_hash()


@pytest.mark.slow
def test_killed_at_any_time_every_edit_is_there_whole_or_not_at_all(path: Path) -> None:
    """The names count up, so that what is there tells which edits were made."""
    code = (
        "import sys; from pathlib import Path; from promptccd.discovery.project import CategoryRegistry, edits\n"
        "registry = CategoryRegistry.open(Path(sys.argv[1])); keys = sorted(registry.images)\n"
        "print('open', flush=True)\n"
        "for number in range(10**6):\n"
        "    edits.rename(registry, 3, f'name {number}'); edits.move(registry, keys[:20], number % 3)\n"
        "    registry.undo()\n"
    )
    generator = np.random.default_rng(1)
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline()
        time.sleep(float(generator.uniform(0, 0.3)))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        registry = CategoryRegistry.open(path)
        assert registry.all("pragma integrity_check") == [("ok",)]
        registry.require_whole()
        assert not registry.all("pragma foreign_key_check")
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
    "a name over two lines": "update category set name = 'a' || char(10) || 'b' where id = 3",
    "no such prototype": "update category set vector = 99 where id = 3",
    "no list of prototypes": "update category set earlier = '{' where id = 3",
    "no such state": "update category set state = 'alive' where id = 3",
    "a merge in a circle": "update category set merged_into = 3, state = 'retired', size = 0 where id = 3",
    "an id beyond the next": "update category set id = 99 where id = 3",
}


@pytest.mark.parametrize("statement", HOSTILE.values(), ids=HOSTILE)
def test_a_file_of_a_stranger_is_refused_in_a_line_and_left_alone(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(f"pragma ignore_check_constraints = on; {statement}")
    before = path.read_bytes()
    with pytest.raises(RegistryError) as refused:
        CategoryRegistry.open(path)
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == before


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
    edits.answer(later, S1.keys[0], S1.keys[1], same=False)
    assert later.state_hash() != opened.state_hash()
    later.write_to(path)
    assert opened.state_hash() == later.state_hash()
    opened.undo()
    later.undo()
    assert opened.state_hash() == later.state_hash()
    with pytest.raises(DiskError):
        later.write_to(tmp_path / "missing" / "categories.sqlite")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["categories.sqlite"]


@pytest.mark.parametrize("is_network", [True, False])
def test_a_closed_file_is_whole_without_its_log(
    path: Path, is_network: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systems, "is_network_drive", lambda folder: is_network)
    registry = CategoryRegistry.open(path)
    for name in ("owl", "newt", "wren"):
        edits.rename(registry, 4, name)
    assert (registry.one("pragma journal_mode") == "wal") != is_network
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

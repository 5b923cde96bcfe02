"""A registry that is corrected a line at a time: nothing is lost, and more images make no line cost more."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from promptccd.errors import RegistryError, RunError
from promptccd.registry import (
    Answer,
    CategoryRegistry,
    Confirm,
    Journal,
    Merge,
    Move,
    NotACategory,
    Rename,
    Split,
    StageGroups,
    load_registry,
    save_registry,
)
from promptccd.registry.files import JOURNAL, REGISTRY
from tests.disk import disk_calls
from tests.registry.streams import WIDTH, Images, can_undo, known_registry, random_edit, unit

S1 = Images("s1", {0: 6, 3: 12, 4: 8, 5: 7})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    registry = known_registry()
    registry.observe(1, S1.groups(confidences=np.linspace(0, 1, len(S1.keys))))
    save_registry(registry, tmp_path)
    return tmp_path


def same(one: CategoryRegistry, other: CategoryRegistry) -> bool:
    return all(
        getattr(one, name) == getattr(other, name) for name in ("log", "redo_stack", "next_id", "next_number")
    ) and (one.state_hash() == other.state_hash() and np.array_equal(one.prototypes, other.prototypes))


@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_edits_comes_back_line_by_line(folder: Path, seed: int) -> None:
    generator, journal, whole = np.random.default_rng(seed), Journal(folder), (folder / REGISTRY).read_bytes()
    for number in range(40):
        registry = journal.registry
        action = generator.integers(5)
        try:
            if action == 0 and can_undo(registry):
                registry.undo()
            elif action == 1 and registry.redo_stack:
                registry.redo()
            elif action == 2:
                registry.observe(1, S1.groups(seed=number, together=((3, 4), (4, 5))[number % 2]))
            else:
                registry.edit(random_edit(registry, generator), time="2026-01-01T00:00:00Z")
        except RegistryError:
            continue
        mark = journal.mark
        journal.write()
        again = Journal(folder)
        assert again.mark == mark
        assert same(again.registry, registry)
        if number % 10 == 0:
            journal = again  # a new process goes on
    assert journal.lines > 15
    assert (folder / REGISTRY).read_bytes() == whole
    while can_undo(journal.registry):
        journal.registry.undo()
        again.registry.undo()
        assert again.registry.state_hash() == journal.registry.state_hash()
    journal.write_whole()
    assert not (folder / JOURNAL).exists()
    assert same(load_registry(folder), journal.registry)


@pytest.mark.slow
def test_torn_at_every_byte_it_is_what_was_answered_for(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal, states, ends = Journal(folder), [load_registry(folder)], [0]
    edits = [Rename(3, "heron 鷺"), Move(S1.of(3)[:2], 4, {3: unit(np.ones(WIDTH))}), Merge([4, 5])]
    for edit in edits:
        journal.registry.edit(edit)
        journal.write()
        states.append(journal.registry.copy())
        ends.append((folder / JOURNAL).stat().st_size)
    content = (folder / JOURNAL).read_bytes()
    line_ends = {0, *(place + 1 for place, byte in enumerate(content) if byte == ord("\n"))}
    for length in range(len(content) + 1):
        (folder / JOURNAL).write_bytes(content[:length])
        caplog.clear()
        found = Journal(folder)
        done = max(number for number, end in enumerate(ends) if end <= length)
        assert same(found.registry, states[done])
        assert ("ends within a line" in caplog.text) == (length not in line_ends)
        if done < len(edits):  # the same edit again ends in the same bytes
            found.registry.edit(edits[done])
            found.write()
            assert (folder / JOURNAL).read_bytes() == content[: ends[done + 1]]


def large(images: int, folder: Path) -> Journal:
    """Many images in ten categories, each of the first nine of which holds ten."""
    keys = [f"{number:064x}" for number in range(images)]
    registry = CategoryRegistry()
    prototypes = unit(np.random.default_rng(0).normal(size=(10, 384)))
    registry.observe(0, StageGroups(keys, np.minimum(np.arange(images) // 10, 9), prototypes))
    folder.mkdir()
    save_registry(registry, folder)
    return Journal(folder)


class Walked(dict):  # type: ignore[type-arg]
    """A table that counts how many entries were gone through."""

    entries = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        for key in super().__iter__():
            Walked.entries += 1
            yield key

    def keys(self):  # type: ignore[no-untyped-def]
        return WalkedKeys(self)

    def items(self):  # type: ignore[no-untyped-def]
        return ((key, self[key]) for key in self)

    def values(self):  # type: ignore[no-untyped-def]
        return (self[key] for key in self)


class WalkedKeys:
    """Its keys; an intersection asks for those of the other."""

    def __init__(self, table: Walked):
        self.table = table

    def __rand__(self, other: set[str]) -> set[str]:
        return {key for key in other if key in self.table}

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self.table)


def test_an_edit_costs_the_same_however_many_images_there_are(tmp_path: Path) -> None:
    keys, vector = [f"{number:064x}" for number in range(100)], unit(np.ones(384))
    by_first = {journal: large(journal, tmp_path / str(journal)) for journal in (100, 10_000)}
    costs = {}
    for images, journal in by_first.items():
        registry, tables = journal.registry, journal.registry._tables
        small = [each.id for each in registry.active if each.size == 10]
        registry.members_of(small[0])  # the first call sorts all images by category
        for name in ("images", "members", "confidences", "pinned", "forbidden"):
            setattr(tables, name, Walked(getattr(tables, name)))
        costs[images] = []
        for edit in (
            Rename(small[0], "heron"), Merge(small[:2]),
            Split(small[2], registry.members_of(small[2])[:4], vector, vector),
            Move(registry.members_of(small[3])[:3], small[4], {small[3]: vector}), Answer(keys[0], keys[80], False),
            NotACategory(small[5]), Confirm(registry.members_of(small[6])),
            Move([keys[0], keys[80]], small[4]),  # contradicts the answer
        ):  # fmt: skip
            for act in (partial(registry.edit, edit), registry.undo, registry.redo):
                Walked.entries, size = 0, _size(tmp_path / str(images))
                act()
                journal.write()
                costs[images].append((Walked.entries, _size(tmp_path / str(images)) - size))
    few, many = (np.array(costs[images]) for images in (100, 10_000))
    assert not few[:, 0].any() and not many[:, 0].any()
    assert np.abs(few[:, 1] - many[:, 1]).max() <= 4  # sizes of categories have more digits
    assert few[:, 1].max() < 12_000


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_lines_of_an_earlier_registry_are_in_it_already(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A process was killed between the registry and what makes the journal empty."""
    journal = Journal(folder)
    journal.registry.edit(Rename(3, "heron"))
    journal.write()
    lines = (folder / JOURNAL).read_bytes()
    save_registry(journal.registry, folder)
    (folder / JOURNAL).write_bytes(lines)
    again = Journal(folder)
    assert "belongs to an earlier registry.json" in caplog.text
    assert (again.lines, same(again.registry, journal.registry)) == (0, True)
    again.registry.edit(Rename(3, "egret"))
    again.write()
    assert Journal(folder).registry.category(3).name == "egret"


def test_who_reads_along_takes_in_what_others_append(folder: Path) -> None:
    ours, theirs = Journal(folder), Journal(folder)
    for name in ("heron", "egret"):
        theirs.registry.edit(Rename(3, name))
        theirs.write()
    theirs.registry.undo()
    theirs.write()
    patches = ours.refresh()
    assert patches is not None
    names = [[each.name for each in patch.changes["categories"][3]] for patch in patches]
    assert [after for _, after in names] == ["heron", "egret", "heron"]
    assert same(ours.registry, theirs.registry)
    assert ours.mark == theirs.mark
    assert ours.refresh() == []
    ours.registry.edit(Merge([3, 4]))
    ours.write()
    theirs.refresh()
    assert same(ours.registry, theirs.registry)
    theirs.write_whole()
    theirs.registry.edit(Rename(0, "emu"))
    theirs.write()
    assert ours.refresh() is None  # read anew
    assert same(ours.registry, theirs.registry)


def test_a_journal_that_lost_a_line_is_another_one(folder: Path) -> None:
    ours, theirs = Journal(folder), Journal(folder)
    for name in ("heron", "egret"):
        theirs.registry.edit(Rename(3, name))
        theirs.write()
    assert (len(ours.refresh()), ours.lines, theirs.lines) == (2, 2, 2)
    lines = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    (folder / JOURNAL).write_bytes(b"".join(lines[:-1]))
    assert ours.refresh() is None  # read anew
    assert (ours.lines, ours.registry.category(3).name) == (1, "heron")


@pytest.mark.parametrize("name", [JOURNAL, REGISTRY])
def test_what_is_damaged_is_refused_however_often_it_is_asked(folder: Path, name: str) -> None:
    ours, theirs = Journal(folder), Journal(folder)
    theirs.registry.edit(Rename(3, "heron"))
    theirs.write()
    (folder / name).write_bytes((folder / name).read_bytes()[:-20] + b"}" * 20 + b"\n")
    for _ in range(3):
        with pytest.raises(RegistryError, match="is refused"):
            ours.refresh()


def test_what_a_line_says(folder: Path) -> None:
    journal = Journal(folder)
    journal.registry.edit(Rename(3, "heron"))
    journal.registry.undo()
    journal.write()
    _, edit, undo = (folder / JOURNAL).read_text().splitlines()
    assert edit.startswith('{"entry":{"kind":"rename","number":1,')
    assert edit.endswith('"next_id":6,"prototypes":"","width":0}')
    assert undo == '{"undo":1}'


def test_a_new_stage_is_written_whole(folder: Path) -> None:
    journal = Journal(folder)
    journal.registry.observe(2, Images("s2", {1: 5, 6: 9}).groups())
    journal.registry.edit(Rename(0, "ant of ants"))
    journal.write()
    assert not (folder / JOURNAL).exists()
    journal.registry.edit(Rename(1, "bee of bees"))
    journal.write()
    assert same(Journal(folder).registry, journal.registry)
    assert Journal(folder).lines == 1


DAMAGES = {
    "no JSON": (lambda lines: [*lines[:2], b"{", *lines[2:]], "it is no plain JSON"),
    "a line is missing": (lambda lines: [*lines[:1], *lines[2:]], "Expected what entry"),
    "a line twice": (lambda lines: [*lines, lines[-1]], "Expected what entry"),
    "nothing to redo": (lambda lines: [*lines, b'{"redo":1}'], "nothing to redo"),
    "another undone": (lambda lines: [*lines, b'{"undo":0}'], "whose turn it is, not 0"),
    "no step": (lambda lines: [*lines, b'{"walk":1}'], "Unknown key 'walk'"),
    "no object": (lambda lines: [*lines, b"[]"], "Expected a step to be an object"),
    "a newer format": (lambda lines: [b'{"format":2}', *lines[1:]], "pip install --upgrade promptccd"),
    "vectors cut": (lambda lines: [*lines[:-1], lines[-1].replace(b'"prototypes":"', b'"prototypes":"A')], "damaged"),
    "not finite": (lambda lines: [*lines[:-1], _with_nan(lines[-1])], "NaN or infinity"),
    "an entry without changes": (
        lambda lines: [*lines[:-1], _with(lines[-1], entry={**json.loads(lines[-1])["entry"], "patch": None})],
        "Expected what entry 3 changes",
    ),
    "an id that was given": (lambda lines: [*lines[:-1], _with(lines[-1], next_id=2)], "the next id 2"),
}  # fmt: skip


def _with(line: bytes, **values: object) -> bytes:
    return json.dumps({**json.loads(line), **values}).encode()


def _with_nan(line: bytes) -> bytes:
    return _with(line, prototypes="AADAfwAAwH8AAMB/", width=3)


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_lines_are_refused_and_left_alone(folder: Path, case: str) -> None:
    journal = Journal(folder)
    for edit in (Rename(3, "heron"), Rename(4, "egret"), Move(S1.of(3)[:2], 4, {3: unit(np.ones(WIDTH))})):
        journal.registry.edit(edit)
    journal.write()
    change, said = DAMAGES[case]
    damaged = b"\n".join([*change((folder / JOURNAL).read_bytes().splitlines()), b""])
    (folder / JOURNAL).write_bytes(damaged)
    with pytest.raises(RegistryError, match=rf"journal\.jsonl is refused: .*{said}"):
        Journal(folder)
    assert (folder / JOURNAL).read_bytes() == damaged


def test_a_step_that_does_not_fit_changes_nothing(folder: Path) -> None:
    """Its prototypes are taken in before it is seen that its values do not fit."""
    journal, ours = Journal(folder), load_registry(folder)
    journal.registry.edit(Split(3, S1.of(3)[:2], np.eye(WIDTH)[0], np.eye(WIDTH)[1]))
    (step,) = journal.registry.steps
    ours.replace_prototypes({3: np.eye(WIDTH)[2]})  # in this state the category has another prototype
    before = ours.state_hash(), ours.next_id, len(ours.prototypes)
    with pytest.raises(RegistryError, match="does not fit the registry"):
        ours.take(replace(step, number=3, entry=replace(step.entry, number=ours.next_number)))
    assert (ours.state_hash(), ours.next_id, len(ours.prototypes)) == before


def test_a_journal_does_not_grow_beyond_what_is_read_again(folder: Path) -> None:
    journal = Journal(folder)
    journal.registry.edit(Rename(3, "heron"))
    journal.write()
    size = (folder / JOURNAL).stat().st_size
    before = journal.registry.state_hash()
    with mock.patch("promptccd.registry.files.LARGEST_JSON", 2 * size):
        assert not journal.is_long(2)
        assert journal.is_long(1)
    with mock.patch("promptccd.registry.files.LARGEST_JSON", 2 * size - 2):
        assert journal.is_long(2), "so that it is written whole in time"
    journal.registry.edit(Rename(3, "egret"))
    with (
        mock.patch("promptccd.registry.files.LARGEST_JSON", size + 100),
        pytest.raises(
            RegistryError, match=r"journal.jsonl would have \d+ bytes, more than the \d+ that are read"
        ),
    ):
        journal.write()
    assert Journal(folder).registry.state_hash() == before
    journal.write()
    assert Journal(folder).registry.category(3).name == "egret"


def test_a_link_is_neither_read_nor_written(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"of somebody else")
    journal = Journal(folder)
    (folder / JOURNAL).symlink_to(tmp_path / "elsewhere")
    journal.registry.edit(Rename(3, "heron"))
    for act in (journal.write, journal.write_whole, lambda: Journal(folder)):
        with pytest.raises(RunError, match=r"remove journal\.jsonl"):
            act()
    assert (tmp_path / "elsewhere").read_bytes() == b"of somebody else"


def test_an_edit_is_answered_when_it_is_on_the_disk(folder: Path) -> None:
    journal = Journal(folder)
    for calls_expected in (["fsync journal.jsonl", "fsync folder"], ["fsync journal.jsonl"]):
        journal.registry.edit(Rename(3, f"{len(calls_expected)} herons"))
        with disk_calls() as calls:
            journal.write()
        assert calls == calls_expected

"""A registry on disk: the same state anywhere, and nothing believed that a file merely says."""

import copy
import json
import os
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from promptccd.discovery.project import (
    PROTOTYPES,
    REGISTRY,
    Answer,
    CategoryRegistry,
    Confirm,
    Merge,
    Move,
    NotACategory,
    Rename,
    Split,
    StageGroups,
    has_registry,
    load_registry,
    save_registry,
)
from promptccd.errors import DiskError, RegistryError
from tests.discovery.project.streams import WIDTH, Images, can_undo, known_registry, sizes_add_up

S1 = Images("s1", {0: 6, 3: 12, 4: 8, 5: 7})
S2 = Images("s2", {1: 5, 3: 6, 6: 9}, seed=1)
VECTOR = np.eye(WIDTH)[0]


@pytest.fixture(scope="module")
def registry() -> CategoryRegistry:
    """One with something in every table, a log of both kinds of entries, and something to redo."""
    registry = known_registry()
    registry.observe(1, S1.groups(confidences=np.linspace(0, 1, len(S1.keys))))
    registry.edit(Rename(3, "heron"), time="2026-01-01T00:00:00Z")
    registry.observe(2, S2.groups())
    registry.edit(Split(3, S1.of(3)[:3], VECTOR, VECTOR, "鷺 \u202e <b>"))
    registry.edit(Answer(S1.keys[0], S1.keys[9], True))
    registry.edit(Answer(S1.keys[0], S1.keys[30], False))
    registry.edit(Merge([1, 4]))
    registry.edit(Move(S1.of(0)[:1], None))
    registry.edit(NotACategory(5))
    registry.edit(Confirm(S2.keys[:2]))
    registry.edit(Rename(6, "newt"))
    registry.undo()
    return registry


@pytest.fixture
def folder(registry: CategoryRegistry, tmp_path: Path) -> Path:
    save_registry(registry, tmp_path)
    return tmp_path


def test_it_comes_back_as_it_was(registry: CategoryRegistry, folder: Path, tmp_path: Path) -> None:
    found = load_registry(folder)
    assert found.state_hash() == registry.state_hash()
    assert (found.log, found.redo_stack, found.next_id) == (
        registry.log,
        registry.redo_stack,
        registry.next_id,
    )
    (tmp_path / "again").mkdir()
    save_registry(found, tmp_path / "again")
    for name in (REGISTRY, PROTOTYPES):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_undo_and_redo_travel_with_the_checkpoint(registry: CategoryRegistry, folder: Path) -> None:
    found, other = load_registry(folder), registry.copy()
    while can_undo(other):
        other.undo()
        found.undo()
        assert found.state_hash() == other.state_hash()
    while other.redo_stack:
        other.redo()
        found.redo()
        assert found.state_hash() == other.state_hash()
    assert not found.redo_stack


@pytest.mark.slow
def test_another_process_reads_the_same(registry: CategoryRegistry, folder: Path) -> None:
    code = (
        "import sys; from promptccd.discovery.project import load_registry; r = load_registry(sys.argv[1]); "
        "print(r.state_hash()); r.undo(); print(r.state_hash())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, cwd="/", check=True
    )
    other = registry.copy()
    other.undo()
    assert result.stdout.split() == [registry.state_hash(), other.state_hash()]


def test_a_file_is_replaced_whole_and_readable_by_others(registry: CategoryRegistry, folder: Path) -> None:
    save_registry(registry, folder)
    assert sorted(item.name for item in folder.iterdir()) == [REGISTRY, PROTOTYPES]
    umask = os.umask(0)
    os.umask(umask)
    for item in folder.iterdir():
        assert stat.S_IMODE(item.stat().st_mode) == 0o666 & ~umask


def test_a_folder_that_cannot_be_written(registry: CategoryRegistry, tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="The old content is untouched"):
        save_registry(registry, tmp_path / "missing")


def test_a_checkpoint_without_a_registry(tmp_path: Path) -> None:
    assert not has_registry(tmp_path)
    with pytest.raises(RegistryError, match=r"holds no registry.json"):
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


def test_a_registry_of_more_categories_than_their_features_are_wide(tmp_path: Path) -> None:
    registry = CategoryRegistry.from_categories(range(3), ["a", "b", "c"], 0, np.arange(6).reshape(2, 3).T)
    save_registry(registry, tmp_path)
    assert load_registry(tmp_path).prototypes.tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(RegistryError, match="contradict"):
        CategoryRegistry.from_categories([0], ["a"], 0, np.eye(1), stage=-1)


def test_the_hash_of_a_state_is_that_of_its_values_in_plain_json() -> None:
    """Whoever has it from an earlier version can compare it."""
    registry = CategoryRegistry.from_categories(
        [0], ["ant"], 1, np.array([[1, 0.5]]), members={"b": 0, "a": 0}
    )
    registry.edit(Confirm(["b"]))
    vectors = sha256(struct.pack("<2f", 1, 0.5)).hexdigest()
    text = (
        '{"categories":{"0":{"born":0,"dormant":false,"earlier_rows":[],"id":0,"merged_into":null,"name":"ant",'
        '"prototype_row":0,"size":2,"state":"known"}},"confidences":{},"forbidden":{},"images":{"a":0,"b":0},'
        f'"links":[],"looks":{{"b":[0,0,0,0]}},"members":{{"a":0,"b":0}},"num_known":1,"pinned":{{"b":0}},"prototypes":"{vectors}","stage":0}}'
    )
    assert registry.state_hash() == sha256(text.encode()).hexdigest()


def test_equal_registries_give_equal_bytes_of_plain_json(registry: CategoryRegistry, tmp_path: Path) -> None:
    one, other = registry.copy(), registry.copy()
    a, b = registry.members_of(3)[:2]
    one.edit(NotACategory(3, {a: 0, b: 1}))
    other.edit(NotACategory(3, {b: 1, a: 0}))
    contents = []
    for each in (one, other):
        save_registry(each, tmp_path)
        contents.append((tmp_path / REGISTRY).read_text())
    assert contents[0] == contents[1]
    assert contents[0] == json.dumps(json.loads(contents[0]), sort_keys=True, separators=(",", ":"))


def row(values: dict, table: str, first: object) -> list:
    """The row of a table that begins with a value."""
    return next(each for each in values[table] if each[0] == first)


def of_category(identity: int, place: int, value: Any) -> Callable[[dict], None]:
    """Set a value of a category: id 0, name 1, state 2, born 3, size 4, vector 5, dormant 6, merged 7, earlier 8."""
    return lambda values: row(values, "category", identity).__setitem__(place, value)


def put_key(name: str, value: Any) -> Callable[[dict], None]:
    return lambda values: values.update({name: value})


DAMAGED = "would contradict itself, or is damaged|its values are damaged|says that it has"
FORGED: dict[str, tuple[Callable[[dict], Any], str]] = {
    "newer format": (put_key("format", 2), "format 2, and this version of promptccd reads formats up to 1"),
    "no format": (lambda values: values.pop("format"), "Expected an object of format 1 with the keys"),
    "a state nobody knows": (of_category(3, 2, "alive"), DAMAGED),
    "a wrong size": (of_category(3, 4, 4), "Category 3 says that it has 4 images, but 15"),
    "a name twice": (of_category(3, 1, "ant"), DAMAGED),
    "blanks around a name": (of_category(3, 1, "heron "), "Category 3 has blanks around its name"),
    "a name over two lines": (of_category(3, 1, "a\nb"), "on one line"),
    "a row out of range": (of_category(3, 5, 999), "Category 3 has prototype row 999"),
    "earlier rows as a number": (of_category(1, 8, 7), "Category 1 is damaged"),
    "a merge in a circle": (of_category(4, 7, 4), DAMAGED),
    "retired with images": (of_category(3, 2, "retired"), "is retired, but has 15 images"),
    "known by mistake": (put_key("num_known", 5), "Category 3 is discovered, but ids below 5 are known"),
    "an id beyond the next": (put_key("next_id", 6), "Category 6 is there, and the next free id is 6"),
    "a stage as text": (put_key("stage", "x"), DAMAGED),
    "categories as an object": (put_key("category", {"a": 1}), DAMAGED),
    "an answer about strangers": (put_key("link", [[0, 999, 1]]), DAMAGED),
    "answers that contradict": (put_key("link", [[1, 2, 1], [1, 3, 1], [2, 3, 0]]), "must be together"),
    "a log that is no list": (put_key("log", "none"), DAMAGED),
    "a number from the future": (put_key("next_number", 1), "not below next_number"),
    "a change of nothing known": (lambda values: values["change"][0].__setitem__(1, "sqlite_master"), DAMAGED),
    "other tensors": (put_key("tensors", "0" * 64), "is not what was saved with it: copy the checkpoint again"),
}  # fmt: skip


def write_tensors(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write what the sum in the JSON is right for, as a stranger may."""
    save_file(tensors, folder / PROTOTYPES)
    values = json.loads((folder / REGISTRY).read_text())
    values["tensors"] = sha256((folder / PROTOTYPES).read_bytes()).hexdigest()
    (folder / REGISTRY).write_text(json.dumps(values))


def put(name: str, row: int, value: Any) -> Callable[[dict[str, np.ndarray]], Any]:
    """Set a value of a column of images; the first one has a key that is no hash, ``"s0:0"``."""

    def apply(tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = tensors[name].astype(np.float64 if name == "confidence" else np.int64)
        tensors[name][row] = value

    return apply


def named(*names: object) -> Callable[[dict[str, np.ndarray]], Any]:
    """Keys of as many images as there were."""

    def apply(tensors: dict[str, np.ndarray]) -> None:
        rest = [f"x{number}" for number in range(len(tensors["stage"]) - len(names))]
        tensors["names"] = np.frombuffer(json.dumps([*names, *rest]).encode(), np.uint8)

    return apply


FORGED_TENSORS: dict[str, tuple[Callable[[dict[str, np.ndarray]], Any], str]] = {
    **{
        f"no {name}": (lambda tensors, name=name: tensors.pop(name), f"The column '{name}' of images is missing")
        for name in ("prototypes", "hashes", "names", "stage", "category", "confidence", "pinned", "reviewed")
    },
    "doubles": (lambda tensors: tensors.update(prototypes=np.eye(24)), "Expected finite float32 .* got float64"),
    "an image in another category": (put("category", 0, 1), "Category [0-9] says that it has"),
    "rows of nothing": (
        lambda tensors: tensors.update(prototypes=np.zeros((10**12, 0), np.float32)), "Expected finite"
    ),
    "a confidence above 1": (put("confidence", 0, 1.5), DAMAGED),
    "whole confidences": (lambda tensors: tensors.update(confidence=tensors["stage"]), "numbers in the column 'conf"),
    "a table": (lambda tensors: tensors.update(category=tensors["category"][None]), "numbers in the column 'cat"),
    "an image twice": (named("a", "a"), DAMAGED),
    "a hash as text": (named("a" * 64), "list of texts"),
    "names that are no JSON": (lambda tensors: tensors.update(names=np.frombuffer(b"\xff", np.uint8)), "are damaged"),
    "deep names": (lambda tensors: tensors.update(names=np.frombuffer(b"[" * 200_000, np.uint8)), "are damaged"),
    "wide hashes": (lambda tensors: tensors.update(hashes=np.zeros((0, 33), np.uint8)), "Expected hashes of 32 bytes"),
    "more of them": (lambda tensors: tensors.update(hashes=np.zeros((1, 32), np.uint8)), "numbers in the column"),
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGED_TENSORS.values(), ids=FORGED_TENSORS.keys())
def test_forged_columns_are_refused_by_name(folder: Path, forged: tuple[Callable[[dict], Any], str]) -> None:
    tensors = load_file(folder / PROTOTYPES)
    forged[0](tensors)
    write_tensors(folder, tensors)
    with pytest.raises(RegistryError, match=r"registry\.json is refused: .*(" + forged[1] + ")"):
        load_registry(folder)


def test_an_image_takes_fifty_bytes_and_any_key_comes_back(tmp_path: Path) -> None:
    keys = [sha256(bytes([number])).hexdigest() for number in range(100)]
    odd = ["row:5", "A" * 64, "鷺", keys[0].upper(), keys[0][1:]]
    registry = CategoryRegistry()
    confidences = np.linspace(0, 1, len(keys))
    registry.observe(
        0, StageGroups(keys, np.arange(100) % 3, np.eye(3, dtype=np.float32), confidences=confidences)
    )
    registry.observe(300, StageGroups(odd, np.zeros(5, int), np.eye(3, dtype=np.float32)[:1]))
    registry.edit(Move(keys[:1], None))
    save_registry(registry, tmp_path)
    found = load_registry(tmp_path)
    assert (found.images.read(), found.state_hash()) == (registry.images.read(), registry.state_hash())
    assert (tmp_path / PROTOTYPES).stat().st_size < 52 * len(keys) + 2500


@pytest.mark.parametrize(
    ("limit", "name"),
    [("LARGEST_JSON", REGISTRY), ("LARGEST_TENSORS", PROTOTYPES), ("MOST_IMAGES", "images")],
)
def test_what_could_not_be_read_again_is_not_written(
    registry: CategoryRegistry, folder: Path, limit: str, name: str
) -> None:
    later = registry.copy()
    later.undo()
    before = {item.name: item.read_bytes() for item in folder.iterdir()}
    most = {"LARGEST_JSON": len(before[REGISTRY]), "LARGEST_TENSORS": len(before[PROTOTYPES])}
    fits = most.get(limit, len(registry.images))
    with (
        mock.patch(
            f"promptccd.discovery.project.checkpoint_form.{limit}",
            fits - 3000 if limit == "LARGEST_JSON" else fits - 1,
        ),
        pytest.raises(RegistryError, match=name),
    ):
        save_registry(later, folder)
    assert {item.name: item.read_bytes() for item in folder.iterdir()} == before
    with mock.patch(f"promptccd.discovery.project.checkpoint_form.{limit}", fits):
        save_registry(registry, folder)
        assert load_registry(folder).state_hash() == registry.state_hash()


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
def test_a_forged_registry_is_refused_by_name(
    folder: Path, forged: tuple[Callable[[dict], Any], str]
) -> None:
    values = json.loads((folder / REGISTRY).read_text())
    forged[0](values)
    (folder / REGISTRY).write_text(json.dumps(values))
    with pytest.raises(RegistryError, match=r"registry\.json is refused: .*(" + forged[1] + ")"):
        load_registry(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no plain JSON"),
        (b"\xff\xfe", "no plain JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"format": NaN}', "Expected an object of format 1"),
        (b'{"format": ' + b"9" * 5000 + b"}", "no plain JSON"),
        (b"[]", "Expected an object of format 1"),
    ],
)
def test_what_is_no_registry_at_all(folder: Path, content: bytes, reason: str) -> None:
    (folder / REGISTRY).write_bytes(content)
    with pytest.raises(RegistryError, match=reason):
        load_registry(folder)


def test_a_file_beyond_the_limit_is_not_read(folder: Path) -> None:
    size = (folder / REGISTRY).stat().st_size
    with mock.patch("promptccd.discovery.project.checkpoint_form.LARGEST_JSON", size):
        load_registry(folder)
    with (folder / REGISTRY).open("ab") as stream:
        stream.truncate(2**29 + 1)  # takes no room on the disk
    with pytest.raises(RegistryError, match="it has 536870913 bytes, more than the 536870912 that"):
        load_registry(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "reason"), [(2**31, "is not what was saved"), (2**31 + 1, "is missing or too large")]
)
def test_prototypes_of_two_gibibytes_are_read_and_more_are_not(folder: Path, size: int, reason: str) -> None:
    with (folder / PROTOTYPES).open("ab") as stream:
        stream.truncate(size)
    with pytest.raises(RegistryError, match=rf"registry\.safetensors {reason}"):
        load_registry(folder)


@pytest.mark.parametrize("damage", ["missing", "cut", "header", "NaN", "type", "directory"])
def test_damaged_tensors_are_refused(folder: Path, damage: str) -> None:
    path = folder / PROTOTYPES
    content, tensors = path.read_bytes(), load_file(path)
    path.unlink()
    if damage == "NaN":
        tensors["prototypes"][0, 0] = np.nan
        write_tensors(folder, tensors)
    elif damage == "directory":
        path.mkdir()
    elif damage != "missing":  # of a stranger, who knows what the sum has to be
        other = {"cut": content[:-40], "header": b"\xff" * 8 + content[8:]}
        other["type"] = content.replace(b'"F32"', b'"F99"', 1)
        path.write_bytes(other[damage])
        with pytest.raises(RegistryError, match=r"registry\.safetensors is not what was saved with it"):
            load_registry(folder)
        values = json.loads((folder / REGISTRY).read_text())
        (folder / REGISTRY).write_text(json.dumps({**values, "tensors": sha256(other[damage]).hexdigest()}))
    with pytest.raises(
        RegistryError,
        match=r"registry\.json is refused: .*(registry\.safetensors|finite float32 prototypes|values are damaged)",
    ):
        load_registry(folder)


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Every path into nested lists and objects."""
    yield path
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from places(child, (*path, key))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_changed_in_the_file_it_is_refused_or_whole(folder: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    original = json.loads((folder / REGISTRY).read_text())
    everywhere = [path for path in places(original) if path]
    odd = [None, -1, 0, 3, 7, 10**30, 0.5, True, "", "s1:0", "x", [], {}, [[]], {"a": 1}, ["s1:0", 3]]
    refused = 0
    for _ in range(60):
        values = copy.deepcopy(original)
        *parts, last = everywhere[generator.integers(len(everywhere))]
        target = values
        for part in parts:
            target = target[part]
        target[last] = odd[generator.integers(len(odd))]
        (folder / REGISTRY).write_text(json.dumps(values))
        try:
            found = load_registry(folder)
            while can_undo(found):
                found.undo()
                assert sizes_add_up(found)
        except RegistryError:
            refused += 1
    assert refused > 30


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (4, 0, "says that it has"),
        (0, 7, "says that it has|contradict"),
        (8, "{", "Category 6 is damaged"),
        (1, "ant", "contradict"),
    ],
)
def test_a_forged_log_is_refused_when_it_is_used(folder: Path, place: int, value: Any, reason: str) -> None:
    values = json.loads((folder / REGISTRY).read_text())
    newest = max(each[0] for each in values["log"])
    for each in values["change"]:
        if each[0] == newest:  # which renamed category 6, and was undone
            each[3][place] = value
    (folder / REGISTRY).write_text(json.dumps(values))
    found = load_registry(folder)
    before = found.state_hash()
    with pytest.raises(RegistryError, match=reason):
        found.redo()
    assert found.state_hash() == before


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


@pytest.mark.parametrize(("count", "ids"), [(20, ", 18, 19[.]"), (21, ", 18, 19, [.]{3}[.]")])
def test_of_the_categories_that_there_are_twenty_are_named(count: int, ids: str) -> None:
    found = CategoryRegistry.from_categories(range(count), [""] * count, count, np.eye(count))
    with pytest.raises(RegistryError, match=f"no category 99. There are: 0, 1, .*{ids}$"):
        found.category(99)


@pytest.mark.slow
def test_thirty_thousand_images_are_quick(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    clusters = generator.integers(0, 200, 30_000)
    keys = [f"{number:064x}" for number in range(30_000)]
    registry = CategoryRegistry()
    prototypes = generator.normal(size=(200, 768)).astype(np.float32)
    groups = StageGroups(keys, clusters, prototypes, confidences=generator.random(30_000))
    registry.observe(0, groups)

    def seconds(function: Callable[[], Any]) -> float:
        """Least of three: what other processes take is not ours."""
        times = []
        for _ in range(3):
            start = time.process_time()
            function()
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(lambda: (save_registry(registry, tmp_path), load_registry(tmp_path))) < 1
    members = registry.members_of(7)
    for edit in (
        Rename(3, "heron"), Merge([1, 2]), Split(7, members[:50], prototypes[0], prototypes[1]),
        Move(keys[:1000], 9), NotACategory(11), Answer(keys[0], keys[9], True), Confirm(keys[:1000]),
    ):  # fmt: skip
        times = []
        for _ in range(3):
            start = time.process_time()
            registry.edit(edit)
            times.append(time.process_time() - start)
            registry.undo()
        assert min(times) < 0.05, edit.kind
        registry.redo()
    assert seconds(lambda: (registry.undo(), registry.redo())) < 0.2
    assert seconds(lambda: registry.observe(0, groups)) < 2

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

from promptccd.errors import DiskError, RegistryError
from promptccd.registry import (
    PROTOTYPES,
    REGISTRY,
    Answer,
    Category,
    CategoryRegistry,
    CategoryState,
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
from promptccd.registry.changes import Step
from promptccd.registry.files import PREVIOUS, _read_list, _read_step, _write_step
from promptccd.registry.tables import Patch, Tables
from tests.disk import disk_calls, in_order
from tests.registry.streams import WIDTH, Images, can_undo, known_registry, sizes_add_up

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
        "import sys; from promptccd.registry import load_registry; r = load_registry(sys.argv[1]); "
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


def test_a_save_that_is_cut_off_between_its_files_leaves_the_older_state(
    registry: CategoryRegistry, folder: Path, tmp_path: Path
) -> None:
    later = registry.copy()
    later.edit(Move(S1.of(3)[4:6], 0, {0: VECTOR}))
    (tmp_path / "later").mkdir()
    save_registry(later, tmp_path / "later")
    (folder / PROTOTYPES).rename(folder / PREVIOUS)
    (folder / PROTOTYPES).write_bytes((tmp_path / "later" / PROTOTYPES).read_bytes())
    assert load_registry(folder).state_hash() == registry.state_hash()


@pytest.mark.fault(3)
def test_a_file_is_on_the_disk_before_it_replaces_the_old_one(
    registry: CategoryRegistry, folder: Path
) -> None:
    with disk_calls() as calls:
        save_registry(registry, folder)
    assert not calls, "it is there already"
    later = registry.copy()
    later.undo()
    with disk_calls() as calls:
        save_registry(later, folder)
    kept = in_order(PREVIOUS)  # with it a cut between the next two leaves the older state
    assert calls == [*kept, *in_order(PROTOTYPES), *in_order(REGISTRY)]
    assert not (folder / PREVIOUS).exists()


@pytest.mark.parametrize("name", [PROTOTYPES, REGISTRY])
def test_half_a_registry_is_made_whole_and_not_kept(
    registry: CategoryRegistry, folder: Path, name: str
) -> None:
    (folder / name).unlink()
    with disk_calls() as calls:
        save_registry(registry, folder)
    assert calls == [*in_order(PROTOTYPES), *in_order(REGISTRY)]
    assert load_registry(folder).state_hash() == registry.state_hash()


@pytest.mark.parametrize("left_over", [False, True])
def test_two_saves_that_are_cut_off_leave_the_older_state(
    registry: CategoryRegistry, folder: Path, left_over: bool
) -> None:
    """The second finds the prototypes of the JSON under another name; the first may find those of an earlier one."""
    if left_over:
        (folder / PREVIOUS).write_bytes(b"of an earlier registry")

    def written_in_part(path: Path, content: bytes) -> None:
        if path.name == REGISTRY:
            raise DiskError("The power is out.")
        path.write_bytes(content)

    for number in range(2):
        later = registry.copy()
        later.replace_prototypes({0: VECTOR * number})  # the rows that were there are not the first any more
        with mock.patch("promptccd.registry.files.write_file", written_in_part), pytest.raises(DiskError):
            save_registry(later, folder)
        assert load_registry(folder).state_hash() == registry.state_hash()


def test_a_folder_that_cannot_be_written(registry: CategoryRegistry, tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="The old one is untouched"):
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
    with pytest.raises(RegistryError, match="category 9, which has no prototype"):
        CategoryRegistry.from_categories([0], ["a"], 1, np.eye(1), members={"x": 9})
    with pytest.raises(RegistryError, match="2 different ids"):
        CategoryRegistry.from_categories([0, 1], ["a"], 1, np.eye(2))
    for odd in (np.full((1, 1), np.nan), np.ones(1)):
        with pytest.raises(RegistryError, match=r"finite prototypes \(R, D\)"):
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
    with pytest.raises(ValueError, match="read-only"):
        registry.prototypes[0, 0] = 1
    with pytest.raises(RegistryError, match="Category 0 was born at stage -1"):
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


def test_what_is_no_number_is_neither_hashed_nor_written(tmp_path: Path) -> None:
    """Readers of JSON have no word for it. No public way leads there."""
    registry = CategoryRegistry(Tables(images={"a": 0}, confidences={"a": float("nan")}))
    with pytest.raises(ValueError, match="not JSON compliant"):
        registry.state_hash()
    with pytest.raises(RegistryError, match="confidences of 0 to 1, got one outside or NaN"):
        save_registry(registry, tmp_path)
    assert not list(tmp_path.iterdir())


def category(values: dict, identity: int) -> dict:
    return next(each for each in values["state"]["categories"] if each["id"] == identity)


def change(path: str, value: Any) -> Callable[[dict], None]:
    """Set a value below a path of keys; of a category by its id."""

    def apply(values: dict) -> None:
        *parts, last = path.split(".")
        for part in parts:
            values = (
                next(each for each in values if str(each["id"]) == part) if part.isdigit() else values[part]
            )
        values[last] = value

    return apply


FORGED: dict[str, tuple[Callable[[dict], Any], str]] = {
    "newer format": (change("format", 2), "format 2, and this version of promptccd reads formats up to 1"),
    "no format": (lambda values: values.pop("format"), "The key 'format' is missing"),
    "format as text": (change("format", "1"), "Expected a format of 1 to 1, got '1'"),
    "unknown key": (change("auto_map", {}), "Unknown key 'auto_map' in the registry"),
    "unknown key in a category": (change("state.categories.3.code", "x"), "Unknown key 'code' in a category"),
    "unknown key in the state": (change("state.pickles", []), "Unknown key 'pickles' in the state"),
    "a state nobody knows": (change("state.categories.3.state", "alive"), "got 'alive'"),
    "a wrong size": (change("state.categories.3.size", 4), "Category 3 says that it has 4 images, but 15"),
    "an id twice": (change("state.categories.3.id", 2), "Category 2 is there twice"),
    "a name twice": (change("state.categories.3.name", "ant"), "Two categories are called 'ant'"),
    "a long name": (change("state.categories.3.name", "x" * 101), "the name of a category to be a text of 1 to 100"),
    "no name": (change("state.categories.3.name", ""), "the name of a category to be a text of 1 to 100"),
    "blanks around a name": (change("state.categories.3.name", "heron "), "Category 3 has blanks around its name"),
    "a name over two lines": (change("state.categories.3.name", "a\nb"), "on one line"),
    "half a character": (change("state.categories.3.name", "\ud800"), "control characters"),
    "a row out of range": (change("state.categories.3.prototype_row", 999), "Category 3 has prototype row 999"),
    "an earlier row out of range": (change("state.categories.1.earlier_rows", [999]), "prototype row 999"),
    "a negative row": (change("state.categories.3.prototype_row", -1), "prototype row to be an integer >= 0, got -1"),
    "a merge in a circle": (change("state.categories.4.merged_into", 4), "Category 4 was merged into 4"),
    "a merge into nothing": (change("state.categories.4.merged_into", 99), "into 99, which leads nowhere"),
    "at rest with images": (change("state.categories.3.dormant", True), "is dormant, but discovered with 15 images"),
    "at rest by a number": (change("state.categories.3.dormant", 0), "dormant to be true or false, got 0"),
    "retired with images": (change("state.categories.3.state", "retired"), "is retired, but has 15 images"),
    "a merge that is not retired": (change("state.categories.3.merged_into", 0), "is not retired"),
    "known by mistake": (change("num_known", 5), "Category 3 is discovered, but ids below 5 are known"),
    "an id beyond the next": (change("next_id", 6), "Category 6 has the id 6, and the next free id is 6"),
    "a long text": (change("stage", "x" * 58), "an integer >= -1, got 'x{58}'[.]$"),
    "a text that is too long to show": (change("stage", "x" * 59), "an integer >= -1, got 'x{59}[.]{3}[.]$"),
    "a number that other readers of JSON would round": (change("next_id", 2**53), "next_id to be an integer"),
    "a huge number": (change("next_id", 2**70), "next_id to be an integer"),
    "true for a number": (change("stage", True), "stage to be an integer >= -1, got True"),
    "categories as an object": (change("state.categories", {}), "categories to be a list of at most 100000, got a"),
    "a pin elsewhere": (change("state.pinned", [["s1:0", 3]]), "is pinned to category 3 but is not in it"),
    "an answer about one image": (change("state.links", [[["s1:0", "s1:0"], "same"]]), "not about two images"),
    "the larger key first": (change("state.links", [[["s1:8", "s1:0"], "same"]]), "the smaller key first"),
    "an answer about strangers": (change("state.links", [[["a", "b"], "same"]]), "not about two images"),
    "an answer nobody knows": (change("state.links", [[["a", "b"], []]]), "an answer to be 'same'"),
    "answers that contradict": (
        lambda values: values["state"]["links"].extend([[["s1:0", "s1:8"], "same"], [["s1:8", "s1:9"], "different"]]),
        "cannot be together and must be together",
    ),
    "forbidden but there": (change("state.forbidden", [["s1:1", [0]]]), "in category 0, which is forbidden to it"),
    "forbidden and unknown": (change("state.forbidden", [["s1:6", [99]]]), "out of category 99, which does not exist"),
    "nothing forbidden": (change("state.forbidden", [["s1:6", []]]), "in order, each once, got a list of 0"),
    "forbidden in disorder": (change("state.forbidden", [["s1:6", [5, 3]]]), "in order, each once, got a list of 2"),
    "forbidden by number": (change("state.forbidden", [["s1:6", 3]]), "to be a list of at most 10000, got 3"),
    "a log that is no list": (change("log", "none"), "log to be a list of at most 100000, got 'none'"),
    "an entry before all": (lambda values: values["log"][0].update(stage=-2), "a log entry to be an integer >= -1"),
    "an entry without a number": (lambda values: values["log"][0].pop("number"), "'number' is missing in a log"),
    "half an image": (lambda values: values["log"][0]["what"].update(images=1.5), "their number or keys, got 1.5"),
    "images by number": (lambda values: values["log"][0]["what"].update(images=[1]), "their number or keys"),
    "what happened as text": (lambda values: values["log"][0].update(what="x"), "to be an object, got 'x'"),
    "a number from the future": (change("next_number", 1), "not below next_number"),
    "the number that comes next": (
        lambda values: values.update(next_number=values["next_number"] - 1), "not below next_number"
    ),
    "a redo without changes": (lambda values: values["redo"][0].update(patch=None), "does not say what it changes"),
    "a patch of nothing known": (lambda values: values["redo"][0].update(patch={"a": []}), "Expected the changes of"),
    "pins as an object": (change("state.pinned", {}), "pinned to be a list of at most 10000000"),
    "a pin twice": (lambda values: values["state"]["pinned"].extend(values["state"]["pinned"][:1]), "twice in pinned"),
    "a pin of a long key": (change("state.pinned", [["a" * 1001, 1]]), "key of an image to be a text of 1 to 1000"),
    "a pin of a key that is no text": (change("state.pinned", [[["a"], 1]]), "key of an image .* got a list of 1"),
    "images in the JSON": (change("state.images", []), "Unknown key 'images' in the state"),
    "a sum of 65 digits": (change("tensors", "0" * 65), "a text of 1 to 64 characters"),
    "other tensors": (change("tensors", "0" * 64), "is not what was saved with it: copy the checkpoint again"),
    "a patch of odd rows": (lambda values: values["redo"][0].update(patch={"members": [[1]]}), "rows of 3 values"),
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
        tensors[name] = tensors[name].astype(np.float64 if name == "confidences" else np.int64)
        tensors[name][row] = value

    return apply


def named(*names: object) -> Callable[[dict[str, np.ndarray]], Any]:
    """Keys of as many images as there were."""

    def apply(tensors: dict[str, np.ndarray]) -> None:
        rest = [f"x{number}" for number in range(len(tensors["images"]) - len(names))]
        tensors["names"] = np.frombuffer(json.dumps([*names, *rest]).encode(), np.uint8)

    return apply


FORGED_TENSORS: dict[str, tuple[Callable[[dict[str, np.ndarray]], Any], str]] = {
    **{
        f"no {name}": (lambda tensors, name=name: tensors.pop(name), f"The column '{name}' of images is missing")
        for name in ("hashes", "names", "images", "members", "confidences")
    },
    "no prototypes": (lambda tensors: tensors.pop("prototypes"), "Expected float32 prototypes"),
    "doubles": (lambda tensors: tensors.update(prototypes=np.eye(24)), "Expected float32 prototypes .* got float64"),
    "flat prototypes": (lambda tensors: tensors.update(prototypes=np.ones(9, np.float32)), r"finite .* \(R, D\)"),
    "an image in another category": (put("members", 0, 1), "Category [0-9] says that it has"),
    "an image in a category that there is not": (
        lambda tensors: put("members", json.loads(tensors["names"].tobytes()).index(S1.of(0)[0]), 99)(tensors),
        "Images are in category 99, which does not exist",
    ),
    "rows of nothing": (
        lambda tensors: tensors.update(prototypes=np.zeros((10**12, 0), np.float32)), "Expected finite prototypes"
    ),
    "a category below none": (put("members", 0, -2), "from 0 on in the column 'members', got -2"),
    "a category beyond JSON": (put("members", 0, 2**53), "from 0 on in the column 'members'"),
    "a stage before all": (put("images", 0, -1), "from 0 on in the column 'images', got -1"),
    "a confidence above 1": (put("confidences", 0, 1.5), "confidences of 0 to 1, got one outside"),
    "a confidence below 0": (put("confidences", 0, -0.5), "confidences of 0 to 1, got one outside"),
    "no number": (put("confidences", 0, np.nan), "confidences of 0 to 1, got one outside"),
    "whole confidences": (lambda tensors: tensors.update(confidences=tensors["images"]), "numbers in the column 'conf"),
    "half a stage": (lambda tensors: tensors.update(images=tensors["confidences"]), "numbers in the column 'images'"),
    "one less": (lambda tensors: tensors.update(members=tensors["members"][1:]), "numbers in the column 'members'"),
    "a table": (lambda tensors: tensors.update(members=tensors["members"][None]), "numbers in the column 'members'"),
    "an image twice": (named("a", "a"), "An image is there twice"),
    "an image that never came": (named(), "is in pinned but not among the images"),
    "no text": (named(3), "list of texts of 1 to 1000"),
    "an empty name": (named(""), "list of texts of 1 to 1000"),
    "a long name": (named("a" * 1001), "list of texts of 1 to 1000"),
    "names by name": (lambda tensors: tensors.update(names=np.frombuffer(b"{}", np.uint8)), "list of texts of 1 to"),
    "names that are no JSON": (lambda tensors: tensors.update(names=np.frombuffer(b"\xff", np.uint8)), "are damaged"),
    "deep names": (lambda tensors: tensors.update(names=np.frombuffer(b"[" * 200_000, np.uint8)), "are damaged"),
    "names as numbers": (lambda tensors: tensors.update(names=np.ones(2)), "are damaged"),
    "wide hashes": (lambda tensors: tensors.update(hashes=np.zeros((0, 33), np.uint8)), "Expected hashes of 32 bytes"),
    "flat hashes": (lambda tensors: tensors.update(hashes=np.zeros(0, np.uint8)), "Expected hashes of 32 bytes"),
    "long hashes": (lambda tensors: tensors.update(hashes=np.zeros((0, 32))), "Expected hashes of 32 bytes"),
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
    odd = ["row:5", "A" * 64, "\ud800", "鷺", keys[0].upper(), keys[0][1:]]
    registry = CategoryRegistry()
    confidences = np.linspace(0, 1, len(keys))
    registry.observe(
        0, StageGroups(keys, np.arange(100) % 3, np.eye(3, dtype=np.float32), confidences=confidences)
    )
    registry.observe(300, StageGroups(odd, np.zeros(6, int), np.eye(3, dtype=np.float32)[:1]))
    registry.edit(Move(keys[:1], None))
    save_registry(registry, tmp_path)
    found = load_registry(tmp_path)
    assert (found.tables, found.state_hash()) == (registry.tables, registry.state_hash())
    assert (tmp_path / PROTOTYPES).stat().st_size < 50 * len(keys) + 1500


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
    where = "columns" if limit == "MOST_IMAGES" else "files"
    most = {"LARGEST_JSON": len(before[REGISTRY]), "LARGEST_TENSORS": len(before[PROTOTYPES])}
    fits = most.get(limit, len(registry.images))
    with (
        mock.patch(
            f"promptccd.registry.{where}.{limit}", fits - 3000 if limit == "LARGEST_JSON" else fits - 1
        ),
        pytest.raises(RegistryError, match=name),
    ):
        save_registry(later, folder)
    assert {item.name: item.read_bytes() for item in folder.iterdir()} == before
    with mock.patch(f"promptccd.registry.{where}.{limit}", fits):
        save_registry(registry, folder)
        assert load_registry(folder).state_hash() == registry.state_hash()


def test_a_row_behind_the_last_is_refused(registry: CategoryRegistry, folder: Path) -> None:
    values = json.loads((folder / REGISTRY).read_text())
    category(values, 3)["prototype_row"] = len(registry.prototypes)
    (folder / REGISTRY).write_text(json.dumps(values))
    with pytest.raises(RegistryError, match="Category 3 has prototype row"):
        load_registry(folder)


def test_the_largest_number_is_that_of_json(folder: Path) -> None:
    values = json.loads((folder / REGISTRY).read_text())
    values["next_id"] = 2**53 - 1
    (folder / REGISTRY).write_text(json.dumps(values))
    assert load_registry(folder).next_id == 2**53 - 1


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
        (b'{"format": NaN}', "NaN is no number"),
        (b'{"format": 1e999}', "'1e999' is too large for a number"),
        (b'{"format": 1, "format": 1}', "the key 'format' stands twice"),
        (b'{"format": ' + b"9" * 5000 + b"}", "no plain JSON"),
        (b"[]", "Expected the registry to be an object"),
    ],
)
def test_what_is_no_registry_at_all(folder: Path, content: bytes, reason: str) -> None:
    (folder / REGISTRY).write_bytes(content)
    with pytest.raises(RegistryError, match=reason):
        load_registry(folder)


def test_a_list_may_be_as_long_as_is_said() -> None:
    assert _read_list([1, 2], "numbers", 2) == [1, 2]
    with pytest.raises(RegistryError, match="Expected numbers to be a list of at most 2, got 3"):
        _read_list([1, 2, 3], "numbers", 2)


def test_a_file_beyond_the_limit_is_not_read(folder: Path) -> None:
    size = (folder / REGISTRY).stat().st_size
    with mock.patch("promptccd.registry.files.LARGEST_JSON", size):
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
        RegistryError, match=r"registry\.json is refused: .*(registry\.safetensors|finite prototypes)"
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


def test_a_forged_log_is_refused_when_it_is_used(folder: Path) -> None:
    values = json.loads((folder / REGISTRY).read_text())
    patch = {"categories": [[3, category(values, 3), {**category(values, 3), "size": 0}]]}
    values["redo"][0]["patch"] = patch
    (folder / REGISTRY).write_text(json.dumps(values))
    found = load_registry(folder)
    before = found.state_hash()
    with pytest.raises(RegistryError, match="Category 3 says that it has 0 images"):
        found.redo()
    assert found.state_hash() == before


def test_an_entry_that_calls_a_category_by_another_id_is_refused_when_it_is_used(folder: Path) -> None:
    values = json.loads((folder / REGISTRY).read_text())
    patch = {"categories": [[3, category(values, 3), {**category(values, 3), "id": 7}]]}
    values["redo"][0]["patch"] = patch
    (folder / REGISTRY).write_text(json.dumps(values))
    with pytest.raises(RegistryError, match="Category 3 has the id 7"):
        load_registry(folder).redo()


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


def test_what_a_patch_has_to_do_with() -> None:
    category = Category(3, "heron", CategoryState.DISCOVERED, 1)
    assert (category.size, category.rows, category.dormant, category.rejected) == (0, (0,), False, False)
    patch = Patch(
        {
            "categories": {3: (None, category)},
            "members": {"a": (None, 4), "b": (5, None)},
            "links": {("c", "d"): (None, "same")},
            "pinned": {"e": (None, 4)},
        }
    )
    assert patch.categories == patch.inverse().categories == {3, 4, 5}
    assert patch.images == patch.inverse().images == set("abcde")


def test_prototypes_are_float32_whatever_they_come_in() -> None:
    registry = CategoryRegistry(prototypes=np.ones((2, 3)))
    assert registry._prototypes.dtype == np.float32


def test_prototypes_of_a_journal_hold_no_other_characters(registry: CategoryRegistry) -> None:
    step = _write_step(Step("do", 1, registry.log[-1], np.ones((1, 2)), 3))
    read = _read_step(json.loads(json.dumps(step)))
    assert read.prototypes.tolist() == [[1, 1]]
    for damaged in ("!" + step["prototypes"], step["prototypes"] + "\n"):
        with pytest.raises(RegistryError, match=r"The prototypes of entry \d+ are damaged"):
            _read_step({**step, "prototypes": damaged})


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

"""A registry beside a checkpoint: ``registry.json``, with prototypes and columns of images in ``registry.safetensors``.

The JSON holds the sum of the other file, which is written first. A save that is cut off between the two therefore
leaves the old JSON, and what belongs to it under another name, where loading finds it: a whole registry.

What is corrected often has a journal beside it, ``journal.jsonl``: a line for each correction since the registry was
written whole, see `Journal`.
"""

import base64
import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from promptccd.disk import (
    append_to,
    newer_format,
    plain_json,
    read_lines,
    refuse_links,
    sha256_of,
    write_file,
)
from promptccd.errors import RegistryError
from promptccd.registry.changes import LONGEST_TIME, History, LogEntry, Step
from promptccd.registry.columns import COLUMNS, MOST_IMAGES, columns_of, strict_json, take_columns
from promptccd.registry.registry import NOTHING_YET, CategoryRegistry
from promptccd.registry.tables import (
    DIFFERENT,
    LONGEST_KEY,
    LONGEST_NAME,
    SAME,
    TABLE_NAMES,
    Category,
    CategoryState,
    Look,
    Patch,
    Tables,
)

logger = logging.getLogger(__name__)

FORMAT = 1
REGISTRY, PROTOTYPES, JOURNAL = "registry.json", "registry.safetensors", "journal.jsonl"
LONGEST_JOURNAL = 200  # lines, beyond which the registry is written whole again
PREVIOUS = ".previous-registry.safetensors"  # what belongs to the JSON that is there, while both are replaced
LARGEST_JSON = 512 * 2**20  # bytes, and of a journal; five million corrected images
LARGEST_TENSORS = 2 * 2**30  # bytes
LARGEST_NUMBER = 2**53  # what every reader of JSON keeps exactly
MOST_CATEGORIES = 100_000
MOST_ENTRIES = 100_000
_KEYS = ("format", "num_known", "stage", "next_id", "next_number", "tensors", "state", "log", "redo")
_LISTED = tuple(name for name in TABLE_NAMES if name not in COLUMNS)


def has_registry(folder: str | Path) -> bool:
    """Whether a folder holds a registry; a bare backbone does not."""
    return (Path(folder) / REGISTRY).is_file()


def save_registry(registry: CategoryRegistry, folder: str | Path) -> None:
    """Write a registry into a folder that exists, replacing the one that is there and the journal of that.

    Equal registries give equal bytes, and those that are there are left alone.

    Raises:
        RegistryError: it is larger than what is read again; nothing is written.
        DiskError: it cannot be written; the old one is still there.
        RunError: a link stands under one of the names.
    """
    place = Path(folder)
    refuse_links(place, (REGISTRY, PROTOTYPES, PREVIOUS, JOURNAL))
    tables = registry.tables
    tensors = save({"prototypes": np.ascontiguousarray(registry.prototypes), **columns_of(tables)})
    values = {
        "format": FORMAT,
        "num_known": registry.num_known,
        "stage": registry.stage,
        "next_id": registry.next_id,
        "next_number": registry.next_number,
        "tensors": hashlib.sha256(tensors).hexdigest(),
        "state": _write_tables(tables),
        "log": [_write_entry(entry) for entry in registry.log],
        "redo": [_write_entry(entry) for entry in registry.redo_stack],
    }
    contents = {PROTOTYPES: tensors, REGISTRY: plain_json(values)}
    for (name, content), most in zip(contents.items(), (LARGEST_TENSORS, LARGEST_JSON), strict=True):
        _require_size(name, len(content), most)
    if any(_content(place / name) != content for name, content in contents.items()):
        _keep_previous(place)
        for name, content in contents.items():
            write_file(place / name, content)
    (place / PREVIOUS).unlink(missing_ok=True)
    (place / JOURNAL).unlink(missing_ok=True)


def load_registry(folder: str | Path) -> CategoryRegistry:
    """Read a registry, from a file that anybody may have written. Nothing in it is executed.

    Raises:
        RegistryError: there is none, it is damaged or contradicts itself, or a newer version wrote it.
    """
    return _load(folder)[0]


def _load(folder: str | Path) -> tuple[CategoryRegistry, str]:
    """A registry, and the SHA-256 of its JSON."""
    path = Path(folder) / REGISTRY
    if not path.is_file():
        raise RegistryError(
            f"{Path(folder).name} holds no {REGISTRY}: give the folder of a finished stage, or one that discover wrote."
        )
    try:
        content, previous = _read(path), Path(folder) / PREVIOUS
        values = _parsed(content)
        try:
            registry = _registry(values, Path(folder) / PROTOTYPES)
        except RegistryError:
            if not previous.is_file():
                raise
            registry = _registry(values, previous)
    except RegistryError as error:
        raise RegistryError(f"{REGISTRY} is refused: {error}") from error
    return registry, hashlib.sha256(content).hexdigest()


class Journal:
    """A registry to which every correction adds a line, however many images it has.

    The first line names the JSON that the others go on from. Lines that follow an earlier JSON are in the new one
    already, and are left out. Whoever writes holds a lock.

    Args:
        folder: where `save_registry` has put a registry.

    Attributes:
        registry: as of the last line; `write` writes down what happens to it.
        folder: where it is.
        lines: how many steps the journal holds.

    Raises:
        RegistryError: there is no registry, it or a line is damaged, or a newer version wrote it.
        RunError: a link stands under the name of the journal.
    """

    def __init__(self, folder: str | Path):
        self.folder, self._path = Path(folder), Path(folder) / JOURNAL
        self._load()

    def _load(self) -> None:
        stamp = self._stamped()
        self.registry, self._snapshot = _load(self.folder)
        self._end = self.lines = 0
        found, end = read_lines(self._path, LARGEST_JSON)
        try:
            if found and self._is_ours(_parsed(found[0])):
                self._take(found, end)
        except RegistryError as error:
            raise RegistryError(f"{JOURNAL} is refused: {error}") from error
        self.registry.steps = []
        self._stamp = stamp  # last, so that what was refused is read, and refused, again

    def refresh(self) -> list[Patch] | None:
        """Take in what others have written since; a look at two files if that is nothing.

        Returns:
            What they changed; `None` if all was read anew, and `registry` is another object.

        Raises:
            RegistryError: it or a line is damaged.
        """
        stamp = self._stamped()
        if stamp == self._stamp and self.registry.steps == []:
            return []
        if stamp[0] == self._stamp[0] and self.registry.steps == []:
            # Another journal, or a damaged one: reading all of it tells which.
            with suppress(RegistryError):
                patches = self._follow()
                self._stamp = stamp
                return patches
        self._load()
        return None

    def _follow(self) -> list[Patch]:
        found, end = read_lines(self._path, LARGEST_JSON)
        if end == self._end:
            return []
        if len(found) <= self.lines or not self._is_ours(_parsed(found[0])):
            raise RegistryError(f"{JOURNAL} is another one now.")
        patches = self._take(found, end)
        self.registry.steps = []
        return patches

    def _take(self, found: list[bytes], end: int) -> list[Patch]:
        steps = [_read_step(_parsed(line)) for line in found[self.lines + 1 :]]
        patches = [self.registry.take(step) for step in steps]
        self._end, self.lines = end, len(found) - 1
        return patches

    def _stamped(self) -> tuple[Any, ...]:
        found = [self.folder / name for name in (REGISTRY, JOURNAL)]
        stats = [path.stat() if path.exists() else None for path in found]
        return tuple(each and (each.st_ino, each.st_mtime_ns, each.st_size) for each in stats)

    def _is_ours(self, header: Any) -> bool:
        newer = newer_format(header.get("format"), FORMAT) if isinstance(header, dict) else None
        if newer is not None:
            raise RegistryError(f"it {newer}")
        named = _read_object(header, "the first line", ("format", "registry"))["registry"]
        if named != self._snapshot:
            logger.warning("%s belongs to an earlier %s and is left out.", self._path, REGISTRY)
        return bool(named == self._snapshot)

    @property
    def _pending(self) -> bytes:
        """The lines that `write` appends."""
        steps = [_write_step(step) for step in self.registry.steps or ()]
        header = {"format": FORMAT, "registry": self._snapshot}
        lines = [header, *steps] if steps and not self._end else steps
        return b"".join(plain_json(line) + b"\n" for line in lines)

    def is_long(self, lines: int) -> bool:
        """Whether it holds so many lines, or half of the bytes that are read again."""
        return self.lines >= lines or self._end > LARGEST_JSON // 2

    @property
    def mark(self) -> str:
        """The name of the state that `write` leaves; no other state of this folder ever has it."""
        return f"{self._snapshot} {self._end + len(self._pending)}"

    def write(self) -> None:
        """Append what happened, on the disk when this returns; after a new stage the registry is written whole.

        Raises:
            RegistryError: as below, if it is larger than what is read again.
            DiskError: it cannot be written, and is not; load it again.
        """
        if self.registry.steps is None:
            self.write_whole()
        elif lines := self._pending:
            _require_size(JOURNAL, self._end + len(lines), LARGEST_JSON)
            append_to(self._path, self._end, lines)
            self._end, self.lines = self._end + len(lines), self.lines + len(self.registry.steps)
            self.registry.steps = []
            self._stamp = self._stamped()

    def write_whole(self) -> None:
        """Write the registry itself, after which the journal is empty.

        Raises:
            DiskError: it cannot be written; what is there stays.
        """
        save_registry(self.registry, self._path.parent)
        self._snapshot = hashlib.sha256(_read(self._path.with_name(REGISTRY))).hexdigest()
        self._end = self.lines = 0
        self.registry.steps = []
        self._stamp = self._stamped()


def _write_step(step: Step) -> dict[str, Any]:
    if step.entry is None:
        return {step.action: step.number}
    vectors, width = b"", 0
    if (rows := step.prototypes) is not None:
        vectors, width = np.ascontiguousarray(rows, dtype="<f4").tobytes(), rows.shape[1]
    return {
        "entry": _write_entry(step.entry),
        "next_id": step.next_id,
        "prototypes": base64.b64encode(vectors).decode(),
        "width": width,
    }


def _read_step(values: Any) -> Step:
    for action in ("undo", "redo"):
        if type(values) is dict and values.keys() == {action}:
            return Step(action, _read_number(values[action], "the number of a log entry"))
    _read_object(values, "a step", ("entry", "next_id", "prototypes", "width"))
    entry, width = _read_entry(values["entry"]), _read_number(values["width"], "the width of prototypes")
    try:
        rows = np.frombuffer(base64.b64decode(values["prototypes"], validate=True), dtype="<f4")
        shaped = rows.reshape(-1, width) if width else None
    except (ValueError, TypeError) as error:
        raise RegistryError(f"The prototypes of entry {entry.number} are damaged.") from error
    return Step("do", entry.number, entry, shaped, _read_number(values["next_id"], "next_id"))


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _registry(values: Any, path: Path) -> CategoryRegistry:
    version = values.get("format") if isinstance(values, dict) else None
    if (newer := newer_format(version, FORMAT)) is not None:
        raise RegistryError(f"it {newer}")
    _read_object(values, "the registry", _KEYS)
    if type(version) is not int or version < 1:
        raise RegistryError(f"Expected a format of 1 to {FORMAT}, got {version!r}.")
    log, redo = (
        [_read_entry(entry) for entry in _read_list(values[name], name, MOST_ENTRIES)]
        for name in ("log", "redo")
    )
    next_number = _read_number(values["next_number"], "next_number")
    if any(entry.patch is None for entry in redo):
        raise RegistryError("An entry to redo does not say what it changes.")
    if any(entry.number >= next_number for entry in (*log, *redo)):
        raise RegistryError(f"A log entry has a number that is not below next_number, {next_number}.")
    tensors, tables = _read_tensors(path, values["tensors"]), _read_tables(values["state"])
    take_columns(tables, tensors)
    prototypes = tensors.get("prototypes", np.zeros(0))
    if prototypes.dtype != np.float32:
        raise RegistryError(f"Expected float32 prototypes in {path.name}, got {prototypes.dtype}.")
    return CategoryRegistry(
        tables,
        prototypes,
        num_known=_read_number(values["num_known"], "num_known"),
        stage=_read_number(values["stage"], "stage", least=NOTHING_YET),
        next_id=_read_number(values["next_id"], "next_id"),
        history=History(log, redo, next_number),
    )


def _read(path: Path) -> bytes:
    if (size := path.stat().st_size) > LARGEST_JSON:
        raise RegistryError(f"it has {size} bytes, more than the {LARGEST_JSON} that a registry may have.")
    return path.read_bytes()


def _parsed(content: bytes) -> Any:
    try:
        return strict_json(content)
    except ValueError as error:
        raise RegistryError(
            f"it is no plain JSON ({str(error)[:100]}): copy the checkpoint again."
        ) from error


def _read_tensors(path: Path, expected: Any) -> dict[str, np.ndarray]:
    """Prototypes and columns of a file that has the expected SHA-256."""
    digest = _read_text(expected, "the sum of tensors", 64)
    if not path.is_file() or path.stat().st_size > LARGEST_TENSORS:
        raise RegistryError(f"{path.name} is missing or too large: copy the checkpoint again.")
    if sha256_of(path) != digest:
        raise RegistryError(f"{path.name} is not what was saved with it: copy the checkpoint again.")
    try:
        return load(path.read_bytes())
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise RegistryError(
            f"{path.name} is damaged ({str(error)[:100]}): copy the checkpoint again."
        ) from error


def _keep_previous(folder: Path) -> None:
    """Keep the tensors of the JSON that is there; an interrupted save may have kept them already."""
    if not (folder / REGISTRY).is_file() or not (folder / PROTOTYPES).is_file():
        return
    if (folder / PREVIOUS).is_file():
        try:
            _read_tensors(folder / PROTOTYPES, _parsed(_read(folder / REGISTRY))["tensors"])
        except (RegistryError, KeyError, TypeError):
            return
    write_file(folder / PREVIOUS, (folder / PROTOTYPES).read_bytes())


def _require_size(name: str, size: int, most: int) -> None:
    if size > most:
        raise RegistryError(
            f"{name} would have {size} bytes, more than the {most} that are read again, so nothing was written. Most "
            "of it are corrections of many images at once, which the next stage settles: run promptccd discover with "
            "more images, or take some back."
        )


class _Codec(NamedTuple):
    """How keys and values of one table are written and read."""

    most: int
    read_key: Callable[[Any], Any]
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value


def _read_number(value: Any, name: str = "a number", least: int = 0) -> int:
    """An integer from `least` on and below 2**53."""
    if type(value) is not int or not least <= value < LARGEST_NUMBER:
        raise RegistryError(f"Expected {name} to be an integer >= {least}, got {_short(value)}.")
    return value


def _read_text(value: Any, name: str, longest: int) -> str:
    """A text that is neither empty nor too long."""
    if type(value) is not str or not 0 < len(value) <= longest:
        raise RegistryError(
            f"Expected {name} to be a text of 1 to {longest} characters, got {_short(value)}."
        )
    return value


def _read_object(value: Any, name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """An object with exactly these keys."""
    if type(value) is not dict:
        raise RegistryError(f"Expected {name} to be an object, got {_short(value)}.")
    if unknown := sorted(value.keys() - set(keys)):
        raise RegistryError(f"Unknown key {_short(unknown[0])} in {name}. Known: {', '.join(keys)}.")
    if missing := [key for key in keys if key not in value]:
        raise RegistryError(f"The key {missing[0]!r} is missing in {name}.")
    return value


def _read_list(value: Any, name: str, most: int) -> list[Any]:
    """A list that is not too long."""
    if type(value) is not list or len(value) > most:
        got = f"{len(value)}" if type(value) is list else _short(value)
        raise RegistryError(f"Expected {name} to be a list of at most {most}, got {got}.")
    return value


def _write_tables(tables: Tables) -> dict[str, Any]:
    """Sorted lists: of categories as objects, and of ``[key, value]`` for every other table."""
    return {
        name: sorted([key, codec.write(value)] for key, value in getattr(tables, name).items())
        if name != "categories"
        else [codec.write(tables.categories[key]) for key in sorted(tables.categories)]
        for name, codec in _CODECS.items()
        if name in _LISTED
    }


def _read_tables(values: Any) -> Tables:
    _read_object(values, "the state", _LISTED)
    tables = Tables()
    for row in _read_list(values["categories"], "categories", MOST_CATEGORIES):
        category = _read_category(row)
        if category.id in tables.categories:
            raise RegistryError(f"Category {category.id} is there twice.")
        tables.categories[category.id] = category
    for name in _LISTED[1:]:
        codec, table = _CODECS[name], getattr(tables, name)
        rows = _read_list(values[name], name, codec.most)
        for row in rows:
            key, value = _row(row, name, 2)
            table[codec.read_key(key)] = codec.read(value)
        if len(table) != len(rows):
            raise RegistryError(f"A key is there twice in {name}.")
    return tables


def _write_entry(entry: LogEntry) -> dict[str, Any]:
    patch = None
    if entry.patch is not None:
        patch = {
            name: sorted(
                [key, *(_optional(_CODECS[name].write, each) for each in pair)]
                for key, pair in changes.items()
            )
            for name, changes in entry.patch.changes.items()
        }
    return {**{item.name: getattr(entry, item.name) for item in fields(entry)}, "patch": patch}


def _read_entry(values: Any) -> LogEntry:
    _read_object(values, "a log entry", tuple(item.name for item in fields(LogEntry)))
    if type(values["what"]) is not dict:
        raise RegistryError(f"Expected what happened to be an object, got {_short(values['what'])}.")
    images = values["what"].get("images", [])  # a grouping says how many, an edit which
    if type(images) is not int and (
        type(images) is not list or not all(isinstance(key, str) for key in images)
    ):
        raise RegistryError(
            f"Expected the images of a log entry to be their number or keys, got {_short(images)}."
        )
    return LogEntry(
        number=_read_number(values["number"], "the number of a log entry"),
        kind=_read_text(values["kind"], "the kind of a log entry", LONGEST_NAME),
        what=values["what"],
        stage=_read_number(values["stage"], "the stage of a log entry", least=NOTHING_YET),
        time=_optional(lambda value: _read_text(value, "a time", LONGEST_TIME), values["time"]),
        patch=_optional(_read_patch, values["patch"]),
    )


def _read_patch(values: Any) -> Patch:
    if type(values) is not dict or values.keys() - set(TABLE_NAMES):
        raise RegistryError(f"Expected the changes of {', '.join(TABLE_NAMES)}, got {_short(values)}.")
    changes: dict[str, dict[Any, tuple[Any, Any]]] = {}
    for name, rows in values.items():
        codec = _CODECS[name]
        changes[name] = {}
        for row in _read_list(rows, f"changes of {name}", codec.most):
            key, before, after = _row(row, f"changes of {name}", 3)
            changes[name][codec.read_key(key)] = (
                _optional(codec.read, before),
                _optional(codec.read, after),
            )
    return Patch(changes)


def _read_category(value: Any) -> Category:
    row = _read_object(value, "a category", tuple(item.name for item in fields(Category)))
    states = [state.value for state in CategoryState]
    if row["state"] not in states:
        raise RegistryError(
            f"Expected the state of a category to be one of {states}, got {_short(row['state'])}."
        )
    if type(row["dormant"]) is not bool:
        raise RegistryError(f"Expected dormant to be true or false, got {_short(row['dormant'])}.")
    return Category(
        id=_read_number(row["id"], "the id of a category"),
        name=_read_text(row["name"], "the name of a category", LONGEST_NAME),
        state=CategoryState(row["state"]),
        born=_read_number(row["born"], "the stage of birth"),
        size=_read_number(row["size"], "the size of a category"),
        prototype_row=_read_number(row["prototype_row"], "a prototype row"),
        dormant=row["dormant"],
        merged_into=_optional(_read_number, row["merged_into"]),
        earlier_rows=tuple(
            _read_number(each, "a prototype row")
            for each in _read_list(row["earlier_rows"], "earlier rows", MOST_CATEGORIES)
        ),
    )


def _read_key(value: Any) -> str:
    return _read_text(value, "the key of an image", LONGEST_KEY)


def _read_pair(value: Any) -> tuple[str, str]:
    first, second = _row(value, "the images of an answer", 2)
    return _read_key(first), _read_key(second)


def _read_answer(value: Any) -> str:
    if value not in (SAME, DIFFERENT):
        raise RegistryError(f"Expected an answer to be {SAME!r} or {DIFFERENT!r}, got {_short(value)}.")
    return str(value)


def _read_confidence(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise RegistryError(f"Expected a confidence of 0 to 1, got {_short(value)}.")
    return float(value)


def _read_ids(value: Any) -> tuple[int, ...]:
    ids = [_read_number(each, "a category id") for each in _read_list(value, "forbidden categories", 10_000)]
    if not ids or ids != sorted(set(ids)):
        raise RegistryError(f"Expected forbidden categories in order, each once, got {_short(value)}.")
    return tuple(ids)


def _read_look(value: Any) -> Look:
    order, was, left, quarter = _row(value, "a look at an image", len(Look._fields))
    numbers = (_read_number(each, "a value of a look") for each in (order, left, quarter))
    order, left, quarter = numbers
    return Look(order, _optional(_read_number, was), left, quarter)


def _row(value: Any, name: str, length: int) -> list[Any]:
    if type(value) is not list or len(value) != length:
        raise RegistryError(f"Expected rows of {length} values in {name}, got {_short(value)}.")
    return value


def _optional(function: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else function(value)


def _short(value: Any) -> str:
    text = (
        repr(value) if not isinstance(value, list | Mapping) else f"a {type(value).__name__} of {len(value)}"
    )
    return text if len(text) <= 60 else f"{text[:60]}..."


_CODECS = {
    "categories": _Codec(MOST_CATEGORIES, _read_number, _read_category, asdict),
    "images": _Codec(MOST_IMAGES, _read_key, _read_number),
    "members": _Codec(MOST_IMAGES, _read_key, _read_number),
    "confidences": _Codec(MOST_IMAGES, _read_key, _read_confidence),
    "pinned": _Codec(MOST_IMAGES, _read_key, _read_number),
    "forbidden": _Codec(MOST_IMAGES, _read_key, _read_ids),
    "links": _Codec(MOST_IMAGES, _read_pair, _read_answer),
    "looks": _Codec(MOST_IMAGES, _read_key, _read_look, list),
}

"""A registry next to a model: ``registry.json``, with prototypes and columns of images in ``registry.safetensors``.

Both contain the rows of the store. A file that anybody may have written is inserted into an empty store, whose tables
check every value; the contradictions between rows are checked here. The JSON contains the sum of the other file.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from promptccd.discovery.project.categories import LONGEST_KEY
from promptccd.discovery.project.registry import CategoryRegistry
from promptccd.discovery.project.store import HASH, ROWS, text_key
from promptccd.disk import newer_format, parsed_json, plain_json, sha256_of, write_file
from promptccd.errors import RegistryError

FORMAT = 1
REGISTRY, PROTOTYPES = "registry.json", "registry.safetensors"
MOST_IMAGES = 10_000_000
LARGEST_JSON, LARGEST_TENSORS = 512 * 2**20, 2 * 2**30  # bytes
_NONE = -1  # no value in a column of integers
_STATE = ("num_known", "stage", "next_id", "next_number")
_TABLES = {  # in the JSON: columns with the places of those that are JSON, and the order of the rows
    "category": (", ".join(ROWS["category"][1]), (8,), "id"),
    "forbidden": ("image, category", (), "1, 2"),
    "link": ("a, b, same", (), "1, 2"),
    "log": ("number, kind, what, stage, time, undone, final", (2,), "number"),
    "change": ("entry, tab, before, after", (2, 3), "id"),
}
_COLUMNS = ("id", *ROWS["image"][1][2:])  # of images, in the other file
_KEYS = ("format", *_STATE, "tensors", *_TABLES)


def has_registry(folder: str | Path) -> bool:
    """Whether a folder contains a registry; that of a bare backbone does not."""
    return (Path(folder) / REGISTRY).is_file()


def require_room(count: int) -> None:
    """Refuse more images than a registry may have with a `RegistryError`."""
    if count > MOST_IMAGES:
        raise RegistryError(
            f"A registry may have {MOST_IMAGES} images, and these are {count}, which could not be read again: group "
            "them in several parts, each with an --out of its own."
        )


def save_registry(registry: CategoryRegistry, folder: str | Path) -> None:
    """Write a registry into a folder that exists. Equal registries give equal bytes.

    Raises:
        RegistryError: it is larger than what is read again; nothing is written.
        DiskError: it cannot be written.
    """
    store = registry.store
    images = store.all(f"select key, {', '.join(_COLUMNS)} from image order by typeof(key), key")
    require_room(len(images))
    tensors = save({"prototypes": np.ascontiguousarray(registry.prototypes), **_columns_of(images)})
    values = {
        "format": FORMAT,
        "tensors": hashlib.sha256(tensors).hexdigest(),
        **{name: store.one(f"select {name} from state") for name in _STATE},
    }
    for table, (columns, places, order) in _TABLES.items():
        rows = [list(row) for row in store.all(f"select {columns} from {table} order by {order}")]
        for row in rows:
            for place in places:
                row[place] = None if row[place] is None else json.loads(row[place])
        values[table] = rows
    contents = {PROTOTYPES: (tensors, LARGEST_TENSORS), REGISTRY: (plain_json(values), LARGEST_JSON)}
    for name, (content, most) in contents.items():
        if len(content) > most:
            raise RegistryError(
                f"{name} would have {len(content)} bytes, more than the {most} that are read again, so nothing was "
                "written. Most of it are corrections of many images at once, which the next stage makes final: run "
                "promptccd discover with more images, or undo some."
            )
    for name, (content, _) in contents.items():
        write_file(Path(folder) / name, content)


def load_registry(folder: str | Path) -> CategoryRegistry:
    """Read a registry, from files that anybody may have written. Nothing in them is executed.

    Raises:
        RegistryError: there is none, it is damaged or contradicts itself, or a newer version wrote it.
    """
    path = Path(folder) / REGISTRY
    if not path.is_file():
        raise RegistryError(
            f"{Path(folder).name} holds no {REGISTRY}: give the folder of a finished stage, or one that discover wrote."
        )
    try:
        values = _read_json(path)
        return _registry(values, _read_tensors(path.with_name(PROTOTYPES), values["tensors"]))
    except RegistryError as error:
        raise RegistryError(f"{REGISTRY} is refused: {error}") from error
    except (TypeError, ValueError, OverflowError, KeyError, IndexError, SafetensorError) as error:
        raise RegistryError(
            f"{REGISTRY} is refused: its values are damaged ({str(error)[:100]}): copy the checkpoint again."
        ) from error


def _registry(values: dict[str, Any], tensors: dict[str, np.ndarray]) -> CategoryRegistry:
    registry, prototypes = CategoryRegistry(), tensors["prototypes"]
    is_matrix = prototypes.dtype == np.float32 and prototypes.ndim == 2
    if not is_matrix or (len(prototypes) and not prototypes.size) or not np.isfinite(prototypes).all():
        raise RegistryError(
            f"Expected finite float32 prototypes (R, D), got {prototypes.dtype} {list(prototypes.shape)}."
        )
    rows: dict[str, Sequence[Sequence[Any]]] = {
        "vector": [(row, each.astype("<f4").tobytes()) for row, each in enumerate(prototypes)],
        f"image({', '.join(('key', *_COLUMNS))})": _images_of(tensors),
    }
    for table, (columns, places, _) in _TABLES.items():
        if not all(isinstance(row, list) for row in values[table]):
            raise TypeError("a row is no list")
        for row in values[table]:
            for place in places:
                row[place] = None if row[place] is None else plain_json(row[place]).decode()
        rows[f"{table}({columns})"] = values[table]
    with registry.store.transaction():
        for table, each in rows.items():
            if each:
                registry.store.run_each(f"insert into {table} values({', '.join('?' * len(each[0]))})", each)
        sets = ", ".join(f"{name} = ?" for name in _STATE)
        registry.store.run(f"update state set {sets}", *(values[name] for name in _STATE))
        _require_whole(registry)
    return registry


def _columns_of(rows: Sequence[tuple[Any, ...]]) -> dict[str, np.ndarray]:
    hashes = b"".join(row[0] for row in rows if isinstance(row[0], bytes))
    names = [row[0] for row in rows if isinstance(row[0], str)]
    columns = {
        "hashes": np.frombuffer(hashes, np.uint8).reshape(-1, 32),
        "names": np.frombuffer(plain_json(names), np.uint8),
    }
    for place, name in enumerate(_COLUMNS, start=1):
        column = np.array([_NONE if row[place] is None else row[place] for row in rows])
        is_real = name == "confidence"
        columns[name] = column.astype(np.float64) if is_real else _narrow(column.astype(np.int64))
    return columns


def _narrow(column: np.ndarray) -> np.ndarray:
    """Integers in as few bytes each as all of them need."""
    least, most = column.min(initial=0), column.max(initial=0)
    return column.astype(np.min_scalar_type(min(least, -most - 1) if least < 0 else most))


def _images_of(tensors: dict[str, np.ndarray]) -> list[tuple[Any, ...]]:
    hashes = tensors["hashes"]
    names = parsed_json(tensors["names"].astype(np.uint8, casting="safe").tobytes())
    if hashes.dtype != np.uint8 or hashes.ndim != 2 or hashes.shape[1] != 32:
        raise RegistryError(f"Expected hashes of 32 bytes, got {hashes.dtype} {list(hashes.shape)}.")
    if not isinstance(names, list) or not all(
        isinstance(name, str) and 0 < len(name) <= LONGEST_KEY and not HASH.fullmatch(name) for name in names
    ):
        raise RegistryError(
            f"Expected the names of images to be a list of texts of 1 to {LONGEST_KEY} characters."
        )
    count = len(hashes) + len(names)
    require_room(count)
    columns = []
    for name in _COLUMNS:
        column, kinds = tensors[name], "f" if name == "confidence" else "iu"
        if column.shape != (count,) or column.dtype.kind not in kinds:
            raise RegistryError(
                f"Expected {count} numbers in the column {name!r}, got {column.dtype} {list(column.shape)}."
            )
        columns.append([None if value == _NONE else value for value in column.tolist()])
    return list(zip([*map(bytes, hashes), *names], *columns, strict=True))


def _require_whole(registry: CategoryRegistry) -> None:
    """Refuse rows that contradict each other, beyond what the tables check."""
    store = registry.store
    registry.require_whole()
    banned = (
        "select key from forbidden join image on image.id = image where image.category = forbidden.category"
    )
    if (key := store.one(banned)) is not None:
        raise RegistryError(f"Image {text_key(key)!r} is in a category that is forbidden to it.")
    if store.one("select 1 from log where number >= (select next_number from state)"):
        raise RegistryError(
            f"A log entry has a number that is not below next_number, {registry.next_number}."
        )
    registry.constraints(only_linked=True)


def _read_json(path: Path) -> dict[str, Any]:
    if (size := path.stat().st_size) > LARGEST_JSON:
        raise RegistryError(f"it has {size} bytes, more than the {LARGEST_JSON} that a registry may have.")
    try:
        values = parsed_json(path.read_bytes())
    except ValueError as error:
        raise RegistryError(
            f"it is no plain JSON ({str(error)[:100]}): copy the checkpoint again."
        ) from error
    version = values.get("format") if isinstance(values, dict) else None
    if (newer := newer_format(version, FORMAT)) is not None:
        raise RegistryError(f"it {newer}")
    if type(version) is not int or version < 1 or sorted(values) != sorted(_KEYS):
        raise RegistryError(f"Expected an object of format {FORMAT} with the keys {', '.join(_KEYS)}.")
    return dict(values)


def _read_tensors(path: Path, expected: Any) -> dict[str, np.ndarray]:
    """Prototypes and columns of a file that has the expected SHA-256."""
    if not path.is_file() or path.stat().st_size > LARGEST_TENSORS:
        raise RegistryError(f"{path.name} is missing or too large: copy the checkpoint again.")
    if sha256_of(path) != expected:
        raise RegistryError(f"{path.name} is not what was saved with it: copy the checkpoint again.")
    found: dict[str, np.ndarray] = load(path.read_bytes())
    if missing := [name for name in ("prototypes", "hashes", "names", *_COLUMNS) if name not in found]:
        raise RegistryError(f"The column {missing[0]!r} of images is missing.")
    return found

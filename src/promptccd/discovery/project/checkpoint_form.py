"""A registry next to a model: ``registry.json``, with prototypes and columns of images in ``registry.safetensors``.

Both are the rows of the store. Their checks are those of its tables: a file that anybody may have written is inserted
into an empty store, which refuses what it does not allow. The JSON contains the sum of the other file.
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
from promptccd.discovery.project.store import HASH, text_key
from promptccd.disk import newer_format, parsed_json, plain_json, refuse_links, sha256_of, write_file
from promptccd.errors import RegistryError

FORMAT = 1
REGISTRY, PROTOTYPES = "registry.json", "registry.safetensors"
MOST_IMAGES = 10_000_000
LARGEST_JSON = 512 * 2**20  # bytes
LARGEST_TENSORS = 2 * 2**30  # bytes
_NONE = -1  # no value in a column of integers
_STATE = ("num_known", "stage", "next_id", "next_number")
_TABLES = {  # in the JSON: columns, and the order of the rows
    "category": ("id, name, state, born, size, vector, dormant, merged_into, earlier", "id"),
    "forbidden": ("image, category", "1, 2"),
    "link": ("a, b, same", "1, 2"),
    "log": ("number, kind, what, stage, time, undone, final", "number"),
    "change": ("entry, tab, before, after", "id"),
}
_COLUMNS = ("stage", "category", "confidence", "pinned", "reviewed", "was", "unseen", "quarter")
_IMAGES_IN = {"image": (0,), "forbidden": (0,), "link": (0, 1)}  # places in rows of changes
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
        RunError: a link has one of the names.
    """
    place, store = Path(folder), registry.store
    refuse_links(place, (REGISTRY, PROTOTYPES))
    rows = store.all(f"select id, key, {', '.join(_COLUMNS)} from image")
    require_room(len(rows))
    rows.sort(key=lambda row: (isinstance(row[1], str), row[1]))
    number_of = {identity: number for number, (identity, *_) in enumerate(rows)}
    tables = {
        name: store.all(f"select {columns} from {name} order by {order}")
        for name, (columns, order) in _TABLES.items()
    }
    tensors = save({"prototypes": np.ascontiguousarray(registry.prototypes), **_columns_of(rows)})
    values = {
        "format": FORMAT,
        "tensors": hashlib.sha256(tensors).hexdigest(),
        **{name: store.one(f"select {name} from state") for name in _STATE},
        "category": [[*row[:-1], json.loads(row[-1])] for row in tables["category"]],
        "forbidden": sorted([number_of[image], category] for image, category in tables["forbidden"]),
        "link": sorted([number_of[a], number_of[b], same] for a, b, same in tables["link"]),
        "log": [[*row[:2], json.loads(row[2]), *row[3:]] for row in tables["log"]],
        "change": [
            [entry, table, *(_numbered(table, side, number_of) for side in sides)]
            for entry, table, *sides in tables["change"]
        ],
    }
    contents = {PROTOTYPES: (tensors, LARGEST_TENSORS), REGISTRY: (plain_json(values), LARGEST_JSON)}
    for name, (content, most) in contents.items():
        if len(content) > most:
            raise RegistryError(
                f"{name} would have {len(content)} bytes, more than the {most} that are read again, so nothing was "
                "written. Most of it are corrections of many images at once, which the next stage makes final: run "
                "promptccd discover with more images, or undo some."
            )
    for name, (content, _) in contents.items():
        write_file(place / name, content)


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
        values = _parsed(path)
        return _registry(values, _read_tensors(Path(folder) / PROTOTYPES, values["tensors"]))
    except RegistryError as error:
        raise RegistryError(f"{REGISTRY} is refused: {error}") from error
    except (TypeError, ValueError, OverflowError, KeyError, IndexError) as error:
        raise RegistryError(
            f"{REGISTRY} is refused: its values are damaged ({str(error)[:100]}): copy the checkpoint again."
        ) from error


def _registry(values: dict[str, Any], tensors: dict[str, np.ndarray]) -> CategoryRegistry:
    registry = CategoryRegistry()
    store, prototypes = registry.store, tensors["prototypes"]
    if (
        prototypes.dtype != np.float32
        or prototypes.ndim != 2
        or (len(prototypes) and not prototypes.size)
        or not np.isfinite(prototypes).all()
    ):
        raise RegistryError(
            f"Expected finite float32 prototypes (R, D), got {prototypes.dtype} {list(prototypes.shape)}."
        )
    rows = {
        "vector": [(row, each.astype("<f4").tobytes()) for row, each in enumerate(prototypes)],
        "image": _image_rows(tensors),
        "category": [_texts(row, 8) for row in values["category"]],
        "forbidden": values["forbidden"],
        "link": values["link"],
        "log": [(*_texts(row, 2), 0) for row in values["log"]],
        "change": [(number, *_texts(row, 2, 3)) for number, row in enumerate(values["change"])],
    }
    with store.transaction():
        for table, each in rows.items():
            if each:
                store.run_each(f"insert into {table} values({', '.join('?' * len(each[0]))})", each)
        sets = ", ".join(f"{name} = ?" for name in _STATE)
        store.run(f"update state set {sets}", *(values[name] for name in _STATE))
        _require_whole(registry)
    return registry


def _texts(row: Any, *places: int) -> list[Any]:
    """A row with the values at some places as texts of JSON."""
    if not isinstance(row, list):
        raise TypeError("a row is no list")
    texts = list(row)
    for place in places:
        texts[place] = None if row[place] is None else plain_json(row[place]).decode()
    return texts


def _numbered(table: str, side: str | None, number_of: dict[int, int]) -> list[Any] | None:
    """A row of a change with images by their numbers in the file; those that were forgotten get further ones."""
    if side is None:
        return None
    row: list[Any] = json.loads(side)
    for place in _IMAGES_IN.get(table, ()):
        row[place] = number_of.setdefault(row[place], len(number_of))
    return row


def _columns_of(rows: Sequence[tuple[Any, ...]]) -> dict[str, np.ndarray]:
    hashes = b"".join(row[1] for row in rows if isinstance(row[1], bytes))
    names = [row[1] for row in rows if isinstance(row[1], str)]
    columns = {
        "hashes": np.frombuffer(hashes, np.uint8).reshape(-1, 32),
        "names": np.frombuffer(plain_json(names), np.uint8),
    }
    for place, name in enumerate(_COLUMNS, start=2):
        values = [_NONE if row[place] is None else row[place] for row in rows]
        columns[name] = np.array(values, np.float64) if name == "confidence" else _narrow(values)
    return columns


def _narrow(values: Sequence[int]) -> np.ndarray:
    """Integers in as few bytes each as all of them need."""
    column = np.array(values, dtype=np.int64)
    least, most = column.min(initial=0), column.max(initial=0)
    return column.astype(np.min_scalar_type(min(least, -most - 1) if least < 0 else most))


def _image_rows(tensors: dict[str, np.ndarray]) -> list[tuple[Any, ...]]:
    hashes, names = (
        tensors["hashes"],
        parsed_json(tensors["names"].astype(np.uint8, casting="safe").tobytes()),
    )
    if hashes.dtype != np.uint8 or hashes.ndim != 2 or hashes.shape[1] != 32:
        raise RegistryError(f"Expected hashes of 32 bytes, got {hashes.dtype} {list(hashes.shape)}.")
    if not isinstance(names, list) or not all(
        isinstance(name, str) and 0 < len(name) <= LONGEST_KEY and not HASH.fullmatch(name) for name in names
    ):
        raise RegistryError(
            f"Expected the names of images to be a list of texts of 1 to {LONGEST_KEY} characters."
        )
    content, count = hashes.tobytes(), len(hashes) + len(names)
    require_room(count)
    keys = [*(content[start : start + 32] for start in range(0, len(content), 32)), *names]
    columns = []
    for name in _COLUMNS:
        column, kinds = tensors[name], "f" if name == "confidence" else "iu"
        if column.shape != (count,) or column.dtype.kind not in kinds:
            raise RegistryError(
                f"Expected {count} numbers in the column {name!r}, got {column.dtype} {list(column.shape)}."
            )
        columns.append([None if value == _NONE else value for value in column.tolist()])
    return [(number, *row) for number, row in enumerate(zip(keys, *columns, strict=True))]


def _require_whole(registry: CategoryRegistry) -> None:
    """Refuse rows that contradict each other, beyond what the tables check."""
    store = registry.store
    registry.require_whole()
    banned = (
        "select key from forbidden join image on image.id = image where image.category = forbidden.category"
    )
    if (key := store.one(banned)) is not None:
        raise RegistryError(f"Image {text_key(key)!r} is in a category that is forbidden to it.")
    if any(first >= second for first, second in registry.links):
        raise RegistryError("An answer is about two images of which the greater key is first.")
    if store.one("select 1 from log where number >= (select next_number from state)"):
        raise RegistryError(
            f"A log entry has a number that is not below next_number, {registry.next_number}."
        )
    if store.one("select 1 from change where tab not in ('category', 'image', 'forbidden', 'link')"):
        raise RegistryError("A change is of an unknown table.")
    registry.constraints(only_linked=True)


def _parsed(path: Path) -> dict[str, Any]:
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
    try:
        found: dict[str, np.ndarray] = load(path.read_bytes())
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise RegistryError(
            f"{path.name} is damaged ({str(error)[:100]}): copy the checkpoint again."
        ) from error
    if missing := [name for name in ("prototypes", "hashes", "names", *_COLUMNS) if name not in found]:
        raise RegistryError(f"The column {missing[0]!r} of images is missing.")
    return found

"""A registry beside a checkpoint: ``registry.json`` and its prototypes in ``registry.safetensors``.

The prototypes are written first. A save that is cut off between the two files therefore leaves the old JSON, and its
prototypes under another name, where loading finds them: a whole registry.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from promptccd.errors import RegistryError
from promptccd.registry.history import History
from promptccd.registry.registry import CategoryRegistry
from promptccd.registry.schema import (
    MOST_ENTRIES,
    read_entry,
    read_list,
    read_number,
    read_object,
    read_tables,
    read_text,
    write_entry,
    write_tables,
)
from promptccd.registry.view import NOTHING_YET
from promptccd.storage import newer_format, refuse_links, write_file

FORMAT = 1
REGISTRY, PROTOTYPES = "registry.json", "registry.safetensors"
PREVIOUS = ".previous-registry.safetensors"  # prototypes of the JSON that is there, while both are replaced
LARGEST_JSON = 512 * 2**20  # bytes; about five million images
LARGEST_PROTOTYPES = 2 * 2**30  # bytes
_KEYS = ("format", "num_known", "stage", "next_id", "next_number", "prototypes", "state", "log", "redo")


def has_registry(folder: str | Path) -> bool:
    """Whether a checkpoint holds a registry; older ones do not, see `CategoryRegistry.from_categories`."""
    return (Path(folder) / REGISTRY).is_file()


def save_registry(registry: CategoryRegistry, folder: str | Path) -> None:
    """Write a registry into a folder that exists, replacing the one that is there.

    Equal registries give equal bytes.

    Raises:
        DiskError: it cannot be written; the old one is still there.
        RunError: a link stands under one of the names.
    """
    place = Path(folder)
    refuse_links(place, (REGISTRY, PROTOTYPES, PREVIOUS))
    rows = np.ascontiguousarray(registry.prototypes, dtype=np.float32)
    values = {
        "format": FORMAT,
        "num_known": registry.num_known,
        "stage": registry.stage,
        "next_id": registry.next_id,
        "next_number": registry.next_number,
        "prototypes": {"rows": rows.shape[0], "width": rows.shape[1], "sha256": _digest(rows)},
        "state": write_tables(registry.tables),
        "log": [write_entry(entry) for entry in registry.log],
        "redo": [write_entry(entry) for entry in registry.redo_stack],
    }
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    _keep_previous(place)
    write_file(place / PROTOTYPES, save({"prototypes": rows}))
    write_file(place / REGISTRY, text)
    (place / PREVIOUS).unlink(missing_ok=True)


def load_registry(folder: str | Path) -> CategoryRegistry:
    """Read a registry, from a file that anybody may have written. Nothing in it is executed.

    Raises:
        RegistryError: there is none, it is damaged or contradicts itself, or a newer version wrote it.
    """
    path = Path(folder) / REGISTRY
    if not path.is_file():
        raise RegistryError(
            f"{Path(folder).name} holds no {REGISTRY}: it was saved before there were registries, or is no checkpoint."
        )
    try:
        values, previous = _read_json(path), Path(folder) / PREVIOUS
        try:
            return _registry(values, Path(folder) / PROTOTYPES)
        except RegistryError:
            if not previous.is_file():
                raise
            return _registry(values, previous)
    except RegistryError as error:
        raise RegistryError(f"{REGISTRY} is refused: {error}") from error


def _registry(values: Any, prototypes: Path) -> CategoryRegistry:
    version = values.get("format") if isinstance(values, dict) else None
    if (newer := newer_format(version, FORMAT)) is not None:
        raise RegistryError(f"it {newer}")
    read_object(values, "the registry", _KEYS)
    if type(version) is not int or version < 1:
        raise RegistryError(f"Expected a format of 1 to {FORMAT}, got {version!r}.")
    log, redo = (
        [read_entry(entry) for entry in read_list(values[name], name, MOST_ENTRIES)]
        for name in ("log", "redo")
    )
    next_number = read_number(values["next_number"], "next_number")
    if any(entry.patch is None for entry in redo):
        raise RegistryError("An entry to redo does not say what it changes.")
    if any(entry.number >= next_number for entry in (*log, *redo)):
        raise RegistryError(f"A log entry has a number that is not below next_number, {next_number}.")
    return CategoryRegistry(
        read_tables(values["state"]),
        _read_prototypes(prototypes, values["prototypes"]),
        num_known=read_number(values["num_known"], "num_known"),
        stage=read_number(values["stage"], "stage", least=NOTHING_YET),
        next_id=read_number(values["next_id"], "next_id"),
        history=History(log, redo, next_number),
    )


def _read_json(path: Path) -> Any:
    if (size := path.stat().st_size) > LARGEST_JSON:
        raise RegistryError(f"it has {size} bytes, more than the {LARGEST_JSON} that a registry may have.")
    try:
        return json.loads(
            path.read_bytes().decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique
        )
    except RecursionError as error:
        raise RegistryError("it is nested too deeply.") from error
    except RegistryError:
        raise
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        raise RegistryError(f"it is no JSON ({str(error)[:100]}): copy the checkpoint again.") from error


def _read_prototypes(path: Path, described: Any) -> np.ndarray:
    read_object(described, "prototypes", ("rows", "width", "sha256"))
    rows, width = (read_number(described[name], f"{name} of prototypes") for name in ("rows", "width"))
    digest = read_text(described["sha256"], "sha256 of prototypes", 64)
    if 4 * rows * width > LARGEST_PROTOTYPES:
        raise RegistryError(f"it speaks of {rows} x {width} prototype values, more than a registry may have.")
    if not path.is_file() or path.stat().st_size > LARGEST_PROTOTYPES:
        raise RegistryError(f"{path.name} is missing or too large: copy the checkpoint again.")
    try:
        with safe_open(path, framework="numpy") as file:
            if list(file.keys()) != ["prototypes"]:
                raise RegistryError(f"Expected {path.name} to hold 'prototypes' alone.")
            kept = file.get_slice("prototypes")
            shape, kind = list(kept.get_shape()), kept.get_dtype()
            if kind != "F32" or len(shape) != 2 or shape[0] < rows or (rows and shape[1] != width):
                raise RegistryError(
                    f"Expected float32 prototypes of {rows} x {width} in {path.name}, got {kind} {shape}."
                )
            found = np.ascontiguousarray(file.get_tensor("prototypes")[:rows])
    except (SafetensorError, OSError) as error:
        raise RegistryError(
            f"{path.name} is damaged ({str(error)[:100]}): copy the checkpoint again."
        ) from error
    if _digest(found) != digest:
        raise RegistryError(
            f"{path.name} does not hold the prototypes it was saved with: copy the checkpoint again."
        )
    return found


def _keep_previous(folder: Path) -> None:
    """Keep the prototypes of the JSON that is there; an interrupted save may have kept them already."""
    if not (folder / REGISTRY).is_file() or not (folder / PROTOTYPES).is_file():
        return
    if (folder / PREVIOUS).is_file():
        try:
            _read_prototypes(folder / PROTOTYPES, _read_json(folder / REGISTRY)["prototypes"])
        except (RegistryError, KeyError, TypeError):
            return
    write_file(folder / PREVIOUS, (folder / PROTOTYPES).read_bytes())


def _digest(rows: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(rows, dtype="<f4").tobytes()).hexdigest()


def _refuse_constant(name: str) -> None:
    raise RegistryError(f"it holds {name}, which is no number.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise RegistryError("it gives a key twice in one object.")
    return found

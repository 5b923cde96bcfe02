"""Every kind of edit, by name.

An edit holds plain values, so that it can come from a command line, a page or a file. What it replaced is kept
by the registry's log, which is how it is taken back.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from promptccd.errors import RegistryError
from promptccd.registry.category_edits import Merge, NotACategory, Rename, Split
from promptccd.registry.edit import Edit
from promptccd.registry.image_edits import Answer, Confirm, Move

EDITS: dict[str, type[Edit]] = {
    edit.kind: edit for edit in (Rename, Merge, Split, Move, NotACategory, Answer, Confirm)
}


def edit_from_dict(values: Mapping[str, Any]) -> Edit:
    """An edit from plain values: ``{"kind": "rename", "category": 7, "name": "heron"}``; vectors are lists.

    Raises:
        RegistryError: the kind or a key is unknown, or a key is missing.
    """
    kind = values.get("kind")
    if kind not in EDITS:
        raise RegistryError(f"Unknown edit {kind!r}. There are: {', '.join(EDITS)}.")
    try:
        return EDITS[kind](**{name: value for name, value in values.items() if name != "kind"})
    except TypeError as error:
        expected = [item.name for item in fields(EDITS[kind])]  # type: ignore[arg-type]
        raise RegistryError(
            f"Expected {expected} for the edit {kind!r}, got {sorted(set(values) - {'kind'})}."
        ) from error

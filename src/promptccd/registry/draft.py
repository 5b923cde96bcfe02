"""The values that an edit wants to set, before it is in force.

An edit writes to a `Draft` alone. The draft becomes a `Patch`, the values before and after, and one patch serves to
undo and to redo every kind of edit.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from promptccd.errors import RegistryError
from promptccd.registry.tables import (
    TABLE_NAMES,
    Category,
    CategoryState,
    Changes,
    Patch,
    Tables,
    default_name,
    free_name,
)


class Draft:
    """New values for a registry, before they are in force.

    Args:
        tables: the state; written to while the draft grows, and restored by `discard`.
        prototypes: rows ``(R, D)`` of prototypes before the edit.
        next_id: first id that was never given.

    Attributes:
        rows: prototypes to append, each ``(D,)``.
        next_id: first id that is free after the edit.
    """

    def __init__(self, tables: Tables, prototypes: np.ndarray, next_id: int):
        self.tables, self.prototypes, self.next_id = tables, prototypes, next_id
        self.rows = list[np.ndarray]()
        self._width = prototypes.shape[1] if len(prototypes) else None
        self._before: dict[str, dict[Any, Any]] = {name: {} for name in TABLE_NAMES}

    def put(self, table: str, key: Any, value: Any) -> None:
        """Set a value in a table; `None` removes it."""
        self._before[table].setdefault(key, getattr(self.tables, table).get(key))
        self.tables.put(table, key, value)

    def change(self, identity: int, **fields: Any) -> None:
        """Change fields of a category."""
        self.put("categories", identity, replace(self.tables.categories[identity], **fields))

    def place(self, key: str, category: int | None, *, pin: bool = False) -> None:
        """Put an image into a category, or into none; a pin is what a person said, and lifts a ban."""
        self.put("members", key, category)
        self.put("pinned", key, category if pin else None)
        if pin and category in self.tables.forbidden.get(key, ()):
            self.put("forbidden", key, tuple(i for i in self.tables.forbidden[key] if i != category) or None)

    def forbid(self, key: str, category: int) -> None:
        """Keep an image out of a category."""
        self.put("forbidden", key, tuple(sorted({*self.tables.forbidden.get(key, ()), category})))

    def new_category(self, born: int) -> int:
        """Add a discovered category without images or a prototype, and return its id."""
        identity = self.next_id
        self.next_id += 1
        name = free_name(default_name(identity), {each.name for each in self.tables.not_retired()})
        self.put("categories", identity, Category(identity, name, CategoryState.DISCOVERED, born))
        return identity

    def set_prototype(self, identity: int, vector: ArrayLike) -> None:
        """Give a category another prototype.

        Raises:
            RegistryError: there is no such category, it was retired, or the vector does not fit.
        """
        category = self.tables.category(identity)
        self.change(category.id, prototype_row=self.append_prototype(vector))

    def append_prototype(self, vector: ArrayLike) -> int:
        """Append a prototype, and return its row.

        Raises:
            RegistryError: it is not a vector of finite numbers as long as the others.
        """
        row = np.asarray(vector, dtype=np.float32)
        width = self._width if self._width is not None else (row.shape[0] if row.ndim == 1 else 0)
        if row.shape != (width,) or not width or not np.isfinite(row).all():
            raise RegistryError(
                f"Expected a prototype of {width or 'some'} finite numbers, got shape {row.shape}"
                f"{'' if np.isfinite(row).all() else ' with NaN or infinity'}."
            )
        self._width = width
        self.rows.append(row)
        return len(self.prototypes) + len(self.rows) - 1

    def check_images(self, keys: Iterable[str]) -> tuple[str, ...]:
        """The keys without repetitions.

        Raises:
            RegistryError: there are none, or one was never seen.
        """
        listed = [keys] if isinstance(keys, str) else list(keys)
        if odd := [key for key in listed if not isinstance(key, str)]:
            raise RegistryError(f"Expected keys of images to be text, got {odd[0]!r}.")
        unique = tuple(dict.fromkeys(listed))
        if not unique:
            raise RegistryError("Expected at least one image, got none: select images first.")
        if unknown := [key for key in unique if key not in self.tables.images]:
            raise RegistryError(
                f"{len(unknown)} of {len(unique)} images were never seen, the first is {unknown[0]!r}: "
                "name an image by its picture, as assignments.csv has it, or row:NUMBER of a training run."
            )
        return unique

    def settle_links(self, placed: Iterable[str]) -> None:
        """Drop answers about images that were just placed by hand, if they contradict the new places."""
        try:
            self.tables.constraints(only_linked=True)
        except RegistryError:
            keys = set(placed)
            for pair in [pair for pair in self.tables.links if keys.intersection(pair)]:
                self.put("links", pair, None)

    def finish(self) -> Patch:
        """Bring sizes up to date and say what changed."""
        difference: Counter[int] = Counter()
        for key, before in self._before["members"].items():
            after = self.tables.members.get(key)
            if before != after:
                difference.update(
                    {each: step for each, step in ((before, -1), (after, 1)) if each is not None}
                )
        for identity, step in difference.items():
            self._resize(identity, step)
        changes: Changes = {}
        for name, values in self._before.items():
            table = getattr(self.tables, name)
            changed = {
                key: (before, table.get(key)) for key, before in values.items() if before != table.get(key)
            }
            if changed:
                changes[name] = changed
        return Patch(changes)

    def discard(self) -> None:
        """Put everything back."""
        for name, values in self._before.items():
            for key, before in values.items():
                self.tables.put(name, key, before)

    def _resize(self, identity: int, step: int) -> None:
        category = self.tables.categories[identity]
        size = category.size + step
        self.change(identity, size=size, dormant=size == 0 and category.state is CategoryState.DISCOVERED)

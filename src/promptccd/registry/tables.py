"""What a registry knows, as tables, and what an edit replaces in them.

An edit writes to a `Draft` alone. The draft becomes a `Patch`, the values before and after, and one patch serves to
undo and to redo every kind of edit.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from promptccd.clustering.constraints import GroupingConstraints, Pair
from promptccd.errors import DataError, RegistryError

LONGEST_NAME = 100
# Control characters, halves of surrogate pairs, and what starts a new line. Marks of writing direction are allowed:
# a person may need them, and whoever shows a name escapes it.
_REFUSED = ("Cc", "Cs", "Zl", "Zp")


class CategoryState(StrEnum):
    """The state of a category."""

    KNOWN = "known"
    DISCOVERED = "discovered"
    ASIDE = "aside"
    RETIRED = "retired"


@dataclass(frozen=True)
class Category:
    """One category of a registry.

    Attributes:
        id: never given to another category, also after this one was retired.
        name: what people call it; no two categories that are not retired share one.
        state: known (labelled at stage 0), discovered, set aside or retired by an edit. What is set aside is no
            category of the result, but holds images and prototype, so that later images like it come to it.
        born: the stage it was first seen at.
        size: number of its images.
        prototype_row: its row in the registry's prototypes.
        dormant: whether it is a discovered category that a regrouping or an edit left without images. The model does
            not get it, but it keeps its id and name for the grouping that finds it again.
        merged_into: for a category retired by a merge, the one that took its images.
        earlier_rows: rows of the prototypes it had before others were merged into it. The mean of a merged category
            may look like none of its parts; what looks like one of the parts still belongs to it.
    """

    id: int
    name: str
    state: CategoryState
    born: int
    size: int = 0
    prototype_row: int = 0
    dormant: bool = False
    merged_into: int | None = None
    earlier_rows: tuple[int, ...] = ()

    @property
    def known(self) -> bool:
        """Whether it was labelled at stage 0."""
        return self.state is CategoryState.KNOWN

    @property
    def retired(self) -> bool:
        """Whether an edit took it away."""
        return self.state is CategoryState.RETIRED

    @property
    def aside(self) -> bool:
        """Whether a person said that its images are nothing to find."""
        return self.state is CategoryState.ASIDE

    @property
    def active(self) -> bool:
        """Whether it is a category of the result."""
        return not (self.retired or self.aside or self.dormant)

    def settled(self, stage: int) -> bool:
        """Whether the images of a stage leave its prototype as it is: it is older, or set aside."""
        return self.known or self.aside or self.born < stage

    def standing(self, stage: int) -> str:
        """``known`` if it was labelled, ``settled`` if a stage before `stage` discovered it, ``new`` otherwise."""
        return "known" if self.known else "settled" if self.settled(stage) else "new"

    @property
    def named(self) -> bool:
        """Whether a person gave it its name."""
        return self.name != default_name(self.id)

    @property
    def rows(self) -> tuple[int, ...]:
        """Every row of prototypes that it refers to, the current one first."""
        return (self.prototype_row, *self.earlier_rows)

    @property
    def rejected(self) -> bool:
        """Whether a person said that it is not a category, as opposed to merging it into another."""
        return self.retired and self.merged_into is None


def default_name(identity: int) -> str:
    """The name of a category that nobody has named."""
    return f"discovered {identity}"


def check_name(name: object) -> str:
    """The name as it is kept, without blanks around it.

    Raises:
        RegistryError: it is empty, longer than 100 characters, or holds a line break or a control character.
    """
    if not isinstance(name, str):
        raise RegistryError(f"Expected the name of a category to be text, got {name!r}.")
    kept = name.strip()
    if not kept:
        raise RegistryError(f"Expected a name, got {name!r}: write at least one character.")
    if len(kept) > LONGEST_NAME:
        raise RegistryError(
            f"Expected a name of at most {LONGEST_NAME} characters, got {len(kept)}: {kept[:40]!r}..."
        )
    if refused := [character for character in kept if unicodedata.category(character) in _REFUSED]:
        raise RegistryError(
            f"Expected a name on one line without control characters, got {refused[0]!r} in {kept!r}."
        )
    return kept


def mended_name(name: str, identity: int, taken: Collection[str]) -> str:
    """A name of a data set or a checkpoint, changed as little as makes it allowed and free."""
    plain = "".join(" " if unicodedata.category(letter) in _REFUSED else letter for letter in name)
    kept = re.sub(r"\s+", " ", plain).strip() if plain != name else name.strip()
    return free_name(kept[:LONGEST_NAME].strip() or f"category {identity}", taken)


def free_name(name: str, taken: Collection[str]) -> str:
    """The name itself, or with the first number behind it that makes it free."""
    number, candidate = 2, name
    while candidate in taken:
        ending = f" ({number})"
        candidate = name[: LONGEST_NAME - len(ending)].rstrip() + ending
        number += 1
    return candidate


SAME, DIFFERENT = "same", "different"
LONGEST_KEY = 1000


class Look(NamedTuple):
    """That a person has looked at an image.

    Attributes:
        order: higher than of every look before.
        was: the category that it was in, or comes to be called as what it is in is called otherwise; `None` is none.
        left: if it was drawn blind, of how many that came with it nobody had looked at; 0 if a person chose it.
        quarter: of the least sure order, from which it was drawn.
    """

    order: int
    was: int | None
    left: int = 0
    quarter: int = 0


@dataclass
class Tables:
    """The state of a registry. An image is named by a key: ``"row:123"``, or the hash of its content.

    Attributes:
        categories: by id.
        images: the stage that every image came with.
        members: category of every image that has one; the other images are unassigned.
        confidences: how sure the last grouping was, in 0..1, where it said so.
        pinned: category of images that a person has put where they are.
        forbidden: categories that a person has taken an image out of.
        links: answers about two images, the smaller key first: ``"same"`` or ``"different"``.
        looks: of every image that a person has looked at, the first time.
    """

    categories: dict[int, Category] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    confidences: dict[str, float] = field(default_factory=dict)
    pinned: dict[str, int] = field(default_factory=dict)
    forbidden: dict[str, tuple[int, ...]] = field(default_factory=dict)
    links: dict[Pair, str] = field(default_factory=dict)
    looks: dict[str, Look] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._homes: dict[int, set[str]] | None = None  # the inverse of members, from the first use on

    def put(self, name: str, key: Any, value: Any) -> None:
        """Set a value in a table; `None` removes it. Tables that are in use change here alone."""
        table = getattr(self, name)
        if name == "members" and self._homes is not None:
            self._homes.get(table.get(key, value), set()).discard(key)
            if value is not None:
                self._homes.setdefault(value, set()).add(key)
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value

    def copy(self) -> "Tables":
        """Tables with the same values; values are never changed in place."""
        return Tables(**{name: dict(getattr(self, name)) for name in TABLE_NAMES})

    def category(self, identity: int) -> Category:
        """A category that is not retired.

        Raises:
            RegistryError: there is none of that id, or it was retired.
        """
        is_number = isinstance(identity, int | np.integer) and not isinstance(identity, bool)
        found = self.categories.get(identity) if is_number else None
        if found is None:
            raise RegistryError(f"There is no category {identity!r}. There are: {self._ids()}.")
        if found.merged_into is not None:
            raise RegistryError(
                f"Category {identity} was merged into category {self.resolve(identity)}: use that, or undo the merge."
            )
        if found.retired:
            raise RegistryError(f"Category {identity} was said to be no category: undo that, or use another.")
        return found

    def resolve(self, identity: int) -> int | None:
        """The category that holds what this one held: itself, what it was merged into, or none."""
        category = self.categories[identity]
        while category.merged_into is not None:
            category = self.categories[category.merged_into]
        return None if category.retired else category.id

    def not_retired(self) -> list[Category]:
        """Categories that are not retired, by id."""
        return [
            self.categories[each] for each in sorted(self.categories) if not self.categories[each].retired
        ]

    def members_of(self, identity: int) -> list[str]:
        """Keys of a category's images, sorted; only the first call looks at other images."""
        return sorted(self.homes.get(identity, ()))

    @property
    def homes(self) -> Mapping[int, Collection[str]]:
        """Keys of images by category."""
        if self._homes is None:
            self._homes = {}
            for key, category in self.members.items():
                self._homes.setdefault(category, set()).add(key)
        return self._homes

    def constraints(self, only_linked: bool = False) -> GroupingConstraints:
        """What people have said about images.

        Args:
            only_linked: leave out images without a link, which is enough to find a contradiction.

        Raises:
            RegistryError: they contradict each other.
        """
        keys = {key for pair in self.links for key in pair} if only_linked else None
        pinned: Mapping[str, int] = self.pinned
        forbidden: Mapping[str, tuple[int, ...]] = self.forbidden
        if keys is not None:
            pinned = {key: pinned[key] for key in keys & pinned.keys()}
            forbidden = {key: forbidden[key] for key in keys & forbidden.keys()}
        try:
            return GroupingConstraints(
                tuple(pair for pair, answer in self.links.items() if answer == SAME),
                tuple(pair for pair, answer in self.links.items() if answer == DIFFERENT),
                pinned,
                {key: frozenset(each) for key, each in forbidden.items()},
            )
        except DataError as error:
            raise RegistryError(str(error)) from error

    def _ids(self) -> str:
        ids = [str(each.id) for each in self.not_retired()]
        return ", ".join(ids[:20] + ["..."] * (len(ids) > 20)) or "none yet"


TABLE_NAMES = tuple(Tables.__dataclass_fields__)
Changes = dict[str, dict[Any, tuple[Any, Any]]]


@dataclass(frozen=True)
class Patch:
    """Values before and after an edit.

    Attributes:
        changes: per table, per key: the value before and the value after; `None` is no value.
    """

    changes: Changes

    @property
    def images(self) -> set[str]:
        """Keys of the images that it changes something of."""
        pairs = {key for pair in self.changes.get("links", ()) for key in pair}
        rest = (name for name in self.changes if name not in ("categories", "links"))
        return pairs.union(*(self.changes[name] for name in rest))

    @property
    def categories(self) -> set[int]:
        """Ids of the categories that it changes, or moves images into or out of."""
        homes = {each for pair in self.changes.get("members", {}).values() for each in pair}
        return {*self.changes.get("categories", ()), *homes} - {None}

    def inverse(self) -> "Patch":
        """The patch that undoes this one."""
        return Patch(
            {
                table: {key: (after, before) for key, (before, after) in changes.items()}
                for table, changes in self.changes.items()
            }
        )

    def apply(self, tables: Tables) -> None:
        """Write the values after.

        Raises:
            RegistryError: the tables do not hold the values before; nothing was written then.
        """
        for name, changes in self.changes.items():
            table = getattr(tables, name)
            for key, (before, _) in changes.items():
                if table.get(key) != before:
                    raise RegistryError(
                        f"The edit log does not fit the registry: {name} of {key!r} should be {before!r} and is "
                        f"{table.get(key)!r}. The file was altered; use an earlier checkpoint."
                    )
        for name, changes in self.changes.items():
            for key, (_, after) in changes.items():
                tables.put(name, key, after)


class Draft:
    """New values for a registry, before they are in force; in the end a `Patch`.

    Args:
        tables: the state; written to while the draft grows, and restored by `discard`.
        prototypes: rows ``(R, D)`` of prototypes before the edit.
        next_id: first id that was never given.

    Attributes:
        rows: prototypes to append, each ``(D,)``.
        next_id: first id that is free after the edit.
        drawn: ``left`` and ``quarter`` of images that were drawn blind, see `Look`.
    """

    def __init__(self, tables: Tables, prototypes: np.ndarray, next_id: int):
        self.tables, self.prototypes, self.next_id = tables, prototypes, next_id
        self.rows = list[np.ndarray]()
        self.drawn = dict[str, tuple[int, int]]()
        self._looked = set[str]()
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

    def look(self, keys: Iterable[str]) -> None:
        """Note that a person looks at images, before what they say of them is done; the first time counts."""
        tables = self.tables
        # Looks may have been dropped, so their number alone is no order.
        order = max(len(tables.looks), 1 + max((each.order for each in tables.looks.values()), default=-1))
        for key in keys:
            self._looked.add(key)
            if key not in tables.looks:
                self.put("looks", key, Look(order, tables.members.get(key), *self.drawn.get(key, ())))

    def grouped_again(self, keys: Iterable[str]) -> None:
        """Let what was drawn blind, and looks at what went elsewhere, say nothing of places that no person changed."""
        moved = {
            key for key, before in self._before["members"].items() if self.tables.members.get(key) != before
        }
        for key in keys if moved else ():
            if (look := self.tables.looks.get(key)) is not None:
                self.put("looks", key, None if key in moved else look._replace(left=0))

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

    def set_prototypes(self, vectors: Mapping[int, ArrayLike]) -> None:
        """Give categories other prototypes, by id; errors are those of `set_prototype`."""
        for identity, vector in sorted(vectors.items()):
            self.set_prototype(identity, vector)

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
            after, look = self.tables.members.get(key), self.tables.looks.get(key)
            if (
                look is not None and look.was == before and key not in self._looked
            ):  # it went along with others
                self.put("looks", key, look._replace(was=after))
            if before != after:
                difference.update(
                    {each: step for each, step in ((before, -1), (after, 1)) if each is not None}
                )
        for identity, step in difference.items():
            category = self.tables.categories[identity]
            size = category.size + step
            is_dormant = size == 0 and category.state is CategoryState.DISCOVERED
            self.change(identity, size=size, dormant=is_dormant)
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

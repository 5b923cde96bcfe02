"""What a registry knows, as tables, and what an edit replaced in them."""

import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

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
    """

    categories: dict[int, Category] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    confidences: dict[str, float] = field(default_factory=dict)
    pinned: dict[str, int] = field(default_factory=dict)
    forbidden: dict[str, tuple[int, ...]] = field(default_factory=dict)
    links: dict[Pair, str] = field(default_factory=dict)

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

"""A category as people know it: a number that stays, a name, and where it came from."""

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from promptccd.errors import RegistryError

LONGEST_NAME = 100
# Control characters, halves of surrogate pairs, and what starts a new line. Marks of writing direction stay:
# a person may need them, and whoever shows a name escapes it.
_REFUSED = ("Cc", "Cs", "Zl", "Zp")


class CategoryState(StrEnum):
    """Where a category stands."""

    KNOWN = "known"
    DISCOVERED = "discovered"
    RETIRED = "retired"


@dataclass(frozen=True)
class Category:
    """One category of a registry.

    Attributes:
        id: never given to another category, also after this one was retired.
        name: what people call it; no two categories that are not retired share one.
        state: known (labelled at stage 0), discovered, or retired by an edit.
        born: the stage it was first seen at.
        size: number of images that are in it now.
        prototype_row: its row in the registry's prototypes.
        dormant: a discovered category that a regrouping or an edit left without images. It is not offered to the
            model, but keeps its id and name for the grouping that finds it again.
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
    def rows(self) -> tuple[int, ...]:
        """Every row of prototypes that it refers to, the current one first."""
        return (self.prototype_row, *self.earlier_rows)

    @property
    def rejected(self) -> bool:
        """Whether a person said that it is not a category, as opposed to merging it into another."""
        return self.retired and self.merged_into is None


def default_name(identity: int) -> str:
    """What a category is called that nobody has named."""
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
    """The nearest allowed and free name to one that comes from a data set or an older checkpoint."""
    plain = "".join(" " if unicodedata.category(letter) in _REFUSED else letter for letter in name)
    kept = re.sub(r"\s+", " ", plain).strip() if plain != name else name.strip()
    return free_name(kept[:LONGEST_NAME].strip() or f"category {identity}", taken)


def free_name(name: str, taken: Collection[str]) -> str:
    """The name itself, or with the first number behind it that nobody uses."""
    number, candidate = 2, name
    while candidate in taken:
        ending = f" ({number})"
        candidate = name[: LONGEST_NAME - len(ending)].rstrip() + ending
        number += 1
    return candidate

"""Categories of a registry: their states, their names, and the reviews of their images."""

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from promptccd.errors import RegistryError

LONGEST_NAME = 100
# Control characters, halves of surrogate pairs, and what starts a new line. Marks of writing direction are allowed:
# a person may need them, and code that shows a name escapes it.
_REFUSED = ("Cc", "Cs", "Zl", "Zp")


class CategoryState(StrEnum):
    """The state of a category."""

    KNOWN = "known"
    DISCOVERED = "discovered"
    IGNORED = "aside"
    RETIRED = "retired"


@dataclass(frozen=True)
class Category:
    """One category of a registry.

    Attributes:
        id: never given to another category, also after retirement.
        name: unique among categories that are not retired.
        state: known (labelled at stage 0), discovered, set aside or retired by an edit. An ignored category is not
            in the result, but keeps images and prototype, so that it attracts later images like it.
        born: the stage it was first seen at.
        size: number of its images.
        prototype_row: its row in the registry's prototypes.
        dormant: whether it is a discovered category that a regrouping or an edit left without images. The model does
            not get it, but it keeps its id and name for the grouping that finds it again.
        merged_into: for a category retired by a merge, the category that received its images.
        earlier_rows: rows of the prototypes it had before a merge into it. The mean of a merged
            category may be unlike its parts; images like a part still belong to it.
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
        return self.state is CategoryState.IGNORED

    @property
    def active(self) -> bool:
        """Whether it is a category of the result."""
        return self.state in (CategoryState.KNOWN, CategoryState.DISCOVERED) and not self.dormant

    def is_fixed(self, stage: int) -> bool:
        """Whether the images of a stage leave its prototype as it is: it is older, or set aside."""
        return self.state in (CategoryState.KNOWN, CategoryState.IGNORED) or self.born < stage

    @property
    def named(self) -> bool:
        """Whether a person gave it its name."""
        return self.name != default_name(self.id)

    @property
    def rows(self) -> tuple[int, ...]:
        """Every row of prototypes that it refers to, the current one first."""
        return (self.prototype_row, *self.earlier_rows)


def default_name(identity: int) -> str:
    """The name of an unnamed category."""
    return f"discovered {identity}"


def check_name(name: object) -> str:
    """The name as it is kept, without blanks around it.

    Raises:
        RegistryError: it is empty, longer than 100 characters, or contains a line break or a control character.
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


class Review(NamedTuple):
    """That a person has looked at an image.

    Attributes:
        order: higher than of every look before.
        was: its category before the review, or `None`; follows renamed and merged categories.
        left: if it was sampled at random, the number of unreviewed images that came with it; 0 if a person chose it.
    """

    order: int
    was: int | None
    left: int = 0

"""What people correct about categories: each edit is a value that can be stored, applied and undone."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar
from unicodedata import normalize

import numpy as np
from numpy.typing import ArrayLike

from promptccd.errors import RegistryError
from promptccd.registry.grouping import unit, weighted_mean
from promptccd.registry.tables import (
    DIFFERENT,
    SAME,
    Category,
    CategoryState,
    Draft,
    check_name,
    free_name,
)


class Edit(ABC):
    """How an edit changes a registry, and how it is written down.

    Attributes:
        kind: its name in the log.
    """

    kind: ClassVar[str]

    @abstractmethod
    def apply(self, draft: Draft) -> None:
        """Write the new values into a draft of the registry.

        Raises:
            RegistryError: the registry does not allow it; the message says why.
        """

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without vectors: the registry's prototypes hold those."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if not item.metadata}  # type: ignore[arg-type]
        return {"kind": self.kind, **{name: _plain(value) for name, value in values.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True)
class Rename(Edit):
    """Give a category a name.

    Attributes:
        category: its id.
        name: the new name; see `check_name`. No two categories share one, nor differ only in whether an accent is a
            character of its own.
    """

    kind: ClassVar[str] = "rename"
    category: int
    name: str

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        name = check_name(self.name)
        renamed = draft.tables.category(self.category)
        for other in draft.tables.not_retired():
            if other.id != renamed.id and normalize("NFC", other.name) == normalize("NFC", name):
                raise RegistryError(
                    f"Category {other.id} is called {name!r} already: choose another name, or merge the two."
                )
        draft.change(renamed.id, name=name)


@dataclass(frozen=True)
class Merge(Edit):
    """Say that several categories are one.

    The one with the least id survives, so a known one does. The others are retired and remember the survivor, whose
    prototype becomes the mean of all, weighted by their numbers of images. Without a chosen name, a name that a person
    gave wins over a default one. An image that was taken out of one of them stays out of the survivor, unless it is in
    one of them now: then the merge is the later word.

    Attributes:
        categories: two ids or more.
        name: of the survivor; it may be the name of any of them.
    """

    kind: ClassVar[str] = "merge"
    categories: Sequence[int]
    name: str | None = None

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        merged = [draft.tables.category(each) for each in sorted(set(self.categories))]
        if len(merged) < 2:
            raise RegistryError(f"Expected at least two categories to merge, got {list(self.categories)}.")
        if len({each.aside for each in merged}) > 1:
            raise RegistryError(
                f"Of the categories {[each.id for each in merged]} only some are set aside: set the others aside too, "
                "or take those back."
            )
        (survivor, *others), ids = merged, {each.id for each in merged}
        members = [key for each in others for key in draft.tables.members_of(each.id)]
        self._unlink(draft, ids)
        for key in members:
            draft.place(key, survivor.id, pin=key in draft.tables.pinned)
        kept_out = self._carry_bans(draft, survivor.id, ids)
        rows, sizes = [each.prototype_row for each in merged], np.array([each.size for each in merged])
        draft.change(
            survivor.id,
            name=_merged_name(survivor, others),
            prototype_row=draft.append_prototype(weighted_mean(draft.prototypes[rows], sizes)),
            earlier_rows=(*survivor.earlier_rows, survivor.prototype_row),
        )
        for each in others:
            draft.change(each.id, state=CategoryState.RETIRED, merged_into=survivor.id, dormant=False)
        if self.name is not None:
            Rename(survivor.id, self.name).apply(draft)
        draft.settle_links([*members, *kept_out])

    @staticmethod
    def _carry_bans(draft: Draft, survivor: int, merged: set[int]) -> list[str]:
        """Let bans from any of the categories hold for the survivor; returns the images that it bans now."""
        tables, kept_out = draft.tables, []
        concerned = [each for each in tables.forbidden.items() if merged.intersection(each[1])]
        for key, banned in concerned:
            left = set(banned) - merged
            if tables.members.get(key) != survivor:
                left.add(survivor)
                kept_out.append(key)
            draft.put("forbidden", key, tuple(sorted(left)) or None)
        return kept_out

    @staticmethod
    def _unlink(draft: Draft, merged: set[int]) -> None:
        """Drop answers "different" between the categories; those inside one of them stay."""
        members = draft.tables.members
        for pair, answer in list(draft.tables.links.items()):
            homes = {members.get(key) for key in pair}
            if answer == DIFFERENT and len(homes) == 2 and homes <= merged:
                draft.put("links", pair, None)


@dataclass(frozen=True, eq=False)
class Split(Edit):
    """Make some of a category's images a category of their own, with a new id; they are pinned to it.

    Attributes:
        category: the id that is cut.
        images: keys of the part, which leaves at least one image.
        part_prototype: mean of the part's unit features, ``(D,)``.
        rest_prototype: mean of the other unit features, ``(D,)``.
        name: of the part; `None` gives the default one.
    """

    kind: ClassVar[str] = "split"
    category: int
    images: Sequence[str]
    part_prototype: ArrayLike = field(metadata={"vector": True})
    rest_prototype: ArrayLike = field(metadata={"vector": True})
    name: str | None = None

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        whole = draft.tables.category(self.category)
        part = draft.check_images(self.images)
        if strangers := [key for key in part if draft.tables.members.get(key) != whole.id]:
            raise RegistryError(
                f"{len(strangers)} of the {len(part)} images are not in category {whole.id}, the first is "
                f"{strangers[0]!r}: select images of that category only."
            )
        if len(part) == whole.size:
            raise RegistryError(
                f"All {whole.size} images of category {whole.id} were selected: leave at least one, or rename it."
            )
        _gather(draft, Gather(part, self.part_prototype, {whole.id: self.rest_prototype}, self.name))


@dataclass(frozen=True, eq=False)
class Gather(Edit):
    """Make images of any categories a category of their own, with a new id; they are pinned to it.

    A later grouping does not put pinned images back.

    Attributes:
        images: their keys.
        prototype: mean of their unit features, ``(D,)``.
        prototypes: new means of categories that lost some of them, by id; the others keep theirs.
        name: of the new category; `None` gives the default one.
    """

    kind: ClassVar[str] = "gather"
    images: Sequence[str]
    prototype: ArrayLike = field(metadata={"vector": True})
    prototypes: Mapping[int, ArrayLike] = field(default_factory=dict, metadata={"vector": True})
    name: str | None = None

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        draft.look(draft.check_images(self.images))
        _gather(draft, self)


def _gather(draft: Draft, what: Gather) -> None:
    keys = draft.check_images(what.images)
    identity = draft.new_category(born=min(draft.tables.images[key] for key in keys))
    draft.set_prototype(identity, what.prototype)
    draft.set_prototypes(what.prototypes)
    if what.name is not None:
        Rename(identity, what.name).apply(draft)
    for key in keys:
        draft.place(key, identity, pin=True)
    draft.settle_links(keys)


@dataclass(frozen=True)
class NotACategory(Edit):
    """Say that a discovered category is none: it is retired, and later groupings do not bring it back.

    Attributes:
        category: its id.
        assignment: category that images go to, by key. Nothing is pinned, because nobody looked at each image.
        rest_to_nearest: whether other images go to the category with the nearest prototype, as do those that a person
            took out of the category they are given; else they become unassigned.
    """

    kind: ClassVar[str] = "not_a_category"
    category: int
    assignment: Mapping[str, int] = field(default_factory=dict)
    rest_to_nearest: bool = False

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        category = draft.tables.category(self.category)
        if category.known:
            raise RegistryError(
                f"Category {category.id} was labelled at stage 0, it is one: rename it, merge it or move its images."
            )
        members = draft.tables.members_of(category.id)
        if strangers := sorted(self.assignment.keys() - set(members)):
            raise RegistryError(f"Image {strangers[0]!r} is not in category {category.id}: leave it out.")
        targets = {each: draft.tables.category(each).id for each in set(self.assignment.values())}
        if category.id in targets.values():
            raise RegistryError(f"Category {category.id} is being retired: give its images another one.")
        nearest = _nearest_first(draft, category) if self.rest_to_nearest else []
        for key in members:
            given = [targets[self.assignment[key]]] if key in self.assignment else []
            banned = draft.tables.forbidden.get(key, ())
            draft.place(key, next((each for each in (*given, *nearest) if each not in banned), None))
            draft.forbid(key, category.id)
            draft.put("looks", key, None)  # nobody has looked at it where it is now
        draft.change(category.id, state=CategoryState.RETIRED, dormant=False)


def _nearest_first(draft: Draft, category: Category) -> list[int]:
    """Ids of the other active categories, by the cosine of their prototype and this one's."""
    others = [each for each in draft.tables.not_retired() if each.active and each.id != category.id]
    own, *rest = unit(draft.prototypes[[each.prototype_row for each in (category, *others)]])
    cosines = {each.id: float(vector @ own) for each, vector in zip(others, rest, strict=True)}
    return sorted(cosines, key=lambda each: -cosines[each])


def _merged_name(survivor: Category, others: list[Category]) -> str:
    if survivor.known or survivor.named:
        return survivor.name
    return next((each.name for each in others if each.named), survivor.name)


@dataclass(frozen=True, eq=False)
class Move(Edit):
    """Put images into another category or into none.

    Attributes:
        images: their keys.
        to: the category, to which they are pinned; `None` takes them out of theirs and keeps them out of it.
        prototypes: new means ``(D,)`` of categories whose images changed, by id; the others keep theirs.
    """

    kind: ClassVar[str] = "move"
    images: Sequence[str]
    to: int | None
    prototypes: Mapping[int, ArrayLike] = field(default_factory=dict, metadata={"vector": True})

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        keys = draft.check_images(self.images)
        to = None if self.to is None else draft.tables.category(self.to).id
        draft.look(keys)
        for key in keys:
            left = draft.tables.members.get(key)
            draft.place(key, to, pin=to is not None)
            if to is None and left is not None:
                draft.forbid(key, left)
        draft.set_prototypes(self.prototypes)
        draft.settle_links(keys)


@dataclass(frozen=True, eq=False)
class Sort(Edit):
    """Put images into several categories in one step, or leave them there.

    Attributes:
        images: their keys.
        to: the category of each, as in `Move`.
        prototypes: the same.
    """

    kind: ClassVar[str] = "sort"
    images: Sequence[str]
    to: Sequence[int | None]
    prototypes: Mapping[int, ArrayLike] = field(default_factory=dict, metadata={"vector": True})

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        if len(draft.check_images(self.images)) != len(self.to):
            raise RegistryError(f"Expected a category for each of {len(self.images)} images, each once.")
        for target in dict.fromkeys(self.to):
            mine = [key for key, each in zip(self.images, self.to, strict=True) if each == target]
            Move(mine, target).apply(draft)
        draft.set_prototypes(self.prototypes)


ASIDE = "set aside"  # name of the category of single images


@dataclass(frozen=True)
class SetAside(Edit):
    """Say that the images of a discovered category are nothing to find; they are pinned to it.

    It is no category of the result any more. Later images that are like it come to it by themselves.

    Attributes:
        category: its id.
    """

    kind: ClassVar[str] = "set_aside"
    category: int

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        category = draft.tables.category(self.category)
        if category.known or category.aside:
            why = (
                "was labelled at stage 0: set its images aside" if category.known else "is set aside already"
            )
            raise RegistryError(f"Category {category.id} {why}.")
        draft.change(category.id, state=CategoryState.ASIDE, dormant=False)
        if members := draft.tables.members_of(category.id):
            Confirm(members, seen=()).apply(draft)


@dataclass(frozen=True, eq=False)
class SetImagesAside(Edit):
    """Say that images are nothing to find, whatever category they are in.

    They go to one category, called "set aside", that holds all such images. These need not be alike, so its prototype
    is that of the first one alone, and hardly anything else comes to it by itself.

    Attributes:
        images: their keys.
        prototype: unit feature of one of them ``(D,)``, for the category if it has to be made.
        prototypes: new means of categories that lost some of them, by id; the others keep theirs.
    """

    kind: ClassVar[str] = "set_images_aside"
    images: Sequence[str]
    prototype: ArrayLike | None = field(default=None, metadata={"vector": True})
    prototypes: Mapping[int, ArrayLike] = field(default_factory=dict, metadata={"vector": True})

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        keys, tables = draft.check_images(self.images), draft.tables
        aside = {each.id: each.name for each in tables.not_retired() if each.aside}
        place = next((each for each, name in aside.items() if name == ASIDE), None)
        if place is None:
            if self.prototype is None:
                raise RegistryError("None of these images has features here: discover them again first.")
            place = draft.new_category(born=min(tables.images[key] for key in keys))
            draft.set_prototype(place, self.prototype)
            name = free_name(ASIDE, {each.name for each in tables.not_retired()})
            draft.change(place, name=name, state=CategoryState.ASIDE)
        draft.set_prototypes(self.prototypes)
        draft.look(keys)
        for key in keys:
            home = tables.members.get(key)
            draft.place(key, home if home in aside else place, pin=True)
        draft.settle_links(keys)


@dataclass(frozen=True)
class TakeBack(Edit):
    """Say that a category that was set aside is one after all; what is pinned to it stays so.

    Attributes:
        category: its id.
    """

    kind: ClassVar[str] = "take_back"
    category: int

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        category = draft.tables.category(self.category)
        if not category.aside:
            raise RegistryError(f"Category {category.id} is not set aside, so there is nothing to take back.")
        draft.change(category.id, state=CategoryState.DISCOVERED, dormant=category.size == 0)


@dataclass(frozen=True)
class Answer(Edit):
    """Answer "same or different?" about two images, for the next grouping.

    Attributes:
        first: key of an image.
        second: key of another.
        same: whether they show one category; `None` takes an earlier answer back.
    """

    kind: ClassVar[str] = "answer"
    first: str
    second: str
    same: bool | None

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        if len(draft.check_images([self.first, self.second])) != 2:
            raise RegistryError(f"Expected two images, got {self.first!r} twice.")
        pair = (min(self.first, self.second), max(self.first, self.second))
        draft.put("links", pair, None if self.same is None else SAME if self.same else DIFFERENT)
        draft.tables.constraints(only_linked=True)


@dataclass(frozen=True)
class Confirm(Edit):
    """Say that images are where they belong, which pins them.

    Attributes:
        images: their keys; each must have a category.
        seen: those of them that the person has looked at, where that is not all: pages that a search for the first
            wrong one has left out.
    """

    kind: ClassVar[str] = "confirm"
    images: Sequence[str]
    seen: Sequence[str] | None = None

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        keys = draft.check_images(self.images)
        if homeless := [key for key in keys if key not in draft.tables.members]:
            raise RegistryError(f"Image {homeless[0]!r} is in no category: move it into one first.")
        draft.look(keys if self.seen is None else set(self.seen).intersection(keys))
        for key in keys:
            draft.place(key, draft.tables.members[key], pin=True)
        draft.settle_links(keys)


@dataclass(frozen=True)
class Forget(Edit):
    """Forget images that are there no more, with all that was said of them; prototypes stay.

    Attributes:
        images: their keys.
    """

    kind: ClassVar[str] = "forget"
    images: Sequence[str]

    def apply(self, draft: Draft) -> None:
        """See `Edit.apply`."""
        keys = draft.check_images(self.images)
        for pair in [pair for pair in draft.tables.links if not set(pair).isdisjoint(keys)]:
            draft.put("links", pair, None)
        for key in keys:
            for table in ("members", "confidences", "pinned", "forbidden", "looks", "images"):
                draft.put(table, key, None)
